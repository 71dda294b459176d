"""Scores of whether a method depends on what it explains: on the weights, on the class, on tiny changes.

    mprt                    maps of a network whose weights were re-drawn      near 0 is good
    class_discrimination    of two objects, does each class get its own?       higher is better; class-agnostic: 0.5
    similarity              maps of one image for two classes                lower is better;  class-agnostic: 1
    max_sensitivity         maps of an image that was changed a little        lower is better

Each is necessary, none is sufficient: a constant map is perfectly insensitive, and noise depends on the weights.
They mask nothing: no fill.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import all_finite
from vitrail.explain.scores.faithfulness import twice_ranks
from vitrail.explain.scores.perturb import stream
from vitrail.explain.target import Contrast, Target
from vitrail.nn import ViT
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images

Maps = Float[Tensor, "b rows columns"]
Explain = Callable[[ViT, Images, Target], Attribution]


class Similarity(NamedTuple):
    """Spearman's rank correlation between maps, (b,) each: of the values, and of their sizes without the sign."""

    signed: Float[Tensor, "b"]
    absolute: Float[Tensor, "b"]


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
    drawn = method(scrambled(network, seed), images, same_target(learnt, target))
    return similarity(learnt.values, drawn.values)


def scrambled(network: ViT, seed: int) -> ViT:
    """A network of the same configuration and parts whose weights are drawn anew, as before training.

    The heads, which a fresh ViT has at zero, are drawn too (Xavier uniform): all gradients would be zero otherwise, and
    a map of zeros is like no other map. Torch's own random state is not touched.
    """
    device = next(network.parameters()).device
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # of the CPU alone: torch.manual_seed seeds every device
        other = ViT(network.config, network.parts)
        for head in (other.head, other.head_dist):
            for parameter in () if head is None else head.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
    return other.to(device=device, dtype=next(network.parameters()).dtype).train(network.training)


def same_target(attribution: Attribution, target: Target) -> Target:
    """What an attribution explains, for another network or image: `None` becomes the class it chose."""
    if target is not None:
        return target
    return attribution.target if attribution.contrast is None else Contrast(attribution.target, attribution.contrast)


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


def max_sensitivity(
    network: ViT,
    images: Images,
    method: Explain,
    *,
    target: Target = None,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
) -> Float[Tensor, "b"]:
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


def spearman(one: Float[Tensor, "b p"], two: Float[Tensor, "b p"]) -> Float[Tensor, "b"]:
    """Spearman's rank correlation of each row: Pearson's of the ranks, where equal values share the mean rank.

    Not a number where a row is constant or not finite.
    """
    first, second = (twice_ranks(rows.cpu()).double() / 2 - rows.shape[1] / 2 for rows in (one, two))
    size = first.norm(dim=1) * second.norm(dim=1)
    found = (first * second).sum(dim=1) / size
    finite = (all_finite(one) & all_finite(two)).cpu()
    return found.masked_fill(~finite | (size == 0), torch.nan).to(wide(one))
