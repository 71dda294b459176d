"""Checks of the network as it is, in its own precision: sums, moved pictures, batches, classes and weights."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.explain.methods.conservative import balance_sheet, conservative
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.methods.integrated_gradients import integrated_gradients_with_gap
from vitrail.explain.methods.rollout import rollout, rollout_of
from vitrail.explain.readout import open_run, readout_of
from vitrail.explain.scores.sanity import scrambled, similarity
from vitrail.explain.selftest.report import Check
from vitrail.explain.selftest.witness import resized
from vitrail.explain.target import Contrast
from vitrail.nn import Record, ViT
from vitrail.nn.cost import flops
from vitrail.nn.twin import twin
from vitrail.nn.vit import Images

RE_DRAWN = 0.3  # mean rank correlation with maps of scrambled weights, up to which a map depends on the weights
DRAWS = 3  # networks with scrambled weights
ROUNDING = 64  # units in the last place by which a logit may be off
STEPS = 20  # of integrated gradients
SHARP = 100.0  # by this the head's weights are multiplied to make the network sure
LARGE = 1e9  # operations for a picture, from which on most checks look at small pictures
LOOK = (4, 5)  # rows and columns of patches that a large network then sees
METHODS = (generic_attention, conservative)


def checks(network: ViT, images: Images, seed: int) -> Iterator[Check]:
    """What must hold of the whole network, in its own precision; see each check.

    A large network sees one picture of its own size where numbers are compared, and two small ones everywhere else.
    """
    large = flops(replace(network.config, image_size=(images.shape[2], images.shape[3]))) > LARGE
    whole = images[:1] if large else images
    small = resized(images[:2], network.config.patch, LOOK) if large else images
    yield _record_changes_nothing(network, whole)
    yield from _rows_sum_to_one(network, whole)
    yield _generic_by_another_way(network, whole)
    yield _balance_closes(network, whole)
    yield _path_says_its_gap(network, small)
    yield _contrast_is_a_difference(network, small)
    yield _maps_move_with_the_picture(network, small)
    yield _batch_is_one_by_one(network, small)
    yield _logits_not_probabilities(network, small)
    yield _classes_have_their_own(network, small)
    yield _weights_matter(network, small, seed)


def _record_changes_nothing(network: ViT, images: Images) -> Check:
    with torch.no_grad():
        same = torch.equal(network(images), network(images, Record()))
    return Check("a record changes no answer", same, "the same bits" if same else "the logits differ")


def _rows_sum_to_one(network: ViT, images: Images) -> Iterator[Check]:
    record, worst = open_run(network, images, None, "blocks.*.attention").record, 0.0
    for place in record.attentions():
        worst = max(worst, float((record.attention(place).sum(dim=-1) - 1).abs().max()))
    yield Check("attention shares sum to 1", worst <= 1e-4, f"worst row off by {worst:.1e}")
    first, worst = record.attention(record.attentions()[0]).detach(), 0.0
    for fusion in ("mean", "max", "min"):
        rows = rollout_of([first], fusion=fusion, discard=0.3)
        worst = max(worst, float((rows.sum(dim=-1) - 1).abs().max()))
    yield Check("rollout's rows sum to 1", worst <= 1e-4, f"worst row off by {worst:.1e}")


def _generic_by_another_way(network: ViT, images: Images) -> Check:
    """The rule written out once more, with each layer's weights and gradient looked up by the layer's name."""
    heat = generic_attention(network, images)
    opened = open_run(network, images, heat.target, "blocks.*.attention", gradients=True)
    gradients = opened.record.gradient(opened.logit.sum())
    row = readout_of(network, opened.grid).to(opened.logit).expand(len(images), -1)
    gathered = torch.zeros_like(row)
    with torch.no_grad():
        for index in reversed(range(network.config.depth)):
            weights = opened.record[f"blocks.{index}.attention"].detach()
            raising = (weights * gradients[f"blocks.{index}"]).clamp(min=0).mean(dim=1)
            gathered = gathered + ((row + gathered)[:, None] @ raising)[:, 0]
    wanted = gathered[:, network.config.prefix :].reshape(heat.values.shape)
    off = _off(heat.values, wanted)
    return Check("generic attention by a second way", off <= 1e-3, f"off by {off:.1e} of the largest value")


def _balance_closes(network: ViT, images: Images) -> Check:
    sheet, heat = balance_sheet(network, images), conservative(network, images)
    parts = torch.stack([part.abs() for part in sheet.parts.values()]).sum(dim=0)
    gap = float((sheet.gap.abs() / _not_zero(parts)).max())
    off = _off(heat.values, sheet.pixels)
    passed = gap <= 1e-2 and off <= 1e-3
    return Check("the balance sheet closes", passed, f"gap {gap:.1e} of all parts; map and sheet differ by {off:.1e}")


def _path_says_its_gap(network: ViT, images: Images) -> Check:
    """What integrated gradients leave of the difference from the baseline, beside what they say of it.

    How much that is depends on how rough the network is; that the sum is right is asked of a cube (`pixels.py`).
    """
    heat, gap = integrated_gradients_with_gap(network, images[:1], steps=STEPS)
    with torch.no_grad():
        difference = heat.logit[0] - network(torch.zeros_like(images[:1]))[0, heat.target[0]]
    name, size = "integrated gradients say what is missing", _not_zero(heat.values.abs().sum())
    if difference.abs() <= ROUNDING * torch.finfo(size.dtype).eps * heat.logit[0].abs():
        return Check(name, True, "the picture has the logit of the baseline")
    left, said = ((one / size).abs() for one in (heat.values.sum() - difference, gap[0] * difference))
    passed = bool((left - said).abs() <= 1e-3 * (1 + left))
    says = f"{float(left):.1e} of all parts is missing at {STEPS} steps, {'as they say' if passed else 'unsaid'}"
    return Check(name, passed, says)


def _contrast_is_a_difference(network: ViT, images: Images) -> Check:
    found = _two_classes(network, images)
    if found is None:
        return Check("one class rather than another", True, "there is one class only")
    first, second = found
    both = conservative(network, images, Contrast(first, second)).values
    apart = conservative(network, images, first).values - conservative(network, images, second).values
    off = _off(both, apart)
    return Check("one class rather than another", off <= 1e-3, f"off by {off:.1e} from the difference of both maps")


def _maps_move_with_the_picture(network: ViT, images: Images) -> Check:
    """Without positions, a picture rolled by whole squares has a rolled map; also where rows are not columns."""
    blind = twin(network, {})
    blind.pos_embed = None
    rows, columns = network.grid(images)
    down, across = min(1, rows - 1), min(2, columns - 1)
    patch = (images.shape[2] // rows, images.shape[3] // columns)
    rolled = images.roll((down * patch[0], across * patch[1]), dims=(2, 3))
    classes, worst = network(images).argmax(dim=1).detach(), 0.0
    for method in (rollout, *METHODS):
        here, there = (method(blind, one, classes).values for one in (images, rolled))
        worst = max(worst, _off(there, here.roll((down, across), dims=(1, 2))))
    return Check("maps move with the picture", worst <= 1e-2, f"off by {worst:.1e} of the largest value")


def _batch_is_one_by_one(network: ViT, images: Images) -> Check:
    worst = 0.0
    for method in METHODS:
        together = method(network, images).values
        alone = torch.cat([method(network, one[None]).values for one in images])
        worst = max(worst, _off(together, alone))
    return Check("a batch is one by one", worst <= 1e-2, f"off by {worst:.1e} of the largest value")


def _logits_not_probabilities(network: ViT, images: Images) -> Check:
    """A network whose logits are 100 times as far apart is sure, and its maps are 100 times as large, not zero."""
    name, classes = "logits are explained, in raw units", network(images).argmax(dim=1).detach()
    heads = (network.head, network.head_dist)
    if type(network.head) is not nn.Linear:
        return Check(name, True, "there is no head")
    sure = twin(network, {nn.Linear: lambda part: _sharper(part) if part in heads else part})
    times = []
    for method in METHODS:
        large, small = (method(one, images, classes).values.abs().amax() for one in (sure, network))
        times += [float(large / small)] if small or large else []
    if not times:
        return Check(name, True, "the maps are empty")
    return Check(name, min(times) >= 0.5 * SHARP, f"{SHARP:.0f} times the head gives {min(times):.3g} times the map")


def _classes_have_their_own(network: ViT, images: Images) -> Check:
    found = _two_classes(network, images)
    if found is None:
        return Check("classes have maps of their own", True, "there is one class only")
    (first, second), alike = found, 0.0
    for method in METHODS:
        maps = [method(network, images, one).values for one in (first, second)]
        alike = max(alike, float(similarity(*maps).signed.nanmean()))
    blind = _off(*(rollout(network, images, one).values for one in (first, second)))
    says = f"rank correlation of the first two classes {alike:.2f}; rollout cannot tell them apart"
    return Check("classes have maps of their own", alike < 0.999 and blind == 0.0, says)


def _weights_matter(network: ViT, images: Images, seed: int) -> Check:
    learnt, found = [method(network, images) for method in METHODS], []
    for one in range(DRAWS):
        drawn = scrambled(network, seed + one)
        maps = [method(drawn, images, heat.target) for method, heat in zip(METHODS, learnt, strict=True)]
        alike = [similarity(heat.values, other.values).signed for heat, other in zip(learnt, maps, strict=True)]
        found.append(torch.stack(alike))
    correlations = torch.stack(found).nanmean(dim=(0, 2)).tolist()  # not a number where maps are constant
    told = [
        f"{heat.method.split('_')[0]} {'has no map' if math.isnan(one) else f'{one:.2f}'}"
        for heat, one in zip(learnt, correlations, strict=True)
    ]
    passed = not any(abs(one) > RE_DRAWN for one in correlations)
    return Check("the weights matter", passed, f"rank correlation with scrambled weights: {', '.join(told)}")


@torch.no_grad()
def _two_classes(network: ViT, images: Images) -> tuple[Tensor, Tensor] | None:
    logits = network(images)
    if logits.shape[1] < 2:
        return None
    first, second = logits.topk(2, dim=1).indices.T
    return first, second


def _sharper(part: nn.Module) -> nn.Module:
    sharp = copy.deepcopy(part)  # a new one would be drawn on the model's device, and move its random state
    with torch.no_grad():
        for parameter in sharp.parameters():
            parameter.mul_(SHARP)
    return sharp


def _off(one: Float[Tensor, "b rows columns"], other: Float[Tensor, "b rows columns"]) -> float:
    """The largest difference, in shares of the largest value; infinite where there are numbers that are none."""
    return float(((one - other).abs().max() / _not_zero(other.abs().max())).nan_to_num(torch.inf))


def _not_zero(size: Tensor) -> Tensor:
    return size.clamp(min=torch.finfo(size.dtype).tiny)
