"""Other people's weights, in and out, one file per question.

`timm_keys`: what timm reads to open what vitrail saves. `vit_pytorch`: a ViT of vit-pytorch becomes ours.
`classifiers`: those of torchvision and timm, as teachers, and files of their weights. `format1`: model and run folders
of before.
"""

from vitrail.weights.timm_keys import timm_keys

__all__ = ["timm_keys"]
