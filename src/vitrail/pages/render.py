"""From values to pages by the templates beside this file: jinja2, with one environment for all of them.

Class names, file names and settings come from strangers. Whatever a template shows is text (`autoescape`), without the
characters that cannot stand in a page (`finalize`); a name that is not there is an error. Only what a template or a
chart of this folder made is HTML already: it is `Markup`, and nothing else may be.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitrail.pages import chart, colour, html, trust
from vitrail.text import joined, percent, percent_in_words, times

# What templates may call by name.
FILTERS: tuple[Callable[..., object], ...] = (
    *(joined, percent, percent_in_words, times),
    *(html.capital, html.data_uri, html.finite, html.number, html.plural, html.small),
    *(colour.common_scale, colour.grey, colour.overlay_pixels, colour.patch_colours, colour.scaled, colour.value_range),
    *(trust.ends_words, trust.values_words, trust.parts_words),
    *(trust.tests_of, trust.score_axis, trust.reach_of, trust.fall_words, trust.middle_of),
    *(trust.score_words, trust.scored_words, trust.marks_words, trust.random_maps_words, trust.from_to),
    *(trust.verdict_words, trust.short_words, trust.shared_words, trust.one_verdict, trust.several_words),
)


def _shown(value: object) -> str:
    return value if isinstance(value, Markup) else html.writable(value)


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


def document(template: str, title: str, kind: str, values: Mapping[str, object]) -> str:
    """A whole page, which allows itself one style, one script and images given as data, and nothing else.

    Args:
        template: Name of a template that extends `page.html`.
        title: Of the window.
        kind: What the page is of, in a word, by which `is_page` knows it again.
        values: What the template shows, by name.
    """
    style, script = html.asset("page.css"), html.asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{html.content_hash(style)}'; "
        f"script-src '{html.content_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    around = {"policy": policy, "kind": kind, "title": title, "style": Markup(style), "script": Markup(script)}
    return environment().get_template(template).render({**values, **around})
