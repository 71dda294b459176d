"""The self-test passes on trained networks, and fails on code with a planted fault."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.explain.mutants import make_copy
from tests.explain.planted_lab import load_planted
from tests.explain.reference import VARIANTS, make_images, make_network
from vitrail.errors import UsageError
from vitrail.explain.selftest import Check, SelfTest, selftest
from vitrail.nn import STANDARD, ViT, ViTConfig
from vitrail.training.recipes import RECIPES


@dataclass(frozen=True)
class Bare:
    """A network without references."""

    network: ViT
    donors: Tensor | None = None


@pytest.mark.parametrize("name", ["class-0", "class-1", "class-2", "mean-0", "mean-1", "mean-2", "pairs-0"])
def test_it_passes_on_trained_networks(name: str) -> None:
    report = selftest(load_planted(name))
    assert report.passed, str(report)
    assert report.seconds < 60
    assert len(report.checks) == 12


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_what_must_hold_of_any_weights_holds_of_any_kind(config: ViTConfig) -> None:
    """Random weights may well agree with other random weights; all else is a matter of the code."""
    report = selftest(Bare(make_network(config)), make_images(config, 5))
    failed = [check for check in report.checks if not check.passed and check.name != "the weights matter"]
    assert not failed, str(report)


def test_it_says_what_it_saw() -> None:
    report = SelfTest((Check("one thing", True, "fine"), Check("another thing", False, "off by 2")), 1.5)
    assert not report.passed
    assert str(report) == "pass  one thing      fine\nFAIL  another thing  off by 2"


def test_one_class_and_one_row_are_no_fault() -> None:
    config = replace(VARIANTS["class"] if "class" in VARIANTS else next(iter(VARIANTS.values())), classes=1)
    report = selftest(Bare(make_network(config)), make_images(config))
    saw = {check.name: check.saw for check in report.checks}
    assert saw["one class rather than another"] == "there is one class only"


def test_training_mode_is_a_usage_error() -> None:
    config = next(iter(VARIANTS.values()))
    with pytest.raises(UsageError, match="training mode"):
        selftest(Bare(make_network(config).train()), make_images(config))


def test_a_method_that_ignores_the_weights_fails() -> None:
    """An attention whose queries and keys are zero has uniform maps of attention, whatever was learnt."""
    network = load_planted("mean-0").network
    copy = make_network(network.config)
    copy.load_state_dict(network.state_dict())
    with torch.no_grad():
        copy.head.weight.zero_()
        copy.head.weight[:, 0] = 1.0
    report = selftest(SimpleNamespace(network=copy, donors=load_planted("mean-0").donors))
    assert not report.passed


FAULTS = {
    "layers of gradients in reverse": (
        "methods/attention_generic.py",
        "relevance_of(recorded(opened.record, at_attended), opened.readout[None], clamp)",
        "relevance_of(recorded(opened.record, dict(zip(at_attended, reversed(at_attended.values())))), "
        "opened.readout[None], clamp)",
        "generic attention by a second way",
    ),
    "columns divided, not rows": (
        "methods/attention_rollout.py",
        "mixed.sum(dim=-1, keepdim=True)",
        "mixed.sum(dim=-1)[:, None, :]",
        "rollout's rows sum to 1",
    ),
    "a token too early": (
        "readout.py",
        "row[:, prefix:].unflatten(1, grid)",
        "row.roll(1, 1)[:, prefix:].unflatten(1, grid)",
        "maps move with the picture",
    ),
    "rows and columns swapped": (
        "readout.py",
        "row[:, prefix:].unflatten(1, grid)",
        "row[:, prefix:].unflatten(1, grid[::-1]).transpose(1, 2)",
        "maps move with the picture",
    ),
    "the probability": (
        "readout.py",
        "logit = aim.of(logits)",
        "logit = aim.of(logits.softmax(dim=1))",
        "logits are explained, in raw units",
    ),
    "stretched to 0 .. 1": (
        "readout.py",
        "return heat_of(values, self.aim",
        "return heat_of((values - values.min()) / (values.max() - values.min()), self.aim",
        "logits are explained, in raw units",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails(fault: str, tmp_path: Path) -> None:
    file, old, new, name = FAULTS[fault]
    package: ModuleType = make_copy(tmp_path, file, old, new)
    report = package.selftest(load_planted("class-0"))
    assert name in {check.name for check in report.checks if not check.passed}, str(report)


def test_a_copy_without_fault_passes(tmp_path: Path) -> None:
    assert make_copy(tmp_path).selftest(load_planted("class-0")).passed


def test_a_network_with_another_part_is_refused() -> None:
    config = next(iter(VARIANTS.values()))
    network = make_network(config, parts=replace(STANDARD, activation=lambda _: nn.SiLU()))
    with pytest.raises(UsageError, match="SiLU"):
        selftest(Bare(network), make_images(config))


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"photos", "many-photos"}))
def test_every_recipes_network(name: str) -> None:
    """With random weights; that learnt ones matter was seen on runs of one epoch of each (all checks pass)."""
    recipe = RECIPES[name]
    config = ViTConfig.from_dict({"image_size": recipe.image_size, "channels": 1, "classes": 10, **recipe.network})
    report = selftest(Bare(make_network(config)))
    failed = [check for check in report.checks if not check.passed and check.name != "the weights matter"]
    assert not failed, str(report)
