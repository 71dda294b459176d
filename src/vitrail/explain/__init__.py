"""Why a network answers as it does, and how far to trust that: one method per file, all in one table.

    attribution = generic_attention(network, images, target=3)     # values (b, rows, columns), one number per patch
    trust(model, images, attribution).verdict                      # "supported", "weak", "cannot tell", ... for each
    compare(model, images, ["generic_attention", "conservative"])
    sanity_check(model)                                     # does explaining work on this model?

Read first `attribution.py` (what comes out), `target.py` (what can be explained) and `forward.py` (what methods share),
then any method in `methods`. `evidence.py` and `scores/faithfulness.py` are the two tests of a map, `verdict.py` is the
rule, `inside` looks into a network.

Every method takes a ViT in eval mode, any number of images, any grid and any prefix, and leaves the network as it is;
those that ask for outputs or gradients alone take any network (`Gridded`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
