"""The score of a map on one line with what it is compared with: random maps and, where it is known, the true place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.pages.html import escape
from vitrail.pages.views import TrustView
from vitrail.pages.words import cover_words, fall_words, rank_words, reach_of

WIDTH, HEIGHT, MARGIN = 320, 46, 10
_MARKS = {
    "map": '<circle class="own" cx="8" cy="6" r="4.5"/>',
    "random": '<rect class="band" x="1" y="1" width="14" height="10" rx="2"/>'
    '<path class="random" d="M5 2v8M9 2v8M11 2v8"/>',
    "oracle": '<path class="oracle" d="M8 1l4.5 5-4.5 5-4.5-5z"/>',
    "other": "",
}


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


def score_axis(trusts: Sequence[TrustView]) -> Axis | None:
    """An axis that holds zero, the scores and what they are compared with; None where no score is a number."""
    lines = [_values(trust) for trust in trusts]
    values = [0.0, *(value for line in lines if _finite(line) for value in line)]
    if not any(_finite(line) for line in lines):
        return None
    low, high = min(values), max(values)
    return Axis(low, high) if high > low else Axis(low - 0.5, high + 0.5)


def middle(values: Sequence[float]) -> float:
    """The median."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def scored_words(trust: TrustView) -> list[tuple[str, str]]:
    """What stands on the line of the score, in words: (kind of mark, what it says)."""
    random, reach = trust.random, reach_of([trust])
    words = [("map", f"this map {fall_words(trust.paired, reach)}")]
    if random:
        low, high, half = (fall_words(value, reach) for value in (min(random), max(random), middle(random)))
        rank = rank_words(trust)
        words = [
            ("map", f"this map {fall_words(trust.paired, reach)}{f': {rank}' if rank else ''}"),
            ("random", f"{len(random)} random maps {low} to {high}, middle {half}"),
        ]
    if trust.oracle is not None:
        words.append(("oracle", f"the true place {fall_words(trust.oracle, reach)}"))
    return [*words, ("other", cover_words(trust))]


def marks_words(trusts: Sequence[TrustView]) -> list[tuple[str, str]]:
    """What the marks on the lines of several maps are: (kind of mark, what it says)."""
    words = [("map", "the map"), ("random", f"{max(len(trust.random) for trust in trusts)} random maps as smooth")]
    return [*words, ("oracle", "the true place")] if any(trust.oracle is not None for trust in trusts) else words


def score_line(trust: TrustView, axis: Axis | None = None) -> str:
    """The score, the random maps and the true mask on one line, as SVG; nothing where the score is no number.

    Args:
        trust: What the test of the map said.
        axis: The axis that several lines have in common, whose zero has no name; the line's own when None.
    """
    if not _finite(_values(trust)):
        return ""
    within = axis or score_axis([trust])
    assert within is not None

    def at(value: float) -> str:
        return f"{MARGIN + within.share(value) * (WIDTH - 2 * MARGIN):.1f}"

    parts = [
        f'<line class="base" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="18" y2="18"/>',
        f'<line class="zero" x1="{at(0.0)}" x2="{at(0.0)}" y1="4" y2="32"/>',
    ]
    if trust.random:
        left, right = at(min(trust.random)), at(max(trust.random))
        wide = f"{max(2.0, float(right) - float(left)):.1f}"
        parts.append(f'<rect class="band" x="{left}" y="10" width="{wide}" height="16" rx="2"/>')
        parts += [f'<line class="random" x1="{at(v)}" x2="{at(v)}" y1="12" y2="24"/>' for v in trust.random]
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


def _values(trust: TrustView) -> list[float]:
    return [trust.paired, *trust.random, *(() if trust.oracle is None else (trust.oracle,))]


def _finite(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) for value in values)
