"""Other people's weights, in and out.

A name becomes files (`kinds`, `names`), files become tensors (`files`, `unpickle`), and tensors become a network: a
file for each library says how it calls them (`timm`, `transformers`, `torchvision`, `google`, `vit_pytorch`, in the
table of `families`), `probe` what they show of the network, and `convert` proves that it answers as the original.
`published` and `known` hold what is known of weights by name and by value. `adapt` is for other sizes and channels.
The way out is `timm_keys`; `format1` reads what vitrail wrote before, and `classifiers` are teachers as they are.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
