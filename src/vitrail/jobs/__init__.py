"""Work over many images that survives whatever ends it, in one process or by the workers of a Ray cluster.

passes       the one pass over images: some are decoded while others are computed
ranges       images in order, so many at a time: what is computed at once, kept as one part, and never done twice
parts        the part files beside a file until it is whole, and what decides their bytes
lines        parts of lines: one JSON object for each image
on_ray       ranges as tasks of Ray: the one file that knows it
answers      what a model answers to many images, as CSV or Parquet
"""

__all__ = ()
