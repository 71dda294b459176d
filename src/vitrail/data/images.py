"""Where the images of a split are: in memory, or in files.

Everything that reads images (training, evaluation, explanation, pages) asks these few questions and nothing else: how
many are there, what is the name of one, what does it look like. Labels live beside the images, not in them.
"""

import abc
import hashlib
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import numpy as np
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.decode import open_image
from vitrail.errors import DataError


@dataclass(frozen=True, eq=False)
class NamedImage:
    """An image to look at.

    Args:
        name: Its file, or its name in a set.
        image: Decoded.
        label: Its true class or text, where known.
        mask: Not black where the evidence lies, of the image's size; None where that is not known.
    """

    name: str
    image: Image.Image
    label: str | None = None
    mask: Image.Image | None = None


def box_mask(boxes: Int64[np.ndarray, "p 4"], size: tuple[int, int]) -> Image.Image | None:
    """White inside of the boxes, black elsewhere; None where there is no box.

    Args:
        boxes: Top, left, bottom, right, in pixels.
        size: (height, width) of the image.
    """
    pixels = np.zeros(size, np.uint8)
    for top, left, bottom, right in boxes.tolist():
        pixels[top:bottom, left:right] = 255
    return Image.fromarray(pixels) if len(boxes) else None


def with_masks(images: Sequence[NamedImage], folder: Path) -> list[NamedImage]:
    """The images with their masks: DIR/NAME.png for an image NAME.jpg, or DIR/FOLDER/NAME.png for FOLDER/NAME.jpg.

    Raises:
        DataError: A mask is missing, cannot be read, is black all over, serves for two images, or has another size
            than its image.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} with masks", "--masks with a folder of PNG files")
    found, of = list[NamedImage](), dict[Path, str]()
    for one in images:
        path = Path(one.name)
        places = (folder / path.parent.name / f"{path.stem}.png", folder / f"{path.stem}.png")
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            problem = f"there is no mask for {one.name}: {places[1]} is missing"
            raise DataError(problem, "one PNG for each image, of the same name")
        if of.setdefault(file, one.name) != one.name:
            problem = f"{of[file]} and {one.name} would have the same mask, {file}"
            raise DataError(problem, f"masks in folders: {places[0]}")
        mask = _flattened(open_image(file))
        if mask.size != one.image.size:
            sizes = [f"{width} x {height}" for width, height in (mask.size, one.image.size)]
            raise DataError(f"{file} has {sizes[0]} pixels, and its image {sizes[1]}", "a mask of the image's own size")
        if mask.getbbox() is None:
            raise DataError(f"{file} is black all over, so it names no evidence", "a mask that is not black somewhere")
        found.append(replace(one, mask=mask))
    return found


def _flattened(mask: Image.Image) -> Image.Image:
    """White where the mask is not black, whatever its mode; opacity does not count, and a palette's colours do."""
    plain = mask if mask.mode in ("1", "L", "I") or mask.mode.startswith("I;") else mask.convert("RGB")
    values = np.asarray(plain)
    there = values.any(axis=2) if values.ndim > 2 else values != 0
    return Image.fromarray(np.where(there, 255, 0).astype(np.uint8))


LOOKED_INTO = 64  # files of a set that its hash looks into


class Images(abc.ABC):
    """A row of images that can be counted, named and opened by number.

    Attributes:
        encoded: Whether each is decoded from the bytes of a file whenever it is opened, which `content` gives.
        renewed: Whether they are made, and new in every epoch: then only the first of them can be selected.
    """

    encoded: ClassVar[bool] = False
    renewed: ClassVar[bool] = False

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many images there are."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """The name of one image, for messages and pages: a file name, or `digits/17`.

        A name does not depend on where the data lies on this machine, and stays the same when images are selected.
        """

    def names(self) -> list[str]:
        """The names of all."""
        return [self.name(index) for index in range(len(self))]

    @abc.abstractmethod
    def open(self, index: int) -> Image.Image:
        """One decoded image.

        Raises:
            DataError: The image cannot be read; the message names it.
        """

    def open_reduced(self, index: int, least: int) -> Image.Image:
        """The same, smaller where that is quicker to decode: of each side at least so many pixels are left."""
        return self.open(index)

    def content(self, index: int) -> bytes:
        """The bytes that an image is decoded from, where it is encoded.

        Raises:
            DataError: They cannot be read; the message names the image.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "Images":
        """The images with these numbers, in this order, under their old names."""

    def in_epoch(self, ids: NDArray[np.int64], epoch: int) -> "Images":
        """Those with these numbers as they are in an epoch, which only matters where they are renewed."""
        return self.select(ids)

    @abc.abstractmethod
    def digest(self) -> bytes:
        """A short hash that changes when an image is added, removed, renamed or (in size or pixels) changed."""


def look_at(images: Images) -> str:
    """What is typed to see what images are that cannot be read: where the first of them lies."""
    return f"ls -l {shlex.quote(str(images.paths[0]))}" if isinstance(images, FileImages) else "vitrail doctor"


@final
class ArrayImages(Images):
    """Images held in memory.

    Args:
        pixels: Grey (n, h, w) or coloured (n, h, w, c) with c 1 or 3, values 0..255.
        label: What the set is called; the image with number 17 is called `label/17`.
        numbers: The number of each image in the set it was selected from; 0..n-1 when not given.
    """

    def __init__(
        self, pixels: UInt8[np.ndarray, "n h w *c"], label: str = "image", numbers: Sequence[int] | None = None
    ) -> None:
        grey = pixels.ndim == 3
        coloured = pixels.ndim == 4 and pixels.shape[3] in (1, 3)
        if pixels.dtype != np.uint8 or not (grey or coloured):
            problem = f"images in memory have the shape {pixels.shape} and the type {pixels.dtype}"
            raise DataError(problem, "give uint8 values of the shape (n, h, w), (n, h, w, 1) or (n, h, w, 3)")
        self.pixels = pixels
        self.label = label
        self.numbers = tuple(range(len(pixels))) if numbers is None else tuple(numbers)
        assert len(self.numbers) == len(pixels)

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.pixels)

    def name(self, index: int) -> str:
        """The set's label and the image's number in it, such as `digits/17`."""
        return f"{self.label}/{self.numbers[index]}"

    def open(self, index: int) -> Image.Image:
        """The image with mode L or RGB."""
        pixels = self.pixels[index]
        return Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "ArrayImages":
        """A copy of the chosen images."""
        chosen = [int(index) for index in indices]
        return ArrayImages(self.pixels[chosen], self.label, [self.numbers[index] for index in chosen])

    def digest(self) -> bytes:
        """A hash of the names and of every pixel."""
        state = hashlib.blake2b(f"{self.label} {self.pixels.shape}".encode(), digest_size=16)
        state.update(np.asarray(self.numbers, dtype=np.int64).tobytes())
        state.update(np.ascontiguousarray(self.pixels).data)
        return state.digest()


@final
class FileImages(Images):
    """Images in files, decoded each time they are opened.

    Args:
        paths: One file per image.
        root: The folder that names are relative to; without it a name is the whole path.
    """

    encoded = True

    def __init__(self, paths: Sequence[Path], root: Path | None = None) -> None:
        self.paths = list(paths)
        self.root = root

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.paths)

    def name(self, index: int) -> str:
        """The file's path below the root, with forward slashes."""
        path = self.paths[index]
        if self.root is not None and path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return path.as_posix()

    def open(self, index: int) -> Image.Image:
        """The decoded file; see `vitrail.data.decode.open_image`."""
        return open_image(self.paths[index])

    def open_reduced(self, index: int, least: int) -> Image.Image:
        """A JPEG at a half, a quarter or an eighth of its size."""
        return open_image(self.paths[index], least=least)

    def content(self, index: int) -> bytes:
        """The file."""
        with self._reading(index):
            return self.paths[index].read_bytes()

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "FileImages":
        """The chosen files."""
        return FileImages([self.paths[int(index)] for index in indices], self.root)

    def digest(self) -> bytes:
        """A hash of the names and sizes of all files, and of what is in some of them; see `files_digest`."""
        sizes, checks = list[tuple[str, int]](), list[int]()
        for index, path in enumerate(self.paths):
            with self._reading(index):
                sizes.append((self.name(index), path.stat().st_size))
        for index in looked_into(len(self)):
            try:
                checks.append(zlib.crc32(self.content(index)))
            except DataError:  # of a file that cannot be read, which is reported where it is needed
                checks.append(0)
        return files_digest(sizes, checks)

    @contextmanager
    def _reading(self, index: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"{self.paths[index]}: cannot be read ({error.strerror})"
            raise DataError(problem, "restore the file or remove it") from error


def looked_into(count: int) -> list[int]:
    """The numbers of the files of a set whose content counts in its hash: at most 64, evenly spread."""
    return sorted({place * count // LOOKED_INTO for place in range(LOOKED_INTO)}) if count else []


def files_digest(files: Iterable[tuple[str, int]], checks: Iterable[int]) -> bytes:
    """A short hash of files, wherever these lie. To read all would take as long as an epoch, so it looks into some.

    Other images under the same names are noticed also where they have as many bytes, such as uncompressed ones; a
    single one that is exchanged is not, if its size is the same.

    Args:
        files: Name and size in bytes of each.
        checks: The CRC-32 of those that `looked_into` names.
    """
    state = hashlib.blake2b(digest_size=16)
    for name, size in files:
        state.update(os.fsencode(f"{name}\0{size}\0"))
    for check in checks:
        state.update(check.to_bytes(4, "little"))
    return state.digest()
