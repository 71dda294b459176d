"""How far to trust a map, as a page tells it: what its verdict rests on, and how all maps were tested.

The score of a map stands on one line with what it is compared with: random maps and, where it is known, the true place.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vitrail.pages.chart import Axis
from vitrail.pages.html import escape, number
from vitrail.pages.views import Explains, TrustView
from vitrail.pages.words import (
    NO_LEAST,
    TWO_SCORES,
    UNITS,
    fall_words,
    random_maps_words,
    reach_of,
    scored_words,
    short_words,
    step_words,
    told_words,
    upper,
)
from vitrail.text import times

WIDTH, HEIGHT, MARGIN = 320, 46, 10  # of the line of a score
# What replaced masked patches, in words.
FILLS = {
    "background": "patches of background images from the same position",
    "own patches": "other patches of the same image",
    "grey": "grey",
    "mean": "the mean colour of the image",
    "blur": "a blurred copy of the image",
}
# In which precision the test was computed, in words.
PRECISIONS = {
    "fp32": "in single precision (fp32)",
    "bf16": "in bfloat16 (bf16), which is faster and keeps about three digits",
}


def score_axis(trusts: Sequence[TrustView]) -> Axis | None:
    """An axis that holds zero, the scores and what they are compared with; None where no score is a number."""
    lines = [
        [value for value in (trust.paired, *trust.random, trust.oracle) if value is not None]
        for trust in trusts
        if trust.random
    ]
    values = [value for line in lines if all(map(math.isfinite, line)) for value in line]
    if not values:
        return None
    low, high = min(0.0, *values), max(0.0, *values)
    return Axis(low, high) if high > low else Axis(low - 0.5, high + 0.5)


def score_line(trust: TrustView, axis: Axis | None = None) -> Markup:
    """The score, the random maps and the true mask on one line, as SVG; nothing where the score is not finite.

    Args:
        trust: What the test of the map said.
        axis: The axis that several lines have in common, whose zero has no name; the line's own when None.
    """
    own = score_axis([trust])
    if own is None or trust.paired is None:
        return Markup()
    within = axis or own

    def at(value: float) -> str:
        return f"{MARGIN + within.fraction(value) * (WIDTH - 2 * MARGIN):.1f}"

    left, right = at(min(trust.random)), at(max(trust.random))
    parts = [
        f'<line class="base" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="18" y2="18"/>',
        f'<line class="zero" x1="{at(0.0)}" x2="{at(0.0)}" y1="4" y2="32"/>',
        f'<rect class="band" x="{left}" y="10" width="{max(2.0, float(right) - float(left)):.1f}" height="16" rx="2"/>',
        *(f'<line class="random" x1="{at(v)}" x2="{at(v)}" y1="12" y2="24"/>' for v in trust.random),
    ]
    if trust.oracle is not None:
        parts.append(f'<path class="oracle" d="M{at(trust.oracle)} 11l6 7-6 7-6-7z"/>')
    parts.append(f'<circle class="own" cx="{at(trust.paired)}" cy="18" r="5"/>')
    height = 36
    if axis is None:
        height, zero = HEIGHT, within.fraction(0.0)
        anchor = "start" if zero < 0.05 else "end" if zero > 0.95 else "middle"
        parts.append(f'<text x="{at(0.0)}" y="43" text-anchor="{anchor}">0</text>')
    said = escape(f"Fall of the explained number: {'; '.join(words for _, words in scored_words(trust))}")
    return Markup(f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>')


@dataclass(frozen=True)
class VerdictView:
    """What the block of a verdict shows.

    Args:
        trust: What the test said.
        alone: Whether the map is the only one of its image; the lines of several stand together in a table.
        sentences: What stands below the verdict.
        line: The score on a line; empty where it is not finite.
        marks: The marks on it, as of `scored_words`.
        unit: Of all falls.
        score: The score in words,
        low: and the ends
        high: of its interval.
        without: With how many images without evidence the explained number was compared.
        effect: How much it lies above them, where that is asked for.
        fill: What replaced masked patches.
    """

    trust: TrustView
    alone: bool
    sentences: Sequence[str]
    line: Markup
    marks: Sequence[tuple[str, str]]
    unit: str
    score: str
    low: str
    high: str
    without: str
    effect: str
    fill: str


def verdict_view(trust: TrustView, explains: Explains = "class", shared: Sequence[str] | None = None) -> VerdictView:
    """The verdict on a map, with what it rests on in words.

    Args:
        trust: What the test said.
        explains: What the map explains.
        shared: For one of several maps: what stands once for all of them. None for a map that stands alone.
    """
    reach, alone = reach_of([trust]), shared is None
    score, low, high = (fall_words(value, reach) for value in (trust.score, *(trust.interval or (None, None))))
    return VerdictView(
        trust=trust,
        alone=alone,
        sentences=told_words(trust) if shared is None else [each for each in short_words(trust) if each not in shared],
        line=score_line(trust) if alone else Markup(),
        marks=scored_words(trust),
        unit=UNITS[explains],
        score=score,
        low=low,
        high=high,
        without=_without([trust]),
        effect=_effect(trust),
        fill=FILLS.get(trust.fill, trust.fill),
    )


@dataclass(frozen=True)
class HowTested:
    """How the maps of a page were tested.

    Args:
        random_maps: With how many random maps each was compared; empty where no map was tested.
        fills: What replaced masked patches.
        precisions: In which the tests were computed.
        unit: Of all falls.
        scores: What the two scores of a map are, and of which step sentences speak.
        least: From how much on there is evidence, where all images have that in common.
        beside: What evidence is for what is not one class by itself.
        without: With how many images without evidence the explained numbers were compared.
    """

    random_maps: str
    fills: str
    precisions: str
    unit: str
    scores: str
    least: str
    beside: str
    without: str


def how_tested(trusts: Sequence[TrustView], explains: Explains = "class") -> HowTested:
    """How the maps of a page were tested, in words."""
    asked = any(trust.composites for trust in trusts)
    return HowTested(
        random_maps=random_maps_words(trusts) if any(trust.random_maps for trust in trusts) else "",
        fills=" and ".join(dict.fromkeys(FILLS.get(trust.fill, trust.fill) for trust in trusts)),
        precisions=" and ".join(dict.fromkeys(PRECISIONS.get(trust.precision, trust.precision) for trust in trusts)),
        unit=UNITS[explains],
        scores=" ".join(words for words in (TWO_SCORES, step_words(trusts)) if words),
        least=_least(trusts),
        beside=_asked_beside(trusts, explains),
        without=f" Images without evidence: {_without(trusts)}." if asked else "",
    )


def _effect(trust: TrustView) -> str:
    """By how much the odds of the class, or the similarity, rise, where that is asked for."""
    if trust.least_effect is None:
        return f"; {NO_LEAST}"
    if trust.effect is None:
        return ""
    if trust.effect_unit == "cosine":
        median = f". The cosine is {trust.effect:.2f} above that of the median composite; "
        return f"{median}at least {trust.least_effect:.2f} is required"
    return (
        f". The odds of the class are {times(trust.effect)} those in the median composite; "
        f"at least {times(trust.least_effect)} is required"
    )


def _least(trusts: Sequence[TrustView]) -> str:
    """The least effect that all images of a page have in common, in words; else nothing."""
    known = next((trust for trust in trusts if trust.least_effect is not None), None)
    if known is None or known.least_effect is None:
        return ""
    if known.effect_unit == "cosine":
        return f"the cosine is at least {known.least_effect:.2f} above that of the median composite, "
    return f"the odds of the class are at least {times(known.least_effect)} those in the median composite, "


def _asked_beside(trusts: Sequence[TrustView], explains: Explains) -> str:
    """What evidence is for what is not one class by itself: of a contrast more, of what is no class less."""
    if any(trust.evidence is not None and trust.least_effect is None for trust in trusts):
        return f" {upper(NO_LEAST)}."
    if explains == "contrast":
        return " The first class alone needs evidence as well, and the odds are those of this class against all others."
    return ""


def _without(trusts: Sequence[TrustView]) -> str:
    """With how many images without evidence, and which, the explained numbers were compared."""
    words = f"{_from_to([trust.composites for trust in trusts])} composites (put together from patches of other images)"
    if not any(trust.surrogates for trust in trusts):  # not needed where the first had settled it
        return words
    return (
        f"{words}, and {_from_to([trust.surrogates for trust in trusts])} surrogates (noise with the colours and "
        "the smoothness of the image itself); the kind that reaches the score more often counts"
    )


def _from_to(counts: Sequence[int]) -> str:
    asked = [count for count in counts if count]
    fewest, most = min(asked, default=0), max(asked, default=0)
    return number(most) if fewest == most else f"{number(fewest)} to {number(most)}"
