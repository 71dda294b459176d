"""What every page is made of: templates, images as data, and how a page is known again; and where it goes.

jinja2 makes pages of the templates beside this file, with one environment for all of them. Class names, file names and
settings come from strangers. Whatever a template shows is text (`autoescape`), without the characters that cannot stand
in a page (`finalize`); a name that is not there is an error. Only what a template or a chart of this folder made is
HTML already: it is `Markup`, and nothing else may be. A page forbids by Content-Security-Policy whatever it does not
carry itself: one style and one script, both named by their SHA-256, and images given as data.
"""

import base64
import hashlib
import io
import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import UInt8
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape as escaped
from PIL import Image

from vitrail.errors import COMMAND_LINE, UsageError
from vitrail.io import free_name
from vitrail.pages import chart, colour, trust
from vitrail.text import capital, finite, joined, number, percent, percent_in_words, plural, times

# Control characters are not allowed in HTML; a lone surrogate (an undecodable file name) cannot be written as UTF-8;
# direction marks can make `exe.gpj` read as `jpg.exe`.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def writable(value: object) -> str:
    """Any value as text, in which the replacement character stands for what cannot stand in a page.

    That is control characters, lone surrogates and direction overrides.
    """
    return _UNWRITABLE.sub("\ufffd", str(value))


def escape(text: object) -> str:
    """Make any value safe to stand in text or inside a quoted attribute: `writable`, with `& < > " '` as entities."""
    return str(escaped(writable(text)))


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


# What templates may call by name.
FILTERS: tuple[Callable[..., object], ...] = (
    *(capital, finite, joined, number, percent, percent_in_words, plural, times, data_uri, small),
    *(colour.common_scale, colour.grey, colour.overlay_pixels, colour.patch_colours, colour.scaled, colour.value_range),
    *(trust.ends_words, trust.values_words, trust.parts_words),
    *(trust.tests_of, trust.score_axis, trust.reach_of, trust.drop_words, trust.evidence_words),
    *(trust.faithful_words, trust.passes_words),
    *(trust.score_words, trust.scored_words, trust.marks_words, trust.random_maps_words, trust.from_to),
    *(trust.verdict_words, trust.short_words, trust.shared_words, trust.one_verdict, trust.several_words),
)


def _shown(value: object) -> str:
    return value if isinstance(value, Markup) else writable(value)


@cache
def environment() -> Environment:
    """The templates of this folder, and what they may call by name."""
    made = Environment(
        loader=PackageLoader("vitrail.pages"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for function in FILTERS:
        made.filters[function.__name__] = function
    names = cast(dict[str, object], made.globals)  # jinja2 types them by those that it brings itself
    names |= {
        "scales": {"sequential": colour.SEQUENTIAL, "diverging": colour.DIVERGING},
        "even": colour.EVEN,
        "chart_box": (chart.WIDTH, chart.HEIGHT, chart.LEFT, chart.RIGHT, chart.TOP, chart.BOTTOM),
    }
    return made


def asset(name: str) -> str:
    """The text of a file that lies beside this one in the package (`page.css`, `page.js`)."""
    return resources.files("vitrail.pages").joinpath(name).read_text(encoding="utf-8")


def document(template: str, title: str, kind: str, values: Mapping[str, object]) -> str:
    """A whole page, which allows itself one style, one script and images given as data, and nothing else.

    Args:
        template: Name of a template that extends `page.html`.
        title: Of the window.
        kind: What the page is of, in a word, by which `is_page` knows it again.
        values: What the template shows, by name.
    """
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{content_hash(style)}'; "
        f"script-src '{content_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    around = {"policy": policy, "kind": kind, "title": title, "style": Markup(style), "script": Markup(script)}
    return environment().get_template(template).render({**values, **around})


def content_hash(text: str) -> str:
    """The source expression by which a Content-Security-Policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


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
        page = free_name(page, taken)
        return f"save({str(page)!r}){COMMAND_LINE}{shlex.join(['--out', str(page)])}"

    if out is None or out.is_dir() or (beside and not out.suffix and not out.is_file()):
        return free_name((out or Path()) / f"{kind}.html", taken)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{what} is an HTML page, not {out}", elsewhere(out.with_suffix(".html")))
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), kind):
        raise UsageError(f"{out} exists and is not {what} by vitrail", elsewhere(out))
    if beside and out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, the folder for the images, exists", elsewhere(out))
    return out


def in_frame(page: str) -> str:
    """A page inside another document, such as a notebook: with its own style, and none of its scripts runs."""
    return f'<iframe sandbox="" srcdoc="{escape(page)}" style="width:100%;height:32rem;border:0"></iframe>'
