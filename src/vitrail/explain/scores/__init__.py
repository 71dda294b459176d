"""What the verdict is made of: patches are masked (`perturb`), a map is held against random ones (`faithfulness`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
