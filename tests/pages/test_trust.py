"""How far to trust a map, in words, signs and one line."""

import dataclasses
import inspect
import math
import re

import pytest

from tests.pages import samples
from tests.pages.structure import Structure
from vitrail.explain import verdict
from vitrail.explain.trial import LEAST
from vitrail.pages.about_methods import ABOUT
from vitrail.pages.trust import FILLS, brief_block, how_tested, trust_block, verdict_icon
from vitrail.pages.words import STEP_TOLD, TWO_SCORES, told_words

VERDICTS = ("supported", "weak", "no better than random", "cannot tell")


def test_the_unit_and_once_for_a_page_why_there_are_two_scores() -> None:
    shown = " ".join(Structure(trust_block(samples.trust())).text)
    assert "Fall of the score when squares are covered, in logits, counted from the mean of all classes" in shown
    assert TWO_SCORES not in shown
    assert how_tested([samples.trust()] * 3).count(TWO_SCORES) == 1
    assert (
        f"each of the {['ten'][LEAST['draws'] - 10]} covers" in TWO_SCORES
    )  # who changes the number changes the words
    assert how_tested([samples.trust()] * 3).count(STEP_TOLD) == 1
    contrast = " ".join(Structure(trust_block(samples.trust(), contrast=True)).text)
    assert "in logits, as the difference of two classes" in contrast
    assert "mean of all classes" not in contrast


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_has_no_line(value: float) -> None:
    trust = dataclasses.replace(samples.trust("cannot tell"), paired=value, faithful=None, evidence=None)
    trust = dataclasses.replace(trust, reason="the map prefers no square")
    block = trust_block(trust)
    assert 'viewBox="0 0 320 46"' not in block
    assert "not asked: the map prefers no square" in block
    assert "not known: it takes reference pictures to ask" in block
    Structure(block)


def test_a_verdict_is_told_by_word_and_shape_and_not_by_colour_alone() -> None:
    assert len({verdict_icon(each) for each in VERDICTS}) == len(VERDICTS)
    for each in VERDICTS:
        block = trust_block(samples.trust(each))
        assert f"<strong>{each[0].upper()}{each[1:]}</strong>" in block
    assert verdict_icon("something else") == verdict_icon("cannot tell")


def test_the_rule_in_words_is_the_rule() -> None:
    """Whoever changes the limits must change what the page says of them."""
    said = re.sub(r"<.*?>", "", how_tested([samples.trust()]))
    assert (verdict.EVIDENCE, verdict.FAITHFUL, verdict.WEAK) == (5 / 100, 1 / 20, 1 / 5)
    assert "at most 5 % of pictures without evidence reach the number" in said
    assert "Supported" in said
    assert "at most one random map in twenty does as well as this one" in said
    assert "at most one in five does" in said


def test_one_of_several_maps_is_told_in_short() -> None:
    """No line, which stands in the table of all; nothing that is told of all; why it is supported stands below all."""
    trust = samples.trust("weak")
    block = brief_block(trust, [])
    assert 'class="score"' not in block
    assert "Because plain." in block
    assert "this map 2.12: 1st of 40" in block  # among what is unfolded
    assert "Because plain." not in brief_block(trust, ["Because plain."])
    assert told_words(trust)[0] in brief_block(trust, ["Because plain."])
    assert "Because plain." not in brief_block(samples.trust("supported"), [])
    assert "Because plain." in trust_block(samples.trust("supported"))


def test_how_many_pictures_without_evidence_there_were() -> None:
    few, many = (dataclasses.replace(samples.trust(), composites=count) for count in (99, 4999))
    assert "evidence: 99 put together of other pictures' squares, and 59 of the colours" in how_tested([few, few])
    assert "evidence: 99 to 4\u202f999 put together" in how_tested([many, few])
    settled = dataclasses.replace(few, surrogates=0)
    assert "59 of the colours" in how_tested([settled, few])
    assert "of the colours" not in how_tested([settled])
    assert "Pictures without evidence:" not in how_tested([dataclasses.replace(settled, composites=0)])
    assert "of 99 put together of other pictures' squares</dd>" in trust_block(settled)


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
