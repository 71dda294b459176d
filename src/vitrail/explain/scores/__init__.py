"""How good a map is: scores with exact definitions, each with its unit, its range, its direction and its fill named.

    masking = Masking(from_background(background))                # same-position patches of other images
    deletion(network, images, attribution.values, 3, masking)     # Removal: score (b,), points (b, s), fill, ...
    relevance_mass(attribution.values, masks)                     # (b,)

There is no good value as such: hold a score against that of `random_maps` and, where there is one, the truth.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
