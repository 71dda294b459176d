"""Scores that ask whether a method depends on weights, class and image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.metrics import sensitivity_max
from hypothesis import given, settings, strategies as st
from scipy.stats import spearmanr
from torch import Tensor, nn

from benchmarks.scores import (
    class_discrimination,
    max_sensitivity,
    mprt,
    scramble,
    similarity,
    spearman,
)
from benchmarks.scores.agreement import same_target
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse_and_say_what_works
from vitrail.explain import Attribution, generic_attention, rollout
from vitrail.explain.scores.perturb import stream
from vitrail.explain.target import Contrast, Target
from vitrail.nn import Parts, ViT

GRID = (3, 5)


def attribution_of(values: Tensor, target: Target = None) -> Attribution:
    chosen = torch.as_tensor(0 if target is None else target).expand(len(values)).clone()
    return Attribution(values, chosen, torch.zeros(len(values)), "test", True, True, ((),) * len(values))


def in_the_middle(network: ViT, images: Tensor, target: Target) -> Attribution:
    """A map that depends on nothing."""
    rows, columns = torch.arange(3.0)[:, None] - 1.2, torch.arange(5.0) - 1.9
    return attribution_of((-(rows**2) - columns**2).expand(len(images), *GRID), 0)


def patch_means(network: ViT, images: Tensor, target: Target) -> Attribution:
    return attribution_of(images.mean(dim=1).unflatten(2, (5, 2)).unflatten(1, (3, 4)).mean(dim=(2, 4)), 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 40), st.sampled_from([1, 3, 100]))
def test_spearman_is_scipys(seed: int, patches: int, kinds: int) -> None:
    random = np.random.default_rng(seed)
    one, two = random.integers(0, kinds + 1, (2, patches)) / 7.0
    found = float(spearman(torch.tensor(one)[None], torch.tensor(two)[None]))
    if np.ptp(one) == 0 or np.ptp(two) == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(spearmanr(one, two).statistic, abs=1e-12)


def test_spearman_of_what_is_not_finite_is_no_number() -> None:
    rows = torch.randn(3, 6)
    wrong = rows.clone()
    wrong[1, 2] = torch.nan
    assert spearman(wrong, rows).isnan().tolist() == [False, True, False]
    assert spearman(rows, wrong).isnan().tolist() == [False, True, False]


def test_a_map_that_depends_on_nothing_fails_mprt() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 4)
    found = mprt(network, images, in_the_middle)
    assert found.signed.tolist() == pytest.approx([1.0] * 4)
    assert found.absolute.tolist() == pytest.approx([1.0] * 4)
    assert mprt(network, images, patch_means).signed.tolist() == pytest.approx([1.0] * 4)  # of the image alone


def test_a_map_that_turns_its_sign_fails_the_absolute_mprt() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 2)

    def signed(given: ViT, images: Tensor, target: Target) -> Attribution:
        sign = 1.0 if given is network else -1.0
        return attribution_of(sign * patch_means(given, images, target).values)

    found = mprt(network, images, signed)
    assert found.signed.tolist() == pytest.approx([-1.0] * 2)
    assert found.absolute.tolist() == pytest.approx([1.0] * 2)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_mprt_compares_maps_of_one_class_on_two_networks(config) -> None:
    network, images = make_network(config), make_images(config, 6)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = mprt(network, images, generic_attention, seed=3)
    targets = network(images).argmax(dim=1)
    other = scramble(network, 3)
    pairs = zip(
        generic_attention(network, images, targets).values.flatten(1).numpy(),
        generic_attention(other, images, targets).values.flatten(1).numpy(),
        strict=True,
    )
    wanted = [spearmanr(one, two).statistic for one, two in pairs]
    assert found.signed.numpy() == pytest.approx(np.array(wanted), abs=1e-6)
    assert (other(images).argmax(dim=1) != targets).any(), "the class is not the other network's own choice"
    assert found.signed.abs().max() < 0.999
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_scrambled_network_is_a_fresh_one_with_a_head() -> None:
    network = make_network(replace(PLAIN, distillation_token=True, layer_scale=0.1)).double()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    other, again, third = scramble(network, 0), scramble(network, 0), scramble(network, 1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    fresh = ViT(network.config)
    for name, value in other.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert value.dtype == torch.float64
        if name.startswith("head"):
            assert value.std() > 0 or "bias" in name
        else:
            assert torch.equal(value.float(), fresh.state_dict()[name])
    assert not other.training
    assert not torch.equal(other.head.weight, third.head.weight)
    images = make_images(network.config).double()
    assert other(images).std() > 0
    assert generic_attention(other, images).notes == ((), ())


def test_a_scrambled_network_keeps_foreign_parts() -> None:
    parts = Parts(norm=lambda config: nn.RMSNorm(config.width))
    other = scramble(make_network(PLAIN, parts=parts), 0)
    assert isinstance(other.norm, nn.RMSNorm)


def test_the_target_stays_the_same() -> None:
    attribution = attribution_of(torch.zeros(2, *GRID), 3)
    assert same_target(attribution, (1, 2)) == (1, 2)
    assert same_target(attribution, None) is attribution.target
    against = replace(attribution, contrast=torch.tensor([0, 0]))
    assert isinstance(same_target(against, None), Contrast)


def two_objects(count: int = 50) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(count, 2, *GRID, dtype=torch.bool)
    masks[:, 0, 0, :2] = masks[:, 1, 2, 3:] = True
    return torch.randn(count, *GRID, generator=generator), masks


def test_a_map_that_is_blind_to_classes_has_one_half_exactly() -> None:
    values, masks = two_objects()
    found = class_discrimination(values, values, masks)
    assert (found.sum(dim=1) == 1).all()
    assert float(found.mean()) == 0.5
    assert set(found.flatten().tolist()) == {0.0, 1.0}
    nothing = class_discrimination(torch.zeros_like(values), torch.zeros_like(values), masks)
    assert (nothing == 0.5).all()


def test_each_class_gets_its_own_or_the_other() -> None:
    _, masks = two_objects(4)
    one, two = masks[:, 0].double(), masks[:, 1].double()
    assert (class_discrimination(one, two, masks) == 1).all()
    assert (class_discrimination(two, one, masks) == 0).all()
    assert class_discrimination(one, one, masks).tolist() == [[1.0, 0.0]] * 4
    assert (class_discrimination(-two, -one, masks) == 1).all(), "what speaks against the other speaks for it"


def test_discrimination_is_what_loops_give() -> None:
    values, masks = two_objects()
    other = values.roll(1, dims=0)
    found = class_discrimination(values, other, masks)
    for index in range(50):
        for which, own in enumerate((values[index], other[index])):
            sums = [sum(own[mask].tolist()) for mask in masks[index]]
            assert found[index, which] == float(sums[which] > sums[1 - which])
    broken = values.clone()
    broken[3] = torch.nan
    assert class_discrimination(broken, other, masks).isnan().any(dim=1).nonzero().flatten().tolist() == [3]


def test_maps_for_two_classes_of_a_blind_and_of_a_seeing_method() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 5)
    for method, low, high in ((rollout, 1 - 1e-6, 1 + 1e-6), (generic_attention, -1.0, 0.99)):
        found = similarity(method(network, images, 0).values, method(network, images, 1).values)
        assert ((found.signed >= low) & (found.signed <= high)).all()


def noises(shape: tuple[int, ...], radius: float, samples: int, seed: int) -> list[Tensor]:
    generator = stream(seed, "max-sensitivity")
    return [radius * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) for _ in range(samples)]


def test_max_sensitivity_is_the_largest_relative_change() -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 4).double()
    targets = network(images).argmax(dim=1)
    found = max_sensitivity(network, images, generic_attention, radius=0.05, samples=6, seed=2)
    assert (found > 1e-3).all()
    for index in range(4):
        image, target = images[index : index + 1], int(targets[index])
        still, worst = generic_attention(network, image, target).values.numpy(), 0.0
        for noise in noises(images.shape[1:], 0.05, 6, 2):
            moved = generic_attention(network, image + noise, target).values.numpy()
            worst = max(worst, float(np.sqrt(((moved - still) ** 2).sum() / (still**2).sum())))
        assert found[index] == pytest.approx(worst, rel=1e-9)


def test_max_sensitivity_is_captums() -> None:
    """With the same noise for both."""
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    targets = network(images).argmax(dim=1)
    queue = iter(noises(images.shape[1:], 0.02, 10, 0))
    wanted = sensitivity_max(
        lambda images: (generic_attention(network, images[0], targets).values,),
        images,
        perturb_func=lambda images, _: (images + next(queue),),
        n_perturb_samples=10,
        max_examples_per_batch=3,
    )
    found = max_sensitivity(network, images, generic_attention)
    assert found.numpy() == pytest.approx(wanted.numpy(), rel=1e-9)


def test_a_constant_and_a_zero_map_are_not_sensitive() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 3)
    assert (max_sensitivity(network, images, in_the_middle) == 0).all()
    nothing = max_sensitivity(network, images, lambda *given: attribution_of(torch.zeros(3, *GRID)))
    assert (nothing == 0).all()


def test_max_sensitivity_is_the_same_in_every_batch_and_needs_a_radius() -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    together = max_sensitivity(network, images, patch_means, samples=3)
    for one in range(3):
        assert max_sensitivity(network, images[one : one + 1], patch_means, samples=3) == together[one]
    for wrong in ({"radius": 0.0}, {"samples": 0}):
        must_refuse_and_say_what_works(
            lambda **options: max_sensitivity(network, images, patch_means, **options), *wrong.values(), **wrong
        )


def test_scrambling_leaves_the_random_numbers_of_other_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(_: int) -> None:
        pytest.fail("the random numbers of the GPU are seeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded)
    with torch.random.fork_rng(devices=[]), pytest.raises(pytest.fail.Exception):
        torch.manual_seed(0)  # seeds every device
    scramble(make_network(PLAIN), 0)
