"""Other people's weights, in and out, one file per question.

`timm_keys`: what timm reads to open what vitrail saves. `vit_pytorch`: a ViT of vit-pytorch becomes ours.
`classifiers`: those of torchvision and timm, as teachers, and files of their weights. `format1`: model and run folders
of before.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
