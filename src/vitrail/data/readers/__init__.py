"""Readers, one file a format; `table.py` lists what can be opened."""

from vitrail.data.readers.table import (
    FORMATS,
    MANIFESTS,
    NAMED,
    NAMED_SEQUENCES,
    PAIRS,
    Format,
    Reader,
    format_of,
    is_named,
    overview,
    read,
)

__all__ = [
    "FORMATS",
    "MANIFESTS",
    "NAMED",
    "NAMED_SEQUENCES",
    "PAIRS",
    "Format",
    "Reader",
    "format_of",
    "is_named",
    "overview",
    "read",
]
