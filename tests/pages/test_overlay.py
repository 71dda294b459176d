"""An attribution over its image, pixel by pixel."""

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from tests.pages.shown import macro
from vitrail.pages.colour import (
    STRENGTH,
    VEIL,
    grey_below,
    grey_value,
    overlay_pixels,
    patch_colours,
    patch_layer,
    value_range,
    veil,
)


@pytest.mark.parametrize("signed", [False, True])
def test_a_map_without_signal_leaves_the_grey_image(signed):
    image = np.random.default_rng(0).integers(0, 256, (12, 12), dtype=np.uint8)
    values = np.full((3, 4), 1 / 49)
    np.testing.assert_array_equal(overlay_pixels(image, values, signed), np.repeat(image[..., None], 3, 2))


@given(
    arrays.arrays(
        np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-9, 9, width=32)
    ),
    st.tuples(st.integers(6, 20), st.integers(6, 20)),
    st.booleans(),
    st.booleans(),
)
def test_overlay_equals_its_definition_pixel_by_pixel(values, size, signed, colour):
    height, width = size
    shape = (height, width, 3) if colour else size
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    overlay = overlay_pixels(image, values, signed)
    assert overlay.shape == (height, width, 3)
    base = grey_below(image)
    if value_range(values, signed).flat:
        np.testing.assert_array_equal(overlay, np.repeat(base[..., None], 3, 2))
        return
    patches, shown = patch_colours(values, signed), value_range(values, signed)
    rows, columns = values.shape
    for y in (0, height // 2, height - 1):
        for x in (0, width // 3, width - 1):
            at = y * rows // height, x * columns // width
            place = (float(values[at]) - shown.low) / (shown.high - shown.low)
            strength = STRENGTH * (abs(2 * place - 1) if signed else place)
            expected = strength * patches[at] + (1 - strength) * float(base[y, x])
            assert np.abs(overlay[y, x] - expected).max() <= 1.0, "an opacity has 256 steps"


def test_the_image_shows_where_a_map_is_low_and_without_colour_where_it_is_high():
    dense, half = round(255 * VEIL), round(255 * VEIL / 2)
    values = np.array([[0.0, 1.5, 3.0, np.nan, 0.0, 0.0]])
    assert patch_layer(values, False)[0, :, 3].tolist() == [0, 128, 255, 255, 0, 0]
    assert veil(values, False)[0, :, 3].tolist() == [dense, half, 0, dense, dense, dense]
    assert (veil(values, False)[..., :3] == 255).all()
    signed = np.array([[-4.0, -2.0, 0.0, 2.0, 4.0, *[0.0] * 5]])
    assert patch_layer(signed, True)[0, :5, 3].tolist() == [255, 128, 0, 128, 255]
    assert veil(signed, True)[0, :5, 3].tolist() == [dense, dense, dense, half, 0]
    np.testing.assert_array_equal(patch_layer(values, False)[..., :3], patch_colours(values, False))


@given(arrays.arrays(bool, arrays.array_shapes(min_dims=2, max_dims=2, max_side=5)))
def test_a_line_runs_wherever_inside_meets_outside_and_nowhere_else(mask):
    height, width = 10 * mask.shape[0], 20 * mask.shape[1]
    drawn = re.search(r'd="([^"]*)"', macro("parts.html", "outline")(mask, width, height)).group(1)
    edges = set(re.findall(r"M([\d.]+) ([\d.]+)([hv])([\d.]+)", drawn))
    assert re.sub(r"M[\d.]+ [\d.]+[hv][\d.]+", "", drawn) == ""
    inside = {(row, column) for row, column in np.argwhere(mask).tolist()}
    expected = set()
    for row in range(mask.shape[0] + 1):
        for column in range(mask.shape[1] + 1):
            x, y = f"{20 * column}", f"{10 * row}"
            if ((row, column) in inside) != ((row - 1, column) in inside):
                expected.add((x, y, "h", "20"))
            if ((row, column) in inside) != ((row, column - 1) in inside):
                expected.add((x, y, "v", "10"))
    assert edges == expected


def test_below_a_map_a_dark_or_blue_image_can_be_seen_and_a_light_one_stays():
    draw = np.random.default_rng(0)
    spots = (draw.random((64, 64, 1)) < 0.1) * np.array([0, 0, 200], np.uint8)  # cells in blue: 23 of 255 in grey
    dark = draw.integers(0, 20, (64, 64), dtype=np.uint8)
    dusk = np.where(draw.random((64, 64)) < 0.05, 255, dark).astype(np.uint8)
    for image in (spots.astype(np.uint8), dark, dusk):
        grey, below = grey_value(image).astype(int), grey_below(image).astype(int)
        order = np.argsort(grey, axis=None, kind="stable")
        assert (np.diff(below.ravel()[order]) >= 0).all(), "what is lighter stays lighter"
        assert np.ptp(below) > 150
        assert np.quantile(below, 0.95) > 2.5 * np.quantile(grey, 0.95)
    assert grey_below(dusk).mean() > 2 * dusk.mean()
    light = draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(grey_below(light), grey_value(light))
    assert not grey_below(np.zeros((4, 4), np.uint8)).any()


def test_grey_of_grey_is_itself():
    level = np.arange(256, dtype=np.uint8)[None]
    np.testing.assert_array_equal(grey_value(np.repeat(level[..., None], 3, 2)), level)
