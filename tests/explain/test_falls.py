"""Masking patches step by step: the right patches, the same fills for all, no preference among equals."""

import itertools

import numpy as np
import pytest
import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.falls import RANDOM_MAPS, MaskedImages, falls_of, steps_of
from vitrail.explain.perturb import explained
from vitrail.explain.scores.fill import from_background
from vitrail.explain.scores.random_maps import random_maps
from vitrail.explain.target import ChosenTarget

pytestmark = pytest.mark.usefixtures("as_a_user")


def make(draws: int = 10, seed: int = 0, count: int = 3) -> MaskedImages:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, count).double()
    background = make_images(PLAIN, 5, seed=9).double()
    return MaskedImages(network, images, ChosenTarget(torch.arange(count)), from_background(background), seed, draws)


@pytest.mark.parametrize("patches", [1, 2, 4, 9, 49, 64, 196, 1024])
@pytest.mark.parametrize("count", [10, 13])
def test_steps_go_from_a_32nd_of_the_patches_to_half_of_all(patches: int, count: int) -> None:
    steps = steps_of(patches, count)
    assert len(steps) == count
    assert steps[0] == max(1, round(patches / 32))
    assert steps[-1] == max(1, round(patches / 2))
    assert list(steps) == sorted(steps)
    assert steps_of(64, 5) == (2, 4, 8, 16, 32)
    assert steps_of(196, 5) == (6, 12, 24, 49, 98)


@torch.no_grad()
def test_the_numbers_are_those_of_images_masked_by_hand() -> None:
    masked, random = make(), np.random.default_rng(0)
    rows, columns = masked.grid
    down, across = masked.images.shape[2] // rows, masked.images.shape[3] // columns
    maps = torch.from_numpy(random.permutation(3 * rows * columns).reshape(1, 3, rows, columns)).double()
    fills = masked.fills(maps[0])
    numbers, probabilities = masked.measured(masked.masks(maps), fills)
    assert numbers.shape == probabilities.shape == (10, 1, 3)
    for step, patches in enumerate(masked.steps):
        fill = fills[step]
        changed = masked.images.clone()
        for image in range(3):
            first = np.argsort(-maps[0, image].flatten().numpy())[:patches]
            for patch in first:
                row, column = patch // columns, patch % columns
                place = (..., slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across))
                changed[image][place] = fill[image][place]
        logits = masked.network(changed)
        assert (numbers[step, 0] - explained(logits, masked.chosen)).abs().max() <= 1e-12
        assert (probabilities[step, 0] - logits.softmax(dim=1)[torch.arange(3), torch.arange(3)]).abs().max() <= 1e-12


@torch.no_grad()
def test_equal_maps_have_equal_numbers_and_others_the_same_fills() -> None:
    masked = make()
    one = torch.randn(3, *masked.grid, generator=torch.Generator().manual_seed(1))
    fills = masked.fills(one)
    numbers, _ = masked.measured(masked.masks(torch.stack([one, -one, one])), fills)
    assert (numbers[:, 0] - numbers[:, 2]).abs().max() <= 1e-12  # another place in a batch may round otherwise
    assert (numbers[:, 0] - numbers[:, 1]).abs().max() > 1e-3
    scaled, _ = masked.measured(masked.masks((3 * one + 1)[None]), masked.fills(3 * one + 1))
    assert (numbers[:, :1] - scaled).abs().max() <= 1e-12  # the order counts, not the unit


def test_another_map_gets_other_fills_and_each_image_its_own() -> None:
    """Who makes a map that does well under known fills gets other ones with every change of its order."""
    masked = make()
    one = torch.randn(3, *masked.grid, generator=torch.Generator().manual_seed(1))
    other = one.clone()
    first, second = one[0].flatten().argsort(descending=True)[:2].tolist()
    other.view(3, -1)[0, [first, second]] = one.view(3, -1)[0, [second, first]]  # of one image, two patches
    fills, changed = masked.fills(one), masked.fills(other)
    assert not torch.equal(fills[:, 0], changed[:, 0])
    assert torch.equal(fills[:, 1:], changed[:, 1:])
    image = torch.tensor([2])
    assert torch.equal(fills[:, 2:], masked.select(image).fills(one[image])), "in every batch alike"
    assert len({fill.numpy().tobytes() for fill in fills.flatten(0, 1)}) == 30


def test_among_equals_no_place_is_preferred_and_all_maps_of_an_image_have_one_order() -> None:
    rows, columns = make().grid
    first = torch.zeros(rows, columns)
    for seed in range(150):
        masks = make(seed=seed, count=1).masks(torch.zeros(2, 1, rows, columns))
        assert torch.equal(masks[:, 0], masks[:, 1])
        first += masks[0, 0, 0]  # a single patch
    expected = 150 / (rows * columns)
    assert float(((first - expected) ** 2 / expected).sum()) < 3 * rows * columns  # chi-square, p far below 1e-6


@torch.no_grad()
def test_a_map_falls_as_its_images_do_when_they_are_masked_one_by_one() -> None:
    """The queue of `falls_of` against a pass for each draw and step; its random maps meet the same fills."""
    masked = make(draws=5)
    values = torch.randn(3, *masked.grid, generator=torch.Generator().manual_seed(1)).double()
    whole = explained(masked.network(masked.images), masked.chosen)
    found = falls_of(values, masked, whole, torch.tensor([True, False, True]))
    assert found.score.isnan().tolist() == [False, True, False]
    fills, masks = masked.fills(values), masked.masks(values[None])[:, 0]
    for image in (0, 2):
        falls = torch.empty(5, 5)
        for draw, step in itertools.product(range(5), range(5)):
            pixels = masks[step, image].repeat_interleave(4, dim=0).repeat_interleave(2, dim=1)
            shown = torch.where(pixels, fills[draw, image], masked.images[image])
            number = explained(masked.network(shown[None]), masked.chosen.select(slice(image, image + 1)))
            falls[draw, step] = whole[image] - number[0]
        assert abs(float(found.score[image] - falls.mean())) <= 1e-6
        assert abs(float(found.paired[image] - falls.diagonal().mean())) <= 1e-6
    one = torch.tensor([2])
    some = masked.select(one)
    drawn = random_maps(values[one], RANDOM_MAPS, some.seed, some.keys(values[one]))
    numbers, _ = some.measured(some.masks(drawn), fills[:, one])
    assert (found.random[2, :RANDOM_MAPS] - (whole[2] - numbers[..., 0]).mean(dim=0)).abs().max() <= 1e-9
