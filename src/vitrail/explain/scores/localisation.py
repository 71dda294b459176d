"""Scores that hold a map against a mask of where the evidence lies.

    pointing_game       is the largest value inside?                      higher is better
    relevance_mass      the fraction of the positive map that lies inside    higher is better
    relevance_rank      the fraction of the mask that the map's top fills    higher is better
    segmentation        the map as a segmentation of the object           higher is better

They need the truth, and they mask nothing: no fill. Right for the planted images, where the mask is exact; on
photographs a network may be right for reasons that lie outside the object.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.forward import all_finite, exact
from vitrail.nn.twin import wide

Maps = Float[Tensor, "b rows columns"]
Masks = Bool[Tensor, "b rows columns"]


def pointing_game(values: Maps, masks: Masks) -> Float[Tensor, "b"]:
    """Pointing game (Zhang et al., 2016): 1 where the largest value lies inside the mask, else 0.

    Unit: patches. Range: [0, 1]; by chance the fraction of patches that the mask covers. Higher is better. Where
    several patches have the largest value, the fraction of them that lies inside, so that a constant map scores by
    chance. Not a number where the map is not finite.

    Args:
        values: (b, rows, columns).
        masks: Of the same grid, True inside.
    """
    flat, inside = values.flatten(1), masks.flatten(1)
    top = flat == flat.amax(dim=1, keepdim=True)
    return _finite_only(values, (top & inside).sum(dim=1) / top.sum(dim=1))


def relevance_mass(values: Maps, masks: Masks) -> Float[Tensor, "b"]:
    """Relevance mass (Arras, Osman and Samek, 2022), the energy pointing game: positive values inside / all of them.

    Unit: patches; the values' own unit cancels. Range: [0, 1]; a constant map has the fraction that the mask covers.
    Higher is better. Not a number where no value is positive, or the map is not finite.
    """
    positive = wide(values).clamp_min(0).flatten(1)
    return _finite_only(values, (positive * masks.flatten(1)).sum(dim=1) / positive.sum(dim=1))


def relevance_rank(values: Maps, masks: Masks) -> Float[Tensor, "b"]:
    """Relevance rank (Arras, Osman and Samek, 2022): of the m largest values, m the mask's size, the fraction inside.

    Unit: patches. Range: [0, 1]; by chance the fraction of patches that the mask covers. Higher is better. Where values
    are equal at the border of the top m, what a random order among them gives on average. Not a number where the mask
    is empty or the map is not finite.
    """
    flat, inside = values.flatten(1), masks.flatten(1)
    size = inside.sum(dim=1, keepdim=True)
    least = flat.sort(dim=1, descending=True).values.gather(1, (size - 1).clamp_min(0))
    above, equal = flat > least, flat == least
    free = size[:, 0] - above.sum(dim=1)
    hits = (above & inside).sum(dim=1) + free * (equal & inside).sum(dim=1) / equal.sum(dim=1)
    return _finite_only(values, hits / size[:, 0])


@dataclass(frozen=True)
class Segmentation:
    """How well maps segment, over a set of images.

    Attributes:
        pixel_accuracy: Fraction of all pixels that are on the right side of the threshold.
        mean_iou: Mean over inside and outside of intersection / union, each accumulated over the set.
        mean_average_precision: Mean over images of the average precision of [1 - m, m], m the map.
        images: How many images it is of.
        undefined: How many more there were whose map is not finite; these count nowhere.
    """

    pixel_accuracy: float
    mean_iou: float
    mean_average_precision: float
    images: int
    undefined: int


def segmentation(values: Maps, masks: Bool[Tensor, "b h w"]) -> Segmentation:
    """Maps as segmentations, by the protocol of Chefer, Gur and Wolf (CVPR 2021), section 4.

    A map is upsampled bilinearly to the size of the mask, scaled to m in [0, 1] by its least and its largest value
    (a constant map to 0.5), and is inside where m is above its own mean over the image. The average precision is that
    of all pixels twice: as outside, by 1 - m, and as inside, by m.

    Unit: pixels of the mask. Range of all three: [0, 1]. Higher is better.

    Args:
        values: (b, rows, columns).
        masks: (b, h, w), True inside; of the grid of patches or finer.

    Raises:
        UsageError: If there is not one mask for each map.
    """
    if len(values) != len(masks):
        raise UsageError(f"each map needs one mask, got {len(masks)} for {len(values)} maps", "masks of these images")
    kept = all_finite(values)
    maps, truth = wide(values)[kept], masks[kept].flatten(1)
    if not len(maps):
        return Segmentation(torch.nan, torch.nan, torch.nan, 0, len(values))
    if maps.shape[1:] != masks.shape[1:]:
        maps = F.interpolate(maps[:, None], masks.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    flat = maps.flatten(1)
    least, largest = flat.amin(dim=1, keepdim=True), flat.amax(dim=1, keepdim=True)
    fractions = torch.where(largest > least, (flat - least) / (largest - least), 0.5)
    inside = fractions > fractions.mean(dim=1, keepdim=True)
    ratios = []
    for found, true in ((inside, truth), (~inside, ~truth)):
        ratios.append(float((found & true).sum()) / max(1, int((found | true).sum())))
    precisions = [
        average_precision(torch.cat([1 - fraction, fraction]), torch.cat([~true, true]))
        for fraction, true in zip(fractions, truth, strict=True)
    ]
    return Segmentation(
        pixel_accuracy=float(exact(inside == truth).mean()),
        mean_iou=sum(ratios) / 2,
        mean_average_precision=sum(precisions) / len(precisions),
        images=len(maps),
        undefined=len(values) - len(maps),
    )


def average_precision(scores: Float[Tensor, "n"], truth: Bool[Tensor, "n"]) -> float:
    """Average precision: the sum over thresholds of (recall_i - recall_{i-1}) * precision_i.

    Equal scores are one threshold. Range: [0, 1]; by chance the fraction of what is true. Not a number where nothing
    is.
    """
    in_order, order = scores.sort(descending=True)
    hits = exact(truth[order].cumsum(0))
    last = torch.cat([in_order[1:] != in_order[:-1], in_order.new_ones(1, dtype=torch.bool)]).cpu()
    hits, found = hits[last], last.nonzero()[:, 0] + 1
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((gained * hits / found).sum() / hits[-1])


def _finite_only(values: Maps, scores: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    return scores.masked_fill(~all_finite(values), torch.nan)
