"""The self-test passes on trained, random and odd networks, and fails on code with a planted fault."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.explain.inside.test_planted_faults import FAULTS as VIEWS_FAULTS
from tests.explain.mutants import Fault, planted, rows
from tests.explain.planted_lab import load_planted
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.test_mutants import FAULTS as METHODS_FAULTS
from vitrail.errors import UsageError
from vitrail.explain import METHODS
from vitrail.explain.methods.integrated_gradients import gap_of
from vitrail.explain.readout import heat_of
from vitrail.explain.selftest import Check, SelfTest, running, selftest, whole
from vitrail.explain.selftest.running import PROMISES
from vitrail.explain.selftest.witness import Promise, random_witnesses, witnesses_of
from vitrail.explain.target import Aim
from vitrail.nn import PATCHIFIED, STANDARD, ViT, ViTConfig
from vitrail.training.recipes import RECIPES

pytestmark = pytest.mark.usefixtures("as_a_user")  # the check of shapes takes most of the time
VARIED = ["class-2-distilled", "class-5-registers", "mean-0", "mean-5-distilled"]


@dataclass(frozen=True)
class Bare:
    """A network without references."""

    network: ViT
    donors: Tensor | None = None


def failed(report: Any, *but: str) -> list[Check]:
    return [check for check in report.checks if not check.passed and check.name not in but]


def broken(network: ViT, images: Tensor, *but: str) -> list[Check]:
    """What fails of this network; the random ones are the same for all, and are left to other tests."""
    with torch.enable_grad():
        witness = witnesses_of(network, images)[:1]
        checks = [*whole.checks(network, images, 0)]
        checks += [promise.asked(witness) for promise in PROMISES]
    return [check for check in checks if not check.passed and check.name not in but]


def seldom(often: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
    """Parameters, of which the rest is left to `make soak`."""
    return [*often, *(pytest.param(*(one if type(one) is tuple else (one,)), marks=pytest.mark.soak) for one in rest)]


# ---- it passes


def test_it_passes_on_a_trained_network() -> None:
    report = selftest(load_planted("class-0"))
    assert report.passed, str(report)
    assert report.seconds < 60
    assert len(report.checks) == 12 + len(PROMISES)


@pytest.mark.parametrize("name", seldom(["class-1", "mean-1", "pairs-2"], ["class-2", "mean-0", "mean-2", "pairs-0"]))
def test_it_passes_on_trained_networks(name: str) -> None:
    model = load_planted(name)
    assert model.donors is not None
    assert not broken(model.network, model.donors[:4])


@pytest.mark.parametrize("name", seldom(VARIED, sorted(set(VARIANTS) - set(VARIED))))
def test_what_must_hold_of_any_weights_holds_of_any_kind(name: str) -> None:
    """Random weights may well agree with other random weights; all else is a matter of the code."""
    config = VARIANTS[name]
    assert not broken(make_network(config), make_images(config, 4), "the weights matter")


def no_attention(network: ViT) -> None:
    for block in network.blocks:
        block.attn.proj.weight.zero_()


def uniform_attention(network: ViT) -> None:
    for block in network.blocks:
        block.attn.qkv.weight[:20] = 0.0
        block.attn.qkv.bias[:20] = 0.0


def no_head(network: ViT) -> None:
    network.head.weight.zero_()


def blind(network: ViT) -> None:
    network.patch_embed.proj.weight.zero_()


def loud(network: ViT) -> None:
    for parameter in network.parameters():
        parameter.mul_(10.0)


def silent(network: ViT) -> None:
    for parameter in network.parameters():
        parameter.mul_(1e-4)


ODD = [no_attention, uniform_attention, no_head, blind, loud, silent]
POOLED = ["class-1", "mean-0"] * 3


@pytest.mark.parametrize(
    ("name", "change"), seldom([*zip(POOLED, ODD, strict=True)], [*zip(POOLED[1:] + POOLED[:1], ODD, strict=True)])
)
def test_odd_weights_are_no_fault(name: str, change: Callable[[ViT], None]) -> None:
    network = make_network(VARIANTS[name])
    with torch.no_grad():
        change(network)
    assert not broken(network, make_images(VARIANTS[name], 3), "the weights matter")


def test_one_class_one_picture_one_block_and_one_patch_are_no_fault() -> None:
    config = replace(PLAIN, classes=1, depth=1, image_size=PLAIN.patch)
    assert not broken(make_network(config), make_images(config, 1))


def test_weights_in_half_precision_pass_and_everything_is_left_as_it_was() -> None:
    model = load_planted("mean-0")
    network = ViT(model.network.config).eval().bfloat16()
    network.load_state_dict(model.network.state_dict())
    assert model.donors is not None
    images = model.donors[:4].bfloat16().requires_grad_()
    bits = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random, threads = torch.random.get_rng_state(), torch.get_num_threads()
    with torch.inference_mode():
        report = selftest(Bare(network), images)
    assert report.passed, str(report)
    assert all(torch.equal(bits[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert torch.equal(random, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert images.grad is None


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"photos", "many-photos"}))
def test_every_recipes_network(name: str) -> None:
    """With random weights; that learnt ones matter was seen on runs of one epoch of each (all checks pass)."""
    recipe = RECIPES[name]
    config = ViTConfig.from_dict({"image_size": recipe.image_size, "channels": 1, "classes": 10, **recipe.network})
    images = torch.randn(4, 1, *config.image, generator=torch.Generator().manual_seed(0))
    assert not broken(make_network(config), images, "the weights matter")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["photos", "many-photos", "B/16"])
def test_large_networks_take_less_than_a_minute(name: str) -> None:
    """On one thread, which the self-test keeps to."""
    if name in RECIPES:
        config = ViTConfig.from_dict({"image_size": RECIPES[name].image_size, "classes": 10, **RECIPES[name].network})
    else:
        config = ViTConfig.from_size(name, classes=10)
    report = selftest(Bare(make_network(config)))
    assert not failed(report, "the weights matter"), str(report)
    assert report.seconds < 60


# ---- what it says and refuses


def test_it_says_what_it_saw() -> None:
    report = SelfTest((Check("one thing", True, "fine"), Check("another thing", False, "off by 2")), 1.5)
    assert not report.passed
    assert str(report) == "pass  one thing      fine\nFAIL  another thing  off by 2"


def test_a_check_that_stops_is_a_line_and_not_the_end() -> None:
    def stops(_: object) -> float:
        raise RuntimeError("no such thing\nand more")

    check = Promise("a thing", stops).asked(random_witnesses())
    assert not check.passed
    assert check.saw == "stopped on a random network that reads its class token with RuntimeError: no such thing"


@pytest.mark.parametrize(
    ("weights", "pixels"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float64", "float32")]
)
def test_pictures_of_another_precision_than_the_weights(weights: str, pixels: str) -> None:
    network = make_network(PLAIN).to(getattr(torch, weights))
    report = selftest(Bare(network, make_images(PLAIN).to(getattr(torch, pixels))))
    assert report.passed, str(report)
    assert {parameter.dtype for parameter in network.parameters()} == {getattr(torch, weights)}


def test_threads_and_random_numbers_are_as_they_were_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    threads, seen = torch.get_num_threads(), []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("the GPU is seeded"))

    def stop(*_: object) -> None:
        seen.append(torch.get_num_threads())
        torch.rand(3)
        raise KeyboardInterrupt

    try:
        torch.set_num_threads(3)
        state = torch.get_rng_state()
        assert selftest(Bare(network), images).passed
        assert torch.equal(torch.get_rng_state(), state)
        monkeypatch.setattr(running, "witnesses_of", stop)
        with pytest.raises(KeyboardInterrupt):
            selftest(Bare(network), images)
        assert torch.equal(torch.get_rng_state(), state)
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(threads)


def test_a_sharper_head_is_not_drawn() -> None:
    """What is drawn on the model's device would move its random numbers."""
    part, state = nn.Linear(4, 3), torch.get_rng_state()
    sharp = whole._sharper(part)
    assert torch.equal(torch.get_rng_state(), state)
    for own, other in zip(sharp.parameters(), part.parameters(), strict=True):
        assert torch.equal(own, whole.SHARP * other)


def test_training_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="training mode"):
        selftest(Bare(make_network(PLAIN).train()), make_images(PLAIN))


def test_a_network_with_another_part_is_refused() -> None:
    network = make_network(PLAIN, parts=replace(STANDARD, activation=lambda _: nn.SiLU()))
    with pytest.raises(UsageError, match="SiLU"):
        selftest(Bare(network), make_images(PLAIN))


def test_no_pictures_and_patches_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"at least one picture \(b, c, h, w\), got \(0, 2, 12, 10\)\ntry: images=None"
    ):
        selftest(Bare(make_network(PLAIN)), make_images(PLAIN)[:0])
    with pytest.raises(UsageError, match="at least one picture"):
        selftest(Bare(ViT(PLAIN, PATCHIFIED).eval()), torch.randn(2, 15, 16))


def test_every_method_has_a_promise() -> None:
    assert {name for promise in PROMISES for name in promise.of} == set(METHODS)


# ---- it fails


def test_a_head_that_tells_no_classes_apart_fails() -> None:
    """All logits are the same number, so maps of two classes are the same."""
    model = load_planted("mean-0")
    network = make_network(model.network.config)
    network.load_state_dict(model.network.state_dict())
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.weight[:, 0] = 1.0
    assert model.donors is not None
    assert "classes have maps of their own" in {check.name for check in broken(network, model.donors[:4])}


# of the network as it is: the check that must go red, and the fault
WHOLE = {
    "layers of gradients in reverse": (
        "generic attention by a second way",
        METHODS_FAULTS["gradients of the last layer first"],
    ),
    "columns divided, not rows": ("rollout's rows sum to 1", METHODS_FAULTS["columns divided, not rows (no keepdim)"]),
    "a token too early": ("maps move with the picture", METHODS_FAULTS["a register shown as the first patch"]),
    "the probability": ("logits are explained, in raw units", METHODS_FAULTS["a probability differentiated"]),
    "deviation not held": ("the balance sheet closes", METHODS_FAULTS["deviation not held"]),
    "the sum of two classes": (
        "one class rather than another",
        Fault(Aim.of, lambda minus, one, other: one + other, at="-"),
    ),
    "less the mean of all pictures": (
        "a batch is one by one",
        Fault(
            heat_of, lambda heat_of, values, *given, **options: heat_of(values - values.mean(dim=0), *given, **options)
        ),
    ),
    "a gap that is not stated": (
        "integrated gradients say what is missing",
        Fault(gap_of, lambda over, missing, difference: missing + 1, at="/"),
    ),
}


@pytest.mark.parametrize("fault", WHOLE)
def test_a_fault_shows_on_the_network_as_it_is(fault: str) -> None:
    (name, planted_), model = WHOLE[fault], load_planted("class-0")
    assert model.donors is not None
    with planted(planted_):
        checks = list(whole.checks(model.network, model.donors[:4], 0))
    assert name in {check.name for check in checks if not check.passed}


@pytest.mark.soak
@pytest.mark.parametrize("fault", rows(METHODS_FAULTS | VIEWS_FAULTS))
def test_a_planted_fault_fails_the_self_test(fault: Fault) -> None:
    with planted(fault):
        assert not selftest(load_planted("class-0")).passed
