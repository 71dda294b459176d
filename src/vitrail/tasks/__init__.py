"""What can be learnt: one file a task, one table; `task.py` defines what a task is, `choice.py` holds the table."""

import lazy_loader

from vitrail.arguments import typed_names

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = typed_names(_find, globals())
