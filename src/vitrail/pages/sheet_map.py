"""A map over its picture: on a sheet with what its colours mean, or in a file of its own with its verdict."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from vitrail.pages.colour import Range, common_scale, share_range, shares, value_range
from vitrail.pages.overlay import PALE, STRENGTH, heat_picture
from vitrail.pages.sheet_column import CARD, ORANGE, SMALL, SOFT, TITLE, Column
from vitrail.pages.views import ExplainedPicture, HeatView
from vitrail.pages.words import ends_words
from vitrail.text import percent

MAP = 448  # width of a map in a file of its own
MARGIN = 12  # around it


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
    """A map by itself, with its scale, its method, its class and its verdict, which it never goes without.

    Args:
        heat: One of the maps of the picture.
        explained: The picture with all its maps.
        one_scale: Whether they have one colour scale, of shares.

    Returns:
        An RGB picture, hatched around a map that the evidence does not support.
    """
    column = Column(MAP)
    column.picture(draw_map(heat, explained, one_scale), hatched=heat.pale)
    column.space(10)
    _legend(column, heat, _scaled(heat, explained, one_scale)[0])
    column.space(6)
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
        return "Cannot tell classes apart" + (f"; tested on {heat.target}." if heat.trust else ".")
    against = "" if heat.rather_than is None else f" rather than {heat.rather_than}"
    return f"Explains {heat.target}{against}."


def _scaled(
    heat: HeatView, explained: ExplainedPicture, one_scale: bool
) -> tuple[Range, Float[np.ndarray, "rows columns"]]:
    """The values that are coloured, and what the colours stand for."""
    if not one_scale:
        return value_range(heat.values, heat.signed), heat.values
    common = common_scale([each.values for each in explained.heats])
    return share_range(heat.values, heat.signed, common), shares(heat.values)


def map_part(column: Column, heat: HeatView, explained: ExplainedPicture, one_scale: bool) -> None:
    """The map in squares, and what its colours mean."""
    shown, _ = _scaled(heat, explained, one_scale)
    column.line(heat.title, TITLE, bold=True)
    column.space(8)
    column.picture(draw_map(heat, explained, one_scale), hatched=heat.pale)
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
