"""From files to tensors: readers, splits, decoding, preprocessing, order and augmentation, batches.

Nothing here knows of networks. `vitrail.data.dataset` is where to start reading. Names are imported when they are first
used (`__init__.pyi` lists where they stand), so that the list of what can be opened costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
