"""Readers, one file a format; `vitrail.data.formats` lists what can be opened.

Each name is imported when it is first used, so that the list costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
