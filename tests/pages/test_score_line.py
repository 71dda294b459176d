"""The score of a map on one line: every mark where its value is, and the same in words."""

import dataclasses
import math
import re

import numpy as np
import pytest

from tests.pages import samples
from tests.pages.shown import constant, glance_table, macro, score_line
from tests.pages.structure import Structure
from vitrail.pages import AttributionView, TrustView
from vitrail.pages.trust import score_axis

WIDTH, MARGIN = (constant("trust.html", name) for name in ("line_width", "line_margin"))


def scored_words(trust: TrustView) -> list[str]:
    """What the marks on a line are."""
    kinds = ("map", "random", "oracle")[: 2 if trust.oracle is None else 3]
    return [str(macro("trust.html", "marked")(kind, trust)) for kind in kinds]


def glance(*trusts: TrustView) -> str:
    """The table of several maps, with what the marks on their lines are."""
    map_of = AttributionView("m", "M", "7", 2.5, np.eye(2), False, True)
    return glance_table([dataclasses.replace(map_of, trust=trust) for trust in trusts])


def drawn(block: str, kind: str, name: str) -> list[float]:
    """Where the marks of one kind stand, as values of an attribute."""
    return [float(value) for value in re.findall(rf'class="{kind}"[^>]*? {name}="([\d.]+)"', block)]


def test_every_mark_stands_where_its_value_is() -> None:
    trust = samples.trust()
    block = score_line(trust)
    values = np.array([trust.score, 0.0, *trust.random])
    places = [*drawn(block, "own", "cx"), *drawn(block, "zero", "x1"), *drawn(block, "random", "x1")]
    low, high = min(values), max(*values, trust.oracle)
    np.testing.assert_allclose(places, MARGIN + (values - low) / (high - low) * (WIDTH - 2 * MARGIN), atol=0.051)
    band, wide = drawn(block, "band", "x"), drawn(block, "band", "width")
    assert band[0] == drawn(block, "random", "x1")[0]
    assert band[0] + wide[0] == pytest.approx(drawn(block, "random", "x1")[-1], abs=0.11)


def figures(words: str) -> list[str]:
    return re.findall(r"−?\d+\.\d+", words)


def test_the_line_in_words_for_those_who_do_not_see_it() -> None:
    words = scored_words(samples.trust())
    assert [figures(said) for said in words] == [
        ["2.25", "2.00", "2.50"],
        ["−0.50", "1.50", "0.50"],
        ["3.00"],
    ]
    assert "1st of 40" in words[1]
    (label,) = Structure(score_line(samples.trust())).attribute("svg", "aria-label")
    assert all(said in label for said in words)


def test_a_map_without_signal_has_a_fall_and_no_rank() -> None:
    words = scored_words(dataclasses.replace(samples.trust("cannot tell"), faithful=None))
    assert figures(words[0]) == ["2.25", "2.00", "2.50"]
    assert not any("of 40" in said for said in words)


def test_without_a_true_place_none_is_shown() -> None:
    trust = dataclasses.replace(samples.trust(), oracle=None)
    block = score_line(trust) + macro("trust.html", "score_key")(trust) + glance(trust)
    assert 'class="oracle"' not in block
    assert 'class="oracle"' in score_line(samples.trust())


def test_scores_that_are_all_zero_have_a_line() -> None:
    trust = dataclasses.replace(samples.trust(), score=0.0, random=(0.0,) * 39, oracle=None, interval=(0.0, 0.0))
    assert drawn(score_line(trust), "own", "cx") == [WIDTH / 2]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_has_no_line_and_leaves_others_theirs(value: float) -> None:
    trust = dataclasses.replace(samples.trust("cannot tell"), score=value)
    assert score_axis([trust]) is None
    assert score_line(trust) == score_line(trust, score_axis([samples.trust()])) == ""
    assert score_axis([trust, samples.trust()]) == score_axis([samples.trust()])
    assert ("–" if math.isnan(value) else "∞") in scored_words(trust)[0]


def test_several_lines_have_one_axis() -> None:
    """Equal values stand at equal places, whatever else is on their lines."""
    one = samples.trust()
    other = dataclasses.replace(one, score=9.0, random=tuple(np.linspace(-3.0, 5.0, 39).tolist()), oracle=None)
    axis = score_axis([one, other])
    assert axis is not None
    assert (axis.low, axis.high) == (-3.0, 9.0)
    zeros = {tuple(drawn(score_line(trust, axis), "zero", "x1")) for trust in (one, other)}
    assert len(zeros) == 1
    assert drawn(score_line(other, axis), "own", "cx") == [WIDTH - MARGIN]
    assert drawn(score_line(one, axis), "own", "cx")[0] < WIDTH - MARGIN
    assert "</text>" not in score_line(one, axis)


def test_the_marks_are_named_once_for_several_lines() -> None:
    one, other = samples.trust(), dataclasses.replace(samples.trust(), oracle=None)
    keys = [re.search("(?s)<ul class=.key.>.*?</ul>", glance(*trusts)).group() for trusts in ([other, one], [other])]
    assert [key.count("<li>") for key in keys] == [3, 2]
    assert ['class="oracle"' in key for key in keys] == [True, False]
