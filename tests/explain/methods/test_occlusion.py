"""Occlusion, and what all methods share that mask patches: fills, and rounding."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.methods.occlusion import occlusion, windows
from vitrail.explain.scores import from_background
from vitrail.explain.scores.perturb import AnyFill, fill_of
from vitrail.nn import ViT


def test_windows_by_hand() -> None:
    assert windows((2, 3), (1, 1), (1, 1)).flatten(1).equal(torch.eye(6))
    assert windows((1, 5), (1, 2), (1, 2))[:, 0].tolist() == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (7, 2)])
def test_windows_mask_every_patch(grid: tuple[int, int]) -> None:
    for long in itertools.product(range(1, grid[0] + 1), range(1, grid[1] + 1)):
        for far in itertools.product(range(1, long[0] + 1), range(1, long[1] + 1)):
            found = windows(grid, long, far)
            assert found.sum(dim=0).min() >= 1
            assert found.flatten(1).sum(dim=1).max() == long[0] * long[1]
            assert len({tuple(window.flatten().tolist()) for window in found}) == len(found)


def test_a_fill_of_each_kind() -> None:
    images = make_images(PLAIN, 3)

    def filling_of(images: Tensor, given: AnyFill) -> Tensor:
        return fill_of(given).make(images, (4, 2), 1, 0)[0]

    others = from_background(make_images(PLAIN, 4, seed=1))
    assert torch.equal(filling_of(images, others), others.make(images, (4, 2), 1, 0)[0])
    assert torch.equal(filling_of(images, 0.25), torch.full_like(images, 0.25))
    channels = filling_of(images, [0.5, -1.0])
    assert set(channels[:, 0].flatten().tolist()) == {0.5}
    assert set(channels[:, 1].flatten().tolist()) == {-1.0}
    assert torch.equal(filling_of(images, torch.tensor([0.5, -1.0])), channels)
    assert torch.equal(filling_of(images, images.flip(0)), images.flip(0))
    assert torch.equal(filling_of(images, images[0]), images[:1].expand(3, -1, -1, -1))
    means = filling_of(images, "mean").numpy()
    for image, channel in itertools.product(range(3), range(2)):
        assert np.allclose(means[image, channel], images[image, channel].numpy().mean(), atol=1e-6)
    flat = torch.full_like(images, 0.3)  # a number that binary fractions cannot say
    assert torch.equal(filling_of(flat, "mean"), flat)


def test_what_masks_a_patch_is_not_mixed_with_it() -> None:
    """Masked by an image with the same patches nothing changes; by another, only the masked patch counts."""
    network, images = make_network(PLAIN), make_images(PLAIN, 2)
    attribution = occlusion(network, images, 1, fill=images)
    assert not attribution.values.any()
    assert attribution.notes == (("no signal",), ("no signal",))
    other = images.clone()
    other[:, :, 4:8, 2:4] += 1.0  # one patch alone differs
    values = occlusion(network, images, 1, fill=other).values
    assert values[:, 1, 1].abs().min() > 1e-4
    values[:, 1, 1] = 0
    assert not values.any()


def test_rounding_alone_is_no_signal() -> None:
    """A head that hardly reads the image: differences of the last digits are not drawn as a map."""
    network, images = make_network(PLAIN), make_images(PLAIN, 2)
    with torch.no_grad():
        network.head.weight.mul_(1e-8)
        network.head.bias.fill_(3.0)
    attribution = occlusion(network, images, 1)
    assert attribution.notes == (("no signal",), ("no signal",))
    assert occlusion(make_network(PLAIN), images, 1).notes == ((), ())


def test_at_most_a_batch_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, sizes = make_network(PLAIN), []
    forward = ViT.forward
    monkeypatch.setattr(
        ViT, "forward", lambda self, images, *more: sizes.append(len(images)) or forward(self, images, *more)
    )
    occlusion(network, make_images(PLAIN, 3), batch_size=7)
    assert sizes[0] == 3
    assert max(sizes[1:]) <= 7
    assert sum(sizes[1:]) == 45
