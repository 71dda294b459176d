"""Generic attention: "Generic attention-model explainability" (Chefer, Gur and Wolf, ICCV 2021), rules 5 and 6.

    R   <- R + M_l R        M_l = E_h(pos(G_l * A_l)), l from first to last, R = I at the start
    map  = readout (R - I)

G_l = d y / d A_l, y the logit of the target (a probability's gradient shrinks with p (1 - p) and vanishes for a sure
network), E_h the mean over heads, pos(x) = max(x, 0). What each token was at the start is taken out (R - I): with a
class token it stands in the class token's own column, which is not shown, but with mean pooling it would lie on all
patches and hide the rest. The method tells classes apart; it cannot show evidence against a class.

Where heads disagree, the order of pos and E_h matters. The paper's equation 5 and its authors' code clamp each head
before the mean. With `clamp="mean"`, pos(E_h(G_l * A_l)), a head that speaks against the class weakens those that speak
for it; on digits with a known place that pointed no better (tests/explain/test_digits_lab.py has the figures).
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import check_choice
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Indices, LayerAttention, Pieces, attention_x_gradient, forward_pass
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT

Clamp = Literal["head", "mean"]


@torch.no_grad()
def generic_relevance_of(
    layers: Sequence[LayerAttention], readout: Float[Tensor, "*b r n"] | None = None, *, clamp: Clamp = "head"
) -> Float[Tensor, "b r n"]:
    """Rows of R - I, where R = (I + M_L) ... (I + M_1).

    A row is made from the last layer to the first. The identity is left out on the way, not subtracted at the end, so
    that small relevance keeps its digits.

    Args:
        layers: First layer first, with gradients; see `ForwardPass.layers`.
        readout: Rows to propagate, each a mixture of tokens; all of R - I when None.
        clamp: What is cut at zero: each head before the mean, or the mean over heads.

    Returns:
        (b, r, n), at least 0 when the readout is.

    Raises:
        UsageError: If clamp does not fit.
    """
    check_choice("clamp", clamp, Clamp)
    start = layers[-1].start_rows(readout)
    relevance = torch.zeros_like(start)
    for layer in reversed(layers):
        rows = start + relevance
        relevance = relevance + layer.multiply(rows, partial(relevance_of_layer, layer, clamp))
    return relevance


def relevance_of_layer(layer: LayerAttention, clamp: Clamp, queries: Indices) -> Pieces:
    """M_l = E_h(pos(G_l * A_l)), some rows at a time; pos(E_h(G_l * A_l)) with clamp="mean"."""

    def each(layer: LayerAttention, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        found = attention_x_gradient(layer, heads, queries)
        return found.clamp(min=0) if clamp == "head" else found

    for some, piece in layer.join_heads(each, queries):
        yield some, piece.clamp(min=0)  # which changes nothing where each head was clamped


@explaining
def generic_attention(network: ViT, images: Images, target: Target = None, *, clamp: Clamp = "head") -> Attribution:
    """Attention that raises the target's logit, gathered through all layers.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        clamp: What is cut at zero: each head before the mean (the paper), or the mean over heads.

    Returns:
        A number of at least 0 per patch; how much the logit reacts to attention that comes from there.

    Raises:
        UsageError: If the network is in training mode, or if images, target or clamp do not fit.
    """
    forward = forward_pass(network, images, target, "blocks.*.attention", gradients=True)
    rows = generic_relevance_of(forward.layers(gradients=True), forward.readout[:, None], clamp=clamp)
    return forward.attribution(rows[:, 0], "generic_attention")
