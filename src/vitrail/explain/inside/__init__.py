"""Looking inside a network: what it does with an image on the way.

    lens = logit_lens(network, images)                    # (depth + 1, b, classes): its answer at every depth
    parts = direct_attribution(network, images, 3)        # a logit as a sum of what every head and MLP wrote
    head_sources(network, images, layer=2).sentences()    # "head 7 brought patch (5, 3): 41 % of what block 2 ..."

These are no maps of evidence, and no method of `vitrail.explain.METHODS`: they show how the network works. Every view
takes a ViT in eval mode, any number of images, any grid and any prefix, and leaves the network as it is.
"""

import lazy_loader

from vitrail.arguments import typed_names

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = typed_names(_find, globals())
