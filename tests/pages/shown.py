"""A part of a page by itself: a macro of a template with the values that it shows."""

from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from vitrail.pages.explanation_page import at_a_glance
from vitrail.pages.render import environment
from vitrail.pages.run_page import matrix_of, settings_rows
from vitrail.pages.trust import how_tested, one_verdict, shared_words, verdict_view
from vitrail.pages.views import AttributionView, Explains, TrustView


def macro(template: str, name: str) -> Callable[..., Markup]:
    return getattr(environment().get_template(template).module, name)


def trust_block(trust: TrustView, explains: Explains = "class", shared: Sequence[str] | None = None) -> str:
    return macro("trust.html", "trust_block")(verdict_view(trust, explains, shared))


def how_tested_list(trusts: Sequence[TrustView]) -> str:
    return macro("trust.html", "how_tested")(how_tested(trusts))


def shared_block(attributions: Sequence[AttributionView]) -> str:
    return macro("trust.html", "shared_block")(one_verdict(attributions), shared_words(attributions))


def glance_table(attributions: Sequence[AttributionView]) -> str:
    glance = at_a_glance(attributions)
    assert glance is not None
    return macro("maps.html", "glance_table")(glance)


def confusion_table(counts: np.ndarray, names: Sequence[str]) -> str:
    return macro("tables.html", "confusion_table")(matrix_of(counts, names))


def mistakes_list(counts: np.ndarray, names: Sequence[str]) -> str:
    return macro("tables.html", "mistakes_list")(matrix_of(counts, names).mistakes)


def settings_table(settings: dict) -> str:
    return macro("tables.html", "settings_table")(settings_rows(settings))
