"""Preprocessing: sizes, the three resize rules, statistics, and the way to and from files."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torchvision.transforms import v2

from tests.data.lab import denormalised
from vitrail.data.preprocessing import Preprocessing, from_hugging_face, measure_statistics, to_hugging_face
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError

RNG = np.random.default_rng(0)
sides = st.integers(1, 60)


def noise(high: int, wide: int, channels: int = 3) -> Image.Image:
    values = np.random.default_rng([high, wide]).integers(0, 256, (high, wide, channels), dtype=np.uint8)
    return Image.fromarray(values[..., 0] if channels == 1 else values)


def smooth(high: int, wide: int) -> Image.Image:
    down, across = np.mgrid[0:high, 0:wide]
    values = np.stack([down * 255 / high, across * 255 / wide, 128 + 100 * np.sin(down / 9 + across / 7)], 2)
    return Image.fromarray(values.astype(np.uint8))


@settings(deadline=None, max_examples=60)
@given(
    high=sides,
    wide=sides,
    size=st.tuples(sides, sides),
    rule=st.sampled_from(["crop", "squash", "pad"]),
    channels=st.sampled_from([1, 3]),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic"]),
)
def test_every_image_gets_the_size(high, wide, size, rule, channels, interpolation) -> None:
    grey = (0.5,) * channels
    preprocessing = Preprocessing(size, rule, 1.0, interpolation, channels, grey, grey)
    pixels = preprocessing.to_uint8(noise(high, wide))
    assert pixels.dtype == torch.uint8
    assert tuple(pixels.shape) == (channels, *size)
    flat = Image.new("RGB", (wide, high), (40, 40, 40))
    values = set(preprocessing.to_uint8(flat).unique().tolist())
    assert values <= ({40, 128} if rule == "pad" else {40}), "a flat image stays flat"


@settings(deadline=None, max_examples=40)
@given(
    high=st.integers(200, 600),
    aspect=st.floats(0.3, 3),
    rule=st.sampled_from(["crop", "squash", "pad"]),
    ratio=st.sampled_from([0.7, 0.9, 1.0]),
    size=st.sampled_from([(32, 32), (24, 40), (40, 24)]),
    centre=st.sampled_from(["even", "down"]),
)
def test_the_part_that_is_seen_is_the_one_that_is_cut_out(high, aspect, rule, ratio, size, centre) -> None:
    """What is painted outside of it is nowhere in the result, and its own border is there on every side."""
    wide = round(high * aspect)
    shape = Preprocessing(size, rule, 1.0 if rule == "pad" else ratio, centre=centre, pad_value=(255,) * 3)
    left, top, right, bottom = shape.part(wide, high)
    assert 0 <= left < right <= wide
    assert 0 <= top < bottom <= high
    inside = np.zeros((high, wide, 3), np.uint8)
    inside[round(top) : round(bottom), round(left) : round(right)] = 255
    border = 3 * max((right - left) / size[1], (bottom - top) / size[0])  # three pixels of the result
    seen = shape.to_uint8(Image.fromarray(inside)).float()
    assert seen[:, 2:-2, 2:-2].min() == 255
    smaller = np.full((high, wide, 3), 255, np.uint8)
    smaller[round(top + border) : round(bottom - border), round(left + border) : round(right - border)] = 0
    scale = min(size[0] / high, size[1] / wide) if rule == "pad" else 0  # of an image that does not fill the result
    down, across = round(high * scale) or size[0], round(wide * scale) or size[1]
    edge = shape.to_uint8(Image.fromarray(smaller)).float()[0]
    assert edge[size[0] // 2, (size[1] - across) // 2 + 1] > 200
    assert edge[(size[0] - down) // 2 + 1, size[1] // 2] > 200
    assert edge[size[0] // 2, size[1] // 2] < 50


@settings(deadline=None, max_examples=60)
@given(high=st.integers(16, 300), aspect=st.floats(0.25, 4), ratio=st.sampled_from([0.7, 0.875, 0.9, 1.0]))
def test_crop_is_resize_and_centre_crop(high, aspect, ratio) -> None:
    """The reference makes the whole scaled image: torchvision's Resize and CenterCrop."""
    side, wide = 32, max(1, round(high * aspect))
    image = smooth(high, wide)
    whole = v2.Resize(int(side / ratio), interpolation=v2.InterpolationMode.BICUBIC)
    reference = np.asarray(v2.CenterCrop(side)(whole(image))).astype(int)
    got = Preprocessing((side, side), crop_pct=ratio).to_uint8(image).permute(1, 2, 0).numpy().astype(int)
    far = np.abs(got - reference)
    assert far.max() <= 3, "8-bit rounding between the two passes of the resizing, nothing else"
    assert far.mean() < 0.25
    assert np.abs(np.roll(got, 1, 1) - reference).mean() > 2, "a shift by one pixel would be seen"


def test_a_panorama_is_cropped_in_little_memory() -> None:
    pixels = Preprocessing((224, 224)).to_uint8(Image.new("RGB", (60000, 1), (9, 9, 9)))
    assert set(pixels.unique().tolist()) == {9}


def test_crop_takes_the_middle_and_squash_everything() -> None:
    stripes = np.zeros((20, 60, 3), np.uint8)
    stripes[:, :20], stripes[:, 20:40], stripes[:, 40:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    image = Image.fromarray(stripes)
    cropped = Preprocessing((20, 20), "crop", interpolation="nearest").to_uint8(image)
    assert cropped.flatten(1).float().mean(1).tolist() == [0, 255, 0]
    squashed = Preprocessing((20, 60), "squash").to_uint8(image)
    assert torch.equal(squashed, torch.from_numpy(stripes).permute(2, 0, 1))
    narrow = Preprocessing((20, 30), "squash", interpolation="nearest").to_uint8(image)
    assert narrow.flatten(1).float().mean(1).tolist() == [85, 85, 85]


@pytest.mark.parametrize(("high", "wide", "box"), [(10, 20, (5, 0, 10, 20)), (20, 10, (0, 5, 20, 10))])
def test_pad_centres_and_fills(high: int, wide: int, box: tuple[int, int, int, int]) -> None:
    colour = (10, 20, 30)
    image = noise(high, wide)
    pixels = Preprocessing((20, 20), "pad", pad_value=colour).to_uint8(image).permute(1, 2, 0).numpy()
    expected = np.full((20, 20, 3), colour, np.uint8)
    top, left, tall, across = box
    expected[top : top + tall, left : left + across] = np.asarray(image)
    np.testing.assert_array_equal(pixels, expected)
    grey = Preprocessing((20, 20), "pad", channels=1, mean=(0.0,), std=(1.0,), pad_value=(255, 0, 0)).to_uint8(image)
    corner = grey[0, -1, 0] if high < wide else grey[0, 0, -1]
    assert int(corner) == round(0.299 * 255)


@pytest.mark.parametrize("rule", ["crop", "squash", "pad"])
@pytest.mark.parametrize("channels", [1, 3])
def test_identity_and_resident_pixels(rule: str, channels: int) -> None:
    values = RNG.integers(0, 256, (5, 12, 10, 3), dtype=np.uint8)
    values = values[..., 0] if channels == 1 else values
    grey = (0.5,) * channels
    preprocessing = Preprocessing((12, 10), rule, channels=channels, mean=grey, std=grey)
    slow = torch.stack([preprocessing.to_uint8(Image.fromarray(each)) for each in values])
    for writeable in (True, False):
        values.flags.writeable = writeable
        fits = preprocessing.as_pixels(values)
        assert fits is not None
        assert torch.equal(fits, slow)
    assert preprocessing.as_pixels(values[:, 1:]) is None
    other = Preprocessing((12, 10), channels=4 - channels, mean=(0.5,) * (4 - channels), std=(0.5,) * (4 - channels))
    assert other.as_pixels(values) is None
    if rule == "crop":
        cut = dataclasses.replace(preprocessing, crop_pct=0.8)
        assert cut.as_pixels(values) is None, "a crop of the middle changes the pixels"
        assert not torch.equal(cut.to_uint8(Image.fromarray(values[0])), slow[0])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3),
    st.lists(st.floats(0.0625, 2, width=32), min_size=3, max_size=3),
)
def test_normalise_and_back(mean, std) -> None:
    preprocessing = Preprocessing((16, 16), mean=tuple(mean), std=tuple(std))
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, 3, 1, 1)
    images = preprocessing.normalise(pixels)
    share = pixels.double().numpy() / 255
    expected = (share - np.array(mean)[None, :, None, None]) / np.array(std)[None, :, None, None]
    np.testing.assert_allclose(images.numpy(), expected, rtol=1e-5, atol=2e-5)
    reference = v2.Normalize(mean, std)(pixels.float() / 255)
    assert torch.equal(images, reference)
    assert torch.equal(preprocessing.scale(pixels.float()), images)
    assert torch.equal(denormalised(preprocessing, images), pixels)
    assert torch.equal(preprocessing.to_pixels(images), pixels)


def test_one_path_for_files_and_images(photo_folder: Path) -> None:
    path = sorted((photo_folder / "train" / "beach").glob("*.jpg"))[0]
    preprocessing = Preprocessing((24, 32), crop_pct=0.9)
    with Image.open(path) as image:
        expected = preprocessing.normalise(preprocessing.to_uint8(image)[None])[0]
        assert torch.equal(preprocessing(image), expected)
    assert torch.equal(preprocessing(path), expected)
    assert torch.equal(preprocessing(str(path)), expected)
    with pytest.raises(DataError, match=r"nothing\.jpg"):
        preprocessing(path.with_name("nothing.jpg"))


def test_a_tensor_of_the_wrong_shape_is_an_error() -> None:
    preprocessing = Preprocessing((4, 4))
    with pytest.raises(UsageError, match="shape"):
        preprocessing.normalise(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", (0, 4)),
        ("resize", "stretch"),
        ("crop_pct", 0.0),
        ("crop_pct", 1.5),
        ("crop_pct", float("nan")),
        ("interpolation", "lanczos5"),
        ("channels", 2),
        ("mean", (0.5,)),
        ("mean", (0.5, 0.5, float("inf"))),
        ("std", (0.5, 0.0, 0.5)),
        ("pad_value", (0, 0, 256)),
    ],
)
def test_impossible_fields(field: str, value: object) -> None:
    fields = Preprocessing((4, 4)).to_dict() | {field: list(value) if isinstance(value, tuple) else value}
    with pytest.raises(UsageError, match=field):
        Preprocessing.from_dict(fields)


def test_a_crop_ratio_needs_a_crop() -> None:
    with pytest.raises(UsageError, match="crop_pct"):
        Preprocessing((4, 4), "pad", crop_pct=0.9)


@settings(deadline=None, max_examples=30)
@given(
    size=st.tuples(sides, sides),
    rule=st.sampled_from(["crop", "squash", "pad"]),
    channels=st.sampled_from([1, 3]),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic"]),
    number=st.floats(0.1, 0.9),
)
def test_to_files_and_back(size, rule, channels, interpolation, number) -> None:
    ratio = number if rule == "crop" and min(size) > 10 else 1.0
    numbers = (number,) * channels
    preprocessing = Preprocessing(size, rule, ratio, interpolation, channels, numbers, numbers, (1, 2, 3))
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing
    assert from_hugging_face(json.loads(json.dumps(to_hugging_face(preprocessing)))) == preprocessing


def test_unknown_and_missing_keys() -> None:
    with pytest.raises(UsageError, match="resizes") as caught:
        Preprocessing.from_dict({"size": [4, 4], "resizes": "pad"})
    assert str(caught.value.hint) == "resize"
    with pytest.raises(UsageError, match="size"):
        Preprocessing.from_dict({})


def test_contradictions_and_foreign_files() -> None:
    keys = to_hugging_face(Preprocessing((8, 8), mean=(0.1, 0.2, 0.3)))
    with pytest.raises(DataError, match="image_mean"):
        from_hugging_face(keys | {"image_mean": [0.5, 0.5, 0.5]})
    foreign = {
        "do_resize": True,
        "size": 224,
        "resample": 2,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    assert from_hugging_face(foreign) == Preprocessing((224, 224), "squash", interpolation="bilinear")
    cropping = {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224, "resample": 3}
    assert from_hugging_face(cropping) == Preprocessing((224, 224), "crop", 0.875, centre="down")
    plain = from_hugging_face({"size": {"height": 2, "width": 3}, "do_normalize": False})
    assert (plain.mean, plain.std, plain.size) == ((0.0,) * 3, (1.0,) * 3, (2, 3))
    for fault in ({"rescale_factor": 0.5}, {"resample": 1}, {"size": {"longest_edge": 3}}, {"do_resize": False}):
        with pytest.raises(DataError):
            from_hugging_face(foreign | fault)
    with pytest.raises(DataError):
        from_hugging_face({"vitrail": {"sise": [3, 3]}})
    for side in (0, -3, float("nan"), float("inf"), 10**400, 100, "224", [224]):  # shorter than what is cut out, too
        with pytest.raises(DataError):
            from_hugging_face(cropping | {"size": {"shortest_edge": side}})
    for side in (0, {"height": 0, "width": 0}, 1e300):
        with pytest.raises(DataError):
            from_hugging_face(cropping | {"crop_size": side})
    with pytest.raises(DataError, match="crop_pct"):
        from_hugging_face({"vitrail": {"size": [8, 8], "crop_pct": 1e-320}})


@pytest.mark.parametrize("rule", ["crop", "squash"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_reads_it_the_same_way(rule: str) -> None:
    from transformers import ViTImageProcessor

    ratio = 0.875 if rule == "crop" else 1.0
    preprocessing = Preprocessing((32, 32), rule, ratio, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    processor = ViTImageProcessor.from_dict(to_hugging_face(preprocessing))
    image = smooth(90, 120)
    theirs = processor(image, return_tensors="pt")["pixel_values"]
    ours = preprocessing(image)[None]
    level = 1 / (255 * 0.2)
    assert (theirs - ours).abs().max() < 2.5 * level, "two resizers of 8-bit images differ by rounding only"
    other = dataclasses.replace(preprocessing, resize="squash" if rule == "crop" else "crop", crop_pct=1.0)
    assert (theirs - other(image)[None]).abs().max() > 10 * level, "the other rule would be seen"


def test_statistics_are_exact() -> None:
    pixels = torch.from_numpy(RNG.integers(0, 200, (7, 3, 5, 6), dtype=np.uint8))
    pixels[:, 2] = 17
    mean, std = measure_statistics(pixels)
    share = pixels.double().numpy() / 255
    np.testing.assert_allclose(mean, share.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], share.std((0, 2, 3))[:2], rtol=1e-9)
    assert std[2] == 1.0
    Preprocessing((5, 6), mean=mean, std=std)


@pytest.mark.parametrize(
    ("own", "kept"),
    [((60, 90), (24, 36)), ((90, 60), (36, 24)), ((48, 48), (24, 24)), ((10, 100), (24, 48)), ((100, 10), (48, 24))],
)
def test_a_whole_image_is_at_most_twice_as_long_as_the_size(own: tuple[int, int], kept: tuple[int, int]) -> None:
    """Its middle is what the crop shows; beyond twice the size both ends are cut alike."""
    values = np.zeros((*own, 3), np.uint8)
    values[..., 0], values[..., 1] = np.linspace(0, 255, own[1]), np.linspace(0, 255, own[0])[:, None]
    image, shape = Image.fromarray(values), Preprocessing((24, 24))
    whole = shape.to_uint8(image, whole=True)
    assert tuple(whole.shape[1:]) == kept
    top, left = ((side - 24) // 2 for side in kept)
    middle = whole[:, top : top + 24, left : left + 24].float()
    assert (middle - shape.to_uint8(image).float()).abs().max() <= 2
    across, down = whole[0].float(), whole[1].float()
    assert float(across[:, 0].mean() + across[:, -1].mean()) == pytest.approx(255, abs=3)
    assert float(down[0].mean() + down[-1].mean()) == pytest.approx(255, abs=3)
    if own[0] == own[1]:
        assert torch.equal(whole, shape.to_uint8(image))


def test_statistics_are_those_of_all_pixels_of_all_images() -> None:
    images = [torch.full((1, 2, 3), 51, dtype=torch.uint8), torch.full((1, 4, 1), 204, dtype=torch.uint8)]
    mean, std = measure_statistics(images)
    assert mean[0] == pytest.approx(0.2 * 0.6 + 0.8 * 0.4)
    assert std[0] == pytest.approx(0.6 * (0.6 * 0.4) ** 0.5)


@pytest.mark.soak
def test_statistics_of_mnist(mnist_root: Path) -> None:
    """The values that every tutorial prints."""
    pixels = read("mnist", mnist_root).splits["train"].inputs.pixels
    mean, std = measure_statistics(torch.from_numpy(pixels.copy())[:, None])
    assert mean[0] == pytest.approx(0.1307, abs=5e-5)
    assert std[0] == pytest.approx(0.3081, abs=5e-5)
