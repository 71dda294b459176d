"""All maps of a picture at a glance: their verdicts, and their scores on one axis beside those of random maps."""

from collections.abc import Sequence

from vitrail.pages.html import escape
from vitrail.pages.score_line import key_list, marks_words, middle, score_axis, score_line
from vitrail.pages.trust import verdict_class, verdict_icon, verdict_line
from vitrail.pages.views import AreasView, HeatView
from vitrail.pages.words import (
    AREAS_TOLD,
    SCORE_TITLE,
    fall_words,
    one_verdict,
    reach_of,
    several_words,
    shared_words,
    unit_words,
)


def at_a_glance(heats: Sequence[HeatView]) -> str:
    """A table of the maps that were tested, below the warning against choosing one; nothing where there is none."""
    tested = [(heat, heat.trust) for heat in heats if heat.trust is not None]
    if not tested:
        return ""
    trusts = [trust for _, trust in tested]
    axis, reach = score_axis(trusts), reach_of(trusts)
    rows = "".join(
        f'<tr class="trusted-row {verdict_class(trust.verdict)}"><th scope="row">{escape(heat.title)}</th>'
        f"<td>{verdict_icon(trust.verdict)}{escape(trust.verdict)}</td><td>{score_line(trust, axis)}</td>"
        f"<td>{fall_words(trust.paired, reach)}</td><td>{fall_words(middle(trust.random), reach)}</td>"
        f"{_areas(heat.areas)}</tr>"
        for heat, trust in tested
    )
    areas = next((heat.areas for heat, _ in tested if heat.areas is not None), None)
    curves = "" if areas is None else '<th scope="col">Deletion</th><th scope="col">Insertion</th>'
    meant = "" if areas is None else f'<p class="curves why">{AREAS_TOLD}</p>'
    rows += _random_row(areas)
    contrast = any(heat.rather_than is not None for heat in heats)
    return (
        f'<div class="glance"><p class="several">{escape(several_words(heats))}</p><div class="scroll">'
        f'<table class="numbers"><caption>{SCORE_TITLE} in the order of each map, {unit_words(contrast)}'
        f'{key_list(marks_words(trusts))}</caption><thead><tr><th scope="col">Map</th><th scope="col">Verdict</th>'
        '<th scope="col"><span class="aside">Fall on a line from 0</span></th><th scope="col">Fall</th>'
        f'<th scope="col">Random</th>{curves}</tr></thead><tbody>{rows}</tbody></table></div>{meant}</div>'
    )


def _areas(areas: AreasView | None) -> str:
    return "" if areas is None else f"<td>{areas.deletion:.2f}</td><td>{areas.insertion:.2f}</td>"


def _random_row(areas: AreasView | None) -> str:
    """What a random order of squares has of the two; nothing where they were not measured."""
    if areas is None:
        return ""
    of_random = AreasView(areas.random_deletion, areas.random_insertion, areas.random_deletion, areas.random_insertion)
    empty = "<td></td>" * 4
    return f'<tr class="curves"><th scope="row">A random order</th>{empty}{_areas(of_random)}</tr>'


def shared_block(heats: Sequence[HeatView]) -> str:
    """What is the same for all tested maps of a picture, such as that there is no evidence; else nothing."""
    told = shared_words(heats)
    if not told:
        return ""
    verdict = one_verdict(heats)
    said = "".join(f"<p>{escape(words)}</p>" for words in told)
    return f'<div class="trusted {verdict_class(verdict)}">{verdict_line(verdict) if verdict else ""}{said}</div>'
