"""Strings of digits, for networks that generate text: some to be sorted, and some to be read on images.

    sort-digits      30713 -> 01337
    mnist-strings    an image of MNIST's digits, one to five side by side -> the string on it

All of them are made from (seed, split, number) by the hash of `plan.py`, so nothing is stored.

Which split a string to be sorted belongs to is decided by a hash of the string itself, so one that is tested was never
trained on, whatever the seeds.

An image is black, 32 x 160 pixels. Its digits, each 28 x 28 as in MNIST, stand from left to right with gaps of -4 to 4
pixels between their boxes (MNIST leaves 4 pixels of margin in each, so ink seldom touches), up to 2 pixels above or
below the middle; the row begins anywhere where it fits. Lengths 1 to 5 are equally likely. Training images are new in
each epoch, images that are tested are always the same, and no two splits have a digit in common.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.columns import SPLITS, TEXT, TRAIN, Column, RawDataset, Samples, Texts
from vitrail.data.dataset import DIGITS, Counts, labels_of, pixels_of
from vitrail.data.images import ArrayImages, Images
from vitrail.data.plan import uniforms
from vitrail.data.readers.idx import mnist_in_three
from vitrail.errors import DataError, check_option

SORT_DIGITS, MNIST_STRINGS = "sort-digits", "mnist-strings"
# streams of random numbers; those below 100 belong to images
_STRINGS, _BELONGING, _IMAGES = 110, 111, 120


def _texts(digits: Int64[np.ndarray, "n most"], lengths: Int64[np.ndarray, " n"]) -> tuple[str, ...]:
    """Each row's first digits, as many as its length, as a string."""
    rows = zip(digits.tolist(), lengths.tolist(), strict=True)
    return tuple("".join(map(str, row[:length])) for row, length in rows)


# ---- strings to be sorted

LONGEST = 10  # digits of a string; each length is drawn equally often
SHORT = 2  # strings of so few digits are all trained on: there are only 110, too few to hold some out
HELD_OUT = 0.1  # of all strings for validation, and as many for test
TURNS = 200  # draws of a whole set, after which there are too few strings of a split


def digits_of_split(strings: Sequence[str]) -> list[str]:
    """The split that each string of digits belongs to: 80 % train, 10 % validation, 10 % test, by a hash of itself.

    Strings of one or two digits belong to train.

    Args:
        strings: Digits only, 18 at most.
    """
    keys = np.array([int(f"1{string}") for string in strings], np.int64)  # 1 in front, so that 7 and 07 differ
    drawn = uniforms(keys, 1, seed=0, epoch=0, stream=_BELONGING)[:, 0]
    drawn[[len(string) <= SHORT for string in strings]] = 1.0
    chosen = np.where(drawn < HELD_OUT, 2, np.where(drawn < 2 * HELD_OUT, 1, 0))
    return [SPLITS[number] for number in chosen]


def make_strings(count: int, split: str, seed: int = 0, longest: int = LONGEST) -> tuple[str, ...]:
    """The strings of a split. Training may meet a string twice, as it must with the short ones; the others may not.

    Args:
        count: How many.
        split: `train`, `validation` or `test`.
        seed: Of the strings; it never moves one into another split.
        longest: Most digits of a string, 18 at most.

    Raises:
        DataError: There are fewer strings of at most `longest` digits in the split.
    """
    found: list[str] = []
    for turn in range(TURNS):
        drawn = _draw_strings(np.arange(max(count, 1000), dtype=np.int64), SPLITS.index(split), seed, turn, longest)
        found += [string for string, own in zip(drawn, digits_of_split(drawn), strict=True) if own == split]
        if split != TRAIN:
            found = list(dict.fromkeys(found))
        if len(found) >= count:
            return tuple(found[:count])
    raise DataError(f"there are no {count:,} strings of at most {longest} digits in the split {split}", "fewer of them")


def _draw_strings(numbers: Int64[np.ndarray, " n"], split: int, seed: int, turn: int, longest: int) -> tuple[str, ...]:
    """A string for each number, of any split: a length, a palette of 1 to 10 digits, and digits out of that palette.

    Without the palette hardly a string would have many equal digits, and a network would not learn to count them.
    """
    draws = uniforms(numbers, 12 + longest, seed=seed, epoch=turn, stream=_STRINGS + 10 * (split + 1))
    lengths = 1 + (draws[:, 0] * longest).astype(int)
    sizes, palettes = 1 + (draws[:, 1:2] * 10).astype(int), (draws[:, 2:12] * 10).astype(int)
    digits = np.take_along_axis(palettes, (draws[:, 12:] * sizes).astype(int), axis=1)
    return _texts(digits, lengths)


def sort_digits(strings: Sequence[str]) -> tuple[str, ...]:
    """What is to be written for each string: its digits, smallest first."""
    return tuple("".join(sorted(string)) for string in strings)


# ---- strings to be read on images

HEIGHT, WIDTH = 32, 160
MOST_DIGITS = 5  # on an image
GAP = 4  # pixels between two boxes, from minus this to this
RAISED = 2  # pixels up or down from the middle
SIDE = 28  # pixels of a digit's box, as in MNIST

LAYOUT: dict[str, int | list[int] | str] = {
    "canvas": [HEIGHT, WIDTH],
    "digit": [SIDE, SIDE],
    "digits": [1, MOST_DIGITS],
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
        fits = chosen == list(range(len(chosen)))
        wanted = "the first images, in order, since they are new in every epoch"
        check_option("indices", chosen, fits, wanted, range(len(self)))
        return replace(self, count=len(chosen))

    def digest(self) -> bytes:
        """A hash of their number, seed and digits."""
        pixels = np.ascontiguousarray(self.pixels).tobytes()
        made_of = f"{self.count} {self.seed}".encode() + pixels + self.labels.astype("<i8").tobytes()
        return hashlib.blake2b(made_of, digest_size=16).digest()

    def make(self, numbers: Int64[np.ndarray, " n"], epoch: int = 0, label: str = MNIST_STRINGS) -> Samples:
        """The images with these numbers in an epoch, (n, 32, 160), on a background of 0; and the texts on them."""
        draws = uniforms(numbers, 2 + 3 * MOST_DIGITS, seed=self.seed, epoch=epoch, stream=_IMAGES + self.split)
        lengths = 1 + (draws[:, 0] * MOST_DIGITS).astype(np.int64)
        which = (draws[:, 2 : 2 + MOST_DIGITS] * len(self.labels)).astype(np.int64)
        gaps = (draws[:, 2 + MOST_DIGITS : 2 + 2 * MOST_DIGITS] * (2 * GAP + 1)).astype(np.int64) - GAP
        raised = (draws[:, 2 + 2 * MOST_DIGITS :] * (2 * RAISED + 1)).astype(np.int64) - RAISED
        side = self.pixels.shape[1]
        there = np.arange(MOST_DIGITS) < lengths[:, None]
        begins = np.concatenate([np.zeros((len(numbers), 1), np.int64), np.cumsum(side + gaps[:, 1:], axis=1)], axis=1)
        room = WIDTH - (np.take_along_axis(begins, lengths[:, None] - 1, axis=1)[:, 0] + side)
        begins += (draws[:, 1] * (room + 1)).astype(np.int64)[:, None]
        tops = (HEIGHT - side) // 2 + raised
        pixels = np.zeros((len(numbers), HEIGHT, WIDTH), np.uint8)
        rows = np.arange(side)
        for place in range(MOST_DIGITS):
            some = np.flatnonzero(there[:, place])
            down = (tops[some, place, None] + rows)[:, :, None]
            across = (begins[some, place, None] + rows)[:, None, :]
            where = (some[:, None, None], down, across)
            pixels[where] = np.maximum(pixels[where], self.pixels[which[some, place]])
        return Samples(ArrayImages(pixels, label), {TEXT: Texts(_texts(self.labels[which], lengths))})


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


def read_digit_strings(
    what: str, data_root: Path | None, split_seed: int = 0, counts: Counts | None = None
) -> RawDataset:
    """Strings to be sorted; or images of MNIST's digits, new ones in every epoch for training, else always the same.

    Args:
        what: `sort-digits` or `mnist-strings`.
        data_root: The folder of MNIST.
        split_seed: Of the strings to be sorted, and of those on training images.
        counts: How many are made; the usual numbers when None.

    Raises:
        DataError: There are not so many different strings to be sorted, or MNIST is missing, damaged, or of another
            size.
    """
    splits, counts = dict[str, Samples](), counts or Counts()
    if what == SORT_DIGITS:
        for name in SPLITS:
            strings = make_strings(getattr(counts, name), name, split_seed)
            splits[name] = Samples(Texts(strings), {TEXT: Texts(sort_digits(strings))})
        return RawDataset("vitrail", splits, (), DIGITS, split_seed)
    digits = mnist_in_three(data_root)
    for name, images in string_images(digits, split_seed, counts).items():
        if name == TRAIN:
            splits[name] = Samples(images, {TEXT: StringTexts(images)})
        else:
            everyone = np.arange(len(images), dtype=np.int64)
            splits[name] = images.make(everyone, label=f"{MNIST_STRINGS}/{name}")
    return RawDataset(digits.root, splits, digits.notes, DIGITS, split_seed, facts={"layout": LAYOUT})
