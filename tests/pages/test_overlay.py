"""An attribution over its image, pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from vitrail.pages.colour import STRENGTH, grey_value, overlay_pixels, patch_colours, value_range


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
    base = grey_value(image)
    if value_range(values, signed).flat:
        np.testing.assert_array_equal(overlay, np.repeat(base[..., None], 3, 2))
        return
    patches = patch_colours(values, signed)
    rows, columns = values.shape
    for y in (0, height // 2, height - 1):
        for x in (0, width // 3, width - 1):
            expected = STRENGTH * patches[y * rows // height, x * columns // width] + (1 - STRENGTH) * float(base[y, x])
            assert np.abs(overlay[y, x] - expected).max() <= 0.5 + 1e-9


def test_grey_of_grey_is_itself():
    level = np.arange(256, dtype=np.uint8)[None]
    np.testing.assert_array_equal(grey_value(np.repeat(level[..., None], 3, 2)), level)
