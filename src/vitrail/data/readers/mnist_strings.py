"""Strings of handwritten digits: images made of MNIST's, one to five side by side, with the string to be read.

An image is black, 32 x 160 pixels. Its digits, each 28 x 28 as in MNIST, stand from left to right with gaps of -4 to 4
pixels between their boxes (MNIST leaves 4 pixels of margin in each, so ink seldom touches), up to 2 pixels above or
below the middle; the row begins anywhere where it fits. Lengths 1 to 5 are equally likely. All of that is a hash of
(seed, epoch, number): training images are new in each epoch, images that are tested are always the same.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from vitrail.data.columns import TEXT, Texts
from vitrail.data.dataset import TEST, TRAIN, VALIDATION, Counts, RawDataset, Samples, labels_of, pixels_of
from vitrail.data.images import ArrayImages, MadeImages, MadeTexts
from vitrail.data.plan import uniforms
from vitrail.data.readers.idx import mnist_in_three
from vitrail.errors import DataError

MNIST_STRINGS = "mnist-strings"
DIGITS = tuple("0123456789")
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


class Strings(NamedTuple):
    """Images of strings.

    Attributes:
        pixels: (n, 32, 160), 0 is the background.
        texts: What they show.
        lefts: (n, 5), where each digit's box begins, in pixels; -1 where there is no digit.
    """

    pixels: UInt8[np.ndarray, "n h w"]
    texts: tuple[str, ...]
    lefts: Int64[np.ndarray, "n five"]


@dataclass(frozen=True, eq=False)
class StringMaker:
    """Makes images of strings out of single digits.

    Args:
        pixels: (m, 28, 28), MNIST's digits of one split.
        labels: (m,), what they show, 0 to 9.
        seed: Of the images.
        split: Number of the split, so that splits with the same seed differ.
    """

    pixels: UInt8[np.ndarray, "m 28 28"]
    labels: Int64[np.ndarray, " m"]
    seed: int
    split: int = 0

    def content(self) -> bytes:
        """Its seed and digits."""
        pixels = np.ascontiguousarray(self.pixels).tobytes()
        return f"{self.seed}".encode() + pixels + self.labels.astype("<i8").tobytes()

    def make(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> Strings:
        """The images with these numbers, in an epoch."""
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
        texts = tuple(
            "".join(map(str, row[:length])) for row, length in zip(digits.tolist(), lengths.tolist(), strict=True)
        )
        return Strings(pixels, texts, np.where(there, begins, -1))


def string_makers(data_root: Path | None, seed: int) -> tuple[dict[str, StringMaker], str, tuple[str, ...]]:
    """What makes the strings of each split: no two of them have a digit in common.

    Args:
        data_root: Where MNIST lies.
        seed: Of the training strings; the others are always the same.

    Returns:
        A maker for each split: `train` and `validation` share out MNIST's training digits, `test` has its test digits.
        Then the place that MNIST was read from, and what was odd there.

    Raises:
        DataError: MNIST is missing, damaged, or of another size.
    """
    found = mnist_in_three(data_root)
    makers = {}
    for number, (name, part) in enumerate(found.splits.items()):
        makers[name] = StringMaker(pixels_of(part), labels_of(part), seed if name == TRAIN else 0, number)
    sides = makers[TRAIN].pixels.shape[1:]
    if sides != (SIDE, SIDE):
        raise DataError(f"the images in {found.root} have {sides} pixels", "MNIST's files, of 28 x 28")
    return makers, found.root, found.notes


def read_mnist_strings(
    what: str, data_root: Path | None, split_seed: int = 0, counts: Counts | None = None
) -> RawDataset:
    """Strings of MNIST's digits: new ones in every epoch for training, the same ones always for the rest.

    Args:
        what: `mnist-strings`.
        data_root: Where MNIST lies.
        split_seed: Of the training strings.
        counts: How many are made; the usual numbers when None.

    Raises:
        DataError: MNIST is missing, damaged, or of another size.
    """
    counts = counts or Counts()
    makers, root, notes = string_makers(data_root, split_seed)
    made = MadeImages(makers[TRAIN], MNIST_STRINGS, counts.train)
    splits = {TRAIN: Samples(made, {TEXT: MadeTexts(makers[TRAIN], counts.train)})}
    for name, number in ((VALIDATION, counts.validation), (TEST, counts.test)):
        found = makers[name].make(np.arange(number, dtype=np.int64))
        images = ArrayImages(found.pixels, f"{MNIST_STRINGS}/{name}")
        splits[name] = Samples(images, {TEXT: Texts(found.texts)})
    return RawDataset(root, splits, notes, DIGITS, split_seed, facts={"layout": LAYOUT})
