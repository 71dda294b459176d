"""Readers, one file a format or set; `vitrail.data.sources` lists what can be opened."""

__all__ = []
