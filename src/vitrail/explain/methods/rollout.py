"""Attention rollout: "Quantifying attention flow in transformers" (Abnar and Zuidema, 2020), section 3.

    B_l = 0.5 F_h(A_l) + 0.5 I, each row divided by its sum
    R   = B_L ... B_1               map = readout R

F_h joins the heads: their mean (the paper), maximum or minimum. Half of every token is taken to stay where it is: that
is an assumption about the residual stream, not a measurement. Rollout is class-agnostic.
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import check_choice, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Each, Indices, Join, LayerAttention, Pieces, attention, forward_pass
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT


@torch.no_grad()
def rollout_of(
    layers: Sequence[LayerAttention],
    readout: Float[Tensor, "*b r n"] | None = None,
    *,
    fusion: Join = "mean",
    discard: float = 0.0,
) -> Float[Tensor, "b r n"]:
    """Rows of the rollout R = B_L ... B_1.

    A row times R is cheaper from the left: row B_L, then times B_{L-1}, and so on. No matrix meets another.

    Args:
        layers: First layer first; see `ForwardPass.layers`.
        readout: Rows to propagate, each a mixture of tokens; all of R (the identity) when None.
        fusion: How heads are joined.
        discard: Fraction of the smallest entries of every layer to set to zero.

    Returns:
        (b, r, n); the rows of a readout that sums to 1 sum to 1.

    Raises:
        UsageError: If fusion or discard do not fit.
    """
    check_choice("fusion", fusion, Join)
    rows = layers[-1].start_rows(readout)
    for layer in reversed(layers):
        rows = layer.multiply(rows, partial(mix_with_residual, layer, fusion, discard))
    return rows


def mix_with_residual(layer: LayerAttention, fusion: Join, discard: float, queries: Indices) -> Pieces:
    """B_l, some rows at a time: joined heads and the residual stream, half each, every row divided by its sum."""
    for some, piece in keep_largest(layer, attention, queries, discard, fusion):
        mixed = 0.5 * piece
        mixed[:, range(piece.shape[1]), some] += 0.5
        yield some, mixed / mixed.sum(dim=-1, keepdim=True)


def keep_largest(layer: LayerAttention, each: Each, queries: Indices, discard: float, join: Join = "mean") -> Pieces:
    """`join_heads`, with the smallest entries set to zero; to find them, the joined heads (b, n, n) are held whole."""
    check_option("discard", discard, 0 <= discard < 1, "at least 0 and below 1", 0.0)
    if discard == 0:
        yield from layer.join_heads(each, queries, join=join)
    else:
        whole = torch.cat([piece for _, piece in layer.join_heads(each, join=join)], dim=1)
        entries = whole.flatten(1)
        gone = min(round(discard * entries.shape[1]), entries.shape[1] - 1)
        smallest_kept = entries.kthvalue(gone + 1, dim=1).values[:, None, None]  # what is as large stays, too
        yield queries, (whole * (whole >= smallest_kept))[:, queries]


@explaining
def rollout(
    network: ViT, images: Images, target: Target = None, *, fusion: Join = "mean", discard: float = 0.0
) -> Attribution:
    """Where the readout's information could have come from, through all layers.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What is reported beside the map, see `vitrail.explain.target`; the values do not depend on it, so a
            contrast is refused.
        fusion: How heads are joined: by their "mean", "max" or "min"; the minimum is unstable from one trained network
            to the next.
        discard: Fraction of the smallest entries of every layer to set to zero, at least 0 and below 1.

    Returns:
        A fraction per patch, in [0, 1]. What is missing from a sum of 1 went to prefix tokens.

    Raises:
        UsageError: If the network is in training mode, or if images, target, fusion or discard do not fit.
    """
    forward = forward_pass(network, images, target, "blocks.*.attention")
    rows = rollout_of(forward.layers(), forward.readout[:, None], fusion=fusion, discard=discard)
    return forward.attribution(rows[:, 0], "rollout")
