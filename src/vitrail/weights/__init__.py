"""Other people's weights: so far, the keys by which timm opens what vitrail saves."""

from vitrail.weights.timm_keys import timm_keys

__all__ = ["timm_keys"]
