"""Do the explanations of this very network keep their promises? Checks in seconds, in words, on the user's own model.

    report = selftest(model)
    print(report)            # one line for each check
    report.passed

They test this network with this code: sums that must close, maps that must move with the picture, weights that must
matter. What they cannot test is whether a map of a given picture is to be believed: that is `trust`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.explain.methods.attention_generic import generic_attention
from vitrail.explain.methods.attention_grad_cam import attention_grad_cam
from vitrail.explain.methods.attention_raw import raw_attention
from vitrail.explain.methods.attention_rollout import rollout, rollout_of
from vitrail.explain.methods.conservative import balance_sheet, conservative
from vitrail.explain.methods.gradient_rollout import gradient_rollout
from vitrail.explain.methods.input_x_gradient import input_x_gradient
from vitrail.explain.methods.integrated_gradients import integrated_gradients_with_gap
from vitrail.explain.methods.legrad import legrad
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.readout import check, open_run, readout_of
from vitrail.explain.scores.sanity import mprt, similarity
from vitrail.explain.target import Contrast
from vitrail.explain.trusting import Explainable
from vitrail.nn import Record, ViT
from vitrail.nn.twin import twin
from vitrail.nn.vit import Images

PICTURES = 4
MOVED = (
    raw_attention,
    rollout,
    gradient_rollout,
    attention_grad_cam,
    generic_attention,
    legrad,
    saliency,
    input_x_gradient,
    conservative,
)
"""Methods that ask nothing random, take few passes, and do not cancel to rounding in small networks."""
RE_DRAWN = 0.3  # mean rank correlation with maps of scrambled weights, up to which a map depends on the weights
SHARP = 100.0  # by this the head's weights are multiplied to make the network sure


@dataclass(frozen=True)
class Check:
    """One check: what it asks, whether it holds, and what was seen."""

    name: str
    passed: bool
    saw: str


@dataclass(frozen=True)
class SelfTest:
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
        lines = [f"{'pass' if one.passed else 'FAIL'}  {one.name:<{width}}  {one.saw}" for one in self.checks]
        return "\n".join(lines)


@torch.inference_mode(False)
def selftest(model: Explainable, images: Images | None = None, seed: int = 0) -> SelfTest:
    """Check the explanations of a model.

    Args:
        model: A network in eval mode, of the standard parts.
        images: (b, c, h, w), as the network reads them; at most 4 are used. Left out, the model's references are, or
            noise where it has none.
        seed: Of noise and of scrambled weights.

    Raises:
        UsageError: If the network is in training mode, or the images do not fit it.
    """
    began, network = time.perf_counter(), model.network
    pictures = _pictures(model, seed) if images is None else images[:PICTURES]
    check(network, pictures, True)
    return SelfTest(tuple(_checks(network, pictures, seed)), time.perf_counter() - began)


def _checks(network: ViT, images: Images, seed: int) -> Iterator[Check]:
    yield _record_changes_nothing(network, images)
    yield _attention_sums_to_one(network, images)
    yield _rollout_sums_to_one(network, images)
    yield _generic_by_another_way(network, images)
    yield _balance_closes(network, images)
    yield _path_is_complete(network, images)
    yield _contrast_is_a_difference(network, images)
    yield _maps_move_with_the_picture(network, images)
    yield _batch_is_one_by_one(network, images)
    yield _logits_not_probabilities(network, images)
    yield _classes_have_their_own(network, images)
    yield _weights_matter(network, images, seed)


def _record_changes_nothing(network: ViT, images: Images) -> Check:
    with torch.no_grad():
        same = torch.equal(network(images), network(images, Record()))
    return Check("a record changes no answer", same, "the same bits" if same else "the logits differ")


def _attention_sums_to_one(network: ViT, images: Images) -> Check:
    record = open_run(network, images, None, "blocks.*.attention").record
    worst = max(float((record.attention(place).sum(dim=-1) - 1).abs().max()) for place in record.attentions())
    return Check("attention shares sum to 1", worst <= 1e-4, f"worst row off by {worst:.1e}")


def _rollout_sums_to_one(network: ViT, images: Images) -> Check:
    record, worst = open_run(network, images, None, "blocks.*.attention").record, 0.0
    first = [record.attention(place).detach() for place in record.attentions()[:1]]
    for fusion in ("mean", "max", "min"):
        rows = rollout_of(first, fusion=fusion, discard=0.3)
        worst = max(worst, float((rows.sum(dim=-1) - 1).abs().max()))
    return Check("rollout's rows sum to 1", worst <= 1e-4, f"worst row off by {worst:.1e}")


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
    gap = float((sheet.gap.abs() / parts).max())
    off = _off(heat.values, sheet.pixels)
    passed = gap <= 1e-3 and off <= 1e-3
    return Check("the balance sheet closes", passed, f"gap {gap:.1e} of all parts; map and sheet differ by {off:.1e}")


def _path_is_complete(network: ViT, images: Images) -> Check:
    """Integrated gradients of two pictures add up to what the logit is above that of the baseline."""
    heat, gap = integrated_gradients_with_gap(network, images[:2], steps=100)
    size = heat.values.abs().sum(dim=(1, 2))
    worst = float((gap.abs() / size).max())
    return Check("integrated gradients add up", worst <= 0.1, f"gap {worst:.1e} of all parts, at 100 steps")


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
    for method in MOVED:
        here, there = (method(blind, one, classes).values for one in (images, rolled))
        worst = max(worst, _off(there, here.roll((down, across), dims=(1, 2))))
    return Check("maps move with the picture", worst <= 1e-2, f"off by {worst:.1e} of the largest value")


def _batch_is_one_by_one(network: ViT, images: Images) -> Check:
    worst = 0.0
    for method in (method for method in MOVED if method is not rollout):
        together = method(network, images).values
        alone = torch.cat([method(network, one[None]).values for one in images])
        worst = max(worst, _off(together, alone))
    return Check("a batch is one by one", worst <= 1e-2, f"off by {worst:.1e} of the largest value")


def _logits_not_probabilities(network: ViT, images: Images) -> Check:
    """A network whose logits are 100 times as far apart is sure, and its maps are 100 times as large, not zero."""
    classes = network(images).argmax(dim=1).detach()
    heads = (network.head, network.head_dist)
    sure = twin(network, {nn.Linear: lambda part: _sharper(part) if part in heads else part})
    least = min(
        float(method(sure, images, classes).values.abs().amax() / method(network, images, classes).values.abs().amax())
        for method in (generic_attention, conservative)
    )
    says = f"{SHARP:.0f} times the head gives {least:.3g} times the map"
    return Check("logits are explained, in raw units", least >= 0.5 * SHARP, says)


def _classes_have_their_own(network: ViT, images: Images) -> Check:
    found = _two_classes(network, images)
    if found is None:
        return Check("classes have maps of their own", True, "there is one class only")
    (first, second), alike = found, 0.0
    for method in (generic_attention, conservative):
        maps = [method(network, images, one).values for one in (first, second)]
        alike = max(alike, float(similarity(*maps).signed.nanmean()))
    blind = _off(*(rollout(network, images, one).values for one in (first, second)))
    says = f"rank correlation of the first two classes {alike:.2f}; rollout cannot tell them apart"
    return Check("classes have maps of their own", alike < 0.999 and blind == 0.0, says)


def _weights_matter(network: ViT, images: Images, seed: int) -> Check:
    found = {
        name: torch.stack([mprt(network, images, method, seed=seed + one).signed for one in range(3)]).nanmean()
        for name, method in (("generic", generic_attention), ("conservative", conservative))
    }
    says = "rank correlation with scrambled weights: " + ", ".join(f"{name} {one:.2f}" for name, one in found.items())
    return Check("the weights matter", all(abs(float(one)) <= RE_DRAWN for one in found.values()), says)


def _pictures(model: Explainable, seed: int) -> Images:
    network, donors = model.network, model.donors
    if donors is not None:
        return donors[:PICTURES]
    weight = next(network.parameters())
    shape = (PICTURES, network.config.channels, *network.config.image)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(weight)


@torch.no_grad()
def _two_classes(network: ViT, images: Images) -> tuple[Tensor, Tensor] | None:
    logits = network(images)
    if logits.shape[1] < 2:
        return None
    first, second = logits.topk(2, dim=1).indices.T
    return first, second


def _sharper(part: nn.Module) -> nn.Module:
    assert isinstance(part, nn.Linear)
    sharp = nn.Linear(part.in_features, part.out_features, part.bias is not None, part.weight.device, part.weight.dtype)
    with torch.no_grad():
        for own, other in zip(sharp.parameters(), part.parameters(), strict=True):
            own.copy_(SHARP * other)
    return sharp


def _off(one: Float[Tensor, "b rows columns"], other: Float[Tensor, "b rows columns"]) -> float:
    """The largest difference, in shares of the largest value; infinite where there are numbers that are none."""
    largest = other.abs().max().clamp(min=torch.finfo(other.dtype).tiny)
    return float(((one - other).abs().max() / largest).nan_to_num(torch.inf))
