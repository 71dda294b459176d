"""Covering squares step by step: the right squares, the same covers for all, no preference among equals."""

import numpy as np
import pytest
import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.covered_pictures import CoveredPictures, probability, steps_of
from vitrail.explain.evidence import explained
from vitrail.explain.scores.fill import donor
from vitrail.explain.target import Aim

pytestmark = pytest.mark.usefixtures("as_a_user")


def make(draws: int = 10, seed: int = 0, pictures: int = 3) -> CoveredPictures:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, pictures).double()
    references = make_images(PLAIN, 5, seed=9).double()
    return CoveredPictures(network, images, Aim(torch.arange(pictures)), donor(references), seed, draws)


@pytest.mark.parametrize("squares", [1, 2, 4, 9, 49, 64, 196, 1024])
@pytest.mark.parametrize("count", [10, 13])
def test_steps_go_from_a_32nd_of_the_squares_to_half_of_all(squares: int, count: int) -> None:
    steps = steps_of(squares, count)
    assert len(steps) == count
    assert steps[0] == max(1, round(squares / 32))
    assert steps[-1] == max(1, round(squares / 2))
    assert list(steps) == sorted(steps)
    assert steps_of(64, 5) == (2, 4, 8, 16, 32)
    assert steps_of(196, 5) == (6, 12, 24, 49, 98)


@torch.no_grad()
def test_the_numbers_are_those_of_pictures_covered_by_hand() -> None:
    covering, random = make(), np.random.default_rng(0)
    rows, columns = covering.grid
    down, across = covering.patch
    maps = torch.from_numpy(random.permutation(3 * rows * columns).reshape(1, 3, rows, columns)).double()
    covers = covering.covers(maps[0])
    numbers, shares = covering.paired(maps, covers)
    assert numbers.shape == shares.shape == (10, 1, 3)
    for step, squares in enumerate(covering.steps):
        cover = covers[step]
        covered = covering.images.clone()
        for picture in range(3):
            first = np.argsort(-maps[0, picture].flatten().numpy())[:squares]
            for square in first:
                row, column = square // columns, square % columns
                place = (..., slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across))
                covered[picture][place] = cover[picture][place]
        logits = covering.network(covered)
        assert (numbers[step, 0] - explained(logits, covering.aim)).abs().max() <= 1e-12
        assert (shares[step, 0] - logits.softmax(dim=1)[torch.arange(3), torch.arange(3)]).abs().max() <= 1e-12


@torch.no_grad()
def test_equal_maps_have_equal_numbers_and_others_the_same_covers() -> None:
    covering = make()
    one = torch.randn(3, *covering.grid, generator=torch.Generator().manual_seed(1))
    covers = covering.covers(one)
    numbers, _ = covering.paired(torch.stack([one, -one, one]), covers)
    assert (numbers[:, 0] - numbers[:, 2]).abs().max() <= 1e-12  # another place in a batch may round otherwise
    assert (numbers[:, 0] - numbers[:, 1]).abs().max() > 1e-3
    scaled, _ = covering.paired((3 * one + 1)[None], covering.covers(3 * one + 1))
    assert (numbers[:, :1] - scaled).abs().max() <= 1e-12  # the order counts, not the unit


def test_another_map_gets_other_covers_and_each_picture_its_own() -> None:
    """Who makes a map that does well under known covers gets other ones with every change of its order."""
    covering = make()
    one = torch.randn(3, *covering.grid, generator=torch.Generator().manual_seed(1))
    other = one.clone()
    first, second = one[0].flatten().argsort(descending=True)[:2].tolist()
    other.view(3, -1)[0, [first, second]] = one.view(3, -1)[0, [second, first]]  # of one picture, two squares
    covers, changed = covering.covers(one), covering.covers(other)
    assert not torch.equal(covers[:, 0], changed[:, 0])
    assert torch.equal(covers[:, 1:], changed[:, 1:])
    picture = torch.tensor([2])
    assert torch.equal(covers[:, 2:], covering.select(picture).covers(one[picture])), "in every batch alike"
    assert len({cover.numpy().tobytes() for cover in covers.flatten(0, 1)}) == 30


@torch.no_grad()
def test_among_equals_no_place_is_preferred() -> None:
    rows, columns = make().grid
    first = torch.zeros(rows, columns)
    for seed in range(150):
        covering = make(seed=seed, pictures=1)
        order = covering._order(torch.zeros(1, 1, rows, columns))
        first += covering._first(order, 1)[0, 0]
    expected = 150 / (rows * columns)
    assert float(((first - expected) ** 2 / expected).sum()) < 3 * rows * columns  # chi-square, p far below 1e-6


@torch.no_grad()
def test_draws_are_of_their_own_and_their_diagonal_is_what_maps_are_compared_by() -> None:
    covering = make()
    maps = torch.randn(3, *covering.grid, generator=torch.Generator().manual_seed(1))
    covers = covering.covers(maps)
    numbers, shares = covering.by_draw(maps, covers)
    assert numbers.shape == shares.shape == (10, 10, 3)
    assert len(numbers.mean(dim=1)[:, 0].unique()) == 10
    draw = 4
    cover = covers[draw]
    order = covering._order(maps[None])
    by_step = [explained(covering._logits(cover, covering._first(order, k)), covering.aim)[0] for k in covering.steps]
    assert (numbers[draw] - torch.stack(by_step)).abs().max() <= 1e-12
    paired, paired_shares = covering.paired(maps[None], covers)
    assert (numbers.diagonal().T - paired[:, 0]).abs().max() <= 1e-12
    assert (shares.diagonal().T - paired_shares[:, 0]).abs().max() <= 1e-12


def test_a_function_has_no_probability() -> None:
    logits = torch.randn(2, 3, 5)
    assert probability(logits, Aim(torch.full((3,), -1), function=lambda rows: rows[:, 0])).isnan().all()
    assert torch.equal(probability(logits, Aim(torch.tensor([0, 1, 2])))[0, 1], logits[0, 1].softmax(dim=0)[1])
