"""Where files lie that readers sort: in folders on disk, or inside other files.

    Tree             the files below a folder; an archive gives the same of its members (`readers.archive`)
    EncodedImages    images at places in other files: members of archives, or what was unpacked of a table
    ItemImages       images that a Python object gives
    remembered       what was found out about a file once, in the user's cache

An image inside another file has the name, the bytes and the hash that it would have as a file of its own, so that a
folder and an archive of it are the same data. Nothing is unpacked beside the data.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, final

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Int64
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.data.columns import ALL, split_of
from vitrail.data.images import (
    LOOKED_INTO,
    FileImages,
    Images,
    SizedImages,
    evenly,
    hash_of,
    is_broken_link,
    open_image,
    opened_apart,
)
from vitrail.data.shard_files import Words, bytes_at
from vitrail.data.tensor_files import read_tensors, tensors_to_bytes
from vitrail.errors import DataError, RunError, located, look_at, remove, some_of
from vitrail.io import user_cache, write_file

MOST_INFLATED = 2**30  # bytes of a deflated image: a few may stand for any number
PLACE = ("file", "offset", "taken", "size", "deflated")  # of an image: see `EncodedImages`


class Tree:
    """The files below a folder on disk.

    Args:
        root: The folder; names of images are relative to it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self, folder: str | Path) -> Mapping[str, bool]:
        """What lies in a folder, by name, and whether it is a folder; a link that leads nowhere is a file.

        Raises:
            OSError: It is not there, or cannot be read.
        """
        with os.scandir(folder) as entries:
            return {each.name: not _is_broken(each) and each.is_dir() for each in entries}

    def is_folder(self, path: Path) -> bool | None:
        """Whether there is a folder, or a file; None where there is neither."""
        return path.is_dir() if path.exists() else None

    def glob(self, mark: str) -> list[Path]:
        """What lies below the root under such a name."""
        return sorted(self.root.glob(mark))

    def identity(self, folder: Path) -> Hashable:
        """The same for all names of one folder."""
        status = folder.stat()
        return status.st_dev, status.st_ino

    def content(self, file: Path) -> bytes:
        """The bytes of a file.

        Raises:
            OSError: It cannot be read.
        """
        return file.read_bytes()

    def images(self, files: Sequence[Path | str]) -> Images:
        """Some of its files as images."""
        return FileImages(files, self.root)


def _is_broken(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and is_broken_link(Path(entry.path))


@final
class EncodedImages(SizedImages):
    """Images at places in other files, which are opened anew for each: nothing is shared by threads and processes.

    Args:
        files: That hold them.
        places: (n, 5) of each image: the number of its file, the first byte there, how many it takes, how many it has,
            and 1 where it is deflated.
        names: Of the images.
    """

    def __init__(self, files: Sequence[Path], places: Int64[np.ndarray, "n 5"], names: Words) -> None:
        self.files, self.places, self._names = tuple(files), places, names

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.places)

    def name(self, index: int) -> str:
        """The name within the data, with forward slashes."""
        return self._names[index]

    def sizes(self) -> list[int]:
        """Of each image."""
        return self.places[:, PLACE.index("size")].tolist()

    def content(self, index: int) -> bytes:
        """Its bytes; of all images of a file that has gone a RunError says so."""
        file, offset, taken, size, deflated = self.places[index].tolist()
        path = self.files[file]
        try:
            content = bytes_at(path, offset, taken)
        except OSError as error:
            hint = look_at(path, "-l")
            raise RunError(f"{path} cannot be read ({error.strerror})", hint) from error
        if not deflated:
            return content
        try:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, min(size, MOST_INFLATED) + 1)
        except zlib.error:
            content = b""
        if len(content) != size:
            raise DataError(f"{self.name(index)}: damaged in {path.name}", "make or download that archive again")
        return content

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "EncodedImages":
        """The chosen images."""
        ids = np.fromiter(indices, np.int64)
        return EncodedImages(self.files, self.places[ids], self._names.select(ids))


@final
class ItemImages(Images):
    """Images that an object gives one by one.

    Args:
        get: From a number to a path, the bytes of a file, a PIL image or pixels.
        label: The name of the set; the image with number 17 is called `label/17`.
        numbers: Of the images in it.
    """

    def __init__(self, get: Callable[[int], Any], label: str, numbers: Sequence[int]) -> None:
        self.get, self.label, self.numbers = get, label, numbers

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.numbers)

    def name(self, index: int) -> str:
        """The set's label and the image's number in it."""
        return f"{self.label}/{self.numbers[index]}"

    def read(self, index: int, least: int | None = None) -> tuple[Image.Image, bytes]:
        """The image, and the hash of the file that it came from, else of its pixels."""
        item = self.get(self.numbers[index])
        if isinstance(item, str | Path):
            return FileImages([Path(item)]).read(0, least)
        with located(self.name(index)):
            if isinstance(item, bytes):
                return opened_apart("an image", item, least), hash_of(item)
            image = open_image(_as_bytes(item))
            return image, hash_of(image.tobytes(), (image.mode, *image.size))

    def open(self, index: int) -> Image.Image:
        """The image."""
        return self.read(index)[0]

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "ItemImages":
        """The chosen images."""
        return ItemImages(self.get, self.label, [self.numbers[int(index)] for index in indices])

    def digest(self) -> bytes:
        """A hash of the names, and of the content of some images."""
        state = hashlib.blake2b("\0".join(self.names()).encode(), digest_size=16)
        for index in evenly(range(len(self)), LOOKED_INTO):
            state.update(self.content_hash(index))
        return state.digest()


def _as_bytes(item: Any) -> Any:
    """Pixels of floats from 0 to 1 as 0 to 255; anything else as it is."""
    if isinstance(item, Tensor | np.ndarray) and "float" in str(item.dtype) and ((item >= 0) & (item <= 1)).all():
        return (item * 255).round().byte() if isinstance(item, Tensor) else np.rint(item * 255).astype(np.uint8)
    return item


def remembered(
    source: Path, kind: str, make: Callable[[Path, Path], Mapping[str, NDArray[Any]]]
) -> tuple[dict[str, NDArray[Any]], Path]:
    """What was found out about a file, from the user's cache; made where the file has changed or is new.

    Args:
        source: The file.
        kind: What is found out.
        make: From the file, and another for bytes that it may write, to arrays.

    Returns:
        The arrays, and the other file. One process makes both, and the others wait.

    Raises:
        OSError: It cannot be written; names it.
    """
    status, folder = source.stat(), user_cache() / "opened"
    place, state = (
        hashlib.blake2b(repr(each).encode(), digest_size=12).hexdigest()
        for each in ((str(source), kind), (status.st_size, status.st_mtime_ns, status.st_ino))
    )
    kept, beside = (folder / f"{place}-{state}.{ending}" for ending in ("safetensors", "bytes"))
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{place}.lock"):
        if not (kept.is_file() and beside.is_file()):
            for former in folder.glob(f"{place}-*"):
                former.unlink()
            beside.touch()
            tensors = {name: torch.from_numpy(np.array(array)) for name, array in make(source, beside).items()}
            write_file(kept, tensors_to_bytes(tensors))
    found = read_tensors(kept, remove(kept))
    return {name: tensor.numpy() for name, tensor in found.items()}, beside


def splits_of_files(files: Sequence[PurePath]) -> tuple[list[str], str]:
    """The split of each file by its name as hubs have it, `train-00000-of-00002`, else by those of its folders.

    Returns:
        The splits: `all` where none is named, and empty for a file that names none beside others; and a sentence on
        those.
    """
    found = list[str]()
    for file in files:
        parts = (re.sub(r"-of-\d+$", "", file.stem), *reversed(file.parent.parts))
        found.append(next((split for part in parts if (split := split_of(part, among=True))), ""))
    if not any(found):
        return [ALL] * len(files), ""
    aside = [file.as_posix() for file, split in zip(files, found, strict=True) if not split]
    return found, f"Ignored, since their names are no splits: {some_of(aside)}." if aside else ""
