"""From files to tensors: sources of labelled pictures, decoding, preprocessing, order and augmentation.

Nothing here knows of networks. `vitrail.data.source` is where to start reading. Names are imported when they are first
used, so that the list of what can be opened (`vitrail.data.readers`) costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.data.pictures import ArrayPictures, FilePictures, Pictures
    from vitrail.data.source import Evaluation, Source, Split, open_evaluation, open_source

__all__ = [
    "ArrayPictures",
    "Evaluation",
    "FilePictures",
    "Pictures",
    "Source",
    "Split",
    "open_evaluation",
    "open_source",
]

_HOMES = {"ArrayPictures": "pictures", "FilePictures": "pictures", "Pictures": "pictures"}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"vitrail.data has no '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'source')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
