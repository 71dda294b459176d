"""Attention rollout: "Quantifying attention flow in transformers" (Abnar and Zuidema, 2020), section 3.

    B_l = 0.5 F_h(A_l) + 0.5 I, each row divided by its sum
    R   = B_L ... B_1               map = readout R

F_h joins the heads: their mean (the paper), maximum or minimum. Half of every token is taken to stay where it is: that
is an assumption about the residual stream, not a measurement. Rollout cannot tell classes apart.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError, nearest
from vitrail.explain.heat import Heat
from vitrail.explain.readout import AttentionLayers, open_run, wide, without_autocast
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images

Fusion = Literal["mean", "max", "min"]


@torch.inference_mode(False)
def rollout(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
) -> Heat:
    """Where the readout's information could have come from, through all layers.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What is reported beside the map, see `vitrail.explain.target`; the values do not depend on it, so a
            contrast is refused.
        fusion: How heads are joined. The minimum is unstable from one trained network to the next.
        discard: Share of the smallest entries of every layer to set to zero, at least 0 and below 1.

    Returns:
        A share per patch, in [0, 1]. What is missing from a sum of 1 went to prefix tokens.

    Raises:
        UsageError: If the network is in training mode, or if images, target, fusion or discard do not fit.
    """
    _check(fusion, discard)
    opened = open_run(network, images, target, "blocks.*.attention", blind="rollout")
    layers = AttentionLayers(opened.record)
    rows = rollout_of(layers, opened.readout[None], fusion=fusion, discard=discard)
    return opened.heat(rows[:, 0], "rollout", signed=False, class_specific=False)


@torch.no_grad()
def rollout_of(
    attentions: Sequence[Float[Tensor, "b k n n"]],
    readout: Float[Tensor, "r n"] | None = None,
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
) -> Float[Tensor, "b r n"]:
    """Rows of the rollout R = B_L ... B_1 of given attention weights.

    A row times R is cheaper from the left: row B_L, then times B_{L-1}, and so on. No matrix meets another.

    Args:
        attentions: Of each layer, first layer first.
        readout: Rows to propagate, each a mixture of tokens; all of R (the identity) when None.
        fusion: How heads are joined.
        discard: Share of the smallest entries of every layer to set to zero.

    Returns:
        (b, r, n); the rows of a readout that sums to 1 sum to 1.

    Raises:
        UsageError: If there is no layer, or if fusion or discard do not fit.
    """
    _check(fusion, discard)
    if not attentions:
        raise UsageError("rollout of no layers", "the attention weights of at least one layer")
    last = wide(attentions[-1])
    rows = torch.eye(last.shape[-1]).to(last) if readout is None else readout.to(last)
    rows = rows.expand(last.shape[0], -1, -1)
    for attention in reversed(attentions):
        with without_autocast(rows):
            rows = rows @ mixing(wide(attention), fusion, discard)
    return rows


def mixing(
    attention: Float[Tensor, "b k n n"], fusion: Fusion = "mean", discard: float = 0.0
) -> Float[Tensor, "b n n"]:
    """B_l: joined heads and the residual stream, half each, every row divided by its sum."""
    match fusion:
        case "mean":
            joined = attention.mean(dim=1)
        case "max":
            joined = attention.amax(dim=1)
        case "min":
            joined = attention.amin(dim=1)
    joined = without_smallest(joined, discard)
    mixed = 0.5 * joined + 0.5 * torch.eye(joined.shape[-1]).to(joined)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def without_smallest(joined: Float[Tensor, "b n n"], share: float) -> Float[Tensor, "b n n"]:
    """Set the smallest entries of each picture to zero; entries as large as the smallest that stays stay too."""
    entries = joined.flatten(1)
    gone = min(round(share * entries.shape[1]), entries.shape[1] - 1)
    smallest_kept = entries.sort(dim=1).values[:, gone, None, None]
    return joined * (joined >= smallest_kept)


def _check(fusion: str, discard: float) -> None:
    if fusion not in get_args(Fusion):
        guess = nearest(fusion, get_args(Fusion)) or "mean"
        raise UsageError(f"fusion must be one of {', '.join(get_args(Fusion))}, got {fusion!r}", f"fusion={guess!r}")
    if not 0 <= discard < 1:
        raise UsageError(f"discard must be at least 0 and below 1, got {discard}", "discard=0.0 to keep every entry")
