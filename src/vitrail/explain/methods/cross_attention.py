"""Where the decoder looked for each token that it wrote: the cross-attention of an image-to-sequence network.

    map_i = E_l E_h A_l[h, i - 1, :]        A_l of block l; E_l and E_h are the means over blocks and heads

Row i - 1 of the decoder stands on the token before and gives the logits of token i ("Attention is all you need", 2017,
section 3.2.3), so it is the row that looked for token i. The memory is the patches alone, in reading order, so a row is
a map. It says where the decoder read, not what the encoder had brought there from other patches, and it cannot tell
one token from another: the same row gives the logits of all.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.attribution import NO_SIGNAL, NOT_FINITE, Attribution, caveats
from vitrail.explain.layers import head_among, layer_among
from vitrail.explain.methods.method import Method
from vitrail.explain.readout import check_eval, wide
from vitrail.nn import ImageToSequence, Record


@torch.inference_mode(False)
def cross_attention(
    network: ImageToSequence,
    images: Tensor,
    target: Int[Tensor, "b t"],
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Attribution:
    """The decoder's attention to each patch, for each written token.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: The ids that were written, without begin, filled up with padding: `Generated.tokens`.
        layer: Which block of the decoder, -1 for the last; None for the mean over all.
        head: Which head; None for the mean over all.

    Returns:
        Values (b, t, rows, columns): a fraction of attention per patch; those of a token sum to 1, and are 0 at
        padding.

    Raises:
        UsageError: If the network is in training mode, or if target, layer or head do not fit.
    """
    config = network.config
    depth, heads = config.decoder_depth, config.encoder.heads
    check_eval(network)
    blocks = range(depth) if layer is None else [layer_among(depth, layer, "layer=None for the mean over all")]
    asked = None if head is None else [head_among(heads, head, "head=None for the mean over all heads")]
    if target.ndim != 2 or target.shape[1] == 0:
        raise UsageError(
            f"the target must be ids (b, t), got {tuple(target.shape)}", "generate(network, images).tokens"
        )
    begin = torch.full_like(target[:, :1], config.begin)
    places = [f"decoder.blocks.{index}.cross" for index in blocks]
    record = Record(*[f"{place}.attention" for place in places])
    with torch.no_grad():
        logits = network(images, torch.cat([begin, target[:, :-1]], dim=1), record)
        rows = torch.stack([wide(record.attention(place, asked)).mean(dim=1) for place in places]).mean(dim=0)
        logit = logits.gather(2, target[..., None])[..., 0]
    there = target != config.padding
    grid = network.encoder.grid(images)
    values = (rows * there[..., None]).unflatten(2, grid)
    return Attribution(
        values, target, logit * there, METHOD.name, METHOD.signed, METHOD.class_specific, _notes(values, there)
    )


def _notes(values: Tensor, there: Tensor) -> tuple[tuple[str, ...], ...]:
    """For each image, which of its tokens have a map that is constant or not finite."""
    found = caveats(values.flatten(0, 1))
    notes = []
    for image, shown in enumerate(there.tolist()):
        maps = found[image * len(shown) : (image + 1) * len(shown)]
        numbered = [
            (place, map_[0])
            for place, (map_, is_there) in enumerate(zip(maps, shown, strict=True), start=1)
            if map_ and is_there
        ]
        notes.append(tuple(f"token {place}: {what}" for place, what in numbered if what in (NO_SIGNAL, NOT_FINITE)))
    return tuple(notes)


METHOD = Method(
    function=cross_attention,
    name="cross_attention",
    title="Cross-attention",
    signed=False,
    class_specific=False,
    says="where the decoder attended for each generated token, as the mean over its blocks and heads",
    about=(
        "Cross-attention shows, for one generated token, how the decoder distributed its attention over the patches, "
        "as the mean over all blocks and heads. It shows where the decoder read; what the encoder had moved between "
        "patches before is not included."
    ),
    paper="Attention is all you need (Vaswani et al., 2017), section 3.2.3",
    options={
        "layer": "the decoder's block, from 0, -1 for the last; default: the mean over all",
        "head": "the head, from 0; default: the mean over all",
    },
)
