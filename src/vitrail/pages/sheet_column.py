"""A column of a sheet: text, pictures, signs and lines, drawn one below the other."""

from typing import final

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from vitrail.pages.chart import Axis
from vitrail.pages.colour import PALE, colours_at
from vitrail.pages.html import small
from vitrail.pages.lettering import shorten, wrap, write
from vitrail.pages.trust import score_axis
from vitrail.pages.views import TrustView
from vitrail.pages.words import upper

Colour = tuple[int, int, int]
Number = float | int

CARD, INK, SOFT, RULE, SUNK = (255, 255, 255), (28, 34, 48), (89, 96, 113), (212, 207, 196), (232, 228, 218)
FAINT = (150, 154, 164)  # random maps on the line of a score
GREEN, BLUE, ORANGE = (29, 107, 75), (33, 88, 168), (163, 72, 12)
TONES = {"supported": GREEN, "supported, tiny": BLUE, "weak": BLUE, "no better than random": ORANGE}
TITLE, TEXT, SMALL = 29, 25, 21
FRAME = 14  # pixels around a pale map
TALLEST = 5000
FINE = 4  # curves are drawn so many times larger, then made smaller, which makes them smooth


@final
class Column:
    """A strip that is filled from top to bottom.

    Args:
        width: In pixels.
    """

    def __init__(self, width: int) -> None:
        self.width, self.bottom = width, 0
        self.canvas = Image.new("RGB", (width, TALLEST), CARD)

    def text(self, text: str, size: int = TEXT, colour: Colour = INK, bold: bool = False, left: int = 0) -> None:
        """Lines of text, wrapped."""
        for line in wrap(text, size, self.width - left):
            write(self.canvas, (left, self.bottom), line, size, colour, bold)
            self.bottom += round(size * 1.38)

    def line(self, text: str, size: int = TEXT, colour: Colour = INK, bold: bool = False, right: str = "") -> None:
        """One line, cut in its middle where it is too long; `right` stands at its other end."""
        write(self.canvas, (0, self.bottom), shorten(text, size, self.width), size, colour, bold)
        write(self.canvas, (self.width, self.bottom), right, size, colour, bold, anchor="ra")
        self.bottom += round(size * 1.38)

    def share(self, label: str, share: float, words: str) -> None:
        """A class, a bar as long as its probability, and that in words."""
        start, end, high = round(0.42 * self.width), round(0.76 * self.width), round(SMALL * 1.38)
        write(self.canvas, (0, self.bottom), shorten(label, SMALL, start - 16), SMALL, INK)
        write(self.canvas, (self.width, self.bottom), words, SMALL, INK, anchor="ra")
        box, draw = (start, self.bottom + 10, end, self.bottom + 19), ImageDraw.Draw(self.canvas)
        draw.rounded_rectangle(box, 4, SUNK)
        filled = round(min(1.0, share) * (end - start))
        if filled:
            draw.rounded_rectangle((start, box[1], start + filled, box[3]), min(4, filled // 2), BLUE)
        self.bottom += high

    def space(self, height: int) -> None:
        """Nothing, so many pixels high."""
        self.bottom += height

    def picture(self, pixels: UInt8[np.ndarray, "h w *channels"], hatched: bool = False) -> None:
        """A picture over the whole width; its pixels stay squares where it is small."""
        left = FRAME if hatched else 0
        wide = self.width - 2 * left
        high = max(1, min(TALLEST // 2, round(wide * pixels.shape[0] / pixels.shape[1])))
        way = Image.Resampling.NEAREST if small(pixels) else Image.Resampling.BICUBIC
        shown = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB").resize((wide, high), way)
        if hatched:
            self._paste(_hatching(self.width, high + 2 * left), 0)
        self._paste(shown, left, left)
        self.bottom += high + 2 * left

    def scale(self, signed: bool, pale: bool) -> None:
        """The colours from one end of their scale to the other."""
        row = colours_at(np.linspace(0, 1, self.width), signed)
        row = PALE * row + (1 - PALE) * np.array(CARD) if pale else row
        self._paste(Image.fromarray(np.repeat(row[None].round().astype(np.uint8), 14, axis=0)), 0)
        self.bottom += 20

    def ticks(self, named: list[tuple[str, float]]) -> None:
        """Words below places on a scale, from 0 at its left end to 1 at its right; nothing where there are none."""
        if not named:
            return
        draw = ImageDraw.Draw(self.canvas)
        for words, place in named:
            x = place * self.width
            draw.line((x, self.bottom - 6, x, self.bottom), INK, 2)
            write(self.canvas, (x, self.bottom + 2), words, 18, SOFT, anchor="ma")
        self.bottom += 25

    def ends(self, left: str, between: str, right: str) -> None:
        """Three words below a scale."""
        for at, words, anchor in ((0, left, "la"), (self.width // 2, between, "ma"), (self.width, right, "ra")):
            write(self.canvas, (at, self.bottom), words, SMALL, INK, anchor=anchor)
        self.bottom += 32

    def verdict(self, verdict: str) -> None:
        """The verdict: a sign of its own shape, and the word."""
        tone = TONES.get(verdict, SOFT)
        self._paste(_sign(verdict, tone, 38), 0)
        write(self.canvas, (52, self.bottom + 19), upper(verdict), 29, tone, bold=True, anchor="lm")
        self.bottom += 52

    def score(self, trust: TrustView, axis: Axis | None = None) -> None:
        """The score on one line with the random maps and the true mask; nothing where it is no number.

        Args:
            trust: What the test of the map said.
            axis: The axis that several lines have in common; the line's own when None.
        """
        own = score_axis([trust])
        if own is None or trust.paired is None:
            return
        axis = axis or own
        high, margin = 52, 14
        fine = Image.new("RGB", (self.width * FINE, high * FINE), CARD)
        draw = ImageDraw.Draw(fine)

        def at(value: float) -> float:
            return FINE * (margin + axis.share(value) * (self.width - 2 * margin))

        centre = FINE * high / 2
        draw.line((FINE * margin, centre, FINE * (self.width - margin), centre), RULE, 2 * FINE)
        for y in range(0, high, 8):
            draw.line((at(0.0), FINE * y, at(0.0), FINE * (y + 4)), SOFT, 2 * FINE)
        ends = at(min(trust.random)) - FINE, at(max(trust.random)) + FINE
        draw.rectangle((ends[0], centre - 15 * FINE, ends[1], centre + 15 * FINE), SUNK, RULE, FINE)
        for value in trust.random:
            draw.line((at(value), centre - 11 * FINE, at(value), centre + 11 * FINE), FAINT, FINE)
        if trust.oracle is not None:
            draw.polygon(_diamond(at(trust.oracle), centre, 14 * FINE), CARD, INK, 3 * FINE)
        draw.ellipse(_round(at(trust.paired), centre, 10 * FINE), INK, CARD, 2 * FINE)
        self._paste(fine.resize((self.width, high), Image.Resampling.LANCZOS), 0)
        write(self.canvas, (at(0.0) / FINE, self.bottom + high), "0", 18, SOFT, anchor="ma")
        self.bottom += high + 26

    def key(self, kind: str, words: str) -> None:
        """A mark of that line and what it says: kind is `map`, `random`, `oracle` or `other`, which has no mark."""
        fine = Image.new("RGB", (28 * FINE, 24 * FINE), CARD)
        draw, (x, y) = ImageDraw.Draw(fine), (14 * FINE, 12 * FINE)
        if kind == "map":
            draw.ellipse(_round(x, y, 9 * FINE), INK)
        elif kind == "oracle":
            draw.polygon(_diamond(x, y, 11 * FINE), CARD, INK, 3 * FINE)
        elif kind == "random":
            draw.rectangle((2 * FINE, 2 * FINE, 26 * FINE, 22 * FINE), SUNK, RULE, FINE)
            for place in (8, 14, 18):
                draw.line((place * FINE, 5 * FINE, place * FINE, 19 * FINE), FAINT, FINE)
        self._paste(fine.resize((28, 24), Image.Resampling.LANCZOS), 0, 1)
        self.text(words, SMALL, left=40)

    def finished(self) -> Image.Image:
        """What was drawn, cut to its height."""
        return self.canvas.crop((0, 0, self.width, min(TALLEST, max(1, self.bottom))))

    def _paste(self, part: Image.Image, left: int, down: int = 0) -> None:
        self.canvas.paste(part, (left, self.bottom + down))


def _round(x: Number, y: Number, radius: Number) -> tuple[Number, Number, Number, Number]:
    return x - radius, y - radius, x + radius, y + radius


def _diamond(x: Number, y: Number, radius: Number) -> list[tuple[Number, Number]]:
    return [(x, y - radius), (x + 0.8 * radius, y), (x, y + radius), (x - 0.8 * radius, y)]


def _hatching(width: int, height: int) -> Image.Image:
    """Slanted lines, as a frame around what the evidence does not support."""
    across = (np.arange(width)[None] + np.arange(height)[:, None]) % 12 < 3
    return Image.fromarray(np.where(across[..., None], np.array(SOFT), np.array(CARD)).astype(np.uint8))


def _sign(verdict: str, tone: Colour, side: int) -> Image.Image:
    """A tick, a wave, a cross or a question mark in a ring."""
    unit = side * FINE / 16
    fine = Image.new("RGB", (side * FINE, side * FINE), CARD)
    draw, pen = ImageDraw.Draw(fine), round(1.5 * unit)
    draw.ellipse(_round(8 * unit, 8 * unit, 7.4 * unit), CARD, tone, pen)

    def stroke(*points: tuple[Number, Number]) -> None:
        places = [(x * unit, y * unit) for x, y in points]
        draw.line(places, tone, pen, joint="curve")
        for x, y in (places[0], places[-1]):
            draw.ellipse(_round(x, y, pen / 2), tone)

    match verdict:
        case "supported":
            stroke((4.6, 8.4), (7.1, 10.9), (11.5, 5.5))
        case "supported, tiny":
            stroke((6.0, 8.4), (7.5, 9.9), (10.2, 6.6))
        case "weak":
            turn = np.linspace(0, 2 * np.pi, 40)
            stroke(*[(3.9 + 8.2 * t / (2 * np.pi), 8 - 1.7 * np.sin(t)) for t in turn])
        case "no better than random":
            stroke((5.3, 5.3), (10.7, 10.7))
            stroke((10.7, 5.3), (5.3, 10.7))
        case _:
            bow = np.linspace(-np.pi, 0.4 * np.pi, 30)
            stroke(*[(8 + 2.1 * np.cos(t), 6.2 + 2.1 * np.sin(t)) for t in bow], (8, 9.4))
            stroke((8, 11.7), (8, 11.7))
    return fine.resize((side, side), Image.Resampling.LANCZOS)
