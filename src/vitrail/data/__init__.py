"""From files to batches of tensors. Nothing here knows of networks.

The way of an image, file by file:

    sources         what can be opened, as one list; from what a person names to samples, for every verb
    readers         one file a format: returns a `RawDataset` of splits, each with images (or texts) and columns
    sets            the same for sets that are made: planted, mnist-m, sort-digits, mnist-strings
    images          the images of a split, and how a file is decoded
    stores          the same where they lie inside other files
    columns         the columns of samples, and what data need to know of a codec
    dataset         divides raw data into splits and matches them to the codec of a model
    preprocessing   from a decoded image to pixels of the size, and to what the network takes
    loader          pixels by id, from memory or from worker processes
    plan            in which order, and every random number
    augmentation    random changes of a whole batch
    batches         all of that together

Beside it: `masks` (where evidence lies), `background` (the patches that explanations are tested with), `packing` and
`shard_files` (packed sets) and `tensor_files` (safetensors).

Names are imported when they are first used (`__init__.pyi` lists where they stand), so that the list of what can be
opened costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
