"""What the verdict is made of: patches are masked (`perturb`), a map is held against random ones (`faithfulness`)."""

import lazy_loader

from vitrail.arguments import typed_names

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = typed_names(_find, globals())
