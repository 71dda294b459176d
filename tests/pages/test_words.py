"""What is said of scores: ranks, parts, and the warning against choosing."""

import dataclasses
import math
import re

import numpy as np
from hypothesis import given, strategies as st

from tests.pages import samples
from tests.pages.shown import constant, how_tested_list, macro, shared_block
from vitrail.pages import AttributionView
from vitrail.pages.colour import ColourRange, common_top, scaled, value_range
from vitrail.pages.trust import (
    drop_words,
    parts_words,
    reach_of,
    several_words,
    shared_words,
    short_words,
    values_words,
    verdict_words,
)

ATTRIBUTION = AttributionView(
    "conservative", "Conservative propagation", "7", 11.6, np.eye(2), True, True, trust=samples.trust()
)


def test_the_rank_counts_random_maps_that_do_better() -> None:
    ends = {0: "1st", 1: "2nd", 2: "3rd", 3: "4th", 10: "11th", 11: "12th", 12: "13th", 20: "21st", 39: "40th"}
    for better, said in ends.items():
        trust = dataclasses.replace(samples.trust(), faithful=(1 + better) / 40)
        assert f" {said} of 40" in macro("trust.html", "marked")("random", trust)
        assert trust.rank == 1 + better


def test_the_warning_counts_the_maps_that_were_tested() -> None:
    untested = dataclasses.replace(ATTRIBUTION, trust=None)
    assert several_words([ATTRIBUTION, ATTRIBUTION, untested]).startswith("2 maps")
    assert several_words([ATTRIBUTION, untested]) == several_words([]) == ""


def figures(words: str) -> list[str]:
    return re.findall(r"−?\d+\.\d+|nan", words)


def test_the_parts_in_words() -> None:
    parts = (
        ("patches", 7.2),
        ("positions", 0.4),
        ("class token", 0.1),
        ("biases of the head", 4.1),
        ("biases of the norms", -0.2),
    )
    words = parts_words(dataclasses.replace(ATTRIBUTION, parts=parts))
    assert figures(words) == ["11.60", "7.20", "0.40", "0.10", "3.90"]  # all biases are one
    assert all(name in words for name in ("patches", "positions", "class token", "biases"))
    contrast = dataclasses.replace(
        ATTRIBUTION, logit=-1.5, contrast="1", parts=(("patches", -1.5), ("positions", -1e-9))
    )
    assert figures(parts_words(contrast)) == ["−1.50", "−1.50", "0.00"]


def test_small_parts_have_more_decimals() -> None:
    small = dataclasses.replace(
        ATTRIBUTION, logit=0.0613, parts=(("patches", 0.0549), ("positions", 0.0044), ("b", 0.002))
    )
    assert figures(parts_words(small)) == ["0.0613", "0.0549", "0.0044", "0.0020"]
    thirds = dataclasses.replace(ATTRIBUTION, logit=2.0, parts=tuple((name, 2 / 3) for name in "abc"))
    assert figures(parts_words(thirds)) == ["2.00", "0.67", "0.67", "0.67"]
    none = dataclasses.replace(ATTRIBUTION, logit=math.nan, parts=(("patches", math.nan),))
    assert figures(parts_words(none)) == ["nan", "nan"]


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=5), st.sampled_from([1.0, 0.01, 1e-5]))
def test_the_parts_are_printed_to_two_decimals_or_three_digits_of_the_largest(values: list[float], size: float) -> None:
    parts = tuple((letter, value * size) for letter, value in zip("abcde", values, strict=False))
    total = sum(value for _, value in parts)
    words = parts_words(dataclasses.replace(ATTRIBUTION, logit=total, parts=parts))
    shown = [float(each) for each in re.findall(r"-?\d+\.\d+", words.replace("−", "-"))]
    assert len(shown) == 1 + len(parts)
    step = max(1e-6, min(0.01, max(abs(value) for value in (total, *(value for _, value in parts))) / 100))
    assert all(
        abs(one - own) <= step / 2 * 1.001 for one, own in zip(shown, (total, *(v for _, v in parts)), strict=True)
    )


def test_a_map_without_signal_has_no_rank() -> None:
    trust = dataclasses.replace(samples.trust("cannot tell"), faithful=None)
    assert " of 40" not in macro("trust.html", "marked")("random", trust)


def test_which_step_the_sentences_speak_of_is_told_where_one_does() -> None:
    one_step = constant("trust.html", "one_step")
    silent = dataclasses.replace(samples.trust("cannot tell"), sentence="Cannot tell: it is dark.")
    one = dataclasses.replace(silent, sentence="Masking the highest-ranked patch drops “7” from 9 % to 1 %: weak.")
    assert one_step in how_tested_list([silent, samples.trust()])
    assert one_step in how_tested_list([one])
    assert one_step not in how_tested_list([silent])


def test_the_reason_stands_below_the_sentence_unless_it_is_in_it() -> None:
    trust = samples.trust()
    sentence, reason = verdict_words(trust)
    assert sentence == trust.sentence.replace(": supported.", ".")  # the headline has the verdict
    assert reason.lower() == f"{trust.reason}."
    short = dataclasses.replace(trust, verdict="cannot tell", reason="it is dark", sentence="Cannot tell: it is dark.")
    assert [each.lower() for each in verdict_words(short)] == ["it is dark."]


def test_what_all_maps_are_told_alike() -> None:
    def attributions(*verdicts: str) -> list[AttributionView]:
        return [dataclasses.replace(ATTRIBUTION, trust=samples.trust(verdict)) for verdict in verdicts]

    reason = verdict_words(samples.trust())[-1]
    assert shared_words(attributions("weak", "weak")) == verdict_words(samples.trust("weak"))
    assert (
        shared_words([*attributions("weak", "cannot tell"), dataclasses.replace(ATTRIBUTION, trust=None)])[-1] == reason
    )
    assert reason not in shared_words(
        attributions("supported", "supported")
    )  # why it is supported stands below all maps
    assert short_words(samples.trust("supported")) == verdict_words(samples.trust("supported"))[:1]
    other = dataclasses.replace(samples.trust("weak"), reason="it is dark", sentence="It is dark: weak.")
    assert shared_words([*attributions("weak", "weak"), dataclasses.replace(ATTRIBUTION, trust=other)]) == []
    assert shared_words(attributions("weak")) == shared_words([]) == []
    for verdicts, is_one in ((("weak", "weak"), True), (("weak", "cannot tell"), False)):
        block = shared_block(attributions(*verdicts))
        assert (reason in block, "verdict-name" in block, "trusted weak" in block) == (True, is_one, is_one)
    assert shared_block([dataclasses.replace(ATTRIBUTION, trust=None)]).strip() == ""


def test_faithfulness_that_stand_together_have_as_many_decimals() -> None:
    for value, reach, said in (
        (8.5512, 11.3, "8.55"),
        (0.0, 11.3, "0.00"),
        (-0.0, 11.3, "0.00"),
        (-0.001, 11.3, "0.00"),
        (0.1154, 0.12, "0.115"),
        (-0.1154, 0.12, "−0.115"),
        (0.00941, 0.01, "0.0094"),
        (math.nan, 1.0, "–"),
        (0.0, 0.0, "0.00"),
    ):
        assert drop_words(value, reach) == said


def test_the_reach_is_that_of_all_drops_that_are_told() -> None:
    trust = dataclasses.replace(samples.trust(), random=(-7.0, 1.0))
    assert reach_of([samples.trust(), trust]) == 7.0
    assert reach_of([dataclasses.replace(samples.trust(), score=math.nan, random=(math.nan,), oracle=None)]) == 2.5
    assert reach_of([]) == 0


def test_the_ends_of_a_scale() -> None:
    values = np.array([[0.0, 1.0], [3.0, 0.0]])

    def ends(shown: ColourRange, signed: bool) -> list[str]:
        return re.findall("<span>(.*?)</span>", macro("maps.html", "ends")(shown, signed))

    assert ends(value_range(values, False), False) == ["0", "", "3"]
    low, zero, high = ends(value_range(values, True), True)
    assert (low.split()[0], zero, high.split()[0]) == ("−3", "0", "3")
    low, _, high = ends(scaled(values, True, 0.75)[0], True)
    assert (low.split()[0], high.split()[0]) == ("75.0", "75.0")
    assert ends(scaled(values, False, 0.75)[0], False) == ["0", "", "75.0 %"]
    assert ends(scaled(values, False, 0.25)[0], False) == ["0", "", "&gt; 25.0 %"]


def test_a_map_that_looks_even_on_the_scale_of_several_says_where_it_does_not() -> None:
    even, sharp = np.linspace(0.9, 1.1, 16).reshape(4, 4), np.eye(4)
    common = common_top([even, sharp])
    notes = []
    for values in (even, sharp):
        one = dataclasses.replace(ATTRIBUTION, values=values, signed=False)
        shown, own = scaled(values, False, common)[0], value_range(values, False)
        notes.append(values_words(one, shown, own))
        assert "alone" not in values_words(one, own, own)
    assert ["alone" in each for each in notes] == [True, False]
