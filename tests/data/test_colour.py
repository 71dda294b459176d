"""The colour operations are those of torchvision and Pillow, for each image of a batch on its own."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as reference

from vitrail.data.augmentation import COLOUR_OPERATIONS, OPERATIONS, change_colours

STRENGTHS = (-1.0, -0.6, -0.25, 0.0, 0.3, 0.77, 1.0)


def some_images(channels: int = 3) -> torch.Tensor:
    """Noise, a slope, noise of few levels, and two levels only."""
    made = torch.randint(0, 256, (4, 3, 40, 33), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    down, across = np.mgrid[0:40, 0:33]
    made[1] = torch.from_numpy(np.stack([down * 5 + 40, across * 6 + 30, (down + across) * 3]).astype(np.uint8))
    made[2] = made[2] // 4 + 60
    made[3] = made[3] // 128 * 50 + 17
    return made[:, :channels].contiguous()


def theirs(name: str, images: torch.Tensor, strength: float) -> torch.Tensor:
    """torchvision's result on 0..255; on floats where it has them, since its bytes are cut off and not rounded."""
    factor, share = 1 + 0.99 * strength, images.float() / 255
    match name:
        case "brightness":
            return reference.adjust_brightness(share, factor) * 255
        case "colour":
            return reference.adjust_saturation(share, factor) * 255
        case "contrast":
            return reference.adjust_contrast(share, factor) * 255
        case "sharpness":
            return reference.adjust_sharpness(share, factor) * 255
        case "posterize":
            return reference.posterize(images, 8 - round(abs(strength) * 6)).float()
        case "solarize":
            return reference.solarize(images, 255 * (1 - abs(strength))).float()
        case "autocontrast":
            return reference.autocontrast(share) * 255
        case _:
            return reference.equalize(images).float()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", COLOUR_OPERATIONS)
def test_torchvision_does_the_same(name: str, channels: int) -> None:
    images = some_images(channels)
    most = 0.0
    for strength in STRENGTHS:
        ours = change_colours(images.float(), [name] * 4, torch.full((4,), strength))
        expected = theirs(name, images, strength)
        assert (ours - expected).abs().max() < 0.1, f"{name} at {strength}"
        most = max(most, float((expected - images.float()).abs().max()))
    assert most > 10 or (name == "colour" and channels == 1), "an operation that does nothing would pass"


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6), high=st.integers(1, 40), wide=st.integers(1, 40), levels=st.sampled_from([1, 2, 9, 256])
)
def test_equalize_and_autocontrast_are_pillow_s(seed: int, high: int, wide: int, levels: int) -> None:
    values = np.random.default_rng(seed).integers(0, levels, (high, wide)).astype(np.uint8) * (
        255 // max(1, levels - 1)
    )
    image, images = Image.fromarray(values), torch.from_numpy(values)[None, None].float()
    for name, operation in (("equalize", ImageOps.equalize), ("autocontrast", ImageOps.autocontrast)):
        ours = change_colours(images, [name], torch.ones(1))[0, 0].numpy()
        assert np.abs(ours - np.asarray(operation(image)).astype(float)).max() < 1.001, f"{name}: Pillow cuts off"


def test_each_image_gets_its_own() -> None:
    images = some_images().float()
    before = images.clone()
    names = ["solarize", "identity", "brightness", "rotate"]
    strengths = torch.tensor([0.5, 1.0, -0.5, 1.0])
    changed = change_colours(images, names, strengths)
    for row, name in enumerate(names):
        alone = change_colours(images[row : row + 1], [name], strengths[row : row + 1])
        assert torch.equal(changed[row : row + 1], alone)
    assert torch.equal(changed[[1, 3]], images[[1, 3]])
    assert not torch.equal(changed[0], images[0])
    assert torch.equal(images, before), "the images that were given are left alone"


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(tuple(COLOUR_OPERATIONS)),
    strength=st.floats(-1, 1, width=32),
    channels=st.sampled_from([1, 2, 3, 4]),
    size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    level=st.sampled_from([0.0, 128.0, 255.0]),
)
def test_any_image_stays_within_its_range(name, strength, channels, size, level) -> None:
    noise = torch.rand(1, channels, *size, generator=torch.Generator().manual_seed(1)) * 255
    for images in (noise, torch.full_like(noise, level)):
        changed = change_colours(images, [name], torch.tensor([strength]))
        assert bool(((changed >= 0) & (changed <= 255)).all())


def test_trivial_augment_has_its_fourteen_operations() -> None:
    assert len(OPERATIONS) == 14
    assert len(set(OPERATIONS)) == 14
