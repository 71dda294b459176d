"""Patch filters: what the patch map looks for ("An image is worth 16x16 words", 2020, figure 7, left).

    W - mean of its rows = U S V^T         W (d, c x ph x pw), one row for each number of a token

The rows of V are small pictures; the first of them span most of what the map sees of a patch. The share of variance
that a filter explains is s^2 over the sum of all s^2.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.readout import wide
from vitrail.nn import LinearPatchEmbedding, PatchEmbedding, ViT
from vitrail.weights.patch_map import linear_to_convolution


@dataclass(frozen=True, eq=False)
class PatchFilters:
    """The principal filters of a patch map, strongest first.

    Attributes:
        filters: (m, c, ph, pw), of length 1 and at right angles; the entry of largest size is positive.
        explained: (m,), the share of variance that each explains; all of them together at most 1.
    """

    filters: Float[Tensor, "m c ph pw"]
    explained: Float[Tensor, "m"]


@torch.inference_mode(False)
def patch_filters(network: ViT, count: int = 28) -> PatchFilters:
    """The first filters of the centred singular value decomposition; 28 as in the paper.

    Args:
        network: Whose patch map is a convolution or a linear map of patches.
        count: How many at most.

    Raises:
        UsageError: If the order of a patch's numbers is not known to the patch map.
    """
    with torch.no_grad():
        weight = wide(_as_convolution(network))
        flat = weight.flatten(1)
        _, strengths, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
        variance = strengths.square()
        explained = variance / variance.sum().clamp(min=torch.finfo(variance.dtype).tiny)
        largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
        filters = (directions * largest.sign()).unflatten(1, weight.shape[1:])
    return PatchFilters(filters[:count], explained[:count])


def _as_convolution(network: ViT) -> Float[Tensor, "d c ph pw"]:
    part = network.patch_embed
    if type(part) is PatchEmbedding:
        return part.proj.weight
    if type(part) is LinearPatchEmbedding:
        return linear_to_convolution(part.proj.weight, part.patch_size, part.flattening)
    raise UsageError(
        f"the patch map {type(part).__name__} does not say in which order the numbers of a patch stand",
        "a network with PatchEmbedding or LinearPatchEmbedding",
    )
