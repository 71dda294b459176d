"""Images in which it is known where the evidence lies: one cell holds a digit, the others hold shuffled digits.

A picture is a grid of cells, each as large as one digit. A *planted* cell shows a digit as it is; every other cell
shows a digit whose pixels are shuffled: the same grey values, and nothing to tell a class by. So only the arrangement
of pixels in the planted cell is evidence, and where it lies is known to the pixel. Variants:

    single      one digit; its class is the label
    double      two digits of different classes; both are labels
    empty       no digit: there is nothing to find

The set that has the name `planted` is `single`, of scikit-learn's digits, 4 x 4 cells of 8 x 8 pixels. Its test
pictures are made of digits that training does not see. The others that have a name are in `planted_sets.py`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from vitrail.data.dataset import TEST, TRAIN, VALIDATION, labels_of
from vitrail.data.images import ArrayImages
from vitrail.data.readers.digits import read_digits
from vitrail.errors import UsageError, nearest

Variant = Literal["single", "double", "empty"]
Digits = UInt8[np.ndarray, "m side side"]

CLASSES = tuple("0123456789")
GRID = (4, 4)  # cells of the set that has the name `planted`
NOISE = 25.5  # grey values: standard deviation of the noise on every pixel, a tenth of the range
SEED = 0
COUNTS = {TRAIN: 120_000, VALIDATION: 1_000, TEST: 2_000}
PLANTED: dict[Variant, int] = {"single": 1, "double": 2, "empty": 0}


@dataclass(frozen=True, eq=False)
class Planted:
    """Images with their truth.

    Attributes:
        pixels: (n, h, w) grey pictures.
        labels: (n, p), the classes of the planted digits: p is 1 for `single`, 2 for `double`, 0 for `empty`.
        cells: (n, p), in which cell each stands, counted along the rows.
        grid: (rows, columns) of cells.
        side: Pixels along the side of a cell.
    """

    pixels: UInt8[np.ndarray, "n h w"]
    labels: Int64[np.ndarray, "n p"]
    cells: Int64[np.ndarray, "n p"]
    grid: tuple[int, int]
    side: int

    def masks(self, patch: int | tuple[int, int]) -> Bool[np.ndarray, "n p gh gw"]:
        """Which patches show each planted digit; exact, because patches divide cells.

        Args:
            patch: Pixels along the side of a patch, or (height, width) of one.

        Raises:
            UsageError: If a patch would lie in two cells.
        """
        height, width = (patch, patch) if isinstance(patch, int) else patch
        if self.side % height or self.side % width:
            raise UsageError(
                f"patches of {height}x{width} pixels do not divide cells of {self.side}x{self.side}",
                f"patches of {self.side // 2}x{self.side // 2} pixels",
            )
        down, across = self.side // height, self.side // width
        row, column = self.cells // self.grid[1], self.cells % self.grid[1]
        in_row = np.arange(self.grid[0] * down) // down == row[..., None]
        in_column = np.arange(self.grid[1] * across) // across == column[..., None]
        return in_row[..., :, None] & in_column[..., None, :]


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
    """Make pictures.

    Args:
        digits: (m, side, side), what is planted and shuffled; of at least two classes for `double`.
        labels: (m,), their classes.
        count: How many pictures.
        variant: What is planted: see above.
        grid: (rows, columns) of cells, of any shape.
        noise: Standard deviation, in grey values, of Gaussian noise on every pixel.
        seed: The same seed gives the same pictures.

    Raises:
        UsageError: If the variant is unknown, or the grid has too few cells for it.
    """
    if variant not in PLANTED:
        guess = nearest(variant, PLANTED) or "single"
        raise UsageError(f"planted pictures are {', '.join(get_args(Variant))}, not '{variant}'", f"'{guess}'")
    planted, cells = PLANTED[variant], grid[0] * grid[1]
    if min(grid) < 1 or cells < planted + 1:
        raise UsageError(
            f"{planted} digits and shuffled ones beside them need {planted + 1} cells, got a grid of "
            f"{grid[0]}x{grid[1]}",
            "(4, 4)",
        )
    side = digits.shape[1]
    random = np.random.default_rng([seed, *(ord(letter) for letter in variant)])
    chosen = random.integers(len(labels), size=(count, cells))
    places = random.permuted(np.tile(np.arange(cells), (count, 1)), axis=1)[:, :planted]
    rows = np.arange(count)[:, None]
    if planted > 1:  # another digit for the second place, until it shows another class
        while len(again := np.flatnonzero(np.ptp(labels[chosen[rows, places]], axis=1) == 0)):
            chosen[again, places[again, 1]] = random.integers(len(labels), size=len(again))
    pixels = digits[chosen].reshape(count, cells, side * side)
    shuffled = random.permuted(pixels, axis=2)
    shuffled[rows, places] = pixels[rows, places]
    whole = shuffled.reshape(count, *grid, side, side).swapaxes(2, 3).reshape(count, grid[0] * side, grid[1] * side)
    for some in np.array_split(whole, max(1, count // 4096)):  # views: little memory beside the pictures themselves
        noisy = some + noise * random.standard_normal(some.shape, dtype=np.float32)
        some[...] = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return Planted(whole, labels[chosen[rows, places]].astype(np.int64), places.astype(np.int64), grid, side)


def planted_digits(split: str, count: int, variant: Variant = "single", seed: int = SEED) -> Planted:
    """Images of scikit-learn's digits of one split: `train`, `validation` or `test`.

    Args:
        split: Whose digits; training never sees those of the others.
        count: How many pictures.
        variant: What is planted.
        seed: The same seed, split and variant give the same pictures.

    Raises:
        UsageError: If scikit-learn is missing.
    """
    part = read_digits().splits[split]
    assert isinstance(part.inputs, ArrayImages)
    number = list(COUNTS).index(split)
    return plant(part.inputs.pixels, labels_of(part), count, variant=variant, seed=seed * len(COUNTS) + number)
