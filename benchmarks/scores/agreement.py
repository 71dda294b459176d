"""Scores that hold a map against a mask of where the evidence lies, or against another map; they mask nothing: no fill.

    pointing_game           is the largest value inside the mask?              higher is better
    relevance_mass          the fraction of the positive map that lies inside  higher is better
    relevance_rank          the fraction of the mask that the map's top fills  higher is better
    segmentation            the map as a segmentation of the object            higher is better
    class_discrimination    of two objects, does each class get its own?       higher is better; class-agnostic: 0.5

These need the truth. They are right for planted images, where the mask is exact; on photographs a network may be right
for reasons that lie outside the object. The others ask whether a map depends on the weights, the class, the image:

    mprt                    maps of a network whose weights were re-drawn      near 0 is good
    similarity              maps of one image for two classes                  lower is better; class-agnostic: 1
    max_sensitivity         maps of an image that was changed a little         lower is better

Each is necessary, none is sufficient: a constant map is perfectly insensitive, and noise depends on the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import all_finite, to_float64
from vitrail.explain.sanity_check import scramble, spearman
from vitrail.explain.scores.perturb import stream
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images
from vitrail.tasks.target import Contrast

Maps = Float[Tensor, "b rows columns"]
Masks = Bool[Tensor, "b rows columns"]
Explain = Callable[[ViT, Images, Target], Attribution]


# ---- against a mask


def pointing_game(values: Maps, masks: Masks) -> Float[Tensor, " b"]:
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


def relevance_mass(values: Maps, masks: Masks) -> Float[Tensor, " b"]:
    """Relevance mass (Arras, Osman and Samek, 2022), the energy pointing game: positive values inside / all of them.

    Unit: patches; the values' own unit cancels. Range: [0, 1]; a constant map has the fraction that the mask covers.
    Higher is better. Not a number where no value is positive, or the map is not finite.
    """
    positive = wide(values).clamp_min(0).flatten(1)
    return _finite_only(values, (positive * masks.flatten(1)).sum(dim=1) / positive.sum(dim=1))


def relevance_rank(values: Maps, masks: Masks) -> Float[Tensor, " b"]:
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
        pixel_accuracy=float(to_float64(inside == truth).mean()),
        mean_iou=sum(ratios) / 2,
        mean_average_precision=sum(precisions) / len(precisions),
        images=len(maps),
        undefined=len(values) - len(maps),
    )


def average_precision(scores: Float[Tensor, " n"], truth: Bool[Tensor, " n"]) -> float:
    """Average precision: the sum over thresholds of (recall_i - recall_{i-1}) * precision_i.

    Equal scores are one threshold. Range: [0, 1]; by chance the fraction of what is true. Not a number where nothing
    is.
    """
    in_order, order = scores.sort(descending=True)
    hits = to_float64(truth[order].cumsum(0))
    last = torch.cat([in_order[1:] != in_order[:-1], in_order.new_ones(1, dtype=torch.bool)]).cpu()
    hits, found = hits[last], last.nonzero()[:, 0] + 1
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((gained * hits / found).sum() / hits[-1])


def class_discrimination(one: Maps, two: Maps, masks: Bool[Tensor, "b 2 rows columns"]) -> Float[Tensor, "b 2"]:
    """In an image with two objects: does each class's map give more to its own object than to the other?

        score_i = 1 if sum of map_i inside object i > sum of map_i inside the other, 0 if less, 0.5 if equal

    Unit: patches. Range: {0, 0.5, 1}. Higher is better. The sum is of the values as they are: what speaks against a
    class counts against its object. A class-agnostic method gives the same map twice, so the mean over
    any images is exactly 0.5. Both right: `score.amin(dim=1) == 1`. Not a number where a map is not finite.

    Args:
        one: Maps for the class of the first object.
        two: Maps for the class of the second.
        masks: (b, 2, rows, columns), where the first and the second object lie, of equal size.
    """
    maps = wide(torch.stack([one, two], dim=1))
    own, other = ((maps * mask).sum(dim=(2, 3)) for mask in (masks, masks.flip(1)))
    score = ((own > other).to(maps) + (own >= other).to(maps)) / 2
    return score.masked_fill(~(own.isfinite() & other.isfinite()), torch.nan)


def _finite_only(values: Maps, scores: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    return scores.masked_fill(~all_finite(values), torch.nan)


# ---- against another map


class Similarity(NamedTuple):
    """Spearman's rank correlation between maps, (b,) each: of the values, and of their sizes without the sign."""

    signed: Float[Tensor, " b"]
    absolute: Float[Tensor, " b"]


def mprt(network: ViT, images: Images, method: Explain, seed: int = 0, target: Target = None) -> Similarity:
    """Model parameter randomisation test (Adebayo et al., 2018), all weights at once.

        score = Spearman( map of the network, map of the same network with re-drawn weights )

    for the same class of the same image. Unit: patches. Range: [-1, 1]. Near 0 is good; 1 means that the map does not
    depend on what was learnt. The absolute one is the size's: a map may turn its sign and still show the same places.
    Not a number where a map is constant. It is passed by any map of noise, so it is necessary and not sufficient.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w).
        method: `method(network, images, target) -> Attribution`.
        seed: Of the new weights.
        target: What is explained; `None` for the top class of the trained network, in both maps.
    """
    learnt = method(network, images, target)
    drawn = method(scramble(network, seed), images, same_target(learnt, target))
    return similarity(learnt.values, drawn.values)


def same_target(attribution: Attribution, target: Target) -> Target:
    """What an attribution explains, for another network or image: `None` becomes the class it chose."""
    if target is not None:
        return target
    return attribution.target if attribution.contrast is None else Contrast(attribution.target, attribution.contrast)


def max_sensitivity(
    network: ViT,
    images: Images,
    method: Explain,
    *,
    target: Target = None,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
) -> Float[Tensor, " b"]:
    """Max-sensitivity (Yeh et al., 2019), as captum defines it: how much can a map change when an image hardly does?

        score = max over d of || map(image + d) - map(image) || / || map(image) ||     d uniform within the radius

    Euclidean norms over the patches; a zero map is divided by 1, as in captum. Unit: noise per pixel, in the network's
    own units, after normalisation. Range: 0 and more. Lower is better, but a constant map has 0.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w).
        method: `method(network, images, target) -> Attribution`.
        target: What is explained; `None` for the top class of the unchanged image, in all maps.
        radius: Of the noise.
        samples: How many d are tried.
        seed: Of the noise, which is the same for every image of every batch.

    Raises:
        UsageError: If the radius is not above 0 or there is no sample.
    """
    if radius <= 0 or samples < 1:
        raise UsageError(
            f"max-sensitivity needs a radius above 0 and at least 1 sample, got {radius} and {samples}",
            "radius=0.02, samples=10",
        )
    attribution = method(network, images, target)
    wanted, still = same_target(attribution, target), wide(attribution.values).flatten(1)
    generator = stream(seed, "max-sensitivity")
    worst = still.new_zeros(len(still))
    for _ in range(samples):
        drawn = torch.rand(images.shape[1:], generator=generator, dtype=torch.float64, device="cpu")
        noise = radius * (2 * drawn - 1)
        moved = wide(method(network, images + noise.to(images), wanted).values).flatten(1)
        worst = torch.maximum(worst, (moved - still).norm(dim=1))
    size = still.norm(dim=1)
    return worst / torch.where(size == 0, torch.ones_like(size), size)


def similarity(one: Maps, two: Maps) -> Similarity:
    """Spearman's rank correlation between maps, of their values and of their absolute values.

    Between the maps of one image for two classes: unit patches, range [-1, 1], lower is better; a class-agnostic
    method has 1. Not a number where a map is constant.
    """
    return Similarity(spearman(one.flatten(1), two.flatten(1)), spearman(one.abs().flatten(1), two.abs().flatten(1)))
