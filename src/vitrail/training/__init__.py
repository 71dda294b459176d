"""Training: objectives, the one loop, optimizer and schedule, recipes, run folder and resume, metrics.

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.training.evaluate import remembered_data

__all__ = ["remembered_data"]


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"vitrail.training has no '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module("vitrail.training.evaluate"), name)
