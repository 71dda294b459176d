"""Strings of handwritten digits: images made of MNIST's, one to five side by side, with the string to be read.

An image is black, 32 x 160 pixels. Its digits, each 28 x 28 as in MNIST, stand from left to right with gaps of -4 to 4
pixels between their boxes (MNIST leaves 4 pixels of margin in each, so ink seldom touches), up to 2 pixels above or
below the middle; the row begins anywhere where it fits. Lengths 1 to 5 are equally likely. All of that is a hash of
(seed, epoch, number): training images are new in each epoch, images that are tested are always the same.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.columns import TEXT, Column, Texts
from vitrail.data.dataset import DIGITS, TRAIN, Counts, RawDataset, Samples, labels_of, pixels_of
from vitrail.data.images import ArrayImages, Images
from vitrail.data.plan import uniforms
from vitrail.data.readers.idx import mnist_in_three
from vitrail.errors import DataError

MNIST_STRINGS = "mnist-strings"
HEIGHT, WIDTH = 32, 160
LONGEST = 5
GAP = 4  # pixels between two boxes, from minus this to this
RAISED = 2  # pixels up or down from the middle
SIDE = 28  # pixels of a digit's box, as in MNIST
STREAM = 120

LAYOUT: dict[str, int | list[int] | str] = {
    "canvas": [HEIGHT, WIDTH],
    "digit": [SIDE, SIDE],
    "digits": [1, LONGEST],
    "gap": [-GAP, GAP],
    "raised": [-RAISED, RAISED],
    "drawn": "uniformly",
}
"""How every image is laid out, in pixels, each pair from least to most: a part of the recipe that runs state."""


@dataclass(frozen=True, eq=False)
class StringImages(Images):
    """Images of strings, made of single digits; new ones in every epoch.

    Args:
        pixels: (m, 28, 28), MNIST's digits of one split.
        labels: (m,), what they show, 0 to 9.
        seed: Of the images.
        split: Number of the split, so that splits with the same seed differ.
        count: How many there are in an epoch.
    """

    pixels: UInt8[np.ndarray, "m 28 28"]
    labels: Int64[np.ndarray, " m"]
    seed: int
    split: int = 0
    count: int = 0

    renewed = True

    def __len__(self) -> int:
        """How many there are in an epoch."""
        return self.count

    def name(self, index: int) -> str:
        """The set's name and the image's number."""
        return f"{MNIST_STRINGS}/{index}"

    def open(self, index: int) -> Image.Image:
        """The image as it is in epoch 0."""
        return self.in_epoch(np.array([index], np.int64), 0).open(0)

    def in_epoch(self, ids: Int64[np.ndarray, " n"], epoch: int) -> Images:
        """The images of an epoch."""
        return self.make(ids, epoch).images

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "StringImages":
        """The first of them; others cannot be chosen, since they are new in every epoch."""
        chosen = [int(index) for index in indices]
        assert chosen == list(range(len(chosen)))
        return replace(self, count=len(chosen))

    def digest(self) -> bytes:
        """A hash of their number, seed and digits."""
        pixels = np.ascontiguousarray(self.pixels).tobytes()
        made_of = f"{self.count} {self.seed}".encode() + pixels + self.labels.astype("<i8").tobytes()
        return hashlib.blake2b(made_of, digest_size=16).digest()

    def make(self, ids: Int64[np.ndarray, " n"], epoch: int = 0, label: str = MNIST_STRINGS) -> Samples:
        """The images with these numbers in an epoch, (n, 32, 160), on a background of 0; and the texts on them."""
        draws = uniforms(ids, 2 + 3 * LONGEST, seed=self.seed, epoch=epoch, stream=STREAM + self.split)
        lengths = 1 + (draws[:, 0] * LONGEST).astype(np.int64)
        which = (draws[:, 2 : 2 + LONGEST] * len(self.labels)).astype(np.int64)
        gaps = (draws[:, 2 + LONGEST : 2 + 2 * LONGEST] * (2 * GAP + 1)).astype(np.int64) - GAP
        raised = (draws[:, 2 + 2 * LONGEST :] * (2 * RAISED + 1)).astype(np.int64) - RAISED
        side = self.pixels.shape[1]
        there = np.arange(LONGEST) < lengths[:, None]
        begins = np.concatenate([np.zeros((len(ids), 1), np.int64), np.cumsum(side + gaps[:, 1:], axis=1)], axis=1)
        room = WIDTH - (np.take_along_axis(begins, lengths[:, None] - 1, axis=1)[:, 0] + side)
        begins += (draws[:, 1] * (room + 1)).astype(np.int64)[:, None]
        tops = (HEIGHT - side) // 2 + raised
        pixels = np.zeros((len(ids), HEIGHT, WIDTH), np.uint8)
        rows = np.arange(side)
        for place in range(LONGEST):
            some = np.flatnonzero(there[:, place])
            down = (tops[some, place, None] + rows)[:, :, None]
            across = (begins[some, place, None] + rows)[:, None, :]
            where = (some[:, None, None], down, across)
            pixels[where] = np.maximum(pixels[where], self.pixels[which[some, place]])
        digits = self.labels[which]
        texts = ["".join(map(str, row[:length])) for row, length in zip(digits.tolist(), lengths.tolist(), strict=True)]
        return Samples(ArrayImages(pixels, label), {TEXT: Texts(tuple(texts))})


@dataclass(frozen=True, eq=False)
class StringTexts(Column):
    """What is to be read on images of strings; new in every epoch, as they are."""

    images: StringImages

    def __len__(self) -> int:
        """How many there are in an epoch."""
        return len(self.images)

    def take(self, ids: Int64[np.ndarray, " m"], epoch: int = 0) -> list[str]:
        """The texts of an epoch."""
        return list(self.images.make(ids, epoch).columns[TEXT].values)

    def select(self, ids: Int64[np.ndarray, " m"]) -> "StringTexts":
        """The first of them."""
        return StringTexts(self.images.select(ids))

    def digest(self) -> bytes:
        """Empty: the images' hash covers all."""
        return b""


def string_images(digits: RawDataset, seed: int, counts: Counts) -> dict[str, StringImages]:
    """The images of each split; no two splits have a digit in common.

    Args:
        digits: MNIST in three splits.
        seed: Of the training images; the others are always the same.
        counts: How many there are.

    Raises:
        DataError: The digits are of another size.
    """
    made = {}
    for number, (name, samples) in enumerate(digits.splits.items()):
        pixels = pixels_of(samples)
        if pixels.shape[1:] != (SIDE, SIDE):
            raise DataError(f"the images in {digits.root} have {pixels.shape[1:]} pixels", "MNIST's files, of 28 x 28")
        own = seed if name == TRAIN else 0
        made[name] = StringImages(pixels, labels_of(samples), own, number, getattr(counts, name))
    return made


def read_mnist_strings(
    what: str, data_root: Path | None, split_seed: int = 0, counts: Counts | None = None
) -> RawDataset:
    """Strings of MNIST's digits: new ones in every epoch for training, the same ones always for the rest.

    Args:
        what: `mnist-strings`.
        data_root: The folder of MNIST.
        split_seed: Of the training strings.
        counts: How many are made; the usual numbers when None.

    Raises:
        DataError: MNIST is missing, damaged, or of another size.
    """
    digits, splits = mnist_in_three(data_root), dict[str, Samples]()
    for name, images in string_images(digits, split_seed, counts or Counts()).items():
        if name == TRAIN:
            splits[name] = Samples(images, {TEXT: StringTexts(images)})
        else:
            everyone = np.arange(len(images), dtype=np.int64)
            splits[name] = images.make(everyone, label=f"{MNIST_STRINGS}/{name}")
    return RawDataset(digits.root, splits, digits.notes, DIGITS, split_seed, facts={"layout": LAYOUT})
