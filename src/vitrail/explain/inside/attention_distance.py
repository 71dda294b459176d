"""Mean attention distance: how far heads look, in pixels ("An image is worth 16x16 words", 2020, figures 7 and 11).

    d_lh = mean_i sum_j A'_lh[i, j] |p_i - p_j|

i and j are patches, p their centres, and A' the weights among patches, each row divided by its sum. A head that looks
everywhere alike is not at zero and not at the image's width, so a plot needs that line: `uniform_distance`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.inside.reading import read
from vitrail.explain.readout import wide
from vitrail.nn import Record, ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

NUMBERS_AT_ONCE = 2**24  # attention weights made at a time


@dataclass(frozen=True, eq=False)
class AttentionDistance:
    """How far every head looks.

    Attributes:
        pixels: (layers, heads, b), in pixels, for each image.
        uniform: The distance of a head that looks at all patches alike, in pixels: the line to draw.
    """

    pixels: Float[Tensor, "l k b"]
    uniform: float


@torch.inference_mode(False)
def attention_distance(network: ViT, images: Images) -> AttentionDistance:
    """The mean distance between the patch that asks and those it looks at, for each layer and head.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.

    Raises:
        UsageError: If the network is in training mode or an attention leaves no weights, or if the images do not fit.
    """
    grid, patch = network.grid(images), network.config.patch
    record = read(network, images, "blocks.*.attention")
    between = distances(grid, patch)
    prefix = network.config.prefix
    row = max(1, len(images)) * network.config.heads * (prefix + len(between))
    at_once = max(1, NUMBERS_AT_ONCE // row)
    layers = [_of_layer(record, place, prefix, between, at_once) for place in record.attentions()]
    return AttentionDistance(torch.stack(layers), uniform_distance(grid, patch))


def distances(grid: Size, patch: Size) -> Float[Tensor, "p p"]:
    """Between the centres of all patches, in pixels, float64."""
    rows, columns = (
        torch.arange(count, dtype=torch.float64, device="cpu") * side for count, side in zip(grid, patch, strict=True)
    )
    centres = torch.cartesian_prod(rows, columns)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def uniform_distance(grid: Size, patch: Size) -> float:
    """The mean distance from a patch to all patches, itself included, in pixels.

    Args:
        grid: (rows, columns) of patches.
        patch: (height, width) of a patch in pixels.
    """
    return float(distances(grid, patch).mean())


def _of_layer(
    record: Record, place: str, prefix: int, between: Float[Tensor, "p p"], at_once: int
) -> Float[Tensor, "k b"]:
    """One layer, for some rows of weights at a time; a row that sees no patch at all counts as distance 0."""
    sums = []
    for rows in torch.arange(len(between), device="cpu").split(at_once):
        with torch.no_grad():
            weights = wide(record.attention(place, None, (rows + prefix).tolist())[..., prefix:])
            fractions = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
            sums.append((fractions * between[rows].to(weights)).sum(dim=(2, 3)))
    return torch.stack(sums).sum(dim=0).T / len(between)
