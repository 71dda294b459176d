"""Readers, one file a format; `table.py` lists what can be opened.

What single readers offer besides is imported when it is first used, so that the list costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vitrail.data.readers.table import FORMATS, MANIFESTS, NAMED, Format, Reader, format_of, is_named, overview, read

if TYPE_CHECKING:
    from vitrail.data.readers.folder import EXTENSIONS, image_files
    from vitrail.data.readers.planted import is_planted, parse_planted, planted_pictures

__all__ = [
    "EXTENSIONS",
    "FORMATS",
    "MANIFESTS",
    "NAMED",
    "Format",
    "Reader",
    "format_of",
    "image_files",
    "is_named",
    "is_planted",
    "overview",
    "parse_planted",
    "planted_pictures",
    "read",
]

_HOMES = {
    **dict.fromkeys(("EXTENSIONS", "image_files"), "folder"),
    **dict.fromkeys(("is_planted", "parse_planted", "planted_pictures"), "planted"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"vitrail.data.readers has no '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
