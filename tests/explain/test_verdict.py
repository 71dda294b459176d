"""The verdict: a table of cases, and that a better p never makes it worse."""

import math
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from vitrail.explain.evidence import EVIDENCE
from vitrail.explain.scores.faithfulness import FAITHFUL
from vitrail.explain.verdict import TINY, WEAK, verdict

LARGE: dict[str, Any] = {"effect": 2.0, "least": 1.0}
ORDER = ("cannot tell", "no better than random", "weak", "supported, tiny", "supported")


@pytest.mark.parametrize(
    ("evidence", "faithful", "distinct", "wanted", "why"),
    [
        (0.01, 0.025, 64, "supported", "carry it"),
        (EVIDENCE, FAITHFUL, 64, "supported", "carry it"),
        (0.01, 0.075, 64, "weak", "random maps do as well"),
        (0.01, WEAK, 64, "weak", "random maps do as well"),
        (0.01, 0.5, 64, "no better than random", "random maps do as well"),
        (0.06, 0.025, 64, "cannot tell", "no evidence found"),
        (1.0, 1.0, 64, "cannot tell", "no evidence found"),
        (0.01, None, 64, "cannot tell", "all patches the same value"),
        (None, 0.025, 0, "cannot tell", "no background images"),
        (None, 0.025, 1, "cannot tell", "1 different background image is too few"),
        (None, 0.025, 9, "cannot tell", "9 different background images are too few"),
    ],
)
def test_cases(evidence: float | None, faithful: float | None, distinct: int, wanted: str, why: str) -> None:
    says, reason = verdict(evidence, faithful, distinct, **LARGE)
    assert says == wanted
    assert why in reason


def test_a_fall_that_is_next_to_nothing_is_told_as_tiny() -> None:
    """A drop of 0.002 logits was "supported"."""
    for unit, limit in TINY.items():
        drops = (-1.0, 0.002, limit * 0.999, limit, 5.0, None)
        says = [verdict(0.01, 0.025, 64, unit=unit, drop=drop, **LARGE)[0] for drop in drops]
        assert says == ["supported, tiny"] * 3 + ["supported"] * 3
        assert "0.002" in verdict(0.01, 0.025, 64, unit=unit, drop=0.002, **LARGE)[1]
    assert verdict(0.01, 0.5, 64, drop=0.002, **LARGE)[0] == "no better than random"
    assert verdict(0.01, 0.025, 64, drop=0.002)[0] == "weak"


p = st.integers(1, 100).map(lambda count: count / 100)


def test_the_reason_says_which_images_reached_the_number() -> None:
    composed, surrogate = verdict(0.12, 0.025, 64)[1], verdict(0.12, 0.025, 64, "surrogates")[1]
    assert composed != surrogate
    assert "0.12" in composed
    assert verdict(0.05, 0.025, 64, "surrogates") == verdict(0.05, 0.025, 64)


@settings(deadline=None)
@given(effect=st.floats(-5, 20), more=st.floats(0, 5), classes=st.integers(2, 10_000))
@example(effect=math.log(1000), more=0.0, classes=1000)
def test_a_larger_effect_is_never_worse_and_less_than_the_least_is_no_evidence(
    effect: float, more: float, classes: int
) -> None:
    least = math.log(classes)
    here, there = (verdict(0.01, 0.025, 64, "surrogates", size, least) for size in (effect, effect + more))
    assert ORDER.index(there[0]) >= ORDER.index(here[0])
    assert (here[0] == "supported") == (effect >= least)
    assert f"{classes:,}" in here[1] or effect >= least or classes < 10
    assert (
        verdict(0.01, 0.025, 64, "surrogates", None, least)[0] == "cannot tell"
    )  # what is not known speaks for nothing
    assert verdict(0.06, 0.025, 64, "composites", effect, least) == verdict(0.06, 0.025, 64)


@settings(deadline=None)
@given(evidence=p, faithful=p, less=st.floats(0.1, 1.0))
def test_a_smaller_p_is_never_worse(evidence: float, faithful: float, less: float) -> None:
    for effect in ({}, LARGE):
        here = ORDER.index(verdict(evidence, faithful, 64, **effect)[0])
        assert ORDER.index(verdict(evidence * less, faithful, 64, **effect)[0]) >= here
        assert ORDER.index(verdict(evidence, faithful * less, 64, **effect)[0]) >= here


@settings(deadline=None)
@given(evidence=p, faithful=p)
@example(evidence=0.01, faithful=0.5)
@example(evidence=0.5, faithful=0.01)
def test_nothing_is_supported_without_both(evidence: float, faithful: float) -> None:
    says = verdict(evidence, faithful, 64, **LARGE)[0]
    assert (says == "supported") == (evidence <= 0.05 and faithful <= 0.05)
    without_scale = verdict(evidence, faithful, 64)[0]
    assert without_scale == ("weak" if says == "supported" else says)  # the best of a number that has no minimum effect
    assert verdict(None, faithful, 0)[0] == "cannot tell"
