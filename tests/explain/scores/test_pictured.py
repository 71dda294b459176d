"""The pictures of a test are images that the test made: the network gives them the figures that stand below."""

import dataclasses

import pytest
import torch

from tests.explain.scores.test_faithfulness import make
from vitrail.explain.scores.faithfulness import RANDOM_MAPS, Drops, measure_drops
from vitrail.explain.scores.perturb import explained_number
from vitrail.explain.target import choose_target

pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.fixture(scope="module")
def scored() -> tuple:
    masked = make()
    values = torch.randn(3, *masked.grid, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return masked, values, measure_drops(values, masked, torch.tensor([True, False, True]))


def grown(mask: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    down, across = images.shape[-2] // mask.shape[-2], images.shape[-1] // mask.shape[-1]
    return mask.repeat_interleave(down, -2).repeat_interleave(across, -1)


@torch.no_grad()
def test_the_network_gives_the_pictures_their_figures(scored: tuple) -> None:
    masked, values, drops = scored
    shown = drops.pictured
    assert shown.of.tolist() == [0, 2]
    for side in range(2):
        probability = masked.network(shown.images[side]).softmax(dim=1)[torch.arange(2), shown.of]
        assert (probability - shown.numbers[side]).abs().max() <= 1e-12
    assert torch.equal(shown.means, torch.stack([drops.masked, drops.masked_random])[:, shown.of])
    assert shown.masks[0].sum(dim=(1, 2)).tolist() == shown.masks[1].sum(dim=(1, 2)).tolist()
    for place, image in enumerate(shown.of.tolist()):
        count = int(drops.patches[image])
        assert torch.equal(shown.masks[0, place], masked.ranks(values[None])[0, image] < count)
        for side in range(2):
            inside = grown(shown.masks[side, place], masked.images)
            same = (shown.images[side, place] == masked.images[image]).all(dim=0)
            assert same[~inside].all()
            fills = (masked.fills[:, image] == shown.images[side, place]).all(dim=1)
            assert (fills | ~inside).flatten(1).all(dim=1).any(), "what is inside is one of the fills"


@torch.no_grad()
def test_of_all_images_of_the_step_the_nearest_to_the_mean_is_shown(scored: tuple) -> None:
    masked, values, drops = scored
    some, shown = masked.select(drops.pictured.of), drops.pictured
    step = [some.steps.index(int(count)) for count in drops.patches[shown.of]]
    maps = some.random_maps(values[shown.of], RANDOM_MAPS)
    masks = torch.cat([some.masks(values[shown.of][None])[None, :, 0].expand(5, -1, -1, -1, -1), some.masks(maps)], 1)
    _, probabilities = some.numbers_under(masks)
    for place in range(2):
        own = probabilities[:, step[place], place]
        random = probabilities[step[place], 5:, place]
        for side, all_of_them in enumerate((own, random)):
            mean = all_of_them.mean()
            assert (shown.means[side, place] - mean).abs() <= 1e-12
            assert (shown.numbers[side, place] - mean).abs() <= (all_of_them - mean).abs().min() + 1e-12


@torch.no_grad()
def test_half_of_the_drop_is_carried_by_the_patches_in_the_line(scored: tuple) -> None:
    masked, _, drops = scored
    shown, before = drops.pictured, masked.chosen.probability(masked.logits)
    told = 0
    for place, image in enumerate(shown.of.tolist()):
        drop, half = float(before[image] - shown.means[0, place]), shown.half[place]
        if drop <= 0:
            assert not half.any()
            continue
        told += 1
        assert not (half & ~shown.masks[0, place]).any()
        inside = grown(half, masked.images)
        images = torch.where(inside, masked.fills[:, image], masked.images[image])
        after = masked.network(images).softmax(dim=1)[:, image].mean()
        assert float(before[image] - after) >= drop / 2 - 1e-12
    assert told


@torch.no_grad()
def test_of_a_number_it_is_the_number_that_is_told() -> None:
    masked = make(count=2)
    chosen = choose_target(masked.logits, lambda rows: 10 * rows[:, 1])
    masked = dataclasses.replace(masked, chosen=chosen)
    values = torch.randn(2, *masked.grid, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    drops: Drops = measure_drops(values, masked, torch.ones(2, dtype=torch.bool))
    shown = drops.pictured
    for side in range(2):
        numbers = explained_number(masked.network(shown.images[side]), chosen)
        assert (numbers - shown.numbers[side]).abs().max() <= 1e-11
    assert measure_drops(values, masked, torch.zeros(2, dtype=torch.bool)).pictured is None
