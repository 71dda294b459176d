"""Training, in the order of what happens.

    options      what a person may ask for; `recipes` are named sets of choices
    job          `train` and `distill`: the whole run in one call, from here to `Finished`
    resolve      options, a configuration file and own objects become `settings`, with what `execution` picks by size
    setup        settings and data become what is trained (`Prepared`), anew or where a run stopped
    distill/     the same with a teacher
    loop         batches and an objective move the weights, and yield events
    checkpoint   the state on disk; `run` is the folder it lies in
    events       what listeners and the page are told
    evaluate     how well the model does, once at the end, and whenever it is asked

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
