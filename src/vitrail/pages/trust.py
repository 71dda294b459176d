"""How far to trust a map, as HTML: the verdict by sign and word, what it rests on, and how all maps were tested.

The score of a map stands on one line with what it is compared with: random maps and, where it is known, the true place.
"""

import math
from collections.abc import Sequence

from vitrail.pages.chart import Axis
from vitrail.pages.html import escape, number
from vitrail.pages.views import Explains, HeatView, TrustView
from vitrail.pages.words import (
    NO_LEAST,
    NOT_TESTED,
    SCORE_TITLE,
    TWO_SCORES,
    UNITS,
    fall_words,
    one_verdict,
    reach_of,
    scored_words,
    shared_words,
    short_words,
    step_words,
    told_words,
    twins_words,
    upper,
)
from vitrail.text import joined, times

WIDTH, HEIGHT, MARGIN = 320, 46, 10  # of the line of a score
_MARKS = {
    "map": '<circle class="own" cx="8" cy="6" r="4.5"/>',
    "random": '<rect class="band" x="1" y="1" width="14" height="10" rx="2"/>'
    '<path class="random" d="M5 2v8M9 2v8M11 2v8"/>',
    "oracle": '<path class="oracle" d="M8 1l4.5 5-4.5 5-4.5-5z"/>',
    "other": "",
}
# What covered squares, in words.
FILLS = {
    "donor": "what stands in the same place in reference pictures",
    "own patches": "other squares of the same picture",
    "grey": "grey",
    "mean": "the mean colour of the picture",
    "blur": "a blurred copy of the picture",
}
# In which precision the test was computed, in words.
PRECISIONS = {
    "fp32": "in single precision (fp32)",
    "bf16": "in bfloat16 (bf16), which keeps about three digits and takes less time",
}
# A verdict is never told by colour alone: each has a shape of its own.
_ICONS = {
    "supported": '<path d="M4.5 8.5l2.5 2.5 4.5-5.5"/>',
    "supported, tiny": '<path d="M6 8.4l1.5 1.5 2.7-3.3"/>',
    "weak": '<path d="M3.8 8.6c1.4-2 2.8-2 4.2-.6s2.8 1.4 4.2-.6"/>',
    "no better than random": '<path d="M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"/>',
    "cannot tell": '<path d="M6.1 6.4c0-2.5 3.8-2.4 3.8-.1 0 1.5-1.9 1.5-1.9 3M8 11.5v.1"/>',
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


def score_line(trust: TrustView, axis: Axis | None = None) -> str:
    """The score, the random maps and the true mask on one line, as SVG; nothing where the score is no number.

    Args:
        trust: What the test of the map said.
        axis: The axis that several lines have in common, whose zero has no name; the line's own when None.
    """
    own = score_axis([trust])
    if own is None or trust.paired is None:
        return ""
    within = axis or own

    def at(value: float) -> str:
        return f"{MARGIN + within.share(value) * (WIDTH - 2 * MARGIN):.1f}"

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
        height, zero = HEIGHT, within.share(0.0)
        anchor = "start" if zero < 0.05 else "end" if zero > 0.95 else "middle"
        parts.append(f'<text x="{at(0.0)}" y="43" text-anchor="{anchor}">0</text>')
    said = escape(f"Fall of the explained number: {'; '.join(words for _, words in scored_words(trust))}")
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def key_list(named: Sequence[tuple[str, str]]) -> str:
    """The legend of a line, or of several: a mark and what it says."""
    items = "".join(
        f'<li><svg viewBox="0 0 16 12" aria-hidden="true">{_MARKS[kind]}</svg>{escape(words)}</li>'
        for kind, words in named
    )
    return f'<ul class="key">{items}</ul>'


def verdict_icon(verdict: str) -> str:
    """The sign of a verdict: a shape in a ring."""
    shape = _ICONS.get(verdict, _ICONS["cannot tell"])
    return f'<svg class="sign" viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="7"/>{shape}</svg>'


def verdict_class(verdict: str) -> str:
    """The verdict as the name of a style."""
    return verdict.replace(",", "").replace(" ", "-") if verdict in _ICONS else "cannot-tell"


def _numbers(trust: TrustView, explains: Explains, key: str = "") -> str:
    """How the verdict came about, for those who want to know."""
    fill = escape(FILLS.get(trust.fill, trust.fill))
    reach = reach_of([trust])
    score, low, high = (fall_words(value, reach) for value in (trust.score, *(trust.interval or (None, None))))
    rows = [
        (
            "Score",
            f"{score} (95 % interval {low} to {high}): the mean fall of the explained number, {UNITS[explains]}, while "
            "squares are covered in the map's order, from a 32nd of all to half of them. The random maps meet the very "
            "same covers, so that nothing but the squares differs"
            if trust.random
            else NOT_TESTED,
        ),
        (
            "Is there evidence?",
            f"p = {number(trust.evidence, 2)}: how often pictures without evidence reach as much, of "
            f"{_without([trust])}{_effect(trust)}"
            if trust.evidence is not None
            else "not known: it takes reference pictures to ask, and there are none or too few",
        ),
        (
            "Is the map faithful?",
            f"p = {number(trust.faithful, 2)}: how often random maps, as smooth as this one, do as well"
            if trust.faithful is not None
            else f"not asked: {escape(trust.reason)}",
        ),
        ("Covered by", fill),
    ]
    shown = "".join(f"<dt>{name}</dt><dd>{says}</dd>" for name, says in rows)
    return f'<details><summary>How the verdict came about</summary>{key}<dl class="asked">{shown}</dl></details>'


def trust_block(trust: TrustView, explains: Explains = "class") -> str:
    """The verdict, the sentence, the score with its references, and how it came about; for a map that stands alone.

    Args:
        trust: What the test of a map said.
        explains: What the map explains.
    """
    figure = (
        ""
        if not trust.random
        else (
            f'<figure class="score"><figcaption>{SCORE_TITLE}, {UNITS[explains]}</figcaption>{score_line(trust)}'
            f"{key_list(scored_words(trust))}</figure>"
        )
    )
    return _block(trust, told_words(trust), figure + _numbers(trust, explains))


def brief_block(trust: TrustView, shared: Sequence[str], explains: Explains = "class") -> str:
    """The same for one of several maps, whose lines stand together in a table.

    Args:
        trust: What the test of a map said.
        shared: What is told of all of them elsewhere.
        explains: What the map explains.
    """
    told = [words for words in short_words(trust) if words not in shared]
    words = scored_words(trust)
    return _block(trust, told, _numbers(trust, explains, key_list(words) if words else ""))


def verdict_line(verdict: str) -> str:
    """The sign and the word."""
    return f'<p class="says">{verdict_icon(verdict)}<strong>{escape(upper(verdict))}</strong></p>'


def _block(trust: TrustView, told: Sequence[str], below: str) -> str:
    said = "".join(
        f'<p class="why">{escape(joined(words))}</p>' if place else f"<p>{escape(joined(words))}</p>"
        for place, words in enumerate(told)
    )
    return f'<div class="trusted {verdict_class(trust.verdict)}">{verdict_line(trust.verdict)}{said}{below}</div>'


def shared_block(heats: Sequence[HeatView]) -> str:
    """What is the same for all tested maps of a picture, such as that there is no evidence; else nothing."""
    told = shared_words(heats)
    if not told:
        return ""
    verdict = one_verdict(heats)
    said = "".join(f"<p>{escape(joined(words))}</p>" for words in told)
    return f'<div class="trusted {verdict_class(verdict)}">{verdict_line(verdict) if verdict else ""}{said}</div>'


def how_tested(trusts: Sequence[TrustView], explains: Explains = "class") -> str:
    """How the maps of a page were tested, as items of a list."""
    fills = " and ".join(dict.fromkeys(FILLS.get(trust.fill, trust.fill) for trust in trusts))
    precisions = " and ".join(dict.fromkeys(PRECISIONS.get(trust.precision, trust.precision) for trust in trusts))
    maps = twins_words(trusts)
    scores = " ".join(words for words in (TWO_SCORES, step_words(trusts)) if words)
    asked = f" Pictures without evidence: {_without(trusts)}." if any(trust.composites for trust in trusts) else ""
    covered = (
        "<li><strong>Every map was tested on the model itself.</strong> Squares are covered in the order in which the "
        f"map names them, by {escape(fills)}, and the fall of the explained number is compared with the fall for "
        f"{maps} of the same smoothness. Falls are {UNITS[explains]}. {scores} The test was computed "
        f"{escape(precisions)}.</li>"
    )
    if not any(trust.twins for trust in trusts):
        covered = (
            "<li><strong>No map was tested.</strong> The explained number is held against pictures without evidence "
            "first; where it does not stand out, or that cannot be asked, no map of it can be trusted (--full goes on "
            "all the same). The test was computed "
            f"{escape(precisions)}.</li>"
        )
    return (
        f"{covered}"
        f"<li><b>Supported</b>: at most 5 % of pictures without evidence reach the number, {_least(trusts)}and at most "
        "one random map in twenty does as well as this one. <b>Weak</b>: at most one in five does. <b>No better than "
        "random</b>: more do. <b>Cannot tell</b>: there is no evidence to be found, or it could not be asked for."
        f"{_asked_beside(trusts, explains)}{asked}</li>"
        "<li>Maps of the last two kinds are drawn pale, in a hatched frame: strong colours would say more than is "
        "known.</li>"
    )


def _effect(trust: TrustView) -> str:
    """By how much the odds of the class, or the similarity, rise, where that is asked for."""
    if trust.least_effect is None:
        return f"; {NO_LEAST}"
    if trust.effect is None:
        return ""
    if trust.effect_unit == "cosine":
        middle = f". It lies {trust.effect:.2f} above that of the middle one of the first; "
        return f"{middle}{trust.least_effect:.2f} is the least"
    return (
        f". The odds of the class are {times(trust.effect)} those of the middle one of the first; "
        f"{times(trust.least_effect)} is the least"
    )


def _least(trusts: Sequence[TrustView]) -> str:
    """The least effect that all pictures of a page have in common, in words; else nothing."""
    known = next((trust for trust in trusts if trust.least_effect is not None), None)
    if known is None or known.least_effect is None:
        return ""
    if known.effect_unit == "cosine":
        return f"the cosine is at least {known.least_effect:.2f} above that of the middle one of them, "
    return f"the odds of the class are at least {times(known.least_effect)} those in the middle one of them, "


def _asked_beside(trusts: Sequence[TrustView], explains: Explains) -> str:
    """What evidence is for what is not one class by itself: of a contrast more, of what is no class less."""
    if any(trust.evidence is not None and trust.least_effect is None for trust in trusts):
        return f" {upper(NO_LEAST)}."
    if explains == "contrast":
        return " The first class is asked for evidence by itself, too, and the odds are its own against all others."
    return ""


def _without(trusts: Sequence[TrustView]) -> str:
    """With how many pictures without evidence, and which, the explained numbers were compared."""
    words = f"{_from_to([trust.composites for trust in trusts])} put together of other pictures' squares"
    if not any(trust.surrogates for trust in trusts):  # not needed where the first had settled it
        return words
    return (
        f"{words}, and {_from_to([trust.surrogates for trust in trusts])} of the colours and the smoothness of the "
        "picture itself in which nothing is arranged; the kind that reaches more counts"
    )


def _from_to(counts: Sequence[int]) -> str:
    asked = [count for count in counts if count]
    fewest, most = min(asked, default=0), max(asked, default=0)
    return number(most) if fewest == most else f"{number(fewest)} to {number(most)}"
