"""TAM: "Explaining information flow inside vision transformers using Markov chain" (Yuan et al., 2021).

    s   = readout E_h A_L,  then for l = L - 1, ..., l0:   s <- s + s E_h A_l
    W   = readout E_h pos((1 / m) sum over t = 1/m, ..., m/m of  d y(t x) / d A_L)
    map = s W

A walk along the attention back to the input, each patch weighted by the gradient of the last attention, which is
integrated from a black image x = 0 (the mean colour, for a normalised image) to the image. The paper and its code
differentiate the probability; here y is the logit of the target, as everywhere, because a probability's gradient
vanishes for a sure network. (A target such as `lambda logits: logits.softmax(1)[:, 3]` explains the probability.) Only
the last layer's gradient is used.
"""

from collections.abc import Sequence
from functools import partial, reduce

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import check_count
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import (
    ForwardPass,
    Indices,
    LayerAttention,
    attention,
    check_explainable,
    forward_pass,
    layer_index,
)
from vitrail.explain.target import Target, refuse_constant
from vitrail.nn import Record
from vitrail.nn.vit import Images, ViT


@explaining
def tam(
    network: ViT, images: Images, target: Target = None, *, steps: int = 20, first_layer: int | None = None
) -> Attribution:
    """Attention walked back from the readout, times the integrated gradient of the last attention.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        steps: Into how many steps the way from the black image is cut, m; 1 takes the gradient at the image alone.
        first_layer: Block at which the walk ends, l0, counted from 0; None for a third of the depth (4 of 12, as in
            the authors' code).

    Returns:
        A number of at least 0 per patch.

    Raises:
        UsageError: If the network is in training mode, or if images, target, steps or first_layer do not fit.
    """
    check_count("steps", steps, 20)
    forward = forward_pass(network, images, target, "blocks.*.attention")
    depth = forward.vit.config.depth
    first = depth // 3 if first_layer is None else layer_index(depth, first_layer, "first_layer")
    *before, last = forward.layers()
    states = last.read_row(attention, forward.readout)
    for layer in reversed(before[first:]):
        states = states + layer.through(states[:, None], attention)[:, 0]
    check_explainable(network, images, gradients=True)
    runs = [last_layer_at(forward, (step + 1) / steps) for step in range(steps)]
    weights = last.read_row(partial(mean_gradient, runs), forward.readout)
    return forward.attribution(states * weights, "tam")


def mean_gradient(
    runs: Sequence[LayerAttention], _: LayerAttention, heads: Indices, queries: Indices
) -> Float[Tensor, "b h q n"]:
    """pos of the last attention's mean gradient over some runs, for `read_row`."""
    return (reduce(torch.add, (run.gradient(heads, queries) for run in runs)) / len(runs)).clamp(min=0)


def last_layer_at(forward: ForwardPass, scale: float) -> LayerAttention:
    """The last attention with its gradient, for the image times `scale`."""
    network, last = forward.vit, forward.vit.config.depth - 1
    place = f"blocks.{last}"
    record = Record(f"{place}.attention", gradients=True)
    with torch.no_grad():
        turn = network.rotation(forward.grid)
        tokens = network.run_blocks(network.embed(forward.pixels * scale), stop=last, rotation=turn)
    with torch.enable_grad():
        tokens = network.run_blocks(tokens.detach().requires_grad_(), record, first=last, rotation=turn)
        logits = network.readout(tokens)
        number = forward.chosen(logits).sum()  # images do not mix: each gets its own
    refuse_constant(number)
    return LayerAttention(record.kept(place), record.attended_gradient(number)[place])
