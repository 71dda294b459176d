"""From files to tensors: readers, splits, decoding, preprocessing, order and augmentation, batches.

Nothing here knows of networks. `vitrail.data.dataset` is where to start reading. Names are imported when they are first
used, so that the list of what can be opened (`vitrail.data.readers`) costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.data.columns import Classes, Codec, Column, Labels, Match, Texts, Values
    from vitrail.data.dataset import Dataset, RawDataset, Samples, Split
    from vitrail.data.images import ArrayImages, FileImages, Images
    from vitrail.data.loader import load_resident
    from vitrail.data.preprocessing import Preprocessing
    from vitrail.data.readers import read
    from vitrail.data.vocabulary import Vocabulary

__all__ = [
    "ArrayImages",
    "Classes",
    "Codec",
    "Column",
    "Dataset",
    "FileImages",
    "Images",
    "Labels",
    "Match",
    "Preprocessing",
    "RawDataset",
    "Samples",
    "Split",
    "Texts",
    "Values",
    "Vocabulary",
    "load_resident",
    "read",
]

_HOMES = {
    **dict.fromkeys(("ArrayImages", "FileImages", "Images"), "images"),
    **dict.fromkeys(("Classes", "Codec", "Column", "Labels", "Match", "Texts", "Values"), "columns"),
    **dict.fromkeys(("Dataset", "RawDataset", "Samples", "Split"), "dataset"),
    "Preprocessing": "preprocessing",
    "load_resident": "loader",
    "Vocabulary": "vocabulary",
    "read": "readers",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"vitrail.data has no '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
