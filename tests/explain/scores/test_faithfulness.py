"""Masking patches step by step: the right patches, the same fills for all, no preference among equals."""

import itertools

import numpy as np
import pytest
import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.scores.faithfulness import (
    MORE_RANDOM_MAPS,
    RANDOM_MAPS,
    STEPS,
    MaskedImages,
    _count_as_good,
    measure_drops,
    steps_of,
)
from vitrail.explain.scores.perturb import explained_number, from_background
from vitrail.explain.target import choose_target

pytestmark = pytest.mark.usefixtures("as_a_user")


def make(seed: int = 0, count: int = 3) -> MaskedImages:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, count).double()
    background = make_images(PLAIN, 5, seed=9).double()
    logits = network(images).detach()
    chosen = choose_target(logits, torch.arange(count))
    return MaskedImages(network, images, chosen, logits, from_background(background), seed)


@pytest.mark.parametrize("patches", [1, 2, 4, 9, 49, 64, 196, 1024])
def test_steps_go_from_a_32nd_of_the_patches_to_half_of_all(patches: int) -> None:
    steps = steps_of(patches)
    assert len(steps) == STEPS
    assert steps[0] == max(1, round(patches / 32))
    assert steps[-1] == max(1, round(patches / 2))
    assert list(steps) == sorted(steps)
    assert steps_of(64) == (2, 4, 8, 16, 32)
    assert steps_of(196) == (6, 12, 24, 49, 98)


@torch.no_grad()
def test_the_numbers_are_those_of_images_masked_by_hand() -> None:
    masked, random = make(), np.random.default_rng(0)
    rows, columns = masked.grid
    down, across = masked.images.shape[2] // rows, masked.images.shape[3] // columns
    maps = torch.from_numpy(random.permutation(3 * rows * columns).reshape(1, 3, rows, columns)).double()
    fills = masked.fills
    numbers, probabilities = masked.numbers_under(masked.masks(maps))
    assert numbers.shape == probabilities.shape == (STEPS, 1, 3)
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
        assert (numbers[step, 0] - explained_number(logits, masked.chosen)).abs().max() <= 1e-12
        assert (probabilities[step, 0] - logits.softmax(dim=1)[torch.arange(3), torch.arange(3)]).abs().max() <= 1e-12


@torch.no_grad()
def test_equal_maps_have_equal_numbers_and_others_the_same_fills() -> None:
    masked = make()
    one = torch.randn(3, *masked.grid, generator=torch.Generator().manual_seed(1))
    numbers, _ = masked.numbers_under(masked.masks(torch.stack([one, -one, one])))
    assert (numbers[:, 0] - numbers[:, 2]).abs().max() <= 1e-12  # another place in a batch may round otherwise
    assert (numbers[:, 0] - numbers[:, 1]).abs().max() > 1e-3
    scaled, _ = masked.numbers_under(masked.masks((3 * one + 1)[None]))
    assert (numbers[:, :1] - scaled).abs().max() <= 1e-12  # the order counts, not the unit


def test_fills_are_the_image_s_own_in_every_batch() -> None:
    masked, image = make(), torch.tensor([2])
    assert torch.equal(masked.fills[:, 2:], masked.select(image).fills)
    assert len({fill.numpy().tobytes() for fill in masked.fills.flatten(0, 1)}) == 3 * STEPS
    assert not torch.equal(masked.fills, make(seed=1).fills)


@torch.no_grad()
def test_a_map_that_names_patches_in_another_order_between_the_same_steps_is_the_same_map() -> None:
    """There is nothing to try until it is lucky: fills and random maps hang on no more than what is masked."""
    masked, random = make(), torch.Generator().manual_seed(1)
    values = torch.randn(3, *masked.grid, generator=random).double()
    order, bounds = values.flatten(1).argsort(dim=1, descending=True), (0, *masked.steps, 15)
    other = torch.empty_like(values).flatten(1)
    for row, places in enumerate(order):
        within = [places[low:high] for low, high in itertools.pairwise(bounds)]
        mixed = torch.cat([some[torch.randperm(len(some), generator=random)] for some in within])
        other[row, mixed] = torch.linspace(9, -200, 15).double()  # of another size, too
    other = other.view_as(values)
    assert torch.equal(masked.masks(values[None]), masked.masks(other[None]))
    assert not torch.equal(order, other.flatten(1).argsort(dim=1, descending=True))
    one, two = (measure_drops(each, masked, torch.ones(3, dtype=torch.bool)) for each in (values, other))
    for name in ("score", "interval", "random", "faithful", "random_maps", "masked", "masked_random", "patches"):
        assert torch.allclose(getattr(one, name), getattr(two, name), rtol=0, atol=0, equal_nan=True), name


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
    """The queue of `measure_drops` against a pass for each fill and step; its random maps meet the same fills."""
    masked = make()
    values = torch.randn(3, *masked.grid, generator=torch.Generator().manual_seed(1)).double()
    whole = explained_number(masked.network(masked.images), masked.chosen)
    found = measure_drops(values, masked, torch.tensor([True, False, True]))
    assert found.score.isnan().tolist() == [False, True, False]
    random = masked.random_maps(values, RANDOM_MAPS)

    def drop(image: int, fill: int, mask: torch.Tensor) -> float:
        pixels = mask.repeat_interleave(4, dim=0).repeat_interleave(2, dim=1)
        shown = torch.where(pixels, masked.fills[fill, image], masked.images[image])
        number = explained_number(masked.network(shown[None]), masked.chosen.select(slice(image, image + 1)))
        return float(whole[image] - number[0])

    for image in (0, 2):
        own = masked.masks(values[None])[:, 0, image]
        drops = [[drop(image, fill, own[step]) for step in range(STEPS)] for fill in range(STEPS)]
        assert abs(float(found.score[image]) - np.mean(drops)) <= 1e-6
        same_fills, all_fills = 0, -1
        for number in range(RANDOM_MAPS):
            drawn = masked.masks(random)[:, number, image]
            theirs = np.mean([drop(image, step, drawn[step]) for step in range(STEPS)])
            assert abs(float(found.random[image, number]) - theirs) <= 1e-9
            same_fills += theirs >= np.mean(np.diagonal(drops))
            all_fills += theirs >= np.mean(drops)
        as_good = max(same_fills, all_fills)
        if as_good != 1:
            assert float(found.faithful[image]) == (1 + as_good) / (1 + RANDOM_MAPS)
        assert int(found.random_maps[image]) == RANDOM_MAPS + (MORE_RANDOM_MAPS if as_good == 1 else 0)


def test_a_random_map_that_masks_the_same_patches_counts_whatever_rounding_makes_of_it() -> None:
    masks = torch.rand(STEPS, 3, 1, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.3
    before, own = torch.zeros(1), torch.ones(STEPS, STEPS, 1)
    numbers = torch.full((STEPS, 3, 1), 1e-6 - 1)  # drops a little less than the map does
    drops, as_good = _count_as_good(numbers, masks, masks[:, 1:2], before, own)
    assert (drops < 1).all()
    assert as_good.tolist() == [1]
    broken, as_good = _count_as_good(numbers * torch.nan, masks, masks[:, 1:2], before, own)
    assert broken.isnan().all()
    assert as_good.tolist() == [3]


def test_a_map_has_to_do_better_under_the_same_fills_and_over_all_but_for_one() -> None:
    """The second alone is not exchangeable, the first alone hangs on five fills; both can only be less than one."""
    masks = torch.rand(STEPS, 3, 1, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.3
    before, numbers = torch.zeros(1), torch.tensor([-1.0, -3.0, -3.0]).expand(STEPS, 3)[..., None]
    for same, others, wanted in ((2.0, 4.0, 2), (4.0, 1.5, 1), (4.0, 5.0, 0), (4.0, 0.0, 2)):
        own = torch.full((STEPS, STEPS, 1), others)
        own[torch.arange(STEPS), torch.arange(STEPS)] = same
        assert _count_as_good(numbers, masks, ~masks[:, :1], before, own)[1].tolist() == [wanted]
