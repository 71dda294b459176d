"""Cross-attention: "Attention is all you need" (Vaswani et al., 2017), section 3.2.3, of an image-to-sequence network.

Where the decoder looked for each token that it wrote:

    map_i = E_l E_h A_l[h, i - 1, :]        A_l of block l; E_l and E_h are the means over blocks and heads

Row i - 1 of the decoder stands on the token before and gives the logits of token i, so it is the row that looked for
token i. The memory is the patches alone, in reading order, so a row is a map. It shows where the decoder read, not what
the encoder had brought there from other patches, and it cannot tell one token from another: the same row gives the
logits of all.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution, caveats, explaining
from vitrail.explain.forward import check_eval, chosen_heads, layer_index
from vitrail.explain.methods.table import METHODS_OF_TEXTS
from vitrail.nn import ImageToSequence, Record
from vitrail.nn.twin import wide


@explaining
def cross_attention(
    network: ImageToSequence,
    images: Tensor,
    target: Int[Tensor, "b t"],
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Attribution:
    """The decoder's attention to each patch, for each generated token.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: The generated ids, without `bos_id`, filled up with padding: `Generated.tokens`.
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
    blocks = range(depth) if layer is None else [layer_index(depth, layer)]
    chosen = chosen_heads(heads, head)
    if target.ndim != 2 or target.shape[1] == 0:
        raise UsageError(
            f"the target must be ids of shape (b, t), got {tuple(target.shape)}", "generate(network, images).tokens"
        )
    begin = torch.full_like(target[:, :1], config.bos_id)
    places = [f"decoder.blocks.{index}.cross" for index in blocks]
    record = Record(*[f"{place}.attention" for place in places])
    with torch.no_grad():
        logits = network(images, torch.cat([begin, target[:, :-1]], dim=1), record)
        rows = torch.stack([wide(record.attention(place, chosen)).mean(dim=1) for place in places]).mean(dim=0)
        logit = logits.gather(2, target[..., None])[..., 0]
    there = target != config.pad_id
    grid = network.encoder.grid(images)
    values = (rows * there[..., None]).unflatten(2, grid)
    row, size = METHODS_OF_TEXTS["cross_attention"], (images.shape[2], images.shape[3])
    notes = _notes(values, there)
    return Attribution(values, target, logit * there, row.name, row.signed, row.class_specific, notes, size=size)


def _notes(values: Tensor, there: Tensor) -> tuple[tuple[str, ...], ...]:
    """For each image, which of its tokens have a map that is constant or not finite."""
    notes = []
    for maps, shown in zip(values, there.tolist(), strict=True):
        tokens = enumerate(zip(caveats(maps), shown, strict=True), start=1)
        notes.append(tuple(f"token {index}: {found[0]}" for index, (found, is_there) in tokens if found and is_there))
    return tuple(notes)
