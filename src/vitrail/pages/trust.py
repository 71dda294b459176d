"""How far to trust a map, as a page tells it: what its verdict rests on, and how all maps were tested.

The score of a map stands on one line with what it is compared with: random maps and, where it is known, the true place.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median

from markupsafe import Markup

from vitrail.pages.chart import Axis
from vitrail.pages.colour import Range
from vitrail.pages.html import escape, number
from vitrail.pages.views import AttributionView, Explains, TrustView
from vitrail.text import percent, times

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


SCORE_TITLE = "Fall of the score when patches are masked"
# Two numbers for one map look like a mistake unless somebody says what each is for.
TWO_SCORES = (
    "“This map” used exactly the fills of the random maps, so the two can be compared; “over all fills” is its "
    "mean over five fills at every step, with the 95 % interval."
)
NOT_TESTED = "not computed: without evidence no map can be trusted, so the test ends here (--full continues)"
STEP_TOLD = (
    "The sentence about masking the brightest patches describes one step, of up to a quarter of all patches: the one "
    "at which the map and the random maps differ most. The verdict uses the mean over all steps."
)
UNITS: dict[Explains, str] = {
    "class": "in logits, relative to the mean logit of all classes",
    "contrast": "as the difference of two logits",
    "similarity": "in cosine similarity (at most 1)",
    "number": "in the unit of the model's output",
    "token": "in logits",
}
NO_LEAST = (
    "how large an effect must be is known only for a class and for a similarity, and this number is neither: "
    "a map of it is weak at best"
)
BIASES = "biases of the "  # how the parts that are summed up as `biases` begin


def ends_words(shown: Range, signed: bool) -> tuple[str, str, str]:
    """What stands at the left end of a colour scale, in its middle and at its right end."""
    low, high = number(shown.low, 3), number(shown.high, 3)
    if shown.rooted:  # fractions
        low, high = "0", f"{'> ' if shown.more else ''}{percent(shown.high)}"
    if not signed:
        return low, "", high
    return f"{high if shown.rooted else low} against", "0", f"{high} for"


def areas_words(explains: Explains) -> str:
    """What deletion and insertion are areas under."""
    curve = {"class": "probability", "contrast": "probability among the two classes"}.get(explains, "explained number")
    return (
        f"Deletion and insertion are areas under the curve of the {curve} while patches are masked, or shown, in the "
        "map's order: low deletion and high insertion are good. Compare them with the values of random maps."
    )


def explained_words(attribution: AttributionView) -> tuple[str, tuple[str, ...], str]:
    """What a map explains and its number, in words: what stands before its names, these, and what stands behind."""
    shown = number(attribution.logit, 3)
    match attribution.explains:
        case "class" | "token":
            return "the score of ", (attribution.target,), f" (logit {shown})"
        case "contrast":
            return "why ", (attribution.target, str(attribution.contrast)), f" (difference of logits {shown})"
        case "similarity":
            return "the ", (attribution.target,), f" (cosine {shown})"
        case "number":
            return "", (attribution.target,), f" ({shown})"


def blind_words(explains: Explains) -> str:
    """What is to be known of a map by a method that is the same whatever is explained."""
    if explains not in ("similarity", "number"):
        return "This method cannot tell classes apart"
    return "This method gives the same map, whatever is explained"


def rank_of(trust: TrustView) -> int:
    """The place of a map among its random maps, 1 for the largest fall; a tie counts against it, 0 without a place."""
    return round((trust.faithful or 0.0) * (1 + trust.random_maps))


def middle_of(trust: TrustView) -> float | None:
    """The middle fall of the random maps; None where none was made."""
    return median(trust.random) if trust.random else None


def rank_words(trust: TrustView) -> str:
    """The same in words: `1st of 40`; empty for a map without signal, whose order is drawn by lot."""
    if trust.faithful is None:
        return ""
    return f"{_ordinal(rank_of(trust))} of {trust.random_maps + 1}"


def fill_words(trust: TrustView) -> str:
    """The score and its interval: `over all fills 2.25 (2.00 to 2.50)`."""
    falls = (trust.score, *(trust.interval or (None, None)))
    score, low, high = (fall_words(value, reach_of([trust])) for value in falls)
    return f"over all fills {score} (95 % interval {low} to {high})"


def scored_words(trust: TrustView) -> list[tuple[str, str]]:
    """What stands on the line of the score, in words: (kind of mark, what it says); nothing of an untested map."""
    if not trust.random:
        return []
    rank, (low, high, half) = rank_words(trust), (min(trust.random), max(trust.random), median(trust.random))
    own, low, high, half = (fall_words(value, reach_of([trust])) for value in (trust.paired, low, high, half))
    words = [
        ("map", f"this map {own}{f': {rank}' if rank else ''}"),
        ("random", f"{len(trust.random)} random maps {low} to {high}, median {half}"),
    ]
    if trust.oracle is not None:
        words.append(("oracle", f"the true patches {fall_words(trust.oracle, reach_of([trust]))}"))
    return [*words, ("other", fill_words(trust))]


def random_maps_words(trusts: Sequence[TrustView]) -> str:
    """How many random maps there were: `24 random maps`, or `24 to 49 random maps`."""
    counts = sorted({trust.random_maps for trust in trusts if trust.random_maps})
    return f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))} random maps".lstrip()


def marks_words(trusts: Sequence[TrustView]) -> list[tuple[str, str]]:
    """What the marks on the lines of several maps are: (kind of mark, what it says)."""
    words = [("map", "the map"), ("random", f"{random_maps_words(trusts)} of the same smoothness")]
    return [*words, ("oracle", "the true patches")] if any(trust.oracle is not None for trust in trusts) else words


def step_words(trusts: Sequence[TrustView]) -> str:
    """Which step the sentences speak of, where one of them speaks of one; else empty."""
    return STEP_TOLD if any(" brightest patch" in trust.sentence for trust in trusts) else ""


def fall_words(value: float | None, reach: float) -> str:
    """A fall of the score: as many decimals for all numbers that stand together, whose largest is `reach`."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return number(value)
    decimals = _enough(reach, 4)
    return _fixed(value, decimals)


def tests_of(attributions: Sequence[AttributionView]) -> list[TrustView]:
    """How far to trust each of the maps that were tested."""
    return [attribution.trust for attribution in attributions if attribution.trust is not None]


def reach_of(trusts: Sequence[TrustView]) -> float:
    """The largest size of all falls that are told of these maps; 0 where there is none."""
    told = [
        fall
        for trust in trusts
        for fall in (trust.paired or 0.0, *trust.random, trust.oracle or 0.0, *(trust.interval or ()))
    ]
    return max((abs(fall) for fall in told if math.isfinite(fall)), default=0.0)


def told_words(trust: TrustView) -> list[str]:
    """The sentence, and the reason where the sentence does not hold it; below a headline that has the verdict."""
    verdict = upper(trust.verdict)
    after = trust.sentence.removeprefix(f"{verdict}: ").removesuffix(f": {trust.verdict}.").removesuffix(".") + "."
    return [upper(after)] if trust.reason in after else [upper(after), f"{upper(trust.reason)}."]


def short_words(trust: TrustView) -> list[str]:
    """The same for one of several maps: why a map is supported is the same for all that are, and stands below them."""
    told = told_words(trust)
    return told[:1] if trust.verdict == "supported" else told


def shared_words(attributions: Sequence[AttributionView]) -> list[str]:
    """What is told alike of all tested maps of an image, so that once is enough; nothing where there are no two."""
    told = [short_words(trust) for trust in tests_of(attributions)]
    return [words for words in told[0] if all(words in others for others in told)] if len(told) > 1 else []


def one_verdict(attributions: Sequence[AttributionView]) -> str:
    """The verdict, where all tested maps of an image have the same; else empty."""
    verdicts = {trust.verdict for trust in tests_of(attributions)}
    return verdicts.pop() if len(verdicts) == 1 else ""


def several_words(attributions: Sequence[AttributionView]) -> str:
    """Why one may not choose among several maps by their verdicts; empty where no two were tested."""
    tested = sum(bool(trust.random) for trust in tests_of(attributions))
    if tested < 2:
        return ""
    return (
        f"{tested} maps were tested. One random map in twenty passes the test by chance, so do not pick the map that "
        "you like best."
    )


def parts_words(attribution: AttributionView) -> str:
    """What the explained number is the sum of: `Of the score 11.60: patches 7.20, positions 0.40, biases 4.00`.

    With as many decimals as make the parts add up as they are printed, or with a word where a few more do not.
    """
    what = {"contrast": "difference", "similarity": "similarity", "number": "number"}.get(attribution.explains, "score")
    plain = [(name, value) for name, value in attribution.parts if not name.startswith(BIASES)]
    biases = [value for name, value in attribution.parts if name.startswith(BIASES)]
    named = [*plain, ("biases", sum(biases))] if biases else plain
    decimals, rounded = _decimals(attribution.logit, [value for _, value in named])
    told = ", ".join(f"{name} {_fixed(value, decimals)}" for name, value in named)
    return f"Of the {what} {_fixed(attribution.logit, decimals)}: {told}{' (rounded)' if rounded else ''}."


def _decimals(total: float, parts: Sequence[float]) -> tuple[int, bool]:
    """How many decimals the parts of a sum get, and whether they still do not add up as they are printed."""
    values = (total, *parts)
    if not all(map(math.isfinite, values)):
        return 2, False
    fewest = _enough(max(map(abs, values)), 6)
    for decimals in range(fewest, fewest + 3):
        whole, *printed = (Decimal(f"{value:.{decimals}f}") for value in values)
        if sum(printed) == whole:
            return decimals, False
    return fewest, True


def _enough(largest: float, most: int) -> int:
    """How many decimals tell numbers of this size apart: two, and more where all are below 1."""
    return 2 if largest >= 1 or largest <= 0 else min(most, 2 - math.floor(math.log10(largest)))


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")  # + 0.0 for zero without a sign


def _ordinal(place: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{place}{'th' if place % 100 in (11, 12, 13) else ends.get(place % 10, 'th')}"


def upper(words: str) -> str:
    """With a capital letter in front."""
    return words[:1].upper() + words[1:]
