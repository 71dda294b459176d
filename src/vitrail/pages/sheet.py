"""The sheet of one picture as a picture, and each map in a file of its own: what one shows to others.

The picture, its maps in squares, what the colours mean, and for each map the verdict (a sign and words, never colour
alone), the sentence, and the score on one line with random maps and, where it is known, the true place. All is drawn at
about twice its size, so that it is sharp on any screen and on paper.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageOps

from vitrail.pages.chart import Axis
from vitrail.pages.colour import PALE, STRENGTH, Range, common_scale, heat_picture, scaled
from vitrail.pages.lettering import shorten, wrap, write
from vitrail.pages.sheet_column import CARD, GREEN, INK, ORANGE, RULE, SMALL, SOFT, TEXT, TITLE, Column
from vitrail.pages.trust import score_axis
from vitrail.pages.views import ExplainedPicture, ExplanationPage, HeatView, TrustView
from vitrail.pages.words import (
    SCORE_TITLE,
    TWO_SCORES,
    UNITS,
    blind_words,
    cover_words,
    ends_words,
    explained_words,
    fall_words,
    marks_words,
    middle_of,
    one_verdict,
    parts_words,
    rank_words,
    reach_of,
    scored_words,
    several_words,
    shared_words,
    short_words,
    step_words,
    tests_of,
    told_words,
)
from vitrail.text import joined, percent, percent_in_words

__all__ = ["draw_map_file", "draw_sheet"]

PAPER = (247, 245, 240)
EDGE, GAP, PADDING = 56, 52, 44
ALONE, BESIDE = 540, 420  # width of a column: with one map, with several
ACROSS = 5  # columns in a row, at most
HEADLINE = 42
MAP, MARGIN = 448, 12  # width of a map in a file of its own, and what is left free around it


def draw_sheet(explained: ExplainedPicture, page: ExplanationPage) -> Image.Image:
    """The sheet of one picture.

    Args:
        explained: The picture with its maps.
        page: The page that it stands in, which says the model and whether the maps have one scale.

    Returns:
        An RGB picture; the same values always give the same pixels.
    """
    several = len(explained.heats) > 1
    width = BESIDE if several else ALONE
    column = Column(width)
    _subject(column, explained)
    if several:
        _of_all(column, explained.heats)
    columns = [column.finished()]
    axis, shared = score_axis(tests_of(explained.heats)), shared_words(explained.heats)
    for heat in explained.heats:
        column = Column(width)
        _map_part(column, heat, explained, page.one_scale)
        if several:
            _told_in_short(column, heat, axis, shared)
        else:
            columns.append(column.finished())
            column = Column(width)
            _told(column, heat)
        columns.append(column.finished())
    return _assembled(columns, explained, page)


def _subject(column: Column, explained: ExplainedPicture) -> None:
    """The picture, the model's answer, and what the picture is held against."""
    height, width = explained.picture.shape[:2]
    column.line("The picture", TITLE, bold=True)
    column.space(8)
    column.picture(explained.picture)
    column.space(12)
    column.line(f"As the model saw it ({width} x {height})", SMALL, SOFT)
    column.space(16)
    _said(column, explained)
    if explained.other is not None:
        column.space(16)
        column.line("Held against", TITLE, bold=True)
        column.space(8)
        column.picture(explained.other[1])
        column.space(12)
        column.line(explained.other[0], SMALL, SOFT)


def _said(column: Column, explained: ExplainedPicture) -> None:
    """The model's answer and the likeliest classes."""
    if not explained.top:
        column.text(explained.answer or "The model gave no answer.")
        return
    name, probability = explained.top[0]
    column.text(f"The model says {name} ({joined(percent_in_words(probability))}).", TEXT + 3, bold=True)
    if explained.true_label is not None:
        right = explained.true_label == name
        said = "Right: that is its label." if right else f"Wrong: its label is {explained.true_label}."
        column.text(said, TEXT, GREEN if right else ORANGE)
    column.space(12)
    for label, share in explained.top[:4]:
        column.share(label, share, percent(share))


def _map_part(column: Column, heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> None:
    """The map in squares, and what its colours mean."""
    drawn, shown = draw_map(heat, explained, one_scale)
    column.line(heat.title, TITLE, bold=True)
    column.space(8)
    column.picture(drawn, hatched=heat.pale)
    column.space(14)
    _legend(column, heat, shown)
    if heat.pale and heat.trust and len(explained.heats) == 1:  # else the verdict stands just below
        column.text(f"Drawn pale: {heat.trust.verdict}.", SMALL, SOFT)
    column.space(18)


def _legend(column: Column, heat: HeatView, shown: Range) -> None:
    """What the colours mean."""
    if shown.flat:
        column.text("No signal: the map prefers no square.", SMALL, ORANGE)
        return
    column.scale(heat.signed, heat.pale)
    if shown.rooted:
        column.ticks([(percent(share, 0), place) for share, place in shown.ticks()])
    column.ends(*ends_words(shown, heat.signed))


def _of_all(column: Column, heats: Sequence[HeatView]) -> None:
    """What is the same for several maps: what they explain, what they are told alike, and how to read their lines."""
    column.space(18)
    explains = {_explains(heat) for heat in heats if heat.class_specific}
    if len(explains) == 1:
        column.text(explains.pop(), SMALL, SOFT)
    tests = tests_of(heats)
    if not tests:
        return
    shared, verdict = shared_words(heats), one_verdict(heats)
    if shared:
        column.space(14)
        if verdict:
            column.verdict(verdict)
        for words in shared:
            column.text(words, SMALL)
    column.space(18)
    column.text(f"{SCORE_TITLE} in the order of each map, {UNITS[heats[0].explains]}", SMALL, SOFT)
    column.space(6)
    for kind, words in marks_words(tests):
        column.key(kind, words)


def _explains(heat: HeatView) -> str:
    before, names, behind = explained_words(heat)
    return f"Explains {before}{' rather than '.join(names)}{behind}."


def _told(column: Column, heat: HeatView) -> None:
    """The verdict on a map that stands alone, the sentence, the score with its references, and what it explains."""
    if heat.trust is None:
        column.text("Not tested.", TEXT, SOFT, bold=True)
        column.space(6)
    else:
        column.verdict(heat.trust.verdict)
        for place, words in enumerate(told_words(heat.trust)):
            column.text(words, SMALL if place else TEXT, SOFT if place else INK)
            column.space(6)
        column.space(18)
        if heat.trust.random:
            column.text(f"{SCORE_TITLE}, {UNITS[heat.explains]}", SMALL, SOFT)
            column.space(6)
            column.score(heat.trust)
        for kind, words in scored_words(heat.trust):
            column.key(kind, words)
        column.space(18)
    told = _explains(heat) if heat.class_specific else f"{blind_words(heat.explains)}."
    column.text(told, TEXT, SOFT if heat.class_specific else INK)
    _notes(column, heat)


def _told_in_short(column: Column, heat: HeatView, axis: Axis | None, shared: Sequence[str]) -> None:
    """The same for one of several maps: what is told of all of them stands below the picture."""
    if heat.trust is None:
        column.text("Not tested.", SMALL, SOFT, bold=True)
    else:
        column.verdict(heat.trust.verdict)
        for place, words in enumerate(words for words in short_words(heat.trust) if words not in shared):
            column.text(words, SMALL, SOFT if place else INK)
        column.space(10)
        if heat.trust.random:
            column.score(heat.trust, axis)
            column.text(_score_words(heat.trust), SMALL)
            column.space(8)
    if not heat.class_specific:
        column.text(f"{blind_words(heat.explains)}.", SMALL, bold=True)
    _notes(column, heat)


def _score_words(trust: TrustView) -> str:
    """The line of a score in words: `this map 2.50 (24th of 40), random middle 2.56; under every cover ...`."""
    reach, rank = reach_of([trust]), rank_words(trust)
    own, half = fall_words(trust.paired, reach), fall_words(middle_of(trust), reach)
    return f"this map {own}{f' ({rank})' if rank else ''}, random middle {half}; {cover_words(trust)}"


def _notes(column: Column, heat: HeatView) -> None:
    if heat.parts:
        column.text(parts_words(heat), SMALL)
    for note in heat.notes[:3]:
        column.text(note, SMALL, SOFT)


def _assembled(columns: list[Image.Image], explained: ExplainedPicture, page: ExplanationPage) -> Image.Image:
    """Columns in rows on a card, with a headline above and a footnote below."""
    across = math.ceil(len(columns) / math.ceil(len(columns) / ACROSS))  # rows as even as they can be
    rows = [columns[first : first + across] for first in range(0, len(columns), across)]
    heights = [max(column.height for column in row) for row in rows]
    inside = across * columns[0].width + (across - 1) * GAP
    width = inside + 2 * (EDGE + PADDING)
    card_height = sum(heights) + (len(rows) - 1) * GAP + 2 * PADDING
    top = EDGE + 2 * HEADLINE
    below = [line for words in _below(explained, page) for line in wrap(words, SMALL, width - 2 * EDGE)]
    line_height = round(SMALL * 1.38)
    sheet = Image.new("RGB", (width, top + card_height + 80 + len(below) * line_height), PAPER)
    write(sheet, (EDGE, EDGE - 10), shorten(explained.name, HEADLINE, width - 2 * EDGE), HEADLINE, INK, bold=True)
    box = (EDGE, top, width - EDGE, top + card_height)
    ImageDraw.Draw(sheet).rounded_rectangle(box, 20, CARD, RULE, 2)
    down = top + PADDING
    for row, height in zip(rows, heights, strict=True):
        for place, column in enumerate(row):
            sheet.paste(column, (EDGE + PADDING + place * (column.width + GAP), down))
        down += height + GAP
    for number_of_line, line in enumerate(below):
        write(sheet, (EDGE, top + card_height + 38 + number_of_line * line_height), line, SMALL, SOFT)
    return sheet


def _below(explained: ExplainedPicture, page: ExplanationPage) -> list[str]:
    """What is to be known of all maps of a sheet, and where they come from."""
    tests = tests_of(explained.heats)
    words = [several_words(explained.heats), TWO_SCORES if tests else "", step_words(tests)]
    made = f"vitrail · model {page.model}"
    if page.one_scale:
        made += " · one colour scale for all maps: the square root of each square's share of its map's total"
    return [*(each for each in words if each), made]


def draw_map(heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> tuple[UInt8[np.ndarray, "h w 3"], Range]:
    """A map over its picture, pale where the evidence does not support it, and what its colours stand for.

    Args:
        heat: One of the maps of the picture.
        explained: The picture with all its maps.
        one_scale: Whether they have one colour scale, of shares.
    """
    common = common_scale([each.values for each in explained.heats]) if one_scale else None
    shown, values = scaled(heat.values, heat.signed, common)
    strength = STRENGTH * (PALE if heat.pale else 1.0)
    return heat_picture(explained.picture, values, heat.signed, shown, strength), shown


def draw_map_file(heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> Image.Image:
    """A map by itself, with its scale, its method, its class and its verdict, which it never goes without.

    Args:
        heat: One of the maps of the picture.
        explained: The picture with all its maps.
        one_scale: Whether they have one colour scale, of shares.

    Returns:
        An RGB picture, hatched around a map that the evidence does not support.
    """
    column, (drawn, shown) = Column(MAP), draw_map(heat, explained, one_scale)
    column.picture(drawn, hatched=heat.pale)
    column.space(10)
    _legend(column, heat, shown)
    column.space(6)
    column.line(heat.title, SMALL, bold=True)
    column.text(_class_words(heat), SMALL, SOFT)
    if heat.trust is None:
        column.text("Not tested.", SMALL, SOFT)
    else:
        column.space(4)
        column.verdict(heat.trust.verdict)
    return ImageOps.expand(column.finished(), MARGIN, CARD)


def _class_words(heat: HeatView) -> str:
    """What a map explains, in few words."""
    if not heat.class_specific:
        return f"{blind_words(heat.explains)}{f'; tested on {heat.target}' if heat.trust else ''}."
    against = "" if heat.rather_than is None else f" rather than {heat.rather_than}"
    return f"Explains {heat.target}{against}."
