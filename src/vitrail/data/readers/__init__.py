"""Readers, one file a format; `table.py` lists what can be opened."""

from vitrail.data.readers.table import (
    FORMATS,
    MANIFESTS,
    NAMED,
    NAMED_SEQUENCES,
    PAIRS,
    Format,
    Reader,
    find,
    format_of,
    is_named,
    overview,
)

__all__ = [
    "FORMATS",
    "MANIFESTS",
    "NAMED",
    "NAMED_SEQUENCES",
    "PAIRS",
    "Format",
    "Reader",
    "find",
    "format_of",
    "is_named",
    "overview",
]
