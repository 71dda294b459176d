"""How numbers look in tables and sentences, at the terminal and on pages; the one form of names and texts; short reprs.

A fraction as a percentage never reads 0 or 100 unless it is exactly that.
"""

import math
import re
import reprlib
import textwrap
import unicodedata
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any


def utf8(text: str) -> str:
    """What UTF-8 can hold of a text: bytes of a file name that are none become escapes, as in JSON."""
    return text.encode("utf-8", "backslashreplace").decode()


LATIN = {0xDC00 + byte: byte for byte in range(0xA0, 0x100)}  # what Python has for such bytes of a file name


def canonical(text: str) -> str:
    """The one form in which names of classes and texts are compared, shown and stored: NFC, in UTF-8.

    Unicode writes the same word in several ways (macOS names files in NFD), and file names may be no UTF-8 at all: such
    bytes are read as Latin-1, or become escapes.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", utf8(text.translate(LATIN)))


def canonical_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Each in its one form; a single text, of which this would be the characters, is no several."""
    if isinstance(texts, str):
        raise TypeError("one text, where several are wanted")
    return tuple(map(canonical, texts))


def percent(fraction: float | int | None, digits: int = 1) -> str:
    """For tables, where many stand below each other: so many decimals, signs at the ends, a dash for what is not known.

    97.68 %, > 99.9 %, < 0.1 %, 100 %.
    """
    if fraction is None or not math.isfinite(fraction):
        return "–"
    shown = f"{100 * fraction:.{digits}f}"
    nearly = 10.0**-digits
    if fraction < 1 and float(shown) >= 100:
        return f"> {100 - nearly:.{digits}f} %"
    if fraction > 0 and float(shown) == 0:
        return f"< {nearly:.{digits}f} %"
    if float(shown) == 0:
        return f"{0:.{digits if fraction else 0}f} %"  # also of a little below zero
    return f"{shown} %" if fraction not in (0, 1) else f"{100 * fraction:.0f} %"


def percent_in_words(fraction: float) -> str:
    """For sentences: whole numbers, a decimal near 0 and 100 alone, and words at the ends.

    98 %, 99.5 %, over 99.9 %, under 0.1 %, 100 %.
    """
    if 0.01 <= fraction <= 0.99 or fraction in (0.0, 1.0):
        return f"{100 * fraction:.0f} %"
    if fraction < 0.0005:
        return "under 0.1 %"
    return "over 99.9 %" if fraction > 0.9995 else f"{100 * fraction:.1f} %"


def points(difference: float | int) -> str:
    """A difference of two shares in percentage points, with its sign: +3.4, −0.2, 0.0."""
    shown = round(100 * difference, 1)
    return f"{shown:+.1f}".replace("-", "−") if shown else "0.0"


def times_words(log: float) -> str:
    """How many times as high something is, of the natural log of it: 9.9 times, 1,024 times; never rounded up."""
    if not math.isfinite(log):
        return "an unknown number of times"
    factor = math.exp(min(log, 30.0)) * (1 + 1e-12)  # the log of 10 gives 10 again
    if factor >= 1e6:
        return "over a million times"
    return f"{math.floor(10 * factor) / 10:.1f} times" if factor < 10 else f"{math.floor(factor):,} times"


_FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[^/\n:\"']*[^/\s:\"']/)+(?=[^/\s])")


def short_paths(text: object, parts: int = 2) -> str:
    """A text, of whose absolute paths the last parts stay: "…/photos/bees", or with one part "bees"."""

    def short(found: re.Match[str]) -> str:
        folders = found.group().split("/")[1:-1]
        kept = "".join(f"{each}/" for each in folders[len(folders) - parts + 1 :])
        return found.group() if len(folders) < parts else f"…/{kept}" if kept else ""

    return _FOLDERS.sub(short, str(text))


def joined(text: str) -> str:
    """The text, whose lines do not end between a number and its sign."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", text)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number for people: `digits` significant digits, a true minus sign, and a dash for what was not measured."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 10**15:
        return f"{int(value):,}".replace(",", "\u202f").replace("-", "−")
    shown = f"{value:.{digits}g}"
    if abs(value) < 1e-3 or "e" in shown:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        shown = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return shown.replace("-", "−")


def rounded(value: float, half_width: float | None) -> str:
    """A number with the digits that its interval leaves it: of half the width two, none behind the point from 10 on."""
    if half_width is None or not 0 < half_width < math.inf:
        return number(value)
    places = max(0, 1 - math.floor(math.log10(half_width)))
    return f"{round(value, places) + 0.0:,.{places}f}".replace(",", "\u202f").replace("-", "−")


def plural(count: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def capital(words: str) -> str:
    """With a capital letter in front."""
    return words[:1].upper() + words[1:]


class _Short(reprlib.Repr):
    """Arrays by their type and shape, of many things the first and how many there are."""

    def repr_Tensor(self, array: Any, level: int) -> str:
        return f"<{str(array.dtype).removeprefix('torch.')} {' x '.join(map(str, array.shape)) or 'number'}>"

    repr_Parameter = repr_ndarray = repr_Tensor

    def repr_float(self, value: float, level: int) -> str:
        return f"{value:.4g}"

    def repr_tuple(self, x: tuple[Any, ...], level: int) -> str:
        return super().repr_tuple(x, level) + (f" of {len(x):,}" if len(x) > self.maxtuple else "")


def short_repr(value: Any) -> str:
    """The `repr` of a dataclass or named tuple, in at most five lines."""
    names = [each.name for each in fields(value)] if is_dataclass(value) else value._fields
    words = ", ".join(f"{name}={_SHORT.repr(getattr(value, name))}" for name in names)
    text = " ".join(f"{type(value).__name__}({words})".split())
    return textwrap.fill(text, 120, max_lines=5, placeholder=" ...", subsequent_indent="  ")


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 60  # characters


class ShortRepr:
    """A dataclass (with repr=False) of which a prompt shows at most five lines."""

    __repr__ = short_repr
