"""Images in which it is known where the evidence lies: one cell holds a digit, the others hold shuffled digits.

An image is a grid of cells, each as large as one digit. A *planted* cell shows a digit as it is; every other cell
shows a digit whose pixels are shuffled: the same grey values, and nothing that shows a class. So only the arrangement
of pixels in the planted cell is evidence, and where it lies is known to the pixel.

The sets are called `planted`, and more may stand behind that name: `planted:mnist`, `planted:empty`, `planted:2x3`.

    digits, mnist    whose digits: scikit-learn's of 8 x 8 pixels, or MNIST's of 28 x 28
    single           one digit; its class is the label
    double           two digits of different classes; both are labels
    empty            no digit: there is nothing to find
    count            none to four digits of any classes; how many is the number to learn
    2x3              rows and columns of cells, any two numbers

Commas join them, in any order: `planted:mnist,empty,2x3`. What is left out is as in `planted` itself, which is
`planted:digits,single,4x4`. Test images are made of digits that training does not see. `single` images have one label
each and `count` images a number, so these can be trained on; the others are there to be looked at.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Int64, UInt8

from vitrail.data.columns import (
    EVIDENCE,
    LABEL,
    NUMBER,
    TEST,
    TRAIN,
    VALIDATION,
    Column,
    Labels,
    Lazy,
    RawDataset,
    Samples,
    Values,
)
from vitrail.data.dataset import DIGITS, labels_of, pixels_of
from vitrail.data.images import ArrayImages
from vitrail.data.multiple import Quantities
from vitrail.data.readers.idx import mnist_in_three, read_digits
from vitrail.errors import Hint, UsageError, nearest

Variant = Literal["single", "double", "empty", "count"]
Digits = UInt8[np.ndarray, "m side side"]

NAME = "planted"
SIDES = {"digits": 8, "mnist": 28}  # pixels along the side of a digit, which is that of a cell
PLANTED: dict[Variant, int] = {"single": 1, "double": 2, "empty": 0, "count": 4}  # at most
LEARNT: tuple[Variant, ...] = ("single", "count")  # that can be trained on
GRID = (4, 4)  # cells of `planted` itself
MOST_CELLS = 256
NOISE = 25.5  # grey values: standard deviation of the noise on every pixel, a tenth of the range
SEED = 0
COUNTS = {TRAIN: 120_000, VALIDATION: 1_000, TEST: 2_000}
MOST_BYTES = 2**29  # of a split; images are fewer where they are large
AT_ONCE = 2**27  # bytes that are made in one piece; more than all images of `planted` have

_CELLS = {"single": "one cell", "double": "two cells", "empty": "no cell", "count": "none to four cells"}
_GRID = re.compile(r"(\d{1,4})x(\d{1,4})")
_OPTIONS = {"digits": "whose digits", "variant": "what is planted", "grid": "the grid"}


@dataclass(frozen=True, eq=False)
class Planted:
    """Images with their truth.

    Attributes:
        pixels: (n, h, w) grey images.
        labels: (n, p), the classes of the planted digits, p of `PLANTED`; -1 of one that is not there.
        cells: (n, p), in which cell each stands, counted along the rows; -1 of one that is not there.
        grid: (rows, columns) of cells.
        side: Pixels along the side of a cell.
    """

    pixels: UInt8[np.ndarray, "n h w"]
    labels: Int64[np.ndarray, "n p"]
    cells: Int64[np.ndarray, "n p"]
    grid: tuple[int, int]
    side: int

    def boxes(self) -> Int64[np.ndarray, "n p 4"]:
        """Where each planted digit stands, in pixels: top, left, bottom, right; zeros where it is not there."""
        row, column = self.cells // self.grid[1], self.cells % self.grid[1]
        there = (self.cells >= 0)[..., None]
        return self.side * there * np.stack([row, column, row + 1, column + 1], axis=-1)


def plant(
    digits: Digits,
    labels: Int64[np.ndarray, " m"],
    count: int,
    *,
    variant: Variant = "single",
    grid: tuple[int, int] = GRID,
    noise: float = NOISE,
    seed: int = SEED,
) -> Planted:
    """Make images.

    Args:
        digits: (m, side, side), what is planted and shuffled; of at least two classes for `double`.
        labels: (m,), their classes.
        count: How many images.
        variant: What is planted: see above.
        grid: (rows, columns) of cells, of any shape.
        noise: Standard deviation, in grey values, of Gaussian noise on every pixel.
        seed: The same seed gives the same images.
    """
    planted, every = PLANTED[variant], grid[0] * grid[1]
    assert every > planted, "shuffled ones stand beside them"
    side = digits.shape[1]
    random = np.random.default_rng([seed, *(ord(letter) for letter in variant)])
    chosen = random.integers(len(labels), size=(count, every))
    places = random.permuted(np.tile(np.arange(every), (count, 1)), axis=1)[:, :planted]
    rows = np.arange(count)[:, None]
    there = np.ones((count, planted), bool)
    if variant == "count":
        there = np.arange(planted) < random.integers(planted + 1, size=(count, 1))
    if variant == "double":  # another digit for the second place, until it shows another class
        while len(again := np.flatnonzero(np.ptp(labels[chosen[rows, places]], axis=1) == 0)):
            chosen[again, places[again, 1]] = random.integers(len(labels), size=len(again))
    pixels = digits[chosen].reshape(count, every, side * side)
    shuffled = random.permuted(pixels, axis=2)
    shuffled[rows, places] = np.where(there[..., None], pixels[rows, places], shuffled[rows, places])
    whole = shuffled.reshape(count, *grid, side, side).swapaxes(2, 3).reshape(count, grid[0] * side, grid[1] * side)
    for some in np.array_split(whole, max(1, count // 4096)):  # views: little memory beside the images themselves
        noisy = some + noise * random.standard_normal(some.shape, dtype=np.float32)
        some[...] = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    shown, cells = (np.where(there, each, -1).astype(np.int64) for each in (labels[chosen[rows, places]], places))
    return Planted(whole, shown, cells, grid, side)


def planted_digits(split: str, count: int, variant: Variant = "single", seed: int = SEED) -> Planted:
    """Images of scikit-learn's digits of one split: `train`, `validation` or `test`.

    Args:
        split: Whose digits; training never sees those of the others.
        count: How many images.
        variant: What is planted.
        seed: The same seed, split and variant give the same images.

    Raises:
        UsageError: If scikit-learn is missing.
    """
    samples, number = read_digits().splits[split], list(COUNTS).index(split)
    return plant(pixels_of(samples), labels_of(samples), count, variant=variant, seed=seed * len(COUNTS) + number)


@dataclass(frozen=True)
class PlantedSet:
    """One of the sets.

    Attributes:
        digits: Whose digits, a key of `SIDES`.
        variant: What is planted.
        grid: (rows, columns) of cells.
    """

    digits: str = "digits"
    variant: Variant = "single"
    grid: tuple[int, int] = GRID

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of an image in pixels."""
        side = SIDES[self.digits]
        return self.grid[0] * side, self.grid[1] * side

    def count(self, split: str) -> int:
        """How many images a split has."""
        return min(COUNTS[split], MOST_BYTES // (self.size[0] * self.size[1]))


def parse_planted(name: str) -> PlantedSet:
    """The set of this name.

    Raises:
        UsageError: If an option is unknown or stands twice, or the grid is too small or too large.
    """
    found: dict[str, str] = {}
    for word in name.removeprefix(NAME).removeprefix(":").split(",") if name != NAME else ():
        kind = "digits" if word in SIDES else "variant" if word in PLANTED else "grid" if _GRID.fullmatch(word) else ""
        if not kind:
            there = (*SIDES, *PLANTED)
            problem = f"{NAME} has no option '{word}', only {', '.join(there)}, or rows and columns such as 2x3"
            raise UsageError(problem, Hint(instead={name: f"{NAME}:{nearest(word.lower(), there) or '2x3'}"}))
        if kind in found:
            problem = f"{NAME} has {_OPTIONS[kind]} twice: {found[kind]} and {word}"
            raise UsageError(problem, Hint(instead={name: f"{NAME}:{word}"}))
        found[kind] = word
    rows, columns = (int(each) for each in found["grid"].split("x")) if "grid" in found else GRID
    variant = cast(Variant, found.get("variant", "single"))
    least = PLANTED[variant] + 1
    if not least <= rows * columns <= MOST_CELLS:
        problem = f"{variant} images have {least} to {MOST_CELLS} cells, and {rows}x{columns} has {rows * columns}"
        raise UsageError(problem, Hint(instead={name: name.replace(found["grid"], "2x3")}))
    return PlantedSet(found.get("digits", "digits"), variant, (rows, columns))


def fit_to_model(name: str) -> tuple[str, dict[str, Any]]:
    """What the recipe of `planted` is for with these options, and its network: patches of half a cell's side.

    Raises:
        UsageError: If the name is wrong.
    """
    chosen = parse_planted(name)
    shows = "one of which shows a digit" if chosen.variant != "count" else f"up to {PLANTED['count']} of which show one"
    text = f"the lab with known truth: {chosen.grid[0]}x{chosen.grid[1]} cells, {shows}"
    return text, {"image_size": list(chosen.size), "patch_size": SIDES[chosen.digits] // 2}


def read_planted(name: str = NAME, data_root: Path | None = None) -> RawDataset:
    """A set to train on: up to 120,000 images to learn from, 1,000 to validate on, 2,000 to test on.

    Each split is made when it is first read. Of images without one label or number there are those to test on alone.

    Raises:
        UsageError: If the name is wrong, or scikit-learn is missing.
        DataError: If MNIST is missing or damaged.
    """
    chosen = parse_planted(name)
    digits = read_digits() if chosen.digits == "digits" else mnist_in_three(data_root)  # missing now, not later
    made_from, learnt = "MNIST's" if chosen.digits == "mnist" else "scikit-learn's", chosen.variant in LEARNT
    cells = f"{_CELLS[chosen.variant]} of {chosen.grid[0] * chosen.grid[1]} show"
    note = f"Made from {made_from} digits: {cells} a digit, the others show digits with shuffled pixels."

    def make(split: str) -> Samples:
        made, columns = planted_images(chosen, split, digits.splits), dict[str, Column]()
        if chosen.variant == "single":
            columns = {LABEL: Labels(made.labels[:, 0], DIGITS)}
        if chosen.variant == "count":
            columns = {NUMBER: Quantities((made.cells >= 0).sum(axis=1, keepdims=True).astype(float), ("count",))}
        images = ArrayImages(made.pixels, f"{re.sub('[:,]+', '-', name)}/{split}")  # fit for a file
        return Samples(images, {**columns, EVIDENCE: Values(made.boxes())})

    smallest_first = sorted(COUNTS, key=lambda split: COUNTS[split])  # who only wants to see one sees a small one
    splits, classes = Lazy(smallest_first if learnt else [TEST], make), () if chosen.variant == "count" else DIGITS
    return RawDataset(digits.root, splits, (note,), classes=classes, split_seed=SEED)


def planted_images(chosen: PlantedSet, split: str, digits: Mapping[str, Samples]) -> Planted:
    """The images of a split with their truth; always the same. They are made a piece at a time where they are large.

    Args:
        chosen: From `parse_planted`.
        split: `train`, `validation` or `test`.
        digits: Whose digits, by split.
    """
    pool, labels, count = pixels_of(digits[split]), labels_of(digits[split]), chosen.count(split)
    number, piece = list(COUNTS).index(split), AT_ONCE // (chosen.size[0] * chosen.size[1])
    pixels = np.empty((count, *chosen.size), dtype=np.uint8)
    planted, cells = [], []
    for index, first in enumerate(range(0, count, piece)):
        seed = SEED * len(COUNTS) + number + 1000 * len(COUNTS) * index
        some = slice(first, min(first + piece, count))
        made = plant(pool, labels, some.stop - first, variant=chosen.variant, grid=chosen.grid, seed=seed)
        pixels[some] = made.pixels
        planted.append(made.labels)
        cells.append(made.cells)
    return Planted(pixels, np.concatenate(planted), np.concatenate(cells), chosen.grid, SIDES[chosen.digits])
