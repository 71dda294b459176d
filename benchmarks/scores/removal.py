"""Scores that mask what a map names, and see what becomes of the prediction.

    deletion        mask the largest values first; area under the curve        lower is better   (RISE, 2018)
    insertion       show the largest values first; area under the curve         higher is better  (RISE, 2018)
    perturbation    mask 10 to 90 % of the pixels; is the class still first?   (Chefer, Gur and Wolf, CVPR 2021)
    aopc            mask the largest values first; mean drop                   higher is better  (Samek et al., 2017)
    saco            mask one group after the other; does more mean more?       higher is better  (Wu et al., 2024)

A value of these alone means little: how much can be gained depends on the image, the network and the fill. Hold it
against that of random maps and of the truth, `normalised`. All take the same, and refuse it with a UsageError where
anything does not fit or the network is in training mode:

    network     in eval mode; gives logits
    images      (b, c, h, w), as the network reads them
    values      the maps, (b, rows, columns); their grid must divide the images
    target      what was explained, see `vitrail.explain.target`; the map's own target, not None, of a map made for it
    masking     the fill, the draws, and what is measured

Patches have *ranks*, 0 for the largest value, and a *span* of ranks is masked:

    (0, k)      the k largest are hidden: deletion, positive perturbation, AOPC
    (k, P)      only the k largest are shown: insertion
    (P - k, P)  the k smallest are hidden: negative perturbation
    (i, j)      one group is hidden: SaCo
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError, check_choice, check_count, check_option
from vitrail.explain.forward import all_finite, to_float64
from vitrail.explain.scores.perturb import Fill, Images, compute_logits, keys_of, measure_masked, ranks_of
from vitrail.explain.target import Target, choose_target
from vitrail.nn.twin import wide
from vitrail.tasks.target import ChosenTarget, rank_of

Maps = Float[Tensor, "b rows columns"]
OfPatches = Literal["probability", "logit"]  # what is measured with patches masked
OfAny = OfPatches | Literal["top-1"]
Unit = Literal["patch", "pixel"]  # what is masked
First = Literal["most", "least"]  # relevant pixels
TENTHS = tuple(range(1, 10))  # of the pixels, Chefer et al.


@final
@dataclass(frozen=True, eq=False)
class TopOne(ChosenTarget):
    """Whether the class is the highest: what is measured with pixels masked."""

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """1 where it is, else 0."""
        return (rank_of(outputs, self.target) == 0).to(outputs)


@dataclass(frozen=True, eq=False)
class Masking:
    """How patches are masked, and what is measured.

    Attributes:
        fill: What stands in masked patches.
        draws: Over how many fills a score is averaged; a fill in which nothing is drawn has one.
        seed: Of the fills, and of the order of patches with equal values.
        measure: "probability" of the explained class (of a contrast: of the first class among the two), or "logit", the
            explained number itself.
        batch_size: How many masked images go through the network at a time.

    Raises:
        UsageError: If draws or batch size are below 1, or there is no such measure.
    """

    fill: Fill
    draws: int = 10
    seed: int = 0
    measure: OfPatches = "probability"
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_count("draws", self.draws, 10)
        check_count("batch_size", self.batch_size, 64)
        check_choice("measure", self.measure, OfPatches)


@dataclass(frozen=True, eq=False)
class Removal:
    """A score by masking, one for each image, and all that it depends on.

    Attributes:
        metric: "deletion", "insertion", "positive perturbation", "negative perturbation", "aopc" or "saco".
        score: (b,); not a number where the map is not finite, or where the definition gives none.
        points: (b, s), what was measured at each step, averaged over the draws; for SaCo the drop that masking each
            group makes, the group with the largest values first.
        fractions: (s,), the fraction of patches or pixels that is masked at each step (shown, for insertion; in the
            group, for SaCo).
        fill: Name of what stood in masked patches.
        unit: What is masked.
        measure: What is measured of the explained class.
        draws: How many fillers each point is the mean of.
        better: Which direction is good.
    """

    metric: str
    score: Float[Tensor, " b"]
    points: Float[Tensor, "b s"]
    fractions: Float[Tensor, " s"]
    fill: str
    unit: Unit
    measure: OfAny
    draws: int
    better: Literal["higher", "lower"]


def deletion(
    network: nn.Module, images: Images, values: Maps, target: Target, masking: Masking, *, steps: int | None = None
) -> Removal:
    """Deletion: how fast the explained number falls when the most relevant patches are masked first.

        curve(k / P) = E_draws f(image with its k largest patches masked)      score = integral over [0, 1]

    Unit: patches. Measured: probability or logit, see `Masking`. Range: [0, 1] for probabilities. Lower is better.
    Patches of equal value come in random order, another for each draw.

    `steps`: into how many steps [0, 1] is cut; None masks one patch after the other.
    """
    return _curve("deletion", network, images, values, target, masking, steps)


def insertion(
    network: nn.Module, images: Images, values: Maps, target: Target, masking: Masking, *, steps: int | None = None
) -> Removal:
    """Insertion: how fast the explained number rises when the most relevant patches are shown first.

        curve(k / P) = E_draws f(filler in which the k largest patches are shown)      score = integral over [0, 1]

    Unit: patches. Measured: probability or logit. Range: [0, 1] for probabilities. Higher is better. `steps` as of
    `deletion`. (RISE starts from a blurred image: `blur`.)
    """
    return _curve("insertion", network, images, values, target, masking, steps)


def perturbation(
    network: nn.Module,
    images: Images,
    values: Maps,
    target: Target,
    masking: Masking,
    *,
    first: First = "most",
) -> Removal:
    """Positive and negative perturbation of Chefer et al.: is the explained class still the first?

        points_t = fraction of draws in which the explained class has the largest logit when t tenths of the pixels are
                   masked, t = 1..9                  score = trapezoid over the nine points, 0.1 to 0.9

    Unit: pixels of the bilinearly upsampled map (rounded down to whole pixels). Measured: top-1, whatever `masking`
    says. Range: [0, 0.8]. The mean over images of `points` is the accuracy; with the predicted class as target it
    starts at 1. Chefer et al. mask with black, before normalisation: `grey(normalise(0.0), "black")`.

    `first`: "most" masks the most relevant pixels first, the positive perturbation, lower is better; "least" the least
    relevant, the negative one, higher is better. The target is a class for each image, and no function; of a
    contrast, the first class counts.
    """
    check_choice("first", first, First)
    total = images.shape[2] * images.shape[3]
    counts = [total * tenth // 10 for tenth in TENTHS]
    spans = [(0, count) if first == "most" else (total - count, total) for count in counts]
    sign, fractions = ("positive" if first == "most" else "negative"), [count / total for count in counts]
    found = _measured(f"{sign} perturbation", network, images, values, target, masking, spans, fractions, "pixel")
    return replace(found, score=torch.trapezoid(found.points, found.points.new_tensor(TENTHS) / 10))


def aopc(
    network: nn.Module, images: Images, values: Maps, target: Target, masking: Masking, *, steps: int | None = None
) -> Removal:
    """AOPC, the area over the perturbation curve: the mean drop when the most relevant patches are masked first.

        score = 1 / (K + 1) * sum over k = 0..K of f(image) - E_draws f(image with its k largest patches masked)

    Unit: patches, one at each step. Measured: probability or logit. Range: [-1, 1] for probabilities. Higher is better.

    `steps`: K, at most the number of patches; None for all of them.
    """
    patches = values[0].numel()
    last = patches if steps is None else steps
    check_option("steps", last, 1 <= last <= patches, f"1 to {patches} patches, or None for all", None)
    spans = [(0, count) for count in range(last + 1)]
    fractions = [count / patches for count in range(last + 1)]
    found = _measured("aopc", network, images, values, target, masking, spans, fractions)
    return replace(found, score=(found.points[:, :1] - found.points).mean(dim=1))


def normalised(
    score: Float[Tensor, "*s"], random: Float[Tensor, "*s"], oracle: Float[Tensor, "*s"]
) -> Float[Tensor, "*s"]:
    """A score on the scale on which random maps have 0 and the truth has 1, whichever direction is better.

    Take means over images first: for a single image the truth and a random map may score alike.
    """
    return (score - random) / (oracle - random)


def _curve(
    metric: Literal["deletion", "insertion"],
    network: nn.Module,
    images: Images,
    values: Maps,
    target: Target,
    masking: Masking,
    steps: int | None,
) -> Removal:
    patches = values[0].numel()
    check_option("steps", steps, steps is None or steps >= 1, f"at least 1, or None for all {patches} patches", None)
    cut = min(steps or patches, patches)
    counts = [round(patches * index / cut) for index in range(cut + 1)]
    spans = [(0, count) if metric == "deletion" else (count, patches) for count in counts]
    fractions = [count / patches for count in counts]
    return _measured(metric, network, images, values, target, masking, spans, fractions)


def _measured(
    metric: str,
    network: nn.Module,
    images: Images,
    values: Maps,
    target: Target,
    masking: Masking,
    spans: Sequence[tuple[int, int]],
    fractions: Sequence[float],
    unit: Unit = "patch",
) -> Removal:
    """Check the input of a score, choose the target, and measure with each span of ranks masked.

    Args:
        metric: Of what score.
        network: As of all scores.
        images: As of all scores.
        values: As of all scores.
        target: `None` is the top class of each image.
        masking: The measure of pixels is top-1, whatever it says.
        spans: Which ranks are masked at each step.
        fractions: What part of all that is, or of what is shown.
        unit: Pixels have the ranks of the upsampled map.

    Returns:
        All that the score depends on; the score is the area under the points.
    """
    if len(images) != len(values):
        raise UsageError(
            f"each image needs one map, got {len(values)} maps for {len(images)} images",
            "attribution.values of the same images",
        )
    (height, width), (rows, columns) = images.shape[2:], values.shape[1:]
    if height % rows or width % columns:
        raise UsageError(
            f"maps of {rows}x{columns} do not divide images of {height}x{width} pixels",
            "attribution.values of the same images",
        )
    measure: OfAny = masking.measure if unit == "patch" else "top-1"
    logits = compute_logits(network, len(images), images.__getitem__, masking.batch_size)
    chosen = choose_target(logits, target)
    if measure != "logit" and not chosen.has_probability:
        raise UsageError("a function of the logits, or a network's only output, has no probability", "measure='logit'")
    patch, parts = (height // rows, width // columns), [slice(None)]
    read: OfPatches = masking.measure
    if unit == "pixel":  # the ranks of all pixels in all draws are many: one image at a time
        patch, parts = (1, 1), [slice(index, index + 1) for index in range(len(images))]
        chosen, read = TopOne(chosen.target), "logit"
        values = F.interpolate(wide(values)[:, None], images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    measured, draws = [], 0
    for one in parts:
        filled = masking.fill.make(images[one], patch, masking.draws, masking.seed)[:, None]
        draws = len(filled)
        ranks = ranks_of(values[one], draws, masking.seed, keys_of(images[one]))[:, None]  # m 1 b rows columns
        low, high = torch.tensor(spans, device=ranks.device).T[..., None, None, None]  # s 1 1 1 each
        masks, some = (ranks >= low) & (ranks < high), chosen.select(one)
        (found,) = measure_masked(network, images[one], some, masks, filled, (read,), masking.batch_size)  # m s b
        measured.append(found.mean(dim=0).T)
    points = torch.cat(measured).masked_fill(~all_finite(values)[:, None], torch.nan)
    return Removal(
        metric=metric,
        score=torch.trapezoid(points, points.new_tensor(fractions)),
        points=points,
        fractions=points.new_tensor(fractions),
        fill=masking.fill.name,
        unit=unit,
        measure=measure,
        draws=draws,
        better="lower" if metric in ("deletion", "positive perturbation") else "higher",
    )


def saco(
    network: nn.Module, images: Images, values: Maps, target: Target, masking: Masking, *, groups: int = 10
) -> Removal:
    """SaCo, salience-guided faithfulness coefficient: does more of the map mean more of an effect?

    "On the faithfulness of Vision Transformer explanations" (Wu et al., CVPR 2024).

    The patches are put in order and cut into K groups of equal size (within one patch); s_k is the sum of the map over
    group k, d_k = f(image) - E_draws f(image with group k masked), and over all pairs i < j

        w_ij = s_i - s_j if d_i >= d_j else -(s_i - s_j)          score = sum w_ij / sum |w_ij|

    Unit: patches. Measured: probability or logit. Range: [-1, 1]. Higher is better. Random maps have 0 where all drops
    differ, and more where many groups change nothing, because equal drops count as agreement. The size of the values
    counts, so maps must not be rescaled image by image. Not a number for a constant map.

    `groups`: K, from 2 to the number of patches.
    """
    patches = values[0].numel()
    check_option("groups", groups, 2 <= groups <= patches, f"2 to {patches} of the patches", min(10, patches))
    edges = [round(patches * index / groups) for index in range(groups + 1)]
    spans = [(0, 0), *pairwise(edges)]
    fractions = [(high - low) / patches for low, high in spans]
    found = _measured("saco", network, images, values, target, masking, spans, fractions)
    drops = found.points[:, :1] - found.points[:, 1:]
    flat = values.flatten(1)
    usable = all_finite(values) & (flat.amax(dim=1) > flat.amin(dim=1))
    in_order = to_float64(values).flatten(1).sort(dim=1, descending=True).values
    salience = torch.stack([in_order[:, low:high].sum(dim=1) for low, high in spans[1:]], dim=1)  # on the CPU
    score = saco_of(salience, drops.cpu()).to(drops).masked_fill(~usable, torch.nan)
    return replace(found, score=score, points=drops, fractions=found.fractions[1:])


def saco_of(salience: Float[Tensor, "b k"], drops: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """SaCo of what each group has of the map and how much masking it changes; see `saco`."""
    groups = salience.shape[1]
    first, second = torch.triu_indices(groups, groups, offset=1, device=salience.device)
    weights = salience[:, first] - salience[:, second]
    agree = drops[:, first] >= drops[:, second]
    return torch.where(agree, weights, -weights).sum(dim=1) / weights.abs().sum(dim=1)
