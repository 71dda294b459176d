"""The maps of an explanation: the colours of squares, what they mean, and what is said of each map and of all.

A map is shown as the model saw the picture: one colour per square, not blurred, with its range in the legend. A map
that the evidence does not support is drawn pale, in a hatched frame. The values stand in the page once, as a table; the
page's script reads them from there. Of several maps, a table shows verdicts and scores at a glance, on one axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from markupsafe import Markup

from vitrail.pages.colour import EVEN, Common, Range, heat_colours, scaled, value_range
from vitrail.pages.html import number
from vitrail.pages.trust import VerdictView, score_axis, score_line, verdict_view
from vitrail.pages.views import AreasView, ExplainedPicture, HeatView
from vitrail.pages.words import (
    UNITS,
    areas_words,
    blind_words,
    ends_words,
    explained_words,
    fall_words,
    marks_words,
    middle_of,
    parts_words,
    reach_of,
    several_words,
    shared_words,
    tests_of,
)


@dataclass(frozen=True)
class DrawnMap:
    """One map as it is shown over its picture.

    Args:
        heat: The map.
        shown: What its colours stand for.
        own: The range of its own values, whatever scale it has in common with others.
        colours: One pixel per square; None for a map without signal.
        ends: What stands at the left end of the scale, in its middle and at its right end.
        below: Its values, in words.
        before: What it explains: what stands before the names,
        names: these,
        behind: and what stands behind them.
        method: Its method, within a sentence.
        other: What is to be known where it is not the answer that is explained; else empty.
        blind: What is to be known where it does not depend on what is explained.
        parts: What the explained number is the sum of; empty where the method does not say.
        verdict: How far to trust it; None where that was not tested.
    """

    heat: HeatView
    shown: Range
    own: Range
    colours: UInt8[np.ndarray, "rows columns 3"] | None
    ends: tuple[str, str, str]
    below: str
    before: str
    names: tuple[str, ...]
    behind: str
    method: str
    other: str
    blind: str
    parts: str
    verdict: VerdictView | None


def drawn_map(heat: HeatView, explained: ExplainedPicture, common: Common | None) -> DrawnMap:
    """Give a map its colours and its words.

    Args:
        heat: The map.
        explained: Its picture.
        common: The scale of all maps of the picture; None where each has its own.
    """
    shown, values = scaled(heat.values, heat.signed, common)
    own = value_range(heat.values, heat.signed)
    before, names, behind = explained_words(heat)
    shared = shared_words(explained.heats) if len(explained.heats) > 1 else None
    return DrawnMap(
        heat=heat,
        shown=shown,
        own=own,
        colours=None if shown.flat else heat_colours(values, heat.signed, shown),
        ends=ends_words(shown, heat.signed),
        below=_below(heat, shown, own),
        before=before,
        names=names,
        behind=behind,
        method=_within(heat.title),
        other=_other(heat, explained.top[0][0] if explained.top else None),
        blind=blind_words(heat.explains),
        parts=parts_words(heat) if heat.parts else "",
        verdict=None if heat.trust is None else verdict_view(heat.trust, heat.explains, shared),
    )


def _below(heat: HeatView, shown: Range, own: Range) -> str:
    """The values of a map, below the colours that they have."""
    smallest, largest = number(own.smallest, 3), number(own.largest, 3)
    if shown.rooted:
        return f"Of the map's total. Own values: {smallest} to {largest}."
    below = f"Smallest value {smallest}, largest {largest}."
    reach = max(abs(own.smallest), abs(own.largest))
    if reach < own.high:
        times = number(reach / float(np.abs(heat.values[np.isfinite(heat.values)]).mean()), 3)
        below += f" The largest is {times} times the mean. Full colour is {EVEN} times, so an even map stays dull."
    return below


def _other(heat: HeatView, answer: str | None) -> str:
    """That a class is explained which is not the answer."""
    which = {"class": "This", "contrast": "The first"}.get(heat.explains)
    if which is None or answer in (None, heat.target):
        return ""
    return f" {which} is not the class that the model chose."


def _within(title: str) -> str:
    """A title inside a sentence: `generic attention`, but `Grad-CAM`."""
    return title[:1].lower() + title[1:] if title[1:] == title[1:].lower() else title


@dataclass(frozen=True)
class GlanceRow:
    """One map in the table of all that were tested.

    Args:
        title: Of the map.
        verdict: Of its test.
        line: Its score, on the axis of all.
        fall: The same in words,
        random: and the middle one of its random maps.
        areas: Deletion and insertion, where maps are compared.
    """

    title: str
    verdict: str
    line: Markup
    fall: str
    random: str
    areas: AreasView | None


@dataclass(frozen=True)
class Glance:
    """The maps that were tested, at a glance.

    Args:
        several: Why one may not choose among them by their verdicts; empty where there are no two.
        unit: Of the falls.
        marks: The marks on the lines.
        rows: One per map.
        areas: Whose areas of random maps stand below those of the maps; None where no map has any.
        meant: What areas are.
    """

    several: str
    unit: str
    marks: Sequence[tuple[str, str]]
    rows: Sequence[GlanceRow]
    areas: AreasView | None
    meant: str


def at_a_glance(heats: Sequence[HeatView]) -> Glance | None:
    """The maps of a picture that were tested; None where there is none."""
    trusts = tests_of(heats)
    if not trusts:
        return None
    axis, reach = score_axis(trusts), reach_of(trusts)
    rows = [
        GlanceRow(
            title=heat.title,
            verdict=heat.trust.verdict,
            line=score_line(heat.trust, axis),
            fall=fall_words(heat.trust.paired, reach),
            random=fall_words(middle_of(heat.trust), reach),
            areas=heat.areas,
        )
        for heat in heats
        if heat.trust is not None
    ]
    explains = next(heat.explains for heat in heats if heat.trust is not None)
    return Glance(
        several=several_words(heats),
        unit=UNITS[explains],
        marks=marks_words(trusts),
        rows=rows,
        areas=next((row.areas for row in rows if row.areas is not None), None),
        meant=areas_words(explains),
    )
