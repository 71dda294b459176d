"""The page of an explanation: each image, the model's answer, and the maps that say where it came from.

What a method cannot tell, and how far to trust its map, stands beside the map, not in a footnote. A map is shown as the
model saw the image: one colour per patch, not blurred, with its range in the legend. A map that the evidence does not
support is drawn pale, in a hatched frame. The values stand in the page once, as a table; the page's script reads them
from there. Of several maps, a table shows verdicts and scores at a glance, on one axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from markupsafe import Markup

from vitrail.io import write_file
from vitrail.pages.colour import EVEN, Common, Range, common_scale, patch_colours, scaled, value_range
from vitrail.pages.html import number
from vitrail.pages.render import document
from vitrail.pages.trust import (
    UNITS,
    VerdictView,
    areas_words,
    blind_words,
    ends_words,
    explained_words,
    fall_words,
    how_tested,
    marks_words,
    middle_of,
    one_verdict,
    parts_words,
    reach_of,
    score_axis,
    score_line,
    several_words,
    shared_words,
    tests_of,
    verdict_view,
)
from vitrail.pages.views import AreasView, AttributionView, ExplanationPage, ImageView

KIND = "explanation"  # by which the page is known again
FEW = 3  # maps that stand beside the image; more stand below it


@dataclass(frozen=True)
class DrawnMap:
    """One map as it is shown over its image.

    Args:
        attribution: The map.
        shown: What its colours stand for.
        own: The range of its own values, whatever scale it has in common with others.
        colours: One pixel per patch; None for a map without signal.
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

    attribution: AttributionView
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


def drawn_map(attribution: AttributionView, explained: ImageView, common: Common | None) -> DrawnMap:
    """Give a map its colours and its words.

    Args:
        attribution: The map.
        explained: Its image.
        common: The scale of all maps of the image; None where each has its own.
    """
    shown, values = scaled(attribution.values, attribution.signed, common)
    own = value_range(attribution.values, attribution.signed)
    before, names, behind = explained_words(attribution)
    shared = shared_words(explained.attributions) if len(explained.attributions) > 1 else None
    return DrawnMap(
        attribution=attribution,
        shown=shown,
        own=own,
        colours=None if shown.flat else patch_colours(values, attribution.signed, shown),
        ends=ends_words(shown, attribution.signed),
        below=_below(attribution, shown, own),
        before=before,
        names=names,
        behind=behind,
        method=_within(attribution.title),
        other=_other(attribution, explained.top[0][0] if explained.top else None),
        blind=blind_words(attribution.explains),
        parts=parts_words(attribution) if attribution.parts else "",
        verdict=None if attribution.trust is None else verdict_view(attribution.trust, attribution.explains, shared),
    )


def _below(attribution: AttributionView, shown: Range, own: Range) -> str:
    """The values of a map, below the colours that they have."""
    smallest, largest = number(own.smallest, 3), number(own.largest, 3)
    if shown.rooted:
        return f"Of the map's total. Own values: {smallest} to {largest}."
    below = f"Smallest value {smallest}, largest {largest}."
    reach = max(abs(own.smallest), abs(own.largest))
    if reach < own.high:
        times = number(reach / float(np.abs(attribution.values[np.isfinite(attribution.values)]).mean()), 3)
        below += f" The largest is {times} times the mean; full colour is {EVEN} times, so a uniform map stays dull."
    return below


def _other(attribution: AttributionView, answer: str | None) -> str:
    """That a class is explained which is not the answer."""
    which = {"class": "This", "contrast": "The first"}.get(attribution.explains)
    if which is None or answer in (None, attribution.target):
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


def at_a_glance(attributions: Sequence[AttributionView]) -> Glance | None:
    """The maps of an image that were tested; None where there is none."""
    trusts = tests_of(attributions)
    if not trusts:
        return None
    axis, reach = score_axis(trusts), reach_of(trusts)
    rows = [
        GlanceRow(
            title=attribution.title,
            verdict=attribution.trust.verdict,
            line=score_line(attribution.trust, axis),
            fall=fall_words(attribution.trust.paired, reach),
            random=fall_words(middle_of(attribution.trust), reach),
            areas=attribution.areas,
        )
        for attribution in attributions
        if attribution.trust is not None
    ]
    explains = next(attribution.explains for attribution in attributions if attribution.trust is not None)
    return Glance(
        several=several_words(attributions),
        unit=UNITS[explains],
        marks=marks_words(trusts),
        rows=rows,
        areas=next((row.areas for row in rows if row.areas is not None), None),
        meant=areas_words(explains),
    )


@dataclass(frozen=True)
class Case:
    """One image with its maps.

    Args:
        explained: What is explained.
        maps: Its maps.
        glance: Those that were tested, where there are several maps.
        verdict: The verdict that all tested maps have; empty where they differ.
        shared: What is told alike of all of them.
    """

    explained: ImageView
    maps: Sequence[DrawnMap]
    glance: Glance | None
    verdict: str
    shared: Sequence[str]

    @property
    def many(self) -> bool:
        """Whether the maps stand below the image."""
        return len(self.maps) > FEW


def _case(explained: ImageView, one_scale: bool) -> Case:
    attributions = explained.attributions
    common = common_scale([attribution.values for attribution in attributions]) if one_scale and attributions else None
    return Case(
        explained=explained,
        maps=[drawn_map(attribution, explained, common) for attribution in attributions],
        glance=at_a_glance(attributions) if len(attributions) > 1 else None,
        verdict=one_verdict(attributions),
        shared=shared_words(attributions),
    )


def explanation_page(page: ExplanationPage) -> str:
    """The page of an explanation as text; the same values always give the same text."""
    attributions = [attribution for explained in page.images for attribution in explained.attributions]
    trusts, methods = tests_of(attributions), {attribution.method: attribution for attribution in attributions}.values()
    values = {
        "page": page,
        "cases": [_case(explained, page.one_scale) for explained in page.images],
        "tests": how_tested(trusts, attributions[0].explains) if trusts else None,
        "about": [attribution.about for attribution in methods if attribution.about],
        "of_no_class": attributions[0].target
        if any(attribution.explains in ("similarity", "number") for attribution in attributions)
        else "",
        "blind": not all(attribution.class_specific for attribution in methods),
        "even": EVEN,
    }
    return document("explanation.html", f"{page.title} · explanation", KIND, values)


def write_explanation_page(path: Path, page: ExplanationPage) -> None:
    """Write the page of an explanation, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        page: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, explanation_page(page))
