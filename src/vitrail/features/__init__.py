"""What a network says of images before its head, for many of them.

passes       the one pass over images: some are decoded while others are computed
head         what the head reads, for a probe
poolings     class token, mean of patches, patches: what is kept of an image, under which name
neighbours   the nearest images by cosine, and what they vote for
listing      the images of data, with their names and classes, labelled or not
file         a file of features, which knows whose they are
parts        what lies on disk until such a file is whole
embed        all images of data: `vitrail.embed`
agreement    where two images agree, patch to patch
similar      the nearest images of some: `vitrail.similar`
"""

__all__ = ()
