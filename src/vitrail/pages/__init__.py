"""The HTML pages that vitrail writes: one for a run, one for an explanation.

A page is one file that opens from disk: its pictures, style and script are inside, and it names no network address.
These functions take plain values (numbers, names, numpy arrays) and never a network, so this folder needs no torch.
Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.pages.colour import heat_picture
    from vitrail.pages.explanation_page import write_explanation_page
    from vitrail.pages.run_page import write_run_page
    from vitrail.pages.sheet import draw_sheet
    from vitrail.pages.views import (
        ClassTable,
        Confusion,
        EvaluationView,
        Example,
        ExplainedPicture,
        ExplanationPage,
        HeatView,
        RunView,
        Table,
        TrustView,
    )

__all__ = [
    "ClassTable",
    "Confusion",
    "EvaluationView",
    "Example",
    "ExplainedPicture",
    "ExplanationPage",
    "HeatView",
    "RunView",
    "Table",
    "TrustView",
    "draw_sheet",
    "heat_picture",
    "write_explanation_page",
    "write_run_page",
]

_HOMES = {  # of all others: `views`
    "draw_sheet": "sheet",
    "heat_picture": "colour",
    "write_explanation_page": "explanation_page",
    "write_run_page": "run_page",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"vitrail.pages has no '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'views')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
