"""How a heat shows itself in a notebook: squares in colours, the range that they stand for, and the caveats.

Small, static HTML without a script, made with the standard library alone. The full page, with the picture below the
map and the verdict beside it, is `vitrail explain`.
"""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

Colour = tuple[int, int, int]
Values = Sequence[Sequence[float]]

# The colours of `vitrail.pages.colour`, which needs no torch and which this folder must not need.
SEQUENTIAL: tuple[Colour, ...] = (
    (17, 20, 54),
    (62, 52, 128),
    (134, 66, 144),
    (206, 92, 110),
    (247, 160, 76),
    (255, 241, 168),
)
DIVERGING: tuple[Colour, ...] = ((23, 66, 138), (96, 150, 208), (248, 248, 246), (222, 120, 92), (140, 24, 34))
MISSING: Colour = (128, 128, 128)
EVEN = 3  # times the mean: squares that have less never get the last colour, so an even map stays dull
MOST_MAPS = 12
MOST_SQUARES = 8192  # in all maps; where there are more, fewer maps are shown
SIDE = 160  # pixels of the longer side of a map


class Shown(NamedTuple):
    """One map.

    Args:
        title: What it is of, such as "picture 0: class 3 (logit 8.21)".
        values: One number per square, row by row.
        notes: Its caveats.
    """

    title: str
    values: Values
    notes: Sequence[str]


def heat_html(heading: str, maps: Sequence[Shown], signed: bool, class_specific: bool) -> str:
    """Maps side by side.

    Args:
        heading: Name of the method.
        maps: What to show, in order; at most a dozen are, and what is left out is counted.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give other maps.
    """
    squares = len(maps[0].values) * len(maps[0].values[0]) if maps else 1
    most = max(1, min(MOST_MAPS, MOST_SQUARES // max(1, squares)))
    figures = "".join(_figure(one, signed) for one in maps[:most])
    more = f"<p>{len(maps) - most} more are not shown.</p>" if len(maps) > most else ""
    blind = "" if class_specific else "<p>This method cannot tell classes apart.</p>"
    return (
        f'<div class="vitrail-heat"><p><b>{html.escape(heading)}</b></p>{blind}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1.2em">{figures}</div>{more}</div>'
    )


def _figure(one: Shown, signed: bool) -> str:
    """One map with its range."""
    rows, columns = len(one.values), len(one.values[0])
    finite = [value for line in one.values for value in line if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (math.nan, math.nan)
    reach = max(abs(low), abs(high))
    flat = not high - low > 1e-6 * reach
    even = sum(map(abs, finite)) * min(1.0, EVEN / max(1, len(finite)))
    if signed:
        reach = max(reach, even)
        legend, low, high = f"{_number(-reach)} against, {_number(reach)} for", -reach, reach
    else:
        low, high = min(0.0, low), max(high, even)
        legend = f"{_number(low)} dark to {_number(high)} light"
    if flat:
        legend = f"no signal: every square is {_number(finite[0])}" if finite else "no signal: no square has a number"
    drawn = "".join(
        f'<rect x="{column}" y="{row}" width="1.02" height="1.02" fill="rgb{_colour(value, low, high, signed, flat)}">'
        f"<title>row {row}, column {column}: {_number(value)}</title></rect>"
        for row, line in enumerate(one.values)
        for column, value in enumerate(line)
    )
    side = SIDE / max(rows, columns)
    notes = "".join(f"<br>{html.escape(note)}" for note in one.notes)
    title = html.escape(one.title)
    return (
        f'<figure style="margin:0;max-width:{SIDE + 60}px"><figcaption>{title}</figcaption>'
        f'<svg width="{columns * side:.0f}" height="{rows * side:.0f}" viewBox="0 0 {columns} {rows}" role="img" '
        f'aria-label="{title}" shape-rendering="crispEdges">{drawn}</svg>'
        f"<div><small>{html.escape(legend)}{notes}</small></div></figure>"
    )


def _colour(value: float, low: float, high: float, signed: bool, flat: bool) -> str:
    """The colour of a value, as `(red,green,blue)`."""
    if flat or not math.isfinite(value):
        return f"({','.join(map(str, MISSING))})"
    scale = DIVERGING if signed else SEQUENTIAL
    place = (value - low) / (high - low) * (len(scale) - 1)
    left = min(int(place), len(scale) - 2)
    share = place - left
    mixed = (round((1 - share) * a + share * b) for a, b in zip(scale[left], scale[left + 1], strict=True))
    return f"({','.join(map(str, mixed))})"


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "no number"
