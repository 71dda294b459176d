"""T18: are the scores themselves right? On a network whose reasons are known, 0 is random and 1 is the truth.

An image is a grid of 6 x 6 patches of noise; four of them, in one piece, show a sign, and the network says class 1 by
how many it sees. It has learnt one more thing: a flat patch in the first or the last row means class 0. No image of
its training has flat patches, so no background has; grey ones are just that.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.scores import (
    Fill,
    Masking,
    Removal,
    aopc,
    deletion,
    from_background,
    grey,
    insertion,
    normalised,
    perturbation,
    random_maps,
    saco,
)

GRID, PATCH, IMAGES, RANDOM = 6, 4, 40, 4
SIGN = torch.randn(PATCH, PATCH, generator=torch.Generator().manual_seed(9)).sign()


class Signs(nn.Module):
    """Logits (b, 2)."""

    def forward(self, images: Tensor) -> Tensor:
        patches = images[:, 0].unflatten(2, (GRID, PATCH)).unflatten(1, (GRID, PATCH))  # b gh ph gw pw
        likeness = (patches * SIGN[:, None]).mean(dim=(2, 4))
        flat = patches.var(dim=(2, 4))[:, [0, -1]] < 0.01
        seen = 8 * (likeness - 0.6).clamp_min(0).sum(dim=(1, 2)) - 6.4
        return torch.stack([8.0 * flat.sum(dim=(1, 2)), seen], dim=1)


def noise(count: int, seed: int) -> Tensor:
    size = (count, 1, GRID * PATCH, GRID * PATCH)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).sign()


def some_images() -> tuple[Tensor, Tensor]:
    """images (b, 1, h, w) and the truth (b, rows, columns)."""
    images, truth = noise(IMAGES, 0), torch.zeros(IMAGES, GRID, GRID)
    for index, corner in enumerate(torch.randint(GRID - 1, (IMAGES, 2), generator=torch.Generator().manual_seed(1))):
        row, column = corner.tolist()
        truth[index, row : row + 2, column : column + 2] = 1.0
        for down in (row, row + 1):
            for right in (column, column + 1):
                place = slice(down * PATCH, (down + 1) * PATCH), slice(right * PATCH, (right + 1) * PATCH)
                images[index, 0, place[0], place[1]] = SIGN
    return images, truth


def on_the_scale(score: Callable[..., Removal], fill: Fill, *maps: Tensor) -> list[float]:
    """The mean score of each of `maps` where random maps have 0 and the truth has 1."""
    network, (images, truth) = Signs().eval(), some_images()
    options = {} if score is aopc else {"steps": 18}
    random = torch.rand(RANDOM, *truth.shape, generator=torch.Generator().manual_seed(2)).flatten(0, 1)
    masking = Masking(fill, draws=5, batch_size=1024)
    means = [
        score(network, images.repeat(len(values) // IMAGES, 1, 1, 1), values, 1, masking, **options).score.mean()
        for values in (random, truth, *maps)
    ]
    return [float(normalised(mean, means[0], means[1])) for mean in means[1:]]


REMOVALS = pytest.mark.parametrize("score", [deletion, insertion, aopc], ids=lambda score: score.__name__)
BACKGROUND = from_background(noise(20, 5))


def edges() -> Tensor:
    """A map of nothing in the image: the first and the last row."""
    maps = torch.zeros(IMAGES, GRID, GRID)
    maps[:, [0, -1]] = 1.0
    return maps


def test_the_network_knows_its_images() -> None:
    images, _ = some_images()
    assert Signs()(images).softmax(dim=1)[:, 1].min() > 0.95
    assert Signs()(noise(100, 6)).softmax(dim=1)[:, 1].max() < 0.5


@REMOVALS
def test_with_the_background_nothing_is_better_than_the_truth(score: Callable[..., Removal]) -> None:
    _, truth = some_images()
    near = truth + 0.3 * torch.rand(truth.shape, generator=torch.Generator().manual_seed(0))
    constant = torch.zeros_like(truth)
    found = on_the_scale(score, BACKGROUND, constant, 1 - truth, edges(), near)
    assert found[0] == 1.0
    assert abs(found[1]) <= 0.1
    assert found[2] < -0.1
    assert found[3] <= 0.3
    assert 0.9 <= found[4] <= (1.10 if score is insertion else 1.30)


@pytest.mark.parametrize("score", [deletion, aopc], ids=lambda score: score.__name__)
def test_with_grey_a_map_of_nothing_is_better_than_the_truth(score: Callable[..., Removal]) -> None:
    """Grey patches speak for class 0: T18's limit finds it, which is why grey is never silently the fill."""
    assert on_the_scale(score, grey(0.0), edges())[1] > 1.30


def test_perturbation_and_saco_tell_the_truth_from_random_maps_and_from_its_reverse() -> None:
    network, (images, truth) = Signs().eval(), some_images()
    masking = Masking(BACKGROUND, draws=3, batch_size=4096)
    noise_maps = torch.rand(truth.shape, generator=torch.Generator().manual_seed(2))

    def mean(score: Callable[..., Removal], maps: Tensor, **options: str | int) -> float:
        return float(score(network, images, maps, 1, masking, **options).score.mean())

    for first, sign in (("most", -1), ("least", 1)):
        right, random, wrong = (sign * mean(perturbation, maps, first=first) for maps in (truth, noise_maps, -truth))
        assert right > random + 0.05 > wrong + 0.1
    right, random, wrong = (mean(saco, maps, groups=9) for maps in (truth, noise_maps, -truth))
    assert right > random + 0.4 > wrong + 0.8


def test_the_truth_is_better_than_maps_as_smooth() -> None:
    """Random maps of the same smoothness are the fair ones to beat; the truth beats them on nearly every image."""
    network, (images, truth) = Signs().eval(), some_images()
    masking = Masking(BACKGROUND, draws=3, batch_size=4096)
    maps = torch.cat([truth[None], random_maps(truth, 19, 0)]).flatten(0, 1)
    many = images.repeat(20, 1, 1, 1)
    scores = deletion(network, many, maps, 1, masking, steps=12).score.unflatten(0, (20, IMAGES))
    assert (scores[0] < scores[1:].amin(dim=0)).float().mean() > 0.9
