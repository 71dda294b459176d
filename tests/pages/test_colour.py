"""From values to colours, and back to what a legend states; in pages and in notebooks."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from vitrail.pages.colour import (
    DIVERGING,
    EVEN,
    FROM_END,
    MISSING,
    SEQUENTIAL,
    TICKS,
    common_top,
    fractions,
    patch_colours,
    scaled,
    value_range,
)


def lightness(colours) -> np.ndarray:
    linear = (np.asarray(colours, float) / 255) ** 2.2
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def test_scales_can_be_read_without_colour():
    """Sequential: ever lighter. Diverging: lightest at zero, darker to both sides."""
    values = np.linspace(0, 1, 101)[None]
    assert (np.diff(lightness(patch_colours(values, signed=False)[0])) >= 0).all()
    both = lightness(patch_colours(np.linspace(-1, 1, 101)[None], signed=True)[0])
    assert (np.diff(both[:51]) >= 0).all()
    assert (np.diff(both[50:]) <= 0).all()


def test_for_is_red_and_against_is_blue_and_zero_is_white():
    against, zero, favour = patch_colours(np.array([[-2.0, 0.0, 2.0]]), signed=True)[0].astype(int)
    assert against[2] > against[0] + 80
    assert favour[0] > favour[2] + 80
    assert zero.min() > 240


def test_the_scale_runs_from_zero_to_the_largest_value():
    colours = patch_colours(np.array([[4.0, 0.0], [2.0, 0.0], [0.0, 0.0]]), signed=False)
    assert tuple(colours[0, 0]) == SEQUENTIAL[-1]
    assert tuple(colours[0, 1]) == SEQUENTIAL[0]
    assert value_range(np.array([[0.3, 0.1]]), False).low == 0
    one_sided = patch_colours(np.array([[0.0, 1.0]]), signed=True)[0]
    assert tuple(one_sided[0]) == DIVERGING[2]
    assert tuple(one_sided[1]) == DIVERGING[-1]


@given(arrays.arrays(np.float64, (4, 5), elements=st.floats(0, 1)), st.booleans())
def test_a_map_that_prefers_little_is_not_stretched_to_full_colour(noise, signed):
    """Only a patch with three times the mean has the last colour; a nearly even map has a third of the scale."""
    values = 1 + 0.02 * noise
    shown = value_range(values, signed)
    assert shown.high == pytest.approx(EVEN * values.mean())
    places = shown.place(values)
    assert np.ptp(places) < 0.01
    assert places.max() < (0.68 if signed else 0.35)
    sharp = np.where(np.arange(20).reshape(4, 5) == 7, 5.0, values)
    assert value_range(sharp, signed).high == 5.0
    assert value_range(sharp, signed).place(sharp).max() == 1


def test_no_map_of_few_patches_is_beyond_its_own_scale():
    """Of two patches none can have three times the mean: there the last colour is for one that has everything."""
    for values in (np.array([[0.0, 2.0]]), np.array([[2.0]]), np.array([[1.0, 1.5]])):
        assert value_range(values, False).high == values.sum()


@pytest.mark.parametrize(
    ("sharpest", "top", "more"),
    [
        ((0.30, 0.20, 0.25), 0.30, False),  # none is much sharper than the others
        ((0.90, 0.20, 0.25), 0.50, True),  # twice the median
        ((0.08, 0.07, 0.06), EVEN / 20, False),  # all nearly even
        ((0.90,), 0.90, False),
    ],
)
def test_one_sharp_map_does_not_leave_all_others_dark(sharpest, top, more):
    maps = []
    for fraction in sharpest:
        values = np.full((4, 5), (1 - fraction) / 19)
        values[1, 2] = fraction
        maps.append(7 * values)
    found = common_top([*maps, np.zeros((4, 5))])  # a map without signal has no say
    assert found == pytest.approx(top)
    assert any(scaled(values, False, found)[0].largest > found for values in maps) == more
    last = patch_colours(fractions(maps[0]), False, scaled(maps[0], False, found)[0])[1, 2]
    assert (tuple(last) == SEQUENTIAL[-1]) == (sharpest[0] >= top)
    assert common_top([np.zeros((2, 2)), np.full((2, 2), np.nan)]) == 0.0


@pytest.mark.parametrize("value", [0.0, 1 / 49, -3.0, 1e30, np.nan, np.inf])
@pytest.mark.parametrize("signed", [False, True])
def test_equal_values_are_no_signal(value, signed):
    values = np.full((3, 4), value)
    assert value_range(values, signed).flat
    assert set(map(tuple, patch_colours(values, signed).reshape(-1, 3).tolist())) == {MISSING}


def test_a_faint_signal_is_a_signal_and_rounding_is_none():
    for dtype, rounding in ((np.float32, 1e-4), (np.float64, 1e-13)):
        assert not value_range(np.array([[1.0, 1.0 + 3 * rounding]], dtype), False).flat
        assert value_range(np.array([[1.0, 1.0 + rounding]], dtype), False).flat
        assert not value_range(np.array([[0.0, 1e-30]], dtype), False).flat


@pytest.mark.parametrize("signed", [False, True])
def test_shares_of_a_common_top_are_coloured_by_their_root(signed):
    """A quarter of the largest fraction lies half way; by the fraction itself, a hundredth would look like nothing."""
    values = np.array([[0.8, 0.2, 0.008, -0.2 if signed else 0.0]])
    shown = scaled(values, signed, 0.8)[0]
    expected = np.array([[1.0, 0.5, 0.1, -0.5 if signed else 0.0]])
    np.testing.assert_allclose(shown.place(values), (1 + expected) / 2 if signed else expected, atol=1e-12)
    assert shown.high == 0.8
    own = value_range(values, signed)
    assert own.place(np.array([own.low, own.high])).tolist() == [0, 1]


@pytest.mark.parametrize("largest", [0.02, 0.1, 0.319, 0.75, 1.0])
@pytest.mark.parametrize("signed", [False, True])
def test_ticks_lie_where_their_colour_is_and_leave_room_for_the_end(largest, signed):
    shown = scaled(np.array([[0.0, 1.0]]), signed, largest)[0]
    ticks = shown.ticks()
    assert {fraction for fraction, _ in ticks} <= set(TICKS)
    assert len(ticks) >= 1 or largest == 0.02
    for fraction, place in ticks:
        colour = patch_colours(np.array([[fraction]]), signed, shown)[0, 0]
        scale = np.array(DIVERGING if signed else SEQUENTIAL)
        ends = np.linspace(0, 1, len(scale))
        np.testing.assert_allclose(colour, [np.interp(place, ends, scale[:, i]) for i in range(3)], atol=0.51)
        assert place <= 1 - FROM_END


def test_missing_values_are_grey_and_counted():
    values = np.array([[np.nan, 0.0], [1.0, np.inf]])
    assert value_range(values, False).missing == 2
    colours = patch_colours(values, False)
    assert tuple(colours[0, 0]) == tuple(colours[1, 1]) == MISSING
