"""Readers, one file a format; `vitrail.data.sources` lists what can be opened. Sets for experiments are in `lab`."""

__all__ = []
