"""How far to trust a map, in words, signs and one line."""

import dataclasses
import inspect
import math
import re

import numpy as np
import pytest

from tests.pages import samples
from tests.pages.structure import Structure
from vitrail.explain import verdict
from vitrail.explain.trusting import LEAST
from vitrail.pages.about_methods import ABOUT
from vitrail.pages.trust import (
    FILLS,
    MARGIN,
    WIDTH,
    how_tested,
    middle,
    score_axis,
    scored_words,
    told_words,
    trust_block,
    verdict_icon,
)
from vitrail.pages.words import TWO_SCORES

VERDICTS = ("supported", "weak", "no better than random", "cannot tell")


def drawn(block: str, kind: str, name: str) -> list[float]:
    """Where the marks of one kind stand, as values of an attribute."""
    line = re.search(r'<svg viewBox="0 0 320 46".*?</svg>', block).group()
    return [float(value) for value in re.findall(rf'class="{kind}"[^>]*? {name}="([\d.]+)"', line)]


def test_every_mark_stands_where_its_value_is() -> None:
    trust = samples.trust()
    block = trust_block(trust)
    values = np.array([trust.paired, 0.0, *trust.random])
    places = [*drawn(block, "own", "cx"), *drawn(block, "zero", "x1"), *drawn(block, "random", "x1")]
    low, high = min(values), max(*values, trust.oracle)
    np.testing.assert_allclose(places, MARGIN + (values - low) / (high - low) * (WIDTH - 2 * MARGIN), atol=0.051)
    band, wide = drawn(block, "band", "x"), drawn(block, "band", "width")
    assert band[0] == drawn(block, "random", "x1")[0]
    assert band[0] + wide[0] == pytest.approx(drawn(block, "random", "x1")[-1], abs=0.11)


def test_the_line_in_words_for_those_who_do_not_see_it() -> None:
    words = [said for _, said in scored_words(samples.trust())]
    assert words[0] == "this map 2.12: 1st of 40 (this map and 39 random ones)"
    assert words[1] == "39 random maps −0.5 to 1.5, middle 0.5"
    assert words[2] == "the true place 3"
    assert words[3] == "this map under other covers 2.25 (2 to 2.5)"
    labels = Structure(trust_block(samples.trust())).attribute("svg", "aria-label")
    assert labels == [f"Fall of the explained number: {'; '.join(words)}"]


def test_the_unit_and_why_there_are_two_scores() -> None:
    shown = " ".join(Structure(trust_block(samples.trust())).text)
    assert "Fall of the score when squares are covered, in logits, counted from the mean of all classes" in shown
    assert TWO_SCORES in shown
    assert f"over {['ten'][LEAST['draws'] - 10]} others" in TWO_SCORES  # whoever changes the number changes the words
    contrast = " ".join(Structure(trust_block(samples.trust(), contrast=True)).text)
    assert "in logits, as the difference of two classes" in contrast
    assert "mean of all classes" not in contrast


def test_without_a_true_place_none_is_shown() -> None:
    block = trust_block(dataclasses.replace(samples.trust(), oracle=None))
    assert 'class="oracle"' not in block
    assert "true place" not in block


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_has_no_line(value: float) -> None:
    trust = dataclasses.replace(samples.trust("cannot tell"), paired=value, faithful=None, evidence=None)
    assert score_axis(trust) is None
    block = trust_block(trust)
    assert 'viewBox="0 0 320 46"' not in block
    assert "not asked: the map prefers no square" in block
    assert "not known: it takes reference pictures to ask" in block
    Structure(block)


def test_scores_that_are_all_zero_have_a_line() -> None:
    trust = dataclasses.replace(samples.trust(), paired=0.0, random=(0.0,) * 39, oracle=None, interval=(0.0, 0.0))
    assert drawn(trust_block(trust), "own", "cx") == [WIDTH / 2]


def test_a_verdict_is_told_by_word_and_shape_and_not_by_colour_alone() -> None:
    assert len({verdict_icon(each) for each in VERDICTS}) == len(VERDICTS)
    for each in VERDICTS:
        block = trust_block(samples.trust(each))
        assert f"<strong>{each[0].upper()}{each[1:]}</strong>" in block
    assert verdict_icon("something else") == verdict_icon("cannot tell")


def test_the_reason_stands_below_the_sentence_unless_it_is_in_it() -> None:
    trust = samples.trust()
    assert told_words(trust) == [trust.sentence, "Because plain."]
    short = dataclasses.replace(trust, verdict="cannot tell", reason="it is dark", sentence="Cannot tell: it is dark.")
    assert told_words(short) == ["It is dark."]


def test_the_rule_in_words_is_the_rule() -> None:
    """Whoever changes the limits must change what the page says of them."""
    said = re.sub(r"<.*?>", "", how_tested([samples.trust()]))
    assert (verdict.EVIDENCE, verdict.FAITHFUL, verdict.WEAK) == (3 / 100, 1 / 20, 1 / 5)
    assert "Supported" in said
    assert "at most one random map in twenty does as well" in said
    assert "at most one in five does" in said


@pytest.mark.parametrize("count", [1, 2, 5, 38, 39])
def test_the_middle_is_the_median(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count).tolist()
    assert middle(values) == pytest.approx(np.median(values))


def test_every_fill_has_words() -> None:
    assert set(FILLS) >= {"donor", "own patches", "grey", "mean", "blur"}
    assert "somehow" in trust_block(dataclasses.replace(samples.trust(), fill="somehow"))


def test_every_method_is_described() -> None:
    from vitrail.explain import METHODS

    assert set(METHODS) <= set(ABOUT)
    for name, says in ABOUT.items():
        assert says.endswith("."), name
        assert 80 < len(says) < 600, name


@pytest.mark.parametrize("name", ["occlusion", "rise", "kernel_shap"])
def test_methods_that_cover_say_with_what(name: str) -> None:
    """A covered square is no absence of evidence: what covers it decides what the map means."""
    from vitrail.explain import METHODS

    assert inspect.signature(METHODS[name].function).parameters["fill"].default == "mean"
    assert "mean colour" in METHODS[name].says
    assert "mean colour (or another that was asked for)" in ABOUT[name]
