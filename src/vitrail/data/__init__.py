"""From files to tensors: sources of labelled pictures, decoding, preprocessing, order and augmentation.

Nothing here knows of networks. `vitrail.data.source` is where to start reading.
"""

from vitrail.data.pictures import ArrayPictures, FilePictures, Pictures
from vitrail.data.source import Evaluation, Source, Split, open_evaluation, open_source

__all__ = [
    "ArrayPictures",
    "Evaluation",
    "FilePictures",
    "Pictures",
    "Source",
    "Split",
    "open_evaluation",
    "open_source",
]
