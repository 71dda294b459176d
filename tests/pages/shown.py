"""A part of a page by itself: a macro of a template with the values that it shows."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.pages import chart
from vitrail.pages.image_views import AttributionView, Explains, TrustView
from vitrail.pages.render import template_environment
from vitrail.pages.run_views import Confusion


def constant(template: str, name: str) -> Any:
    return getattr(template_environment().get_template(template).module, name)


def macro(template: str, name: str) -> Callable[..., Markup]:
    return constant(template, name)


def trust_block(trust: TrustView, explains: Explains = "class", shared: Sequence[str] | None = None) -> str:
    return macro("trust.html", "trust_block")(trust, explains, shared)


def score_line(trust: TrustView, axis: chart.Axis | None = None) -> str:
    return macro("trust.html", "score_line")(trust, axis)


def how_tested_list(trusts: Sequence[TrustView]) -> str:
    return macro("trust.html", "how_tested")(trusts, "class")


def shared_block(attributions: Sequence[AttributionView]) -> str:
    return macro("trust.html", "shared_block")(attributions)


def glance_table(attributions: Sequence[AttributionView]) -> str:
    return macro("maps.html", "glance_table")(attributions)


def line_chart(title: str, epochs: Sequence[float], series: Sequence[chart.Series], **options: Any) -> Markup:
    return macro("chart.html", "line_chart")(chart.line_chart(title, epochs, series, **options))


def confusion_table(counts: np.ndarray, names: Sequence[str]) -> str:
    return macro("tables.html", "confusion_table")(Confusion("", counts, tuple(names)))


def mistakes_list(counts: np.ndarray, names: Sequence[str]) -> str:
    return macro("tables.html", "mistakes_list")(Confusion("", counts, tuple(names)))


def settings_table(settings: dict) -> str:
    return macro("tables.html", "settings_table")(settings)


def charts_of(page: str) -> dict[str, list[str]]:
    """The charts of a page by their titles, in order, each with what its lines are called."""
    drawn = re.findall('(?s)<figure class="chart"><figcaption>(.*?)</figcaption>(.*?)</figure>', page)
    return {title: re.findall("<li>.*?</svg>(.*?)</li>", chart) for title, chart in drawn}
