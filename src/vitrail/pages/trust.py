"""How far to trust a map, as HTML: the verdict by sign and word, what it rests on, and how all maps were tested."""

from collections.abc import Sequence

from vitrail.pages.html import escape, number, plural
from vitrail.pages.score_line import key_list, score_line, scored_words
from vitrail.pages.views import TrustView
from vitrail.pages.words import (
    SCORE_TITLE,
    TWO_SCORES,
    fall_words,
    reach_of,
    short_words,
    step_words,
    told_words,
    unit_words,
    upper,
)

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
_WHY = ' class="why"'
# A verdict is never told by colour alone: each has a shape of its own.
_ICONS = {
    "supported": '<path d="M4.5 8.5l2.5 2.5 4.5-5.5"/>',
    "weak": '<path d="M3.8 8.6c1.4-2 2.8-2 4.2-.6s2.8 1.4 4.2-.6"/>',
    "no better than random": '<path d="M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"/>',
    "cannot tell": '<path d="M6.1 6.4c0-2.5 3.8-2.4 3.8-.1 0 1.5-1.9 1.5-1.9 3M8 11.5v.1"/>',
}


def verdict_icon(verdict: str) -> str:
    """The sign of a verdict: a shape in a ring."""
    shape = _ICONS.get(verdict, _ICONS["cannot tell"])
    return f'<svg class="sign" viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="7"/>{shape}</svg>'


def verdict_class(verdict: str) -> str:
    """The verdict as the name of a style."""
    return verdict.replace(" ", "-") if verdict in _ICONS else "cannot-tell"


def p_words(p: float | None) -> str:
    """A p-value for people."""
    return "not known" if p is None else f"p = {number(p, 2)}"


def _numbers(trust: TrustView, key: str = "") -> str:
    """How the verdict came about, for those who want to know."""
    fill = escape(FILLS.get(trust.fill, trust.fill))
    reach = reach_of([trust])
    score, low, high = (fall_words(value, reach) for value in (trust.score, *trust.interval))
    rows = [
        (
            "Score",
            f"{score} (95 % interval {low} to {high}): the mean fall of the explained number, in logits, while squares "
            "are covered in the map's order, from the first one to half of all. Beside the random maps, all maps meet "
            "the very same covers, so that nothing but the squares differs",
        ),
        (
            "Is there evidence?",
            f"{p_words(trust.evidence)}: how often pictures without evidence reach as much, of {_without([trust])}"
            if trust.evidence is not None
            else "not known: it takes reference pictures to ask, and there are none or too few",
        ),
        (
            "Is the map faithful?",
            f"{p_words(trust.faithful)}: how often random maps, as smooth as this one, do as well"
            if trust.faithful is not None
            else f"not asked: {escape(trust.reason)}",
        ),
        ("Covered by", fill),
    ]
    shown = "".join(f"<dt>{name}</dt><dd>{says}</dd>" for name, says in rows)
    return f'<details><summary>How the verdict came about</summary>{key}<dl class="asked">{shown}</dl></details>'


def trust_block(trust: TrustView, contrast: bool = False) -> str:
    """The verdict, the sentence, the score with its references, and how it came about; for a map that stands alone.

    Args:
        trust: What the test of a map said.
        contrast: Whether one class is held against another.
    """
    figure = (
        f'<figure class="score"><figcaption>{SCORE_TITLE}, {unit_words(contrast)}</figcaption>{score_line(trust)}'
        f"{key_list(scored_words(trust))}</figure>"
    )
    return _block(trust, told_words(trust), figure + _numbers(trust))


def brief_block(trust: TrustView, shared: Sequence[str]) -> str:
    """The same for one of several maps, whose lines stand together in a table.

    Args:
        trust: What the test of a map said.
        shared: What is told of all of them elsewhere.
    """
    told = [words for words in short_words(trust) if words not in shared]
    return _block(trust, told, _numbers(trust, key_list(scored_words(trust))))


def verdict_line(verdict: str) -> str:
    """The sign and the word."""
    return f'<p class="says">{verdict_icon(verdict)}<strong>{escape(upper(verdict))}</strong></p>'


def _block(trust: TrustView, told: Sequence[str], below: str) -> str:
    said = "".join(f"<p{_WHY if place else ''}>{escape(words)}</p>" for place, words in enumerate(told))
    return f'<div class="trusted {verdict_class(trust.verdict)}">{verdict_line(trust.verdict)}{said}{below}</div>'


def how_tested(trusts: Sequence[TrustView]) -> str:
    """How the maps of a page were tested, as items of a list."""
    fills = " and ".join(dict.fromkeys(FILLS.get(trust.fill, trust.fill) for trust in trusts))
    precisions = " and ".join(dict.fromkeys(PRECISIONS.get(trust.precision, trust.precision) for trust in trusts))
    maps = plural(max(len(trust.random) for trust in trusts), "random map")
    scores = " ".join(words for words in (TWO_SCORES, step_words(trusts)) if words)
    asked = f" Pictures without evidence: {_without(trusts)}." if any(trust.composites for trust in trusts) else ""
    return (
        "<li><strong>Every map was tested on the model itself.</strong> Squares are covered in the order in which the "
        f"map names them, by {escape(fills)}, and the fall of the explained number is compared with the fall for "
        f"{maps} of the same smoothness. A logit counts from the mean of all classes. {scores} The test was computed "
        f"{escape(precisions)}.</li>"
        "<li><b>Supported</b>: at most 5 % of pictures without evidence reach the number, and at most one random map "
        "in twenty does as well as this one. <b>Weak</b>: at most one in five does. <b>No better than random</b>: more "
        f"do. <b>Cannot tell</b>: there is no evidence to be found, or it could not be asked for.{asked}</li>"
        "<li>Maps of the last two kinds are drawn pale, in a hatched frame: strong colours would say more than is "
        "known.</li>"
    )


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
