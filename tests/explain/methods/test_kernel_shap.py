"""KernelSHAP: its sets, its weights and what its fit keeps."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.explain.checks_pixels import brute_force
from tests.explain.reference import PLAIN, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.methods.kernel_shap import coalitions, kernel, kernel_shap, shapley_fit

players_and_seed = given(players=st.integers(1, 7), seed=st.integers(0, 10**6))


@settings(deadline=None, max_examples=25)
@players_and_seed
def test_any_game_with_all_sets_gives_shapley_values(players: int, seed: int) -> None:
    answers = torch.randn(2**players, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def value(chosen: tuple[int, ...]) -> float:
        return float(answers[sum(2**player for player in chosen)])

    sets, weights = coalitions(players, 2**players, 0)
    assert len(sets) == max(0, 2**players - 2)
    found = torch.tensor([[value(tuple(row.nonzero()[:, 0].tolist()))] for row in sets], dtype=torch.float64)
    ours = shapley_fit(sets.double(), weights, found.view(-1, 1), answers[:1], answers[-1:])
    assert (ours[0] - torch.tensor(brute_force(value, players), dtype=torch.float64)).abs().max() <= 1e-8


@settings(deadline=None, max_examples=25)
@given(players=st.integers(8, 25), seed=st.integers(0, 10**6))
def test_an_additive_game_is_exact_also_with_drawn_sets(players: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    adds = torch.randn(players, 3, generator=generator, dtype=torch.float64)
    sets, weights = coalitions(players, 200, seed)
    assert len(sets) == 200
    none = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    found = none + sets.double() @ adds
    ours = shapley_fit(sets.double(), weights, found, none, none + adds.sum(dim=0))
    assert (ours - adds.T).abs().max() <= 1e-8


def test_drawn_sets_come_in_pairs_and_sizes_as_the_kernel_weighs_them() -> None:
    players = 12
    sets, weights = coalitions(players, 4000, 3)
    assert set(weights.tolist()) == {1.0}
    assert torch.equal(sets[::2], ~sets[1::2])
    sizes = sets.sum(dim=1)
    assert sizes.min() >= 1
    assert sizes.max() <= players - 1
    fractions = torch.tensor([math.comb(players, size) * kernel(players, size) for size in range(1, players)])
    counted = torch.bincount(sizes, minlength=players)[1:players] / len(sets)
    assert (counted - fractions / fractions.sum()).abs().max() < 0.03
    assert (sets.double().mean(dim=0) - 0.5).abs().max() < 1e-12  # every player is in half of the sets
    together = (sets[::2, :2].all(dim=1) | (~sets[::2, :2]).all(dim=1)).double().mean()
    wanted = sum(
        fraction * (size * (size - 1) + (12 - size) * (11 - size)) / 132 for size, fraction in enumerate(fractions, 1)
    )
    assert abs(float(together) - float(wanted / fractions.sum())) < 0.05


def test_the_kernel() -> None:
    """Equation of theorem 2, and its symmetry."""
    assert kernel(4, 1) == pytest.approx(3 / (4 * 1 * 3))
    assert kernel(4, 2) == pytest.approx(3 / (6 * 2 * 2))
    for size in range(1, 9):
        assert kernel(9, size) == kernel(9, 9 - size)


def test_all_sets_are_all_sets() -> None:
    sets, _ = coalitions(5, 30, 0)
    expected = {chosen for size in range(1, 5) for chosen in combinations(range(5), size)}
    assert {tuple(row.nonzero()[:, 0].tolist()) for row in sets} == expected
    assert len(coalitions(6, 61, 0)[0]) == 60  # drawn, in pairs


def test_more_samples_come_closer() -> None:
    """A game with interactions among 10 players, against the exact values."""
    generator = torch.Generator().manual_seed(0)
    between = torch.randn(10, 10, generator=generator, dtype=torch.float64)

    def value(sets: torch.Tensor) -> torch.Tensor:
        chosen = sets.double()
        return (((chosen @ between) * chosen).sum(dim=1) + chosen.prod(dim=1) + (chosen.sum(dim=1) > 4)).view(-1, 1)

    ends = value(torch.zeros(1, 10))[0], value(torch.ones(1, 10))[0]
    sets, weights = coalitions(10, 1022, 0)
    exact = shapley_fit(sets.double(), weights, value(sets), *ends)

    def off(samples: int) -> float:
        drawn = [coalitions(10, samples, seed) for seed in range(5)]
        fits = [shapley_fit(sets.double(), weights, value(sets), *ends) for sets, weights in drawn]
        return float(torch.stack([(fit - exact).square().mean().sqrt() for fit in fits]).mean())

    assert off(1000) < 0.6 * off(200) < 0.6 * off(80)


def test_patches_that_cannot_be_told_apart() -> None:
    sets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)  # two always come together
    with must_refuse("2 subsets", "3 patches"):
        shapley_fit(sets, torch.ones(2).double(), torch.ones(2, 1).double(), torch.zeros(1), torch.ones(1))


def test_a_grid_of_one_patch() -> None:
    network, images = make_network(PLAIN), torch.randn(2, 2, 4, 2, generator=torch.Generator().manual_seed(0))
    attribution = kernel_shap(network, images, 1, fill=0.0)
    difference = attribution.logit - network(torch.zeros_like(images))[:, 1].detach()
    assert (attribution.values[:, 0, 0] - difference).abs().max() <= 1e-5


def test_the_fewest_samples_are_enough_for_every_seed() -> None:
    for players in (9, 15, 40, 100):
        for seed in range(30):
            sets, weights = coalitions(players, 8 * players, seed)
            found = sets.double().sum(dim=1, keepdim=True)
            ends = torch.zeros(1, dtype=torch.float64), torch.full((1,), float(players), dtype=torch.float64)
            fit = shapley_fit(sets.double(), weights, found, *ends)
            assert (fit - 1).abs().max() <= 1e-6
