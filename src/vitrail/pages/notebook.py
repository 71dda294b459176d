"""Maps in a notebook: patches in the colours of the pages, their range and caveats, as small, static HTML."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vitrail.pages.colour import patch_colours, value_range
from vitrail.pages.html import escape

MOST_MAPS = 12
MOST_PATCHES = 8192  # in all maps; where there are more, fewer maps are shown
SIDE = 160  # pixels of the longer side of a map


class NotebookMap(NamedTuple):
    """One map.

    Args:
        title: What it is of, such as "image 0: class 3 (logit 8.21)".
        values: One number per patch.
        notes: Its caveats.
    """

    title: str
    values: Float[np.ndarray, "rows columns"]
    notes: Sequence[str]


def attribution_html(heading: str, maps: Sequence[NotebookMap], signed: bool, class_specific: bool) -> str:
    """Maps side by side.

    Args:
        heading: Name of the method.
        maps: What to show, in order; at most a dozen are, and what is left out is counted.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give other maps.
    """
    patches = maps[0].values.size if maps else 1
    most = max(1, min(MOST_MAPS, MOST_PATCHES // max(1, patches)))
    figures = "".join(_figure(one, signed) for one in maps[:most])
    more = f"<p>{len(maps) - most} more are not shown.</p>" if len(maps) > most else ""
    blind = "" if class_specific else "<p>This method cannot tell classes apart.</p>"
    return (
        f'<div class="vitrail-map"><p><b>{escape(heading)}</b></p>{blind}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1.2em">{figures}</div>{more}</div>'
    )


def _figure(one: NotebookMap, signed: bool) -> str:
    """One map with its range; rows and columns count from 1, as on a page."""
    (rows, columns), shown = one.values.shape, value_range(one.values, signed)
    if shown.flat:
        every = f"every patch is {_number(shown.smallest)}"
        legend = f"no signal: {every if shown.missing < one.values.size else 'no patch has a finite value'}"
    else:
        ends = ("against", "for") if signed else ("dark", "light")
        between = ", " if signed else " to "
        legend = f"{_number(shown.low)} {ends[0]}{between}{_number(shown.high)} {ends[1]}"
    colours = patch_colours(one.values, signed, shown).tolist()
    drawn = "".join(
        f'<rect x="{column}" y="{row}" width="1.02" height="1.02" fill="rgb({red},{green},{blue})">'
        f"<title>row {row + 1}, column {column + 1}: {_number(value)}</title></rect>"
        for row, line in enumerate(one.values.tolist())
        for column, (value, (red, green, blue)) in enumerate(zip(line, colours[row], strict=True))
    )
    side = SIDE / max(rows, columns)
    notes = "".join(f"<br>{escape(note)}" for note in one.notes)
    title = escape(one.title)
    return (
        f'<figure style="margin:0;max-width:{SIDE + 60}px"><figcaption>{title}</figcaption>'
        f'<svg width="{columns * side:.0f}" height="{rows * side:.0f}" viewBox="0 0 {columns} {rows}" role="img" '
        f'aria-label="{title}" shape-rendering="crispEdges">{drawn}</svg>'
        f"<div><small>{escape(legend)}{notes}</small></div></figure>"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not finite"
