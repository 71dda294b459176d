"""The sheet of one picture as a picture: what one shows to others.

The picture, its maps in squares, what the colours mean, and for each map the verdict (a sign and words, never colour
alone), the sentence, and the score on one line with random maps and, where it is known, the true place. All is drawn at
about twice its size, so that it is sharp on any screen and on paper.
"""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from vitrail.pages.colour import PALE, STRENGTH, Range, heat_picture, largest_share, share_range, shares, value_range
from vitrail.pages.html import number, percent
from vitrail.pages.lettering import shorten, wrap, write
from vitrail.pages.sheet_column import CARD, GREEN, INK, ORANGE, RULE, SMALL, SOFT, TEXT, Column
from vitrail.pages.trust import scored_words, told_words
from vitrail.pages.views import ExplainedPicture, ExplanationPage, HeatView
from vitrail.pages.words import SCORE_TITLE, TWO_SCORES, parts_words, several_words, unit_words

PAPER = (247, 245, 240)
EDGE, GAP, PADDING = 56, 52, 44
ALONE, BESIDE = 540, 420  # width of a column: with one map, with several
ACROSS = 5  # columns in a row, at most
HEADLINE, TITLE = 42, 29
MAP = 448  # width of a map in a file of its own
MARGIN = 12  # around it
NO_BREAK = "\u00a0"


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
    columns = [column.finished()]
    for heat in explained.heats:
        column = Column(width)
        _map(column, heat, explained, page.one_scale)
        if not several:
            columns.append(column.finished())
            column = Column(width)
        _told(column, heat, SMALL if several else TEXT)
        columns.append(column.finished())
    return _assembled(columns, explained, page)


def _subject(column: Column, explained: ExplainedPicture) -> None:
    """The picture, the model's answer and the likeliest classes."""
    height, width = explained.picture.shape[:2]
    column.line("The picture", TITLE, bold=True)
    column.space(8)
    column.picture(explained.picture)
    column.space(12)
    column.line(f"{width} x {height} pixels, as the model saw it", SMALL, SOFT)
    column.space(16)
    if not explained.top:
        column.text("The model gave no answer.")
        return
    name, probability = explained.top[0]
    column.text(f"The model says {name} ({percent(probability).replace(' ', NO_BREAK)}).", TEXT + 3, bold=True)
    if explained.true_label is not None:
        right = explained.true_label == name
        said = "Right: that is its label." if right else f"Wrong: its label is {explained.true_label}."
        column.text(said, TEXT, GREEN if right else ORANGE)
    column.space(12)
    for label, share in explained.top[1:4]:
        column.line(label, SMALL, SOFT, right=percent(share))


def draw_map(heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> UInt8[np.ndarray, "h w 3"]:
    """A map over its picture, pale where the evidence does not support it.

    Args:
        heat: One of the maps of the picture.
        explained: The picture with all its maps.
        one_scale: Whether they have one colour scale, of shares.
    """
    shown, values = _scaled(heat, explained, one_scale)
    strength = STRENGTH * (PALE if heat.pale else 1.0)
    return heat_picture(explained.picture, values, heat.signed, shown, strength)


def draw_map_file(heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> Image.Image:
    """A map by itself, which never goes without its verdict: below it stand the method, the class and the verdict.

    Args:
        heat: One of the maps of the picture.
        explained: The picture with all its maps.
        one_scale: Whether they have one colour scale, of shares.

    Returns:
        An RGB picture, hatched around a map that the evidence does not support.
    """
    column = Column(MAP)
    column.picture(draw_map(heat, explained, one_scale), hatched=heat.pale)
    column.space(8)
    column.line(heat.title, SMALL, bold=True)
    column.text(_class_words(heat), SMALL, SOFT)
    if heat.trust is None:
        column.text("Not tested.", SMALL, SOFT)
    else:
        column.space(4)
        column.verdict(heat.trust.verdict)
    drawn = column.finished()
    file = Image.new("RGB", (drawn.width + 2 * MARGIN, drawn.height + 2 * MARGIN), CARD)
    file.paste(drawn, (MARGIN, MARGIN))
    return file


def _class_words(heat: HeatView) -> str:
    """What a map explains, in few words."""
    if not heat.class_specific:
        return f"Cannot tell classes apart; the answer is {heat.target}."
    against = "" if heat.rather_than is None else f" rather than {heat.rather_than}"
    return f"Explains {heat.target}{against}."


def _scaled(
    heat: HeatView, explained: ExplainedPicture, one_scale: bool
) -> tuple[Range, Float[np.ndarray, "rows columns"]]:
    """The values that are coloured, and what the colours stand for."""
    if not one_scale:
        return value_range(heat.values, heat.signed), heat.values
    largest = largest_share([each.values for each in explained.heats])
    return share_range(heat.values, heat.signed, largest), shares(heat.values)


def _map(column: Column, heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> None:
    """The map in squares, and what its colours mean."""
    shown, _ = _scaled(heat, explained, one_scale)
    column.line(heat.title, TITLE, bold=True)
    column.space(8)
    column.picture(draw_map(heat, explained, one_scale), hatched=heat.pale)
    column.space(14)
    if shown.flat:
        column.text("No signal: the map prefers no square.", SMALL, ORANGE)
    else:
        column.scale(heat.signed, heat.pale)
        if one_scale:
            column.ticks([(percent(share, 0), place) for share, place in shown.ticks()])
        _ends(column, heat, shown, one_scale)
    if heat.pale and heat.trust:
        column.text(f"Drawn pale: {heat.trust.verdict}.", SMALL, SOFT)
    column.space(18)


def _ends(column: Column, heat: HeatView, shown: Range, as_shares: bool) -> None:
    low, high = number(shown.low, 3), number(shown.high, 3)
    if as_shares:  # of the map's total, whatever the sign
        low, high = percent(abs(shown.low)), percent(shown.high)
    if heat.signed:
        column.ends(f"{low} against", "0", f"{high} for")
    else:
        column.ends(low, "", high)


def _told(column: Column, heat: HeatView, size: int) -> None:
    """What the map explains, the verdict, the sentence and the score."""
    if heat.trust is None:
        column.text("Not tested.", size, SOFT, bold=True)
        column.space(6)
    else:
        column.verdict(heat.trust.verdict)
        first, *more = told_words(heat.trust)
        column.text(first, size)
        for words in more:
            column.text(words, SMALL, SOFT)
        column.space(18)
        column.text(f"{SCORE_TITLE}, {unit_words(heat.rather_than is not None)}", SMALL, SOFT)
        column.score(heat.trust)
        for kind, words in scored_words(heat.trust):
            column.key(kind, words)
        column.space(14)
    if not heat.class_specific:
        column.text("This method cannot tell classes apart.", size, bold=True)
    elif heat.rather_than is not None:
        column.text(f"Why {heat.target} rather than {heat.rather_than}.", size, SOFT)
    else:
        column.text(f"Explains the score of {heat.target} (logit {number(heat.logit, 3)}).", size, SOFT)
    if heat.parts:
        column.text(parts_words(heat), size)
    for note in heat.notes[:3]:
        column.text(note, SMALL, SOFT)


def _assembled(columns: list[Image.Image], explained: ExplainedPicture, page: ExplanationPage) -> Image.Image:
    """Columns in rows on a card, with a headline above and a footnote below."""
    across = min(len(columns), ACROSS)
    if len(columns) > ACROSS:  # rows as even as they can be
        across = -(-len(columns) // -(-len(columns) // ACROSS))
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
    words = [several_words(explained.heats)]
    if any(heat.trust is not None for heat in explained.heats):
        words.append(TWO_SCORES)
    made = f"vitrail · model {page.model}"
    if page.one_scale:
        made += " · one colour scale for all maps: the square root of each square's share of its map's total"
    return [*(each for each in words if each), made]
