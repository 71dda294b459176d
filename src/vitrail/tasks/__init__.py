"""What can be learnt: one file a task, one table; `task.py` defines what a task is."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
