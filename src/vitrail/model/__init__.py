"""One model whatever the task: what it is (`model`), out of a folder (`loading`), into one (`saving`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
