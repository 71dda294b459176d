"""The maps of an explanation: the squares over the picture, what their colours mean, and how far to trust them.

A map is shown as the model saw the picture: one colour per square, not blurred, with its range in the legend. A map
that the evidence does not support is drawn pale, in a hatched frame. The values stand in the page once, as a table; the
page's script reads them from there. Of several maps, a table shows verdicts and scores at a glance, on one axis.
"""

from collections.abc import Sequence

import numpy as np

from vitrail.pages.colour import EVEN, Common, Range, heat_colours, scaled, value_range
from vitrail.pages.html import data_uri, escape, number, plural, small
from vitrail.pages.trust import brief_block, key_list, score_axis, score_line, trust_block, verdict_class, verdict_icon
from vitrail.pages.views import ExplainedPicture, HeatView
from vitrail.pages.words import (
    SCORE_TITLE,
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
from vitrail.text import percent


def map_figure(heat: HeatView, explained: ExplainedPicture, index: int, common: Common | None) -> str:
    """One map over its picture, with its legend, its verdict, its sentence, its caveats and its values.

    Args:
        heat: The map.
        explained: Its picture.
        index: The number of the picture in the page.
        common: The scale of all maps of the picture; None where each has its own.
    """
    height, width = explained.picture.shape[:2]
    rows, columns = heat.values.shape
    shown, values = scaled(heat.values, heat.signed, common)
    layer = ""
    if not shown.flat:
        squares = data_uri(heat_colours(values, heat.signed, shown))
        layer = f'<image class="heat" width="{width}" height="{height}" preserveAspectRatio="none" href="{squares}"/>'
        layer = f'<g class="pale">{layer}</g>' if heat.pale else layer
    answer = explained.top[0][0] if explained.top else None
    notes = "".join(f"<li>{escape(note)}</li>" for note in heat.notes)
    notes = f'<ul class="notes">{notes}</ul>' if notes else ""
    parts = f'<p class="parts">{escape(parts_words(heat))}</p>' if heat.parts else ""
    said = escape(f"{heat.title} of {explained.name}: {rows} rows by {columns} columns of squares")
    stage = f'class="stage{small(explained.picture)}" data-rows="{rows}" data-columns="{columns}"'
    return (
        f'<figure class="map"><figcaption>{escape(heat.title)}</figcaption><div class="look">'
        f'<div class="frame{" hatched" if heat.pale else ""}">'
        f'<svg {stage} viewBox="0 0 {width} {height}" role="img" aria-label="{said}">'
        f'<use class="photo" href="#grey-{index}"/>'
        f"{layer}{grid_lines(height, width, rows, columns)}</svg></div>"
        '<p class="readout" data-hint="Point at a square or use arrow keys." hidden></p>'
        f"{_legend(heat, shown, len(explained.heats) > 1)}</div>"
        f'<div class="told">{_trusted(heat, explained)}{_sentence(heat, answer)}{parts}{notes}'
        f"{_values_table(heat.values)}</div></figure>"
    )


def _trusted(heat: HeatView, explained: ExplainedPicture) -> str:
    """How far to trust it; in short where the picture has several maps, of which a table tells the rest."""
    if heat.trust is None:
        return ""
    if len(explained.heats) > 1:
        return brief_block(heat.trust, shared_words(explained.heats), heat.explains)
    return trust_block(heat.trust, heat.explains)


def grid_lines(height: int, width: int, rows: int, columns: int) -> str:
    """The lines between squares, as one path."""
    across = "".join(f"M0 {height * i / rows:.4g}H{width}" for i in range(1, rows))
    down = "".join(f"M{width * i / columns:.4g} 0V{height}" for i in range(1, columns))
    return f'<path class="lines" d="{across}{down}"/>'


def _legend(heat: HeatView, shown: Range, several: bool) -> str:
    """The colour scale with the values of its ends, and why a map is pale."""
    if shown.flat:
        if shown.missing == heat.values.size:
            return '<p class="no-signal"><strong>No signal.</strong> No square has a number.</p>'
        value = number(value_range(heat.values, heat.signed).smallest, 3)
        return f'<p class="no-signal"><strong>No signal.</strong> Every square has the same value, {value}.</p>'
    ends, below = ends_words(shown, heat.signed), _below(heat, shown)
    missing = f" {plural(shown.missing, 'square')} without a number, shown in grey." if shown.missing else ""
    scale = "diverging" if heat.signed else "sequential"
    named = "".join(f"<span>{escape(end)}</span>" for end in ends)
    pale = ""
    if heat.pale and heat.trust and not several:  # else the verdict stands just below
        pale = f'<p class="range"><b>Drawn pale: {escape(heat.trust.verdict)}.</b></p>'
    return (
        f'<div class="scale{" faint" if heat.pale else ""}"><svg aria-hidden="true" viewBox="0 0 100 6" '
        f'preserveAspectRatio="none"><rect width="100" height="6" fill="url(#scale-{scale})"/></svg>'
        f'{_ticks(shown) if shown.rooted else ""}<p class="ends">{named}</p>'
        f'{pale}<p class="range">{below}{missing}</p></div>'
    )


def _ticks(shown: Range) -> str:
    """The shares between the ends of a common scale, where they lie."""
    marks = "".join(
        f'<line x1="{100 * place:.1f}%" x2="{100 * place:.1f}%" y2="4"/>'
        f'<text x="{100 * place:.1f}%" y="16">{percent(share, 0)}</text>'
        for share, place in shown.ticks()
    )
    return f'<svg class="ticks" width="100%" height="19">{marks}</svg>'


def _below(heat: HeatView, shown: Range) -> str:
    """The values of a map, below the colours that they have."""
    own = value_range(heat.values, heat.signed)
    smallest, largest = number(own.smallest, 3), number(own.largest, 3)
    if shown.rooted:
        return f"Of the map's total. Own values: {smallest} to {largest}."
    below = f"Smallest value {smallest}, largest {largest}."
    reach = max(abs(own.smallest), abs(own.largest))
    if reach < own.high:
        times = number(reach / float(np.abs(heat.values[np.isfinite(heat.values)]).mean()), 3)
        below += f" The largest is {times} times the mean. Full colour is {EVEN} times, so an even map stays dull."
    return below


def _values_table(values: np.ndarray) -> str:
    """The values, four digits each: what screen readers read and what the script takes its numbers from."""
    head = "".join(f'<th scope="col">{column + 1}</th>' for column in range(values.shape[1]))
    rows = "".join(
        f'<tr><th scope="row">{row + 1}</th>{"".join(f"<td>{value:.4g}</td>" for value in line)}</tr>'
        for row, line in enumerate(values.tolist())
    )
    return (
        '<details><summary>Values as a table</summary><div class="scroll"><table class="values">'
        f'<thead><tr><td class="corner">row \\ column</td>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        "</details>"
    )


def _sentence(heat: HeatView, answer: str | None) -> str:
    """What this map explains, in plain words, and what it cannot tell."""
    method = escape(_within(heat.title))
    if not heat.class_specific:  # such a map's title may be that of a token
        return (
            f"<p>A map by {escape(heat.method.replace('_', ' '))}. <strong>{blind_words(heat.explains)}</strong>: it "
            f"shows where information could flow from, not what speaks for <b>{escape(heat.target)}</b>.</p>"
        )
    before, names, behind = explained_words(heat)
    named = " rather than ".join(f"<b>{escape(name)}</b>" for name in names)
    other = {"class": " This", "contrast": " The first"}.get(heat.explains, "")
    other = "" if answer in (None, heat.target) or not other else f"{other} is not the class that the model chose."
    return f"<p>This map explains {before}{named}{behind} by {method}.{other}</p>"


def _within(title: str) -> str:
    """A title inside a sentence: `generic attention`, but `Grad-CAM`."""
    return title[:1].lower() + title[1:] if title[1:] == title[1:].lower() else title


def at_a_glance(heats: Sequence[HeatView]) -> str:
    """A table of the maps that were tested, below the warning against choosing one; nothing where there is none."""
    trusts, tested = tests_of(heats), [heat for heat in heats if heat.trust is not None]
    if not trusts:
        return ""
    axis, reach = score_axis(trusts), reach_of(trusts)
    rows = "".join(
        f'<tr class="trusted-row {verdict_class(trust.verdict)}"><th scope="row">{escape(heat.title)}</th>'
        f"<td>{verdict_icon(trust.verdict)}{escape(trust.verdict)}</td><td>{score_line(trust, axis)}</td>"
        f"<td>{fall_words(trust.paired, reach)}</td><td>{fall_words(middle_of(trust), reach)}</td>"
        + ("" if heat.areas is None else f"<td>{heat.areas.deletion:.2f}</td><td>{heat.areas.insertion:.2f}</td>")
        + "</tr>"
        for heat, trust in zip(tested, trusts, strict=True)
    )
    curves = meant = ""
    areas = next((heat.areas for heat in tested if heat.areas is not None), None)
    if areas is not None:
        curves = '<th scope="col">Deletion</th><th scope="col">Insertion</th>'
        meant = f'<p class="curves why">{areas_words(tested[0].explains)}</p>'
        rows += (
            f'<tr class="curves"><th scope="row">A random order</th>{"<td></td>" * 4}'
            f"<td>{areas.random_deletion:.2f}</td><td>{areas.random_insertion:.2f}</td></tr>"
        )
    return (
        f'<div class="glance"><p class="several">{escape(several_words(heats))}</p><div class="scroll">'
        f'<table class="numbers"><caption>{SCORE_TITLE} in the order of each map, {UNITS[tested[0].explains]}'
        f'{key_list(marks_words(trusts))}</caption><thead><tr><th scope="col">Map</th><th scope="col">Verdict</th>'
        '<th scope="col"><span class="aside">Fall on a line from 0</span></th><th scope="col">Fall</th>'
        f'<th scope="col">Random</th>{curves}</tr></thead><tbody>{rows}</tbody></table></div>{meant}</div>'
    )
