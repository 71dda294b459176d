"""What a network says of images before its head, for many of them.

head         what the head reads, for a probe
poolings     class token, mean of patches, patches: what is kept of an image, under which name
neighbours   the nearest images by cosine, and how often they know the class of a held-out one
listing      the images of data, with their names and classes, labelled or not
file         a file of features, which knows whose they are, and its parts until it is whole
embed        all images of data: `vitrail.embed`
similar      the nearest images of some, and where they agree, patch to patch: `vitrail.similar`
"""

__all__ = ()
