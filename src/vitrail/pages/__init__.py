"""The HTML pages that vitrail writes: one for a run, one for an explanation.

A page is one file that opens from disk: its images, style and script are inside, and it names no network address.
These functions take plain values (numbers, names, numpy arrays) and never a network, so this folder needs no torch.
Names are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
