"""The sanity checks pass on trained, random and odd networks, and each fails on a planted fault."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.explain.mutants import Fault, planted
from tests.explain.planted_lab import load_planted
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.test_mutants import FAULTS
from vitrail.errors import UsageError
from vitrail.explain.forward import ForwardPass
from vitrail.explain.sanity_check import (
    CHECKS as CHECKED,
    IMAGES,
    MOST_DRAWS,
    RE_DRAWN,
    SHARP,
    Check,
    SanityReport,
    _sharpen,
    checks,
    judge,
    sanity_check,
    scramble,
)
from vitrail.nn import SILENT, STANDARD, Record, ViT, ViTConfig
from vitrail.tasks.target import ClassTarget
from vitrail.training.configuration.resolve import RECIPES

pytestmark = pytest.mark.usefixtures("as_a_user")  # the check of shapes takes most of the time
RANDOM = "the weights matter"  # random weights may well agree with other random weights
CHECKS = 11


@dataclass(frozen=True)
class Bare:
    """A network without background images."""

    network: ViT
    background_images: Tensor | None = None


def shifted(by: int) -> Fault:
    """Scrambled weights are drawn by other seeds, so far behind the usual ones."""
    return Fault(scramble, lambda drawn, network, seed: drawn(network, seed + by))


def failed(network: ViT, images: Tensor, *but: str) -> set[str]:
    return {one.name for one in checks(network, images) if not one.passed} - set(but)


def seldom(often: list[str], rest: list[str]) -> list:
    """Parameters, of which the rest is left to `make soak`."""
    return [*often, *(pytest.param(name, marks=pytest.mark.soak) for name in rest)]


# ---- it passes


@pytest.mark.parametrize("name", seldom(["class-0"], ["mean-1", "class-1", "class-2", "mean-0", "mean-2", "pairs-2"]))
def test_it_passes_on_trained_networks(name: str) -> None:
    report = sanity_check(load_planted(name))
    assert report.passed, str(report)
    assert len(report.checks) == CHECKS


VARIED = ["class-2-distilled", "mean-5-distilled"]


@pytest.mark.parametrize("name", seldom(VARIED, sorted(set(VARIANTS) - set(VARIED))))
def test_what_must_hold_of_any_weights_holds_of_any_kind(name: str) -> None:
    assert not failed(make_network(VARIANTS[name]), make_images(VARIANTS[name], 4), RANDOM)


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


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, marks=() if change in (no_attention, blind) else pytest.mark.soak)
        for name, change in zip(["class-1", "mean-0"] * 3, ODD, strict=True)
    ],
)
def test_odd_weights_are_no_fault(name: str, change: Callable[[ViT], None]) -> None:
    network = make_network(VARIANTS[name])
    with torch.no_grad():
        change(network)
    assert not failed(network, make_images(VARIANTS[name], 3), RANDOM)


def test_one_class_one_image_one_block_and_one_patch_are_no_fault() -> None:
    config = replace(PLAIN, classes=1, depth=1, image_size=PLAIN.patch)
    assert not failed(make_network(config), make_images(config, 1))


def test_weights_in_half_precision_pass_and_everything_is_left_as_it_was() -> None:
    model = load_planted("mean-0")
    network = ViT(model.network.config).eval().bfloat16()
    network.load_state_dict(model.network.state_dict())
    assert model.background_images is not None
    images = model.background_images[:4].bfloat16().requires_grad_()
    bits = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random, threads = torch.random.get_rng_state(), torch.get_num_threads()
    with torch.inference_mode():
        report = sanity_check(Bare(network), images)
    assert report.passed, str(report)
    assert all(torch.equal(bits[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert torch.equal(random, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert images.grad is None


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [*sorted(n for n, one in RECIPES.items() if one.kind == "ViT" and one.image_size), "B/16"]
)
def test_every_recipes_network(name: str) -> None:
    """With random weights; that learnt ones matter was seen on runs of one epoch of each (all checks pass)."""
    if name in RECIPES:
        recipe = RECIPES[name]
        network = {key: value for key, value in recipe.network.items() if key != "kind"}
        config = ViTConfig.from_dict({"image_size": recipe.image_size, "classes": 10, **network})
    else:
        config = ViTConfig.from_size(name, classes=10)
    images = torch.randn(4, config.channels, *config.image, generator=torch.Generator().manual_seed(0))
    assert not failed(make_network(config), images, RANDOM)


# ---- its size


@pytest.mark.parametrize("patches", [16, *(pytest.param(each, marks=pytest.mark.soak) for each in (2, 4, 49))])
def test_right_networks_fail_by_chance_at_most_once_in_a_thousand(patches: int) -> None:
    """Maps that have nothing to do with each other, and all images alike, which leaves each draw one number."""
    networks, generator = 4000, np.random.default_rng(patches)
    ranks = generator.permuted(np.tile(np.arange(patches), (networks, 16, 2, 1)), axis=3) - (patches - 1) / 2
    correlations = (ranks * (np.arange(patches) - (patches - 1) / 2)).sum(axis=3) / (ranks[0, 0, 0] ** 2).sum()
    three = (np.abs(correlations[:, :3].mean(axis=1)) > RE_DRAWN).any(axis=1).mean()
    assert three > 0.005 or patches == 49, "the limit alone, after three draws, is met by chance"
    failed = sum(not judge(each.tolist())[0] for each in correlations)
    assert failed <= networks / 1000


TIMES = 200  # each with scrambled weights of its own


@pytest.mark.soak
def test_the_network_of_digits_fails_by_chance_at_most_once_in_200(tmp_path: Path) -> None:
    """README's own example: `vitrail train digits`, then `vitrail doctor`; it has 16 patches."""
    options = vitrail.TrainOptions(threads=1, device="cpu", seed=0)
    model = vitrail.train("digits", tmp_path / "run", options).model
    assert model.background_images is not None
    assert sanity_check(model).passed
    failures = 0
    for number in range(TIMES):
        with planted(shifted(1000 + number * MOST_DRAWS)):
            failures += not CHECKED[RANDOM](model.network, model.background_images[:IMAGES])[0]
    assert failures <= 1


@pytest.mark.soak
def test_random_networks_of_16_patches_fail_by_chance_at_most_once_in_200() -> None:
    """All checks, though random weights may well agree with other random weights."""
    config = replace(PLAIN, image_size=tuple(4 * side for side in PLAIN.patch))
    found = list[set[str]]()
    for number in range(TIMES):
        with planted(shifted(100_000 + number * MOST_DRAWS)):
            found.append(failed(make_network(config, seed=number), make_images(config, IMAGES, seed=number)))
    assert sum(map(bool, found)) <= 1, [names for names in found if names]


ALIKE = [(-1.0, 0.0), (0.8, 0.2), *(pytest.param(*each, marks=pytest.mark.soak) for each in ((1.0, 0.0), (0.9, 0.2)))]


@pytest.mark.parametrize(("true", "noise"), ALIKE)
def test_maps_that_do_not_depend_on_the_weights_fail(true: float, noise: float) -> None:
    """One of the two methods, by that rank correlation; the other is right."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        correlations = np.stack([generator.normal(0, 0.26, 16), generator.normal(true, noise, 16).clip(-1, 1)], axis=1)
        passed, means, draws = judge(correlations.tolist())
        assert not passed
        assert draws == 16
        assert abs(means[1]) > RE_DRAWN


def test_maps_that_are_alike_by_chance_get_more_draws_and_pass() -> None:
    passed, means, draws = judge([(0.5, 0.4), (0.6, 0.0), (0.3, 0.1), (-0.3, 0.0), (0.0, 9.9)])
    assert (passed, draws) == (True, 4)
    assert means == pytest.approx([0.275, 0.125])
    assert judge([(float("nan"), 0.0)] * 16)[::2] == (True, 3), "a method without a map"


@pytest.mark.parametrize("seed", [0, 5, 11])
def test_two_classes_whose_maps_have_the_same_ranks_are_two_classes(seed: int) -> None:
    """With four patches it happens by chance; the maps of these networks differ in their values alone."""
    config = replace(PLAIN, image_size=tuple(2 * side for side in PLAIN.patch))
    assert not failed(make_network(config, seed=seed), make_images(config, 1), RANDOM)


# ---- what it reports and refuses


def test_it_tells_what_it_saw() -> None:
    report = SanityReport((Check("one thing", True, "fine"), Check("another thing", False, "off by 2")), 1.5)
    assert not report.passed
    assert str(report) == "pass  one thing      fine\nFAIL  another thing  off by 2"


@pytest.mark.parametrize(
    ("weights", "pixels"),
    [
        ("float32", "bfloat16"),
        *(pytest.param(kind, "float32", marks=pytest.mark.soak) for kind in ("bfloat16", "float64")),
    ],
)
def test_images_of_another_precision_than_the_weights(weights: str, pixels: str) -> None:
    network = make_network(PLAIN).to(getattr(torch, weights))
    report = sanity_check(Bare(network, make_images(PLAIN).to(getattr(torch, pixels))))
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
        assert sanity_check(Bare(network), images).passed
        assert torch.equal(torch.get_rng_state(), state)
        with planted(Fault(scramble, stop)), pytest.raises(KeyboardInterrupt):
            sanity_check(Bare(network), images)
        assert torch.equal(torch.get_rng_state(), state)
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(threads)


def test_a_sharper_head_is_not_drawn() -> None:
    """What is drawn on the model's device would move its random numbers."""
    part, state = nn.Linear(4, 3), torch.get_rng_state()
    sharp = _sharpen(part)
    assert torch.equal(torch.get_rng_state(), state)
    for own, other in zip(sharp.parameters(), part.parameters(), strict=True):
        assert torch.equal(own, SHARP * other)


def test_what_does_not_fit_is_a_usage_error() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    with must_raise(UsageError, r"\(0, 2, 12, 10\)"):
        sanity_check(Bare(network), images[:0])
    with must_raise(UsageError, r"\(2, 15, 16\)"):
        sanity_check(Bare(network), torch.randn(2, 15, 16))
    with must_raise(UsageError, "Tanh"):
        sanity_check(Bare(make_network(PLAIN, parts=replace(STANDARD, activation=lambda _: nn.Tanh()))), images)
    with must_raise(UsageError):
        sanity_check(Bare(network.train()), images)


# ---- it fails


# each check, and a fault that turns it red on a trained network
PLANTED = {
    "a record does not change logits": Fault(
        ViT.forward,
        lambda forward, network, images, record=SILENT: forward(network, images, record) + (record is not SILENT),
    ),
    "attention weights sum to 1": Fault(Record.attention, lambda attention, *given: 1.01 * attention(*given)),
    "rollout's rows sum to 1": FAULTS["columns divided, not rows (no keepdim)"],
    "the balance sheet adds up": FAULTS["deviation not held"],
    "integrated gradients add up": Fault(
        ForwardPass.attribution, lambda attribution, forward, values, *given: attribution(forward, 2 * values, *given)
    ),
    "a contrast of two classes": Fault(ClassTarget.__call__, lambda minus, one, other: one + other, at="-"),
    "maps change with the image": FAULTS["a register shown as the first patch"],
    "a batch equals single images": Fault(
        ForwardPass.attribution,
        lambda attribution, forward, values, *given: attribution(forward, values - values.mean(dim=0), *given),
    ),
    "logits are explained, in their own unit": FAULTS["a probability differentiated"],
    "classes have different maps": Fault(ClassTarget.__call__, lambda of, chosen, logits: logits.square().sum(dim=-1)),
    "the weights matter": Fault(scramble, lambda scramble, network, seed: network),
}


OFTEN = [
    "a record does not change logits",
    "the balance sheet adds up",
    "maps change with the image",
    "the weights matter",
]


@pytest.mark.parametrize("check", seldom(OFTEN, [check for check in PLANTED if check not in OFTEN]))
def test_a_planted_fault_turns_its_check_red(check: str) -> None:
    model = load_planted("class-0")
    assert model.background_images is not None
    with planted(PLANTED[check]):
        assert check in failed(model.network, model.background_images[:4])


def test_every_check_can_fail() -> None:
    found = [one.name for one in checks(make_network(PLAIN), make_images(PLAIN))]
    assert found == list(PLANTED)
    assert len(found) == CHECKS
