"""What is said of scores: ranks, parts, and the warning against choosing."""

import dataclasses

import numpy as np
import pytest

from tests.pages import samples
from vitrail.pages import HeatView
from vitrail.pages.words import parts_words, rank_of, rank_words, several_words

HEAT = HeatView("conservative", "Conservative propagation", "7", 11.6, np.eye(2), True, True, trust=samples.trust())


@pytest.mark.parametrize(
    ("better", "said"),
    [
        (0, "1st"),
        (1, "2nd"),
        (2, "3rd"),
        (3, "4th"),
        (10, "11th"),
        (11, "12th"),
        (12, "13th"),
        (20, "21st"),
        (39, "40th"),
    ],
)
def test_the_rank_counts_random_maps_that_do_better(better: int, said: str) -> None:
    random = (2.0,) * better + (0.0,) * (39 - better)
    trust = dataclasses.replace(samples.trust(), paired=1.0, random=random)
    assert rank_words(trust) == f"{said} of 40 (this map and 39 random ones)"


def test_a_tie_counts_against_the_map_as_in_its_p() -> None:
    trust = dataclasses.replace(samples.trust(), paired=1.0, random=(1.0, 1.0, 0.5))
    assert rank_of(trust) == 3
    assert rank_of(trust) / 4 == (1 + sum(value >= 1.0 for value in trust.random)) / (1 + len(trust.random))


def test_the_warning_counts_the_maps_that_were_tested() -> None:
    untested = dataclasses.replace(HEAT, trust=None)
    assert several_words([HEAT, HEAT, untested]).startswith("2 maps were tested. ")
    assert several_words([HEAT, untested]) == several_words([]) == ""


def test_the_parts_in_words() -> None:
    parts = (
        ("squares", 7.2),
        ("positions", 0.4),
        ("class token", 0.1),
        ("biases of the head", 4.1),
        ("biases of the norms", -0.2),
    )
    heat = dataclasses.replace(HEAT, parts=parts)
    assert parts_words(heat) == "Of the score 11.60: squares 7.20, positions 0.40, class token 0.10, biases 3.90."
    contrast = dataclasses.replace(HEAT, logit=-1.5, rather_than="1", parts=(("squares", -1.5), ("positions", -1e-9)))
    assert parts_words(contrast) == "Of the difference \u22121.50: squares \u22121.50, positions 0."
