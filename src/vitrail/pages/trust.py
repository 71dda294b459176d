"""How far to trust a map, as HTML: the verdict in words, and the score on one line with what it is compared with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.pages.html import escape, number, plural
from vitrail.pages.views import HeatView, TrustView
from vitrail.pages.words import SCORE_TITLE, TWO_SCORES, rank_words, several_words, unit_words

# What covered squares, in words.
FILLS = {
    "donor": "what stands in the same place in reference pictures",
    "own patches": "other squares of the same picture",
    "grey": "grey",
    "mean": "the mean colour of the picture",
    "blur": "a blurred copy of the picture",
}
# A verdict is never told by colour alone: each has a shape of its own.
_ICONS = {
    "supported": '<path d="M4.5 8.5l2.5 2.5 4.5-5.5"/>',
    "weak": '<path d="M3.8 8.6c1.4-2 2.8-2 4.2-.6s2.8 1.4 4.2-.6"/>',
    "no better than random": '<path d="M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"/>',
    "cannot tell": '<path d="M6.1 6.4c0-2.5 3.8-2.4 3.8-.1 0 1.5-1.9 1.5-1.9 3M8 11.5v.1"/>',
}
WIDTH, HEIGHT, MARGIN = 320, 46, 10


@dataclass(frozen=True)
class Axis:
    """What lies on the line of a score, and where.

    Args:
        low: Value at the left end.
        high: Value at the right end, greater than `low`.
    """

    low: float
    high: float

    def share(self, value: float) -> float:
        """0 at the left end, 1 at the right end."""
        return (value - self.low) / (self.high - self.low)


def score_axis(trust: TrustView) -> Axis | None:
    """An axis that holds zero, the score and what it is compared with; None where the score is no number."""
    oracle = () if trust.oracle is None else (trust.oracle,)
    values = [0.0, trust.paired, *trust.random, *oracle]
    if not all(math.isfinite(value) for value in values):
        return None
    low, high = min(values), max(values)
    return Axis(low, high) if high > low else Axis(low - 0.5, high + 0.5)


def middle(values: Sequence[float]) -> float:
    """The median."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def scored_words(trust: TrustView) -> list[tuple[str, str]]:
    """What stands on the line of the score, in words: (kind of mark, what it says)."""
    random = trust.random
    words = [("map", f"this map {number(trust.paired, 3)}")]
    if random:
        words = [("map", f"this map {number(trust.paired, 3)}: {rank_words(trust)}")]
        span = f"{number(min(random), 3)} to {number(max(random), 3)}"
        words.append(("random", f"{len(random)} random maps {span}, middle {number(middle(random), 3)}"))
    if trust.oracle is not None:
        words.append(("oracle", f"the true place {number(trust.oracle, 3)}"))
    low, high = (number(end, 3) for end in trust.interval)
    return [*words, ("other", f"this map under other covers {number(trust.score, 3)} ({low} to {high})")]


def verdict_icon(verdict: str) -> str:
    """The sign of a verdict: a shape in a ring."""
    shape = _ICONS.get(verdict, _ICONS["cannot tell"])
    return f'<svg class="sign" viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="7"/>{shape}</svg>'


def verdict_class(verdict: str) -> str:
    """The verdict as the name of a style."""
    return verdict.replace(" ", "-") if verdict in _ICONS else "cannot-tell"


def _line(trust: TrustView) -> str:
    """The score, the random maps and the true mask on one line."""
    axis = score_axis(trust)
    if axis is None:
        return ""

    def at(value: float) -> str:
        return f"{MARGIN + axis.share(value) * (WIDTH - 2 * MARGIN):.1f}"

    zero = f'<line class="zero" x1="{at(0.0)}" x2="{at(0.0)}" y1="4" y2="32"/>'
    parts = [f'<line class="base" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="18" y2="18"/>', zero]
    if trust.random:
        left, right = at(min(trust.random)), at(max(trust.random))
        wide = f"{max(2.0, float(right) - float(left)):.1f}"
        parts.append(f'<rect class="band" x="{left}" y="10" width="{wide}" height="16" rx="2"/>')
        parts += [f'<line class="random" x1="{at(v)}" x2="{at(v)}" y1="12" y2="24"/>' for v in trust.random]
    if trust.oracle is not None:
        x = float(at(trust.oracle))
        parts.append(f'<path class="oracle" d="M{x:.1f} 11l6 7-6 7-6-7z"/>')
    parts.append(f'<circle class="own" cx="{at(trust.paired)}" cy="18" r="5"/>')
    parts.append(
        f'<text x="{at(0.0)}" y="43" text-anchor="{"start" if axis.share(0.0) < 0.05 else "middle"}">0</text>'
        if axis.share(0.0) < 0.95
        else f'<text x="{at(0.0)}" y="43" text-anchor="end">0</text>'
    )
    said = escape(f"Fall of the explained number: {'; '.join(words for _, words in scored_words(trust))}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _key(trust: TrustView) -> str:
    """The legend of the line."""
    marks = {
        "map": '<circle class="own" cx="8" cy="6" r="4.5"/>',
        "random": '<rect class="band" x="1" y="1" width="14" height="10" rx="2"/>'
        '<path class="random" d="M5 2v8M9 2v8M11 2v8"/>',
        "oracle": '<path class="oracle" d="M8 1l4.5 5-4.5 5-4.5-5z"/>',
        "other": "",
    }
    items = "".join(
        f'<li><svg viewBox="0 0 16 12" aria-hidden="true">{marks[kind]}</svg>{escape(words)}</li>'
        for kind, words in scored_words(trust)
    )
    return f'<ul class="key">{items}</ul>'


def p_words(p: float | None) -> str:
    """A p-value for people."""
    return "not known" if p is None else f"p = {number(p, 2)}"


def _numbers(trust: TrustView) -> str:
    """How the verdict came about, for those who want to know."""
    fill = escape(FILLS.get(trust.fill, trust.fill))
    rows = [
        (
            "Score",
            f"{number(trust.score, 3)} (95 % interval {number(trust.interval[0], 3)} to "
            f"{number(trust.interval[1], 3)}): the mean fall of the explained number, in logits, while squares are "
            "covered in the map's order, from the first one to half of all. On the line above, all maps meet the very "
            "same covers, so that nothing but the squares differs",
        ),
        (
            "Is there evidence?",
            f"{p_words(trust.evidence)}: how often {trust.composites} pictures put together of other pictures' squares "
            "reach as much"
            if trust.evidence is not None
            else "not known: it takes reference pictures to ask, and there are none or too few",
        ),
        (
            "Is the map faithful?",
            f"{p_words(trust.faithful)}: how often random maps, as smooth as this one, do as well"
            if trust.faithful is not None
            else "not asked: the map prefers no square",
        ),
        ("Covered by", fill),
    ]
    shown = "".join(f"<dt>{name}</dt><dd>{says}</dd>" for name, says in rows)
    return f'<details><summary>How the verdict came about</summary><dl class="asked">{shown}</dl></details>'


def told_words(trust: TrustView) -> list[str]:
    """The sentence, and the reason where the sentence does not hold it; below a headline that has the verdict."""
    after = trust.sentence.removeprefix(f"{_upper(trust.verdict)}: ")
    return [_upper(after)] if trust.reason in after else [_upper(after), _sentence(trust.reason)]


def trust_block(trust: TrustView, contrast: bool = False) -> str:
    """The verdict, the sentence, the score with its references, and how it came about.

    Args:
        trust: What the test of a map said.
        contrast: Whether one class is held against another.
    """
    first, *more = told_words(trust)
    why = "".join(f'<p class="why">{escape(words)}</p>' for words in more)
    return (
        f'<div class="trusted {verdict_class(trust.verdict)}"><p class="says">{verdict_icon(trust.verdict)}'
        f"<strong>{escape(_upper(trust.verdict))}</strong></p><p>{escape(first)}</p>{why}"
        f'<figure class="score"><figcaption>{SCORE_TITLE}, {unit_words(contrast)}</figcaption>{_line(trust)}'
        f'{_key(trust)}<p class="why">{TWO_SCORES}</p></figure>{_numbers(trust)}</div>'
    )


def several_block(heats: Sequence[HeatView]) -> str:
    """Why one may not choose among several tested maps; nothing where there are no two."""
    words = several_words(heats)
    return f'<p class="several">{escape(words)}</p>' if words else ""


def at_a_glance(heats: Sequence[HeatView]) -> str:
    """All maps of a picture in a table: the verdict, and the fall of the score beside that of random maps."""
    tested = [(heat, heat.trust) for heat in heats if heat.trust is not None]
    if not tested:
        return ""
    rows = "".join(
        f'<tr class="trusted-row {verdict_class(trust.verdict)}"><th scope="row">{escape(heat.title)}</th>'
        f"<td>{verdict_icon(trust.verdict)}{escape(trust.verdict)}</td><td>{number(trust.paired, 3)}</td>"
        f"<td>{number(middle(trust.random), 3)}</td></tr>"
        for heat, trust in tested
    )
    return (
        f'<div class="glance">{several_block(heats)}<div class="scroll"><table class="numbers"><caption>'
        "How far the score falls when squares are covered in the order of each map</caption><thead><tr>"
        '<th scope="col">Map</th><th scope="col">Verdict</th>'
        f'<th scope="col">Fall</th><th scope="col">Random</th></tr></thead><tbody>{rows}</tbody></table></div></div>'
    )


def how_tested(trusts: Sequence[TrustView]) -> str:
    """How the maps of a page were tested, as items of a list."""
    fills = " and ".join(dict.fromkeys(FILLS.get(trust.fill, trust.fill) for trust in trusts))
    maps = plural(max(len(trust.random) for trust in trusts), "random map")
    composites = max(trust.composites for trust in trusts)
    return (
        "<li><strong>Every map was tested on the model itself.</strong> Squares are covered in the order in which the "
        f"map names them, by {escape(fills)}, and the fall of the explained number is compared with the fall for "
        f"{maps} of the same smoothness.</li>"
        f"<li><b>Supported</b>: the number is exceptional among those of {composites} pictures put together of other "
        "pictures' squares, which show nothing, and at most one random map in twenty does as well. <b>Weak</b>: at "
        "most one in five does. <b>No better than random</b>: more do. <b>Cannot tell</b>: there is no evidence to be "
        "found, or it could not be asked for.</li>"
        "<li>Maps of the last two kinds are drawn pale, in a hatched frame: strong colours would say more than is "
        "known.</li>"
    )


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]


def _sentence(words: str) -> str:
    return f"{_upper(words)}."
