"""What a network knows of images before its head, for many of them.

poolings     class token, mean of patches, patches: the vectors of an image and their names; what the head reads
listing      the images of data, with their names and classes, labelled or not
file         a file of features, which knows whose they are, and its parts until it is whole
embed        all images of data: `vitrail.embed`
linear_probe what a linear map of them knows: logistic regression, which becomes a head
similar      the nearest images of some, where they agree, and the class that they vote for: `vitrail.similar`
"""

__all__ = ()
