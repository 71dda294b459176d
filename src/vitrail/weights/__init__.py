"""Other people's weights, in and out, one file per question.

`timm_keys`: what timm reads to open what vitrail saves. `patch_map`: the patch map as a convolution and as a linear
map. `vit_pytorch`: a ViT of vit-pytorch becomes ours.
"""

from vitrail.weights.timm_keys import timm_keys

__all__ = ["timm_keys"]
