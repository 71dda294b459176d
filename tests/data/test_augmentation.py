"""What happens to training images: each change against torchvision, torch or a closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torchvision.transforms.v2 import functional as reference

from vitrail.data.augmentation import OPERATIONS, Augmentation, Draws, apply, draw, mix, pixels_in_boxes
from vitrail.data.plan import EpochPlan, plan
from vitrail.errors import UsageError

STILL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
ONE = np.arange(1)


def noise(high: int = 24, wide: int = 24, count: int = 1, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, high, wide), generator=generator, dtype=torch.uint8)


def smooth(high: int, wide: int) -> torch.Tensor:
    """An image without sharp edges, so that two ways of resampling agree."""
    down, across = torch.meshgrid(torch.arange(high) / high, torch.arange(wide) / wide, indexing="ij")
    waves = [down * 200, across * 200, 120 + 80 * torch.sin(4 * down + 5 * across)]
    return torch.stack(waves)[None].round().to(torch.uint8)


def pinned(
    place: object = STILL, operation: str = "identity", strength: float = 0.0, erased: object = (0, 0, 0, 0)
) -> Draws:
    """The random numbers of one image, chosen by hand."""
    return Draws(
        torch.tensor([place], dtype=torch.float32),
        torch.tensor([OPERATIONS.index(operation)]),
        torch.tensor([strength]),
        torch.tensor([erased], dtype=torch.float32),
        torch.zeros(1, 2),
    )


def places(augmentation: Augmentation, count: int = 400, aspect: float = 1.0) -> torch.Tensor:
    return draw(augmentation, np.arange(count), seed=0, epoch=0, aspect=aspect).place


def test_nothing_asked_for_changes_nothing() -> None:
    pixels = noise(12, 20, 5)
    assert torch.equal(
        apply(Augmentation(), pixels, draw(Augmentation(), np.arange(5), seed=3, epoch=1), (12, 20)), pixels.float()
    )
    drawn = places(Augmentation())
    assert torch.equal(drawn, torch.tensor(STILL).expand(400, 2, 3))


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 300),
    ids=st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True),
)
def test_draws_belong_to_ids(seed: int, epoch: int, ids: list[int]) -> None:
    everything = Augmentation(
        crop_scale=(0.3, 1.0),
        crop_ratio=(0.75, 1.33),
        shift=0.1,
        rotate=20.0,
        zoom=(0.8, 1.2),
        flip=0.5,
        trivial_augment=True,
        random_erasing=0.5,
    )
    together = draw(everything, np.array(ids), seed=seed, epoch=epoch, aspect=1.5)
    for row, one in enumerate(ids):
        alone = draw(everything, np.array([one]), seed=seed, epoch=epoch, aspect=1.5)
        for ours, theirs in zip(alone, together, strict=True):
            assert torch.equal(ours[0], theirs[row])


def test_a_flip_is_exact_and_twice_is_nothing() -> None:
    pixels = noise(9, 14, 6)
    always, never = Augmentation(flip=1.0), Augmentation(flip=1e-12)
    once = apply(always, pixels, draw(always, np.arange(6), seed=0, epoch=0), (9, 14))
    torch.testing.assert_close(once, pixels.flip(3).float(), atol=2e-3, rtol=0)
    twice = apply(always, once.round().to(torch.uint8), draw(always, np.arange(6), seed=0, epoch=0), (9, 14))
    torch.testing.assert_close(twice, pixels.float(), atol=2e-3, rtol=0)
    not_once = apply(never, pixels, draw(never, np.arange(6), seed=0, epoch=0), (9, 14))
    torch.testing.assert_close(not_once, pixels.float(), atol=2e-3, rtol=0)
    mirrored = places(Augmentation(flip=0.3), 4000)[:, 0, 0] < 0
    assert float(mirrored.float().mean()) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(("high", "wide"), [(32, 32), (24, 40)])
def test_a_crop_is_torchvision_s_resized_crop(high: int, wide: int) -> None:
    pixels = smooth(high, wide)
    cropping = Augmentation(crop_scale=(0.2, 0.9), crop_ratio=(0.75, 4 / 3))
    for one in range(12):
        draws = draw(cropping, np.array([one]), seed=1, epoch=0, aspect=wide / high)
        ours = apply(cropping, pixels, draws, (high, wide))
        (across, _, centre_x), (_, down, centre_y) = draws.place[0].tolist()
        # torchvision crops whole pixels: take the image's box on a canvas 16 times as fine
        fine = torch.nn.functional.interpolate(pixels.float(), scale_factor=16, mode="bilinear")
        top, left = round((centre_y - down + 1) / 2 * high * 16), round((centre_x - across + 1) / 2 * wide * 16)
        tall, broad = round(down * high * 16), round(across * wide * 16)
        assert -1 <= top <= high * 16 - tall + 1, "a crop lies in the image"
        assert -1 <= left <= wide * 16 - broad + 1
        theirs = reference.resized_crop(fine, top, left, tall, broad, [high, wide], antialias=False)
        assert (ours - theirs)[..., 1:-1, 1:-1].abs().max() < 3
        whole = reference.resize(pixels.float(), [high, wide])
        assert (ours - whole).abs().max() > 10 or down * across > 0.8


def test_crops_have_the_areas_and_shapes_asked_for() -> None:
    drawn = places(Augmentation(crop_scale=(0.2, 0.5), crop_ratio=(0.75, 4 / 3)), 4000)
    area, ratio = drawn[:, 0, 0] * drawn[:, 1, 1], drawn[:, 0, 0] / drawn[:, 1, 1]
    assert 0.2 - 1e-6 <= area.min() < 0.21
    assert 0.49 < area.max() <= 0.5 + 1e-6
    assert 0.75 - 1e-5 <= ratio.min() < 0.76
    assert 1.32 < ratio.max() <= 4 / 3 + 1e-5
    assert float(ratio.log().mean()) == pytest.approx(0, abs=0.01)
    reach = torch.stack([drawn[:, 0, 2].abs() + drawn[:, 0, 0], drawn[:, 1, 2].abs() + drawn[:, 1, 1]])
    assert reach.max() <= 1 + 1e-5, "no crop leaves the image"
    assert reach.max() > 0.99


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(10, 60), st.integers(10, 60)),
    lowest=st.floats(0.05, 1.0),
    aspect=st.sampled_from((1.0, 1.5, 0.6)),
)
def test_crops_of_any_shape_lie_in_the_image_and_have_an_aspect_that_is_allowed(shape, lowest, aspect) -> None:
    """Width / height of the crop in the image's own pixels, in units of the result's; torchvision's rule."""
    cropping = Augmentation(crop_scale=(lowest, 1.0), crop_ratio=(0.75, 4 / 3))
    extents = torch.tensor([shape]).expand(200, 2)
    place = draw(cropping, np.arange(200), seed=0, epoch=0, aspect=aspect, extents=extents).place
    across, down = place[:, 0, 0] * shape[1], place[:, 1, 1] * shape[0]
    ratio = across / down / aspect
    assert ratio.min() > 0.75 - 1e-4
    assert ratio.max() < 4 / 3 + 1e-4
    assert (place[:, :, 2].abs() + place[:, (0, 1), (0, 1)]).max() <= 1 + 1e-5
    area = across * down / (shape[0] * shape[1])
    full = (place[:, (0, 1), (0, 1)] > 1 - 1e-5).any(1)
    assert ((area > lowest - 1e-4) | full).all(), "smaller only where it would not fit in"


@pytest.mark.parametrize("turns", [-2, -1, 1, 2])
def test_a_quarter_turn_is_rot90(turns: int) -> None:
    pixels = noise(16, 16)
    turning = Augmentation(trivial_augment=True, fill=0)
    place = turned(turns * 90)
    torch.testing.assert_close(
        apply(turning, pixels, pinned(place), (16, 16)), pixels.rot90(turns, (2, 3)).float(), atol=1e-3, rtol=0
    )


def turned(degrees: float) -> list[list[float]]:
    """The affine map of a rotation; positive is against the clock, as a viewer sees it."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [[cos, -sin, 0], [sin, cos, 0]]


def drawn_with(
    monkeypatch: pytest.MonkeyPatch, augmentation: Augmentation, geometry: list[float], aspect: float = 1.0
) -> Draws:
    """What `draw` makes of nine chosen geometry numbers instead of random ones."""
    monkeypatch.setattr("vitrail.data.augmentation.uniforms", lambda ids, columns, **_: np.array([geometry[:columns]]))
    return draw(augmentation, ONE, seed=0, epoch=0, aspect=aspect)


MIDDLE = [0.5] * 8 + [0.999]


def test_rotate_turns_by_the_degrees_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = MIDDLE.copy()
    geometry[4] = 1.0
    draws = drawn_with(monkeypatch, Augmentation(rotate=90.0, fill=0), geometry)
    torch.testing.assert_close(draws.place[0].abs(), torch.tensor(turned(90)).abs(), atol=1e-6, rtol=0)
    pixels = noise(16, 16)
    got = apply(Augmentation(rotate=90.0, fill=0), pixels, draws, (16, 16))
    either = [pixels.rot90(turns, (2, 3)).float() for turns in (1, -1)]
    assert min(float((got - one).abs().max()) for one in either) < 1e-3


def test_rotation_does_not_shear_a_wide_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map in pixels is a rotation also when width and height differ."""
    geometry = MIDDLE.copy()
    geometry[4] = 0.75
    high, wide = 20, 50
    linear = drawn_with(monkeypatch, Augmentation(rotate=60.0), geometry, wide / high).place[0, :, :2]
    scale = torch.diag(torch.tensor([wide / 2, high / 2]))
    in_pixels = scale @ linear @ scale.inverse()
    torch.testing.assert_close(in_pixels @ in_pixels.T, torch.eye(2), atol=1e-5, rtol=0)
    assert math.degrees(math.acos(in_pixels[0, 0])) == pytest.approx(30, abs=1e-3)
    sheared = drawn_with(monkeypatch, Augmentation(rotate=60.0), geometry, 1.0).place[0, :, :2]
    in_pixels = scale @ sheared @ scale.inverse()
    assert (in_pixels @ in_pixels.T - torch.eye(2)).abs().max() > 0.1, "the planted fault: the aspect forgotten"


@pytest.mark.parametrize(("column", "dimension"), [(6, 3), (7, 2)])
@pytest.mark.parametrize("sign", [0, 1])
def test_shift_moves_by_whole_pixels(monkeypatch: pytest.MonkeyPatch, column: int, dimension: int, sign: int) -> None:
    """A quarter of 16 and of 24 pixels are 4 and 6; what comes in is the fill."""
    geometry = MIDDLE.copy()
    geometry[column] = float(sign)
    shifting = Augmentation(shift=0.25, fill=7)
    draws = drawn_with(monkeypatch, shifting, geometry)
    pixels = noise(16, 24)
    moved = apply(shifting, pixels, draws, (16, 24))
    pixels_moved = pixels.shape[dimension] // 4 * (1 if sign else -1)
    expected = pixels.float().roll(pixels_moved, dimension)
    came_in = slice(0, pixels_moved) if sign else slice(pixels_moved, None)
    expected.movedim(dimension, 0)[came_in] = 7
    torch.testing.assert_close(moved, expected, atol=2e-3, rtol=0)


def test_zoom_scales_about_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = MIDDLE.copy()
    geometry[5] = 1.0
    draws = drawn_with(monkeypatch, Augmentation(zoom=(0.5, 2.0)), geometry)
    torch.testing.assert_close(draws.place[0], torch.tensor([[0.5, 0, 0], [0, 0.5, 0]]), atol=1e-6, rtol=0)
    pixels = smooth(32, 32)
    ours = apply(Augmentation(zoom=(0.5, 2.0)), pixels, draws, (32, 32))
    theirs = reference.resize(reference.center_crop(pixels.float(), [16, 16]), [32, 32], antialias=False)
    assert (ours - theirs)[..., 2:-2, 2:-2].abs().max() < 0.01


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
@pytest.mark.parametrize("strength", [-0.7, 0.4])
def test_trivial_augment_s_changes_of_place(monkeypatch: pytest.MonkeyPatch, name: str, strength: float) -> None:
    """The same affine map as torchvision's TrivialAugmentWide makes, up to the sign of the strength."""
    index = (OPERATIONS.index(name) + 0.5) / len(OPERATIONS)
    numbers = [index, (strength + 1) / 2, *MIDDLE[2:]]
    monkeypatch.setattr(
        "vitrail.data.augmentation.uniforms",
        lambda ids, columns, stream, **_: np.array([(numbers if columns == 2 else MIDDLE)[:columns]]),
    )
    draws = draw(Augmentation(trivial_augment=True), ONE, seed=0, epoch=0)
    assert OPERATIONS[int(draws.operation)] == name
    pixels = smooth(64, 64)
    ours = apply(Augmentation(trivial_augment=True, fill=0), pixels, draws, (64, 64))
    gaps = []
    for sign in (-1, 1):
        moves = {"angle": 0.0, "translate": [0.0, 0.0], "shear": [0.0, 0.0]}
        if name == "rotate":
            moves["angle"] = 135.0 * strength * sign
        elif name.startswith("shear"):
            moves["shear"][name == "shear_y"] = math.degrees(math.atan(0.99 * strength * sign))
        else:
            moves["translate"][name == "translate_y"] = 32 / 224 * 64 * strength * sign
        bilinear = reference.InterpolationMode.BILINEAR
        theirs = reference.affine(pixels.float(), scale=1.0, interpolation=bilinear, **moves)
        gaps.append(float(((ours - theirs).abs() > 4).float().mean()))
    assert min(gaps) < 0.03, "all but the rim is the same"
    assert max(gaps) > 0.05, "the other way round would be seen"


def test_every_operation_comes_equally_often() -> None:
    drawn = draw(Augmentation(trivial_augment=True), np.arange(14_000), seed=0, epoch=0)
    counts = torch.bincount(drawn.operation, minlength=14)
    assert counts.shape == (14,)
    assert int((counts - 1000).abs().max()) < 130
    assert drawn.strength.min() < -0.99
    assert drawn.strength.max() > 0.99


def test_erased_boxes_have_the_area_asked_for() -> None:
    boxes = draw(Augmentation(random_erasing=0.4), np.arange(5000), seed=0, epoch=0).erased
    erased = boxes.sum(dim=1) > 0
    assert float(erased.float().mean()) == pytest.approx(0.4, abs=0.03)
    top, left, bottom, right = boxes[erased].unbind(1)
    area = (bottom - top) * (right - left)
    assert 0.02 - 1e-6 <= area.min() < 0.025
    assert 0.3 < area.max() <= 0.33 + 1e-6
    assert min(top.min(), left.min()) >= 0
    assert max(bottom.max(), right.max()) <= 1 + 1e-6
    pixels = noise(50, 40)
    erasing = Augmentation(random_erasing=1.0, fill=9)
    changed = apply(erasing, pixels, pinned(erased=(0.2, 0.25, 0.6, 0.75)), (50, 40))
    expected = pixels.float()
    expected[:, :, 10:30, 10:30] = 9
    assert torch.equal(changed, expected)


@settings(deadline=None, max_examples=50)
@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.lists(st.floats(-0.25, 1.25, width=32), min_size=4, max_size=4),
)
def test_inside_is_where_the_centre_of_a_pixel_lies(size: tuple[int, int], box: list[float]) -> None:
    found = pixels_in_boxes(torch.tensor([box]), size)[0, 0]
    for row in range(size[0]):
        for column in range(size[1]):
            down, across = np.float32(row + 0.5) / size[0], np.float32(column + 0.5) / size[1]
            assert bool(found[row, column]) == (box[0] <= down < box[2] and box[1] <= across < box[3])


def planned_of(shares: list[float], cut: list[bool]) -> EpochPlan:
    ids = np.arange(len(shares))
    return EpochPlan(ids, ids[::-1].copy(), np.array(shares), np.array(cut))


def test_mixup_blends_by_the_share() -> None:
    images, partners = torch.rand(3, 1, 4, 4), torch.rand(3, 1, 4, 4)
    mixed, shares = mix(images, partners, planned_of([0.3, 1.0, 0.0], [False] * 3), torch.rand(3, 2))
    torch.testing.assert_close(shares, torch.tensor([0.3, 1.0, 0.0]))
    torch.testing.assert_close(mixed[0], 0.3 * images[0] + 0.7 * partners[0])
    assert torch.equal(mixed[1], images[1])
    torch.testing.assert_close(mixed[2], partners[2])


@settings(deadline=None, max_examples=60)
@given(
    share=st.floats(0, 1),
    centre=st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_cutmix_counts_the_pixels_that_stayed(share: float, centre: tuple[float, float], size: tuple[int, int]) -> None:
    mixed, shares = mix(
        torch.zeros(1, 2, *size), torch.ones(1, 2, *size), planned_of([share], [True]), torch.tensor([centre])
    )
    assert set(mixed.unique().tolist()) <= {0.0, 1.0}
    stayed = float((mixed == 0).float().mean())
    assert float(shares) == pytest.approx(stayed, abs=1e-6)
    assert stayed >= share - (size[0] + size[1] + 1) / (size[0] * size[1]), "no more is pasted than was drawn"
    if 0.45 < centre[0] < 0.55 and 0.45 < centre[1] < 0.55 and min(size) > 4 and share > 0.2:
        assert stayed == pytest.approx(share, abs=2.5 / min(size)), "a box in the middle is not cut off"


def test_mixing_keeps_the_plan() -> None:
    planned = plan(0, 0, 200, mixup=0.5, cutmix=1.0)
    images = torch.rand(200, 1, 6, 6)
    partners = images[np.argsort(planned.ids)][torch.from_numpy(planned.partners)]
    mixed, shares = mix(images, partners, planned, torch.full((200, 2), 0.5))
    blended = ~torch.from_numpy(planned.cut)
    torch.testing.assert_close(shares[blended].double(), torch.from_numpy(planned.weights)[blended], atol=1e-6, rtol=0)
    assert mixed.shape == images.shape


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flip", 1.5),
        ("flip", float("nan")),
        ("random_erasing", -0.1),
        ("rotate", float("inf")),
        ("rotate", -3.0),
        ("mixup", -1.0),
        ("cutmix", float("nan")),
        ("fill", 256),
        ("crop_scale", (0.5, 1.5)),
        ("crop_scale", (0.9, 0.2)),
        ("zoom", (0.0, 1.0)),
        ("zoom", (1.0, float("inf"))),
        ("label_smoothing", 2.0),
    ],
)
def test_impossible_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field):
        replace(Augmentation(), **{field: value})
