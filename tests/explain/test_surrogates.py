"""Surrogates: the image's values and smoothness, and nothing where it was."""

import pytest
import torch
from torch import Tensor

from vitrail.explain.evidence import surrogates


def an_image() -> Tensor:
    """(3, 24, 20): smooth, each channel of its own, with noise."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand((1, 3, 4, 4), generator=random)
    smooth = torch.nn.functional.interpolate(coarse, size=(24, 20), mode="bicubic")[0]
    return smooth + 0.05 * torch.randn((3, 24, 20), generator=random)


def neighbours(images: Tensor) -> Tensor:
    """Correlation of neighbouring pixels along the rows, of each channel."""
    centred = images - images.mean(dim=(-2, -1), keepdim=True)
    return (centred * centred.roll(1, -1)).mean(dim=(-2, -1)) / centred.square().mean(dim=(-2, -1))


def test_every_channel_holds_exactly_its_values() -> None:
    image = an_image()
    made = surrogates(image, 5, 0, 0)
    assert made.shape == (5, 3, 24, 20)
    assert torch.equal(made.flatten(2).sort(dim=2).values, image.flatten(1).sort(dim=1).values.expand(5, -1, -1))


def test_they_are_as_smooth_and_stand_elsewhere() -> None:
    image = an_image()
    made = surrogates(image, 200, 0, 0)
    assert (neighbours(made).mean(dim=0) - neighbours(image)).abs().max() <= 0.05
    noise = image.flatten(1)[:, torch.randperm(480)].view_as(image)
    assert (neighbours(noise) - neighbours(image)).abs().min() > 0.5  # what a shuffle would do
    centred = image - image.mean(dim=(1, 2), keepdim=True)
    alike = ((made - made.mean(dim=(2, 3), keepdim=True)) * centred).mean(dim=(2, 3)) / image.var(dim=(1, 2))
    assert alike.mean(dim=0).abs().max() <= 0.1


def test_colours_stay_together() -> None:
    """Channels that are alike stay so: a grey image has grey surrogates."""
    grey = an_image()[:1].expand(3, -1, -1)
    made = surrogates(grey, 4, 0, 0)
    assert torch.equal(made[:, 0], made[:, 1])
    assert torch.equal(made[:, 0], made[:, 2])


def test_seed_and_key_decide() -> None:
    image = an_image()
    first = surrogates(image, 3, 0, 0)
    assert torch.equal(first, surrogates(image, 3, 0, 0))
    assert not torch.equal(first, surrogates(image, 3, 1, 0))
    assert not torch.equal(first, surrogates(image, 3, 0, 1))
    assert len(first.flatten(1).unique(dim=0)) == 3


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1), (2, 1, 7), (3, 8, 8)])
def test_any_shape_and_one_colour(shape: tuple[int, ...]) -> None:
    image = torch.full(shape, 0.25)
    assert torch.equal(surrogates(image, 2, 0, 0), image.expand(2, *shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_in_half_precision(dtype: torch.dtype) -> None:
    """The order comes from the Fourier transform in float32; the values are the image's own."""
    image = an_image().to(dtype)
    made = surrogates(image, 5, 0, 0)
    assert made.dtype == dtype
    assert torch.equal(made.flatten(2).sort(dim=2).values, image.flatten(1).sort(dim=1).values.expand(5, -1, -1))
    assert (neighbours(made.float()).mean(dim=0) - neighbours(image.float())).abs().max() <= 0.1
