"""What every page is made of: text and numbers that can stand in it, images as data, and how a page is known again.

Class names, file names and settings come from strangers. Templates write them as text by themselves (`render.py`);
charts, which are no templates, put them through `escape`. A page forbids by Content-Security-Policy whatever it does
not carry itself: one style and one script, both named by their SHA-256, and images given as data.
"""

import base64
import hashlib
import html
import io
import math
import re
import shlex
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vitrail.errors import UsageError
from vitrail.io import free_name

# Control characters are not allowed in HTML; a lone surrogate (an undecodable file name) cannot be written as UTF-8;
# direction marks can make `exe.gpj` read as `jpg.exe`.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def writable(value: object) -> str:
    """Any value as text, in which the replacement character stands for what cannot stand in a page.

    That is control characters, lone surrogates and direction overrides.
    """
    return _UNWRITABLE.sub("\ufffd", str(value))


def escape(text: object) -> str:
    """Make any value safe to stand in text or inside a quoted attribute.

    Args:
        text: Anything; it is turned into a string first.

    Returns:
        The string, made `writable`, with `& < > " '` written as entities.
    """
    return html.escape(writable(text), quote=True)


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


def finite(value: object) -> float | None:
    """A number when the value is a finite one, else None."""
    try:
        shown = float(str(value))
    except ValueError:
        return None
    return shown if math.isfinite(shown) else None


def plural(count: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def capital(words: str) -> str:
    """With a capital letter in front."""
    return words[:1].upper() + words[1:]


def data_uri(image: UInt8[np.ndarray, "h w *channels"]) -> str:
    """Write pixels as a PNG inside a `data:` address. Only the pixels enter: no metadata of any file survives.

    Args:
        image: (h, w) grey, (h, w, 3) colour or (h, w, 4) colour with opacity, uint8.

    Returns:
        `data:image/png;base64,...`; the same pixels always give the same text.
    """
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def small(image: np.ndarray) -> str:
    """The style of an image whose pixels stay squares, beside another style; nothing for a larger one."""
    return " small" if max(image.shape[:2]) <= 96 else ""


def content_hash(text: str) -> str:
    """The source expression by which a Content-Security-Policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def asset(name: str) -> str:
    """The text of a file that lies beside this one in the package (`page.css`, `page.js`)."""
    return resources.files("vitrail.pages").joinpath(name).read_text(encoding="utf-8")


def is_page(text: str, kind: str) -> bool:
    """Whether a file holds a page of this kind; a page that speaks of vitrail is none, nor one that quotes its mark."""
    return f'<meta name="generator" content="vitrail {escape(kind)}">' in text.partition("</head>")[0]


def place_of(out: Path | None, *, kind: str, what: str, beside: bool = False) -> Path:
    """Where a page goes; nothing but a page of its kind is ever written over.

    Args:
        out: An HTML file, or a folder for a page that is called by its kind; the current folder when None.
        kind: Of the page, as `is_page` knows it.
        what: Such a page, in words.
        beside: Whether a folder with the name of the page belongs to it. Then a place without an ending is a folder.

    Raises:
        UsageError: That place is taken, or its ending is that of another kind of file.
    """

    def taken(page: Path) -> bool:
        return page.exists() or (beside and page.with_suffix("").exists())

    def elsewhere(page: Path) -> str:
        return shlex.join(["--out", str(free_name(page, taken))])

    if out is None or out.is_dir() or (beside and not out.suffix and not out.is_file()):
        return free_name((out or Path()) / f"{kind}.html", taken)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{what} is an HTML page, not {out}", shlex.join(["--out", str(out.with_suffix(".html"))]))
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), kind):
        raise UsageError(f"{out} exists and is not {what} by vitrail", elsewhere(out))
    if beside and out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, the folder for the images, exists", elsewhere(out))
    return out


def in_frame(page: str) -> str:
    """A page inside another document, such as a notebook: with its own style, and none of its scripts runs."""
    return f'<iframe sandbox="" srcdoc="{escape(page)}" style="width:100%;height:32rem;border:0"></iframe>'
