"""What a network is made of: attention, embedding, blocks, the ViT, encoder-decoders, and the record of one run.

Needs torch only.
"""

import lazy_loader

from vitrail.arguments import typed_names

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = typed_names(_find, globals())
