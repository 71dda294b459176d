import math
import re

import pytest
from hypothesis import assume, given, strategies as st

from tests.pages.shown import line_chart
from tests.pages.structure import Structure
from vitrail.pages.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Series, linear_axis, log_axis


def titles(chart: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", chart)


def places(chart: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'cx="(.*?)" cy="(.*?)"', chart)]


def test_points_lie_where_their_values_are():
    chart = line_chart("Loss", [1, 2, 3], [Series("training", [0.0, 5.0, 10.0])])
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    assert places(chart) == [
        (LEFT, HEIGHT - BOTTOM),
        (LEFT + across / 2, pytest.approx(HEIGHT - BOTTOM - down / 2)),
        (WIDTH - RIGHT, TOP),
    ]
    assert titles(chart) == ["epoch 1, training: 0", "epoch 2, training: 5", "epoch 3, training: 10"]


def test_log_axis_is_equal_for_equal_ratios():
    chart = line_chart("Loss", [1, 2, 3], [Series("training", [10.0, 1.0, 0.1])], log=True)
    heights = [y for _, y in places(chart)]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.11)
    assert "log scale" in chart


def test_missing_values_leave_a_gap():
    chart = line_chart("Loss", range(6), [Series("a", [1, None, 2, math.nan, 3, 4])])
    path = re.search(r'<g class="series-0"><path class="line" d="(.*?)"', chart).group(1)
    assert path.count("M") == 3
    assert path.count("L") == 1
    assert len(places(chart)) == 4


def test_values_that_are_not_positive_are_gaps_on_a_log_axis():
    assert len(places(line_chart("x", range(4), [Series("a", [1, 0, -1, 10])], log=True))) == 2


@pytest.mark.parametrize("values", [[], [None], [math.nan, math.inf]])
def test_nothing_to_draw_is_said(values):
    chart = line_chart("Loss", range(len(values)), [Series("a", values)])
    assert "<svg" not in chart
    assert "nan" not in chart


def test_one_point():
    assert len(places(line_chart("Loss", [1], [Series("a", [0.3])]))) == 1
    assert len(places(line_chart("Loss", [1], [Series("a", [0.3])], log=True))) == 1


def test_lines_of_different_length_are_our_own_fault():
    with pytest.raises(AssertionError):
        line_chart("Loss", [1], [Series("a", [1, 2])])


def test_screen_readers_hear_what_is_drawn():
    chart = Structure(line_chart('Lo"ss', [1, 2], [Series("a<b", [1, 2])]))
    (label,) = chart.attribute("svg", "aria-label")
    assert 'Lo"ss: a<b' in label


finite = st.floats(-1e9, 1e9).filter(lambda v: v == 0 or abs(v) > 1e-9)


@given(st.lists(finite, min_size=1, max_size=20))
def test_linear_axis_holds_its_values_and_has_few_round_ticks(values):
    spread = max(values) - min(values)
    assume(spread == 0 or spread > 1e-6 * max(map(abs, values)))
    axis = linear_axis(values)
    assert 2 <= len(axis.ticks) <= 9
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low - slack <= min(values) <= max(values) <= axis.high + slack
    step = axis.ticks[1] - axis.ticks[0]
    assert f"{step:.6e}"[0] in "125"
    assert float(f"{step:.0e}") == pytest.approx(step, rel=1e-4)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=20))
def test_log_axis_holds_its_values(values):
    axis = log_axis(values)
    assert 2 <= len(axis.ticks) <= 9
    assert all(-1e-6 <= axis.fraction(value) <= 1 + 1e-6 for value in values)
    assert list(axis.ticks) == sorted(set(axis.ticks))


def test_epochs_are_marked_by_whole_numbers():
    for epochs in (1, 2, 3, 7, 24, 300):
        ticks = linear_axis(range(1, epochs + 1), whole=True).ticks
        assert all(tick.is_integer() and 1 <= tick <= epochs for tick in ticks)
        assert ticks
