"""Do explanations work for this model on this machine? Eleven checks, in seconds.

    report = sanity_check(model)
    print(report)            # one line for each check
    report.passed

They run the network as it is, in its own precision: sums must close, maps must move with the image, and classes and
weights must matter. Ten compare values that agree, or do not, on any weights: a right computation fails none of them by
chance, and a wrong gradient, kernel or order of layers does. The last draws other weights, whose maps may be alike by
chance, the more so the fewer the patches: it fails by a test over many draws, for at most 1 of 1,000 right networks.
Whether the map of a single image can be trusted is another question, see `trust`. That every
method is that of its paper is a matter of the tests, and is not tested again for each model.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.errors import UsageError
from vitrail.explain.forward import all_finite, check_explainable, check_tokens, forward_pass
from vitrail.explain.methods.conservative import balance_sheet, conservative
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.methods.integrated_gradients import NOTED, integrated_gradients
from vitrail.explain.methods.rollout import rollout, rollout_of
from vitrail.explain.scores.chance import twice_ranks
from vitrail.explain.target import Target, choose_target
from vitrail.explain.verdict import Explainable, network_and_background
from vitrail.nn import Record
from vitrail.nn.cost import flops
from vitrail.nn.networks import output_count
from vitrail.nn.twin import twin, wide
from vitrail.nn.vit import Images, ViT
from vitrail.runtime import threads_set
from vitrail.tasks.target import Contrast
from vitrail.text import ShortRepr

IMAGES = 4
RE_DRAWN = 0.3  # mean rank correlation with maps of scrambled weights, up to which a map depends on the weights
DRAWS, MOST_DRAWS = 3, 16  # networks with scrambled weights: at least, and before the check fails
BEYOND = 4.07  # standard errors: 1 in 2,000 is larger (Student's t, 15 degrees of freedom), for each of two methods
APART = 1e-4  # of the largest value: maps of one length that differ by less are the same map
ROUNDING = 64  # units in the last place by which a logit may be off
STEPS = 20  # of integrated gradients
SHARP = 100.0  # by this the head's weights are multiplied to make the network sure
LARGE = 1e9  # operations for an image, from which on most checks look at small images
LOOK = (4, 5)  # rows and columns of patches that a large network then sees
METHODS = (generic_attention, conservative)

Maps = Float[Tensor, "m b rows columns"]  # of m methods
Outcome = tuple[bool, str]  # whether a check holds, and what was seen


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it holds, and what was seen."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, repr=False)
class SanityReport(ShortRepr):
    """All checks of one model, and how long they took."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        """One line for each check."""
        width = max(len(check.name) for check in self.checks)
        lines = [f"{'pass' if one.passed else 'FAIL'}  {one.name:<{width}}  {one.detail}" for one in self.checks]
        return "\n".join(lines)


@typed
@torch.inference_mode(False)
def sanity_check(model: Explainable, images: Images | None = None) -> SanityReport:
    """Check that explanations work for a model: eleven checks of its network on this machine.

    While it runs, torch uses one thread in the whole process: most checks are small, and several threads take ten times
    as long on a busy machine. The number of threads and the state of torch's random numbers are restored at the end,
    also after an error.

    Args:
        model: A network in eval mode, whose parts have what explanations need (`vitrail/nn/parts.py`). One in half
            precision is checked in float32, with the same weights, since the checks need digits.
        images: (b, c, h, w), as the network reads them; at most 4 are used. When None, the model's background images,
            or noise where it has none.

    Raises:
        UsageError: If the network is in training mode or has a part without what explanations need, or if the images do
            not fit.
    """
    start, (found, background) = time.perf_counter(), network_and_background(model)
    network, images = check_tokens(found), background if images is None else images
    if images is None:
        shape = (IMAGES, network.config.channels, *network.config.image)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")
        images = noise.to(next(network.parameters()))
    images = images[:IMAGES].detach().clone()
    if images.dim() != 4 or not len(images):
        raise UsageError(
            f"the sanity checks need at least one image (b, c, h, w), got {tuple(images.shape)}",
            "images=None for noise",
        )
    precision = reduce(torch.promote_types, (one.dtype for one in network.parameters()), torch.float32)
    if any(one.dtype != precision for one in network.parameters()):
        network = copy.deepcopy(network).to(precision)
    images = images.to(precision) if images.is_floating_point() else images
    check_explainable(network, images, True)
    with threads_set(1), torch.random.fork_rng(devices=[]), torch.device("cpu"):  # parts that are made anew draw
        return SanityReport(tuple(checks(network, images)), time.perf_counter() - start)


def checks(network: ViT, images: Images) -> Iterator[Check]:
    """What must hold of the network, in its own precision; see each check.

    A large network sees one image of its own size where numbers are compared, and two small ones everywhere else.
    """
    patches, own = math.prod(network.grid(images)), math.prod(network.config.grid)
    whole = small = images
    if flops(network) * patches / own > LARGE:
        size = [patch * side for patch, side in zip(network.config.patch, LOOK, strict=True)]
        whole = images[:1]
        small = F.interpolate(images[:2], size, mode="bilinear", antialias=True, align_corners=False)
    is_one_class = output_count(network.config) < 2
    for name, checked in CHECKS.items():
        if is_one_class and checked in OF_TWO_CLASSES:
            yield Check(name, True, "there is only one class")
        else:
            yield Check(name, *checked(network, whole if checked in ON_WHOLE_IMAGES else small))


def _record_changes_nothing(network: ViT, images: Images) -> Outcome:
    with torch.no_grad():
        same = torch.equal(network(images), network(images, Record()))
    return same, "the same bits" if same else "the logits differ"


def _attention_sums_to_one(network: ViT, images: Images) -> Outcome:
    record = forward_pass(network, images, None, "blocks.*.attention").record
    return _sum_to_one([record.attention(place) for place in record.attentions()])


def _rollout_sums_to_one(network: ViT, images: Images) -> Outcome:
    first = forward_pass(network, images, None, "blocks.0.attention").layers()
    return _sum_to_one([rollout_of(first, fusion=fusion, discard=0.3) for fusion in ("mean", "max", "min")])


def _sum_to_one(rows: list[Tensor]) -> Outcome:
    worst = max(float((each.sum(dim=-1) - 1).abs().max()) for each in rows)
    return worst <= 1e-4, f"worst row off by {worst:.1e}"


def _balance_closes(network: ViT, images: Images) -> Outcome:
    sheet, attribution = balance_sheet(network, images), conservative(network, images)
    parts = torch.stack([part.abs() for part in sheet.parts.values()]).sum(dim=0)
    gap = float((sheet.gap.abs() / _not_zero(parts)).max())
    off = _off(attribution.values[None], sheet.pixels[None])
    return gap <= 1e-2 and off <= 1e-3, f"gap {gap:.1e} of all parts; map and sheet differ by {off:.1e}"


def _path_adds_up(network: ViT, images: Images) -> Outcome:
    """Integrated gradients sum to the difference from the baseline, or say that they do not, on a rough network."""
    attribution = integrated_gradients(network, images[:1], steps=STEPS)
    with torch.no_grad():
        difference = attribution.logit[0] - network(torch.zeros_like(images[:1]))[0, attribution.target[0]]
    size = _not_zero(attribution.values.abs().sum())
    if difference.abs() <= ROUNDING * torch.finfo(size.dtype).eps * attribution.logit[0].abs():
        return True, "the image has the logit of the baseline"
    missing = (attribution.values.sum() - difference).abs()
    noted = any("completeness gap" in note for note in attribution.notes[0])
    passed = noted or bool(missing <= NOTED * difference.abs() + 1e-3 * size)
    return passed, f"{float(missing / size):.1e} of all parts missing at {STEPS} steps{', as noted' if noted else ''}"


def _contrast_is_a_difference(network: ViT, images: Images) -> Outcome:
    classes = _two_classes(network, images)
    both, first, second = (_maps(network, images, one, (conservative,)) for one in (Contrast(*classes), *classes))
    return _close("its map and the difference of both maps", _off(both, first - second), 1e-3)


def _maps_move_with_the_image(network: ViT, images: Images) -> Outcome:
    """Without positions, an image rolled by whole patches has a rolled map; also where rows are not columns."""
    blind = twin(network, {})
    blind.pos_embed = blind.rotary = None
    rows, columns = network.grid(images)
    (height, width), down, across = network.config.patch, min(1, rows - 1), min(2, columns - 1)
    rolled = images.roll((down * height, across * width), dims=(2, 3))
    classes = choose_target(network(images), None).target
    here, there = (_maps(blind, one, classes, (rollout, *METHODS)) for one in (images, rolled))
    off = _off(there, here.roll((down, across), dims=(2, 3)))
    return _close("the map of a shifted image and the shifted map", off, 1e-2)


def _batch_is_one_by_one(network: ViT, images: Images) -> Outcome:
    alone = torch.cat([_maps(network, one[None]) for one in images], dim=1)
    return _close("the maps", _off(_maps(network, images), alone), 1e-2)


def _logits_not_probabilities(network: ViT, images: Images) -> Outcome:
    """A network whose logits are 100 times as far apart is sure, and its maps are 100 times as large, not zero."""
    classes, heads = choose_target(network(images), None).target, (network.head, network.head_dist)
    if type(network.head) is not nn.Linear:
        return True, "there is no head"
    sure = twin(network, {nn.Linear: lambda part: _sharpen(part) if part in heads else part})
    large, small = (_maps(one, images, classes).abs().flatten(1).amax(dim=1) for one in (sure, network))
    times = (large / small)[(large > 0) | (small > 0)].tolist()
    if not times:
        return True, "the maps are empty"
    return min(times) >= 0.5 * SHARP, f"{SHARP:.0f} times the head weights give {min(times):.3g} times the map"


def _classes_have_their_own(network: ViT, images: Images) -> Outcome:
    """Values of maps of one length are compared: two classes may share ranks by chance. A constant map is none."""
    classes = _two_classes(network, images)
    maps = [_maps(network, images, one).flatten(2) for one in classes]
    largest = [each.abs().amax(dim=2) for each in maps]
    one, two = (each / _not_zero(each.norm(dim=2, keepdim=True)) for each in maps)
    constant = [each.amax(2) - each.amin(2) <= APART * most for each, most in zip(maps, largest, strict=True)]
    apart = (one - two).abs().amax(dim=2) / _not_zero(two.abs().amax(dim=2))
    least = float(apart.masked_fill(constant[0] | constant[1], torch.inf).amax(dim=1).min())
    blind = _off(*(_maps(network, images, one, (rollout,)) for one in classes))
    detail = f"those of the first two classes differ by {least:.1e} of the largest value; rollout is class-agnostic"
    return least > APART and blind == 0.0, detail


def _weights_matter(network: ViT, images: Images) -> Outcome:
    classes = choose_target(network(images), None).target
    learnt = _maps(network, images, classes)
    drawn = (_maps(scramble(network, seed), images, classes) for seed in range(MOST_DRAWS))
    alike = (spearman(learnt.flatten(0, 1).flatten(1), one.flatten(0, 1).flatten(1)) for one in drawn)
    passed, means, draws = judge(one.view(len(METHODS), -1).nanmean(dim=1).tolist() for one in alike)
    described = [
        f"{method.__name__.split('_')[0]} {'has no map' if math.isnan(one) else f'{one:.2f}'}"
        for method, one in zip(METHODS, means, strict=True)
    ]
    return passed, f"rank correlation with scrambled weights, {draws} draws: {', '.join(described)}"


def judge(correlations: Iterable[Sequence[float]]) -> tuple[bool, list[float], int]:
    """Whether maps depend on the weights, from their rank correlations with maps of weights drawn anew.

    They do where the mean of each method is at most `RE_DRAWN`; they do not where, after `MOST_DRAWS`, one is larger by
    more than chance.

    Args:
        correlations: Of each draw, of each of two methods, the mean over images; nan where there is no map. No more are
            taken than needed.

    Returns:
        The answer, the mean of each method, and the number of draws taken.
    """
    taken = list[Sequence[float]]()
    means, errors = list[float](), list[float]()
    for draw in correlations:
        taken.append(draw)
        methods = [[one for one in each if not math.isnan(one)] for each in zip(*taken, strict=True)]
        means = [fmean(each) if each else math.nan for each in methods]
        errors = [stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.inf for each in methods]
        if len(taken) >= DRAWS and not any(abs(mean) > RE_DRAWN for mean in means):
            break
    beyond = [abs(mean) - BEYOND * error > RE_DRAWN for mean, error in zip(means, errors, strict=True)]
    return not any(beyond), means, len(taken)


ON_WHOLE_IMAGES = (_record_changes_nothing, _attention_sums_to_one, _rollout_sums_to_one, _balance_closes)
OF_TWO_CLASSES = (_contrast_is_a_difference, _classes_have_their_own)
CHECKS: dict[str, Callable[[ViT, Images], Outcome]] = {
    "a record does not change logits": _record_changes_nothing,
    "attention weights sum to 1": _attention_sums_to_one,
    "rollout's rows sum to 1": _rollout_sums_to_one,
    "the balance sheet adds up": _balance_closes,
    "integrated gradients add up": _path_adds_up,
    "a contrast of two classes": _contrast_is_a_difference,
    "maps change with the image": _maps_move_with_the_image,
    "a batch equals single images": _batch_is_one_by_one,
    "logits are explained, in their own unit": _logits_not_probabilities,
    "classes have different maps": _classes_have_their_own,
    "the weights matter": _weights_matter,
}


@torch.no_grad()
def _two_classes(network: ViT, images: Images) -> tuple[Tensor, Tensor]:
    first, second = network(images).topk(2, dim=1).indices.T
    return first, second


def _sharpen(part: nn.Module) -> nn.Module:
    sharp = copy.deepcopy(part)  # a new one would be drawn on the model's device, and move its random state
    with torch.no_grad():
        for parameter in sharp.parameters():
            parameter.mul_(SHARP)
    return sharp


def _close(what: str, off: float, most: float) -> Outcome:
    return off <= most, f"{what} differ by {off:.1e} of the largest value"


def _maps(network: ViT, images: Images, target: Target = None, methods: Sequence[Any] = METHODS) -> Maps:
    """The values that each method gives these images, methods first."""
    return torch.stack([method(network, images, target).values for method in methods])


def _off(one: Maps, other: Maps) -> float:
    """The largest difference, as a fraction of its method's largest value; infinite where values are non-finite."""
    off = (one - other).abs().flatten(1).amax(dim=1) / _not_zero(other.abs().flatten(1).amax(dim=1))
    return float(off.nan_to_num(torch.inf).max())


def _not_zero(size: Tensor) -> Tensor:
    return size.clamp(min=torch.finfo(size.dtype).tiny)


def scramble(network: ViT, seed: int) -> ViT:
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


def spearman(one: Float[Tensor, "b p"], two: Float[Tensor, "b p"]) -> Float[Tensor, "b"]:
    """Spearman's rank correlation of each row: Pearson's of the ranks, where equal values share the mean rank.

    Not a number where a row is constant or not finite.
    """
    first, second = (twice_ranks(rows.cpu()).double() / 2 - rows.shape[1] / 2 for rows in (one, two))
    size = first.norm(dim=1) * second.norm(dim=1)
    found = (first * second).sum(dim=1) / size
    finite = (all_finite(one) & all_finite(two)).cpu()
    return found.masked_fill(~finite | (size == 0), torch.nan).to(wide(one))
