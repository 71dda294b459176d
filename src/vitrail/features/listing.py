"""The images of data, split by split, with their names and, where they are known, their classes.

Whatever a reader opens; also a folder of images that nothing sorts, and a single image, which have no classes.
"""

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.data.columns import LABEL, Labels, Texts
from vitrail.data.dataset import ALL, Samples, split_of
from vitrail.data.formats import check_root, is_named, is_packed, read
from vitrail.data.images import EXTENSIONS, FileImages, Images, evenly
from vitrail.data.readers.folder import image_files
from vitrail.errors import DataError, Hint, UsageError, nearest


@dataclass(frozen=True, eq=False)
class Listed:
    """Images that are to be looked at, in order.

    Attributes:
        data: Where they are, so that they are found again from any folder: a path from the root, or a set's name.
        data_root: The folder of the files of a named set; None when none was stated.
        splits: By name, in order.
        notes: What was left aside, one sentence each.
    """

    data: str
    data_root: str | None
    splits: Mapping[str, Samples]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many images there are in all splits."""
        return sum(len(samples) for samples in self.splits.values())

    def images(self, split: str) -> Images:
        """The images of a split."""
        return self.splits[split].images

    def labels(self, split: str) -> tuple[str, ...] | None:
        """The class of each image of a split; None where the data name none."""
        samples = self.splits[split]
        column = samples.column(LABEL) if LABEL in samples.columns else None
        return tuple(column.names[value] for value in column.values) if isinstance(column, Labels) else None

    def only(self, names: Iterable[str]) -> "Listed":
        """These splits, as far as they are there, in the order that they have here."""
        wanted = set(names)
        return replace(self, splits={name: self.splits[name] for name in self.splits if name in wanted})

    def spread(self, most: int) -> "Listed":
        """At most so many images, evenly spread over all splits."""
        chosen, first, splits = evenly(range(len(self)), most), 0, dict[str, Samples]()
        for name, samples in self.splits.items():
            own = [row - first for row in chosen if first <= row < first + len(samples)]
            first += len(samples)
            if own:
                splits[name] = samples.select(np.array(own, dtype=np.int64))
        return replace(self, splits=splits)

    def digest(self) -> str:
        """Changes when an image is added, removed, renamed, moved to another split or class, or changed in size."""
        state = hashlib.blake2b(digest_size=12)
        for split in self.splits:
            state.update(split.encode() + self.images(split).digest())
            state.update(os.fsencode("\0".join(self.labels(split) or ())))
        return state.hexdigest()


def list_images(data: str | Path, data_root: str | Path | None = None, split: str | None = None) -> Listed:
    """The images of data.

    Args:
        data: A named set, a folder, a list of images, or an image.
        data_root: The folder of named sets.
        split: Only this one; all when None.

    Raises:
        UsageError: There is no such split.
        DataError: The data cannot be read, holds no image, or holds texts.
    """
    what, root = str(data), None if data_root is None else Path(data_root)
    path = Path(what).expanduser()
    if not (is_named(what) or is_packed(what)) and (_is_image(path) or _unsorted(path)):
        folder = path if path.is_dir() else path.parent
        files = image_files(path) if path.is_dir() else [path]
        if not files:
            raise DataError(
                f"{what} contains no image", f"ls -A {shlex.quote(what)}  # {', '.join(EXTENSIONS)} files are wanted"
            )
        found = Listed(str(path.resolve()), None, {ALL: Samples(FileImages(files, folder), {})})
    else:
        check_root(what, root)
        raw = read(what, root)
        where = what if is_named(what) else raw.root
        found = Listed(where, None if root is None else str(root.resolve()), raw.splits, raw.notes)
    if split is not None:
        split = split_of(split) or split
        if split not in found.splits:
            there = list(found.splits)
            guess = nearest(split, there) or there[0]
            raise UsageError(f"{what} has no split {split}; its splits are {', '.join(there)}", Hint({"split": guess}))
        found = found.only([split])
    for name in found.splits:
        if isinstance(found.splits[name].inputs, Texts):
            raise DataError(f"{what} contains texts, but features are computed from images", "data with images")
    if not len(found):
        raise DataError(f"{what} contains no image", f"ls -A {shlex.quote(what)}")
    return found


def _is_image(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in EXTENSIONS


def _unsorted(path: Path) -> bool:
    """Whether this is a folder without folders, so that the images have no classes."""
    if not path.is_dir():
        return False
    with os.scandir(path) as entries:
        return not any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)
