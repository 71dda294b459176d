"""Text on a picture, in the one font that Pillow carries.

The font has the letters of English and little more. A letter that it lacks is drawn without its accent, or as the
nearest thing that it has; what has no likeness at all is written as its escape, so that nothing is lost or drawn as an
empty box.
"""

import re
import unicodedata
from bisect import bisect_left
from functools import cache

from PIL import Image, ImageDraw, ImageFont

_NEAREST = {
    "−": "-", "–": "-", "—": "-", "×": "x", "∞": "infinite", "≈": "~", "≤": "<=", "≥": ">=", "ß": "ss", "æ": "ae",
    "Æ": "AE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "œ": "oe", "Œ": "OE", "þ": "th", "ı": "i",
    "←": "<-", "→": "->", "«": "“", "»": "”", "„": "“", "‚": "‘",
}  # fmt: skip


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """The font in a size in pixels.

    Raises:
        OSError: If this Pillow was built without FreeType.
    """
    found = ImageFont.load_default(size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise OSError("Pillow was built without FreeType, so it cannot write on pictures")
    return found


def drawable(text: str) -> str:
    """The text in letters that the font has; line breaks and tabs become spaces."""
    return "".join(_drawable(letter) for letter in text)


def wrap(text: str, size: int, width: int) -> list[str]:
    """The text in lines that are no wider than so many pixels; a word that is too long is broken.

    Lines do not end at a no-break space.
    """
    lines, line = [], ""
    for word in re.split("[ \t\r\n]+", text.strip(" \t\r\n")):
        for piece in _broken(drawable(word), size, width):
            longer = f"{line} {piece}" if line else piece
            if line and font(size).getlength(longer) > width:
                lines.append(line)
                longer = piece
            line = longer
    return [*lines, line] if line else lines


def shorten(text: str, size: int, width: int) -> str:
    """The text, cut in its middle where it is wider than so many pixels."""
    letters = drawable(text)
    if font(size).getlength(letters) <= width:
        return letters
    fits = bisect_left(range(3, len(letters)), True, key=lambda kept: _too_wide(letters, kept, size, width))
    return _without_middle(letters, 2 + fits)


def write(
    canvas: Image.Image,
    at: tuple[float | int, float | int],
    text: str,
    size: int,
    colour: tuple[int, int, int],
    bold: bool = False,
    anchor: str = "la",
) -> None:
    """Write one line; `anchor` says which point of it stands at `at`, as in Pillow."""
    ImageDraw.Draw(canvas).text(
        at,
        drawable(text),
        fill=colour,
        font=font(size),
        anchor=anchor,
        stroke_width=bold and size / 40,
        stroke_fill=colour,
    )


@cache
def _has(letter: str) -> bool:
    return letter == " " or (letter.isprintable() and _shape(letter) != _shape("\uffff"))


def _shape(letter: str) -> bytes:
    """What is drawn of a letter; that of one which is in no font is an empty box."""
    small = Image.new("L", (32, 32))
    ImageDraw.Draw(small).text((4, 4), letter, fill=255, font=font(16))
    return small.tobytes()


@cache
def _drawable(letter: str) -> str:
    if letter.isspace() or _has(letter):
        return " " if letter.isspace() else letter
    plain = _NEAREST.get(letter) or "".join(
        part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part)
    )
    if plain and all(part == " " or _has(part) for part in plain):
        return plain
    return "" if unicodedata.combining(letter) else letter.encode("unicode_escape").decode()


def _broken(word: str, size: int, width: int) -> list[str]:
    pieces, piece = [], ""
    for letter in word:
        if piece and font(size).getlength(piece + letter) > width:
            pieces.append(piece)
            piece = ""
        piece += letter
    return [*pieces, piece]


def _too_wide(letters: str, kept: int, size: int, width: int) -> bool:
    return font(size).getlength(_without_middle(letters, kept)) > width


def _without_middle(letters: str, kept: int) -> str:
    return f"{letters[: kept - kept // 2]}…{letters[len(letters) - kept // 2 :]}"
