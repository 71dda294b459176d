"""Images in tar files that webdataset reads, with an index by which any of them is read at once."""

__all__ = []
