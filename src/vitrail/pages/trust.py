"""A map in words, the same on a page and in the terminal: its values, its score, and how far to trust it.

Texts that only a page has stand in its templates.
"""

import math
import shlex
from collections.abc import Iterable, Sequence

import numpy as np

from vitrail.pages.chart import Axis
from vitrail.pages.colour import EVEN, ColourRange, fractions
from vitrail.pages.image_views import AttributionView, TrustView
from vitrail.text import capital, number, percent_in_words

SPOT = 0.5  # of what a map does beyond random ones: from so much on, what a spot does is said beside the summary
FLAT = 0.25  # of a scale that several maps share: a map that takes up less of it looks even
BIASES = "biases of the "  # how the parts that are summed up as `biases` begin


def score_axis(trusts: Sequence[TrustView]) -> Axis | None:
    """An axis that holds zero, the scores and what they are compared with; None where no score is a number."""
    lines = [
        [value for value in (trust.score, *trust.random, trust.oracle) if value is not None]
        for trust in trusts
        if trust.random
    ]
    values = [value for line in lines if all(map(math.isfinite, line)) for value in line]
    if not values:
        return None
    low, high = min(0.0, *values), max(0.0, *values)
    return Axis(low, high) if high > low else Axis(low - 0.5, high + 0.5)


# ---- the values of a map


def values_words(attribution: AttributionView, shown: ColourRange, own: ColourRange) -> str:
    """The values of a map, as they stand below its colours: `own` is their range, `shown` what the colours mean."""
    smallest, largest = number(own.smallest, 3), number(own.largest, 3)
    if shown.rooted:
        places = shown.place(fractions(attribution.values))
        is_even = np.ptp(places[np.isfinite(places)]) < FLAT
        alone = " Explained alone, the map has a scale of its own." if is_even else ""
        return f"Of the map's total. Own values: {smallest} to {largest}.{alone}"
    words = f"Smallest value {smallest}, largest {largest}."
    reach = max(abs(own.smallest), abs(own.largest))
    if reach < own.high:
        times = number(reach / float(np.abs(attribution.values[np.isfinite(attribution.values)]).mean()), 3)
        words += f" The largest is {times} times the mean; full colour is {EVEN} times, so a uniform map stays dull."
    return words


def parts_words(attribution: AttributionView) -> str:
    """What the explained number is the sum of: `Of the logit 11.60: patches 7.20, positions 0.40, biases 4.00`."""
    what = {"contrast": "difference", "similarity": "similarity", "number": "number"}.get(attribution.explains, "logit")
    plain = [(name, value) for name, value in attribution.parts if not name.startswith(BIASES)]
    biases = [value for name, value in attribution.parts if name.startswith(BIASES)]
    named = [*plain, ("biases", sum(biases))] if biases else plain
    decimals = _enough(max(abs(value) for value in (attribution.logit, *(value for _, value in named))), 6)
    summed = ", ".join(f"{name} {_fixed(value, decimals)}" for name, value in named)
    return f"Of the {what} {_fixed(attribution.logit, decimals)}: {summed}."


def _enough(largest: float, most: int) -> int:
    """How many decimals tell numbers of this size apart: two, and more where all are below 1."""
    return min(most, 2 - math.floor(math.log10(largest))) if 0 < largest < 1 else 2


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")  # + 0.0 for zero without a sign


# ---- the score of a map


def tests_of(attributions: Sequence[AttributionView]) -> list[TrustView]:
    """How far to trust each of the maps that were tested."""
    return [attribution.trust for attribution in attributions if attribution.trust is not None]


def reach_of(trusts: Sequence[TrustView]) -> float:
    """The largest size of all drops that stand together; 0 where there is none."""
    drops = (d for trust in trusts for d in (trust.score, trust.oracle, *trust.random, *(trust.interval or ())))
    return max((abs(drop) for drop in drops if drop is not None and math.isfinite(drop)), default=0.0)


def drop_words(value: float | None, reach: float) -> str:
    """A drop, with as many decimals for all numbers that stand together, whose largest is `reach`."""
    if value is None:
        return ""
    return _fixed(value, _enough(reach, 4)) if math.isfinite(value) else number(value)


def typed_option(name: str, option: str) -> str:
    """What is typed for a class that is explained, or to explain why it is not this one."""
    return f"--{option}{'=' if name.startswith('-') else ' '}{shlex.quote(name)}"


def spot_words(bump: float, trust: TrustView) -> str:
    """What a spot in the middle does of what a map does and random ones do not; nothing of less than half of that."""
    if trust.score is None or trust.random_mean is None or trust.score <= trust.random_mean:
        return ""
    part = (bump - trust.random_mean) / (trust.score - trust.random_mean)
    does = "as well: do not read more into this one" if part >= 1 else f"{percent_in_words(part)} of what this one does"
    beyond = "" if part >= 1 else " beyond random maps"
    spot = "A map that is made without looking at the image, a spot in its middle, does"
    return f"{spot} {does}{beyond}." if part >= SPOT else ""


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def from_to(counts: Iterable[int]) -> str:
    """The smallest and the largest of some counts, of which zeros are none: `99`, or `24 to 49`."""
    known = [count for count in counts if count]
    fewest, most = min(known, default=0), max(known, default=0)
    return number(most) if fewest == most else f"{number(fewest)} to {number(most)}"


def evidence_words(p: float, surrogates: int, composites: int) -> str:
    """The p-value of evidence, what it is made of, and among which kind: the larger p-value of two counts."""
    for kind, count in (("surrogates", surrogates), ("composites", composites)):
        k = p * (count + 1) - 1
        if count and abs(k - round(k)) < 1e-6:
            return f"{p_words(p, round(k), count)}: {round(k)} of {number(count)} {kind} reach this value"
    return f"p-value {number(p, 2)}"


def p_words(p: float, k: int, n: int) -> str:
    """A p-value, and what it is made of."""
    return f"p-value ({k} + 1) / ({n} + 1) = {number(p, 2)}"


def tested_words(trusts: Sequence[TrustView]) -> str:
    """With what several maps were tested: `499 composites, 29 surrogates and 24 random maps`, or nothing."""
    kinds = {
        "composites": [trust.composites for trust in trusts],
        "surrogates": [trust.surrogates for trust in trusts],
        "random maps": [trust.random_maps for trust in trusts],
    }
    named = [f"{from_to(counts)} {kind}" for kind, counts in kinds.items() if any(counts)]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


# ---- the verdicts of one map, and of several


def verdict_words(trust: TrustView) -> list[str]:
    """The sentence, and the reason where the sentence does not hold it; below a headline that has the verdict."""
    verdict = capital(trust.verdict)
    after = trust.sentence.removeprefix(f"{verdict}: ").removesuffix(f": {trust.verdict}.").removesuffix(".") + "."
    return [capital(after)] if trust.reason in after else [capital(after), f"{capital(trust.reason)}."]


def short_words(trust: TrustView) -> list[str]:
    """The same for one of several maps: why a map is supported is the same for all that are, and stands below them."""
    words = verdict_words(trust)
    return words[:1] if trust.verdict == "supported" else words


def shared_words(attributions: Sequence[AttributionView]) -> list[str]:
    """What is the same for all tested maps of an image, so that once is enough; nothing where there are no two."""
    each = [short_words(trust) for trust in tests_of(attributions)]
    return [words for words in each[0] if all(words in others for others in each)] if len(each) > 1 else []


def several_words(attributions: Sequence[AttributionView]) -> str:
    """Why one may not choose among several maps by their verdicts; empty where no two were tested."""
    tested = sum(bool(trust.random) for trust in tests_of(attributions))
    warning = "One random map in twenty passes the test by chance, so do not pick the map that you like best."
    return f"{tested} maps were tested. {warning}" if tested > 1 else ""
