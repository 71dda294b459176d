"""What data hold before a network learns them: what each image is, and which images belong together.

survey       one pass over all images, kept by file identity: sizes, light, what cannot be read, thumbnails
copies       images that are there twice: the same file, or the same picture saved again, resized, mirrored
crops        images that are a part of another one
groups       recordings, patients, scenes: as the data say, or as names, folders and cameras show
neighbours   recordings that a network shows
findings     what is wrong, and what to do: each with its images
check        all of it as one report, and a list that mends the split
"""

__all__ = ()
