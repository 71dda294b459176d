"""The sets called `planted`, and what may stand behind that name: `planted:mnist`, `planted:empty`, `planted:2x3`.

    digits, mnist           whose digits: scikit-learn's of 8 x 8 pixels, or MNIST's of 28 x 28
    single, double, empty   what is planted, see `vitrail.data.readers.planted`
    2x3                     rows and columns of cells, any two numbers

Commas join them, in any order: `planted:mnist,empty,2x3`. What is left out is as in `planted` itself, which is
`planted:digits,single,4x4`. Test pictures are made of digits that training does not see. Only `single` pictures have
one label each, so only they can be trained on; the others are there to be looked at.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

import numpy as np

from vitrail.data.dataset import TEST, TRAIN, VALIDATION, RawDataset, Samples, hold_out, labelled, labels_of
from vitrail.data.images import ArrayImages
from vitrail.data.readers.digits import SPLIT_SEED, read_digits
from vitrail.data.readers.idx import HELD_OUT, read_idx
from vitrail.data.readers.planted import CLASSES, COUNTS, GRID, PLANTED, SEED, Planted, Variant, plant
from vitrail.errors import UsageError, nearest

NAME = "planted"
SIDES = {"digits": 8, "mnist": 28}  # pixels along the side of a digit, which is that of a cell
MOST_CELLS = 256
MOST_BYTES = 2**29  # of a split; pictures are fewer where they are large
AT_ONCE = 2**27  # bytes that are made in one piece; more than all pictures of `planted` have

_GRID = re.compile(r"(\d{1,4})x(\d{1,4})")
_LABELS = {"double": "two labels", "empty": "no label"}


@dataclass(frozen=True)
class PlantedSet:
    """One of the sets.

    Attributes:
        name: As it was given.
        digits: Whose digits, a key of `SIDES`.
        variant: What is planted.
        grid: (rows, columns) of cells.
    """

    name: str = NAME
    digits: str = "digits"
    variant: Variant = "single"
    grid: tuple[int, int] = GRID

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a picture in pixels."""
        side = SIDES[self.digits]
        return self.grid[0] * side, self.grid[1] * side

    @property
    def label(self) -> str:
        """What its pictures are called after: the name, fit for a file."""
        return re.sub("[:,]+", "-", self.name)

    def count(self, split: str) -> int:
        """How many pictures a split has."""
        return min(COUNTS[split], MOST_BYTES // (self.size[0] * self.size[1]))

    def require_one_label(self) -> None:
        """Refuse to be trained on, or to be counted on, where pictures have not one label each.

        Raises:
            UsageError: Says what takes them.
        """
        if self.variant != "single":
            one = ",".join(word for word in _words(self.name) if word != self.variant)
            raise UsageError(
                f"pictures of {self.name} have {_LABELS[self.variant]}, and here each must have one",
                f"{NAME + ':' * bool(one) + one}; vitrail explain and vitrail predict take {self.name}",
            )


def is_planted(name: str) -> bool:
    """Whether this names one of the sets, rightly or wrongly."""
    return name == NAME or name.startswith(f"{NAME}:")


def parse_planted(name: str) -> PlantedSet:
    """The set of this name.

    Raises:
        UsageError: If an option is unknown or stands twice, or the grid is too small or too large.
    """
    found: dict[str, str] = {}
    for word in _words(name):
        kind = "digits" if word in SIDES else "variant" if word in PLANTED else "grid" if _GRID.fullmatch(word) else ""
        if not kind:
            guess = nearest(word.lower(), (*SIDES, *PLANTED)) or "2x3"
            there = ", ".join((*SIDES, *PLANTED))
            raise UsageError(
                f"{NAME} has no option '{word}', only {there}, or rows and columns such as 2x3", f"{NAME}:{guess}"
            )
        if kind in found:
            what = {"digits": "whose digits", "variant": "what is planted", "grid": "the grid"}[kind]
            raise UsageError(f"{name} says twice {what}: {found[kind]} and {word}", f"{NAME}:{word}")
        found[kind] = word
    rows, columns = (int(each) for each in found["grid"].split("x")) if "grid" in found else GRID
    variant = cast(Variant, found.get("variant", "single"))
    least = PLANTED[variant] + 1
    if not least <= rows * columns <= MOST_CELLS:
        raise UsageError(
            f"{variant} pictures have {least} to {MOST_CELLS} cells, and {rows}x{columns} has {rows * columns}",
            f"{NAME}:{','.join((*(each for kind, each in found.items() if kind != 'grid'), '2x3'))}",
        )
    return PlantedSet(name, found.get("digits", "digits"), variant, (rows, columns))


def planted_pictures(chosen: PlantedSet, split: str, data_root: Path | None = None) -> Planted:
    """The pictures of a split with their truth; always the same.

    Args:
        chosen: From `parse_planted`.
        split: `train`, `validation` or `test`.
        data_root: Where MNIST lies.

    Raises:
        UsageError: If scikit-learn is missing.
        DataError: If MNIST is missing or damaged.
    """
    parts, _ = _digits(chosen.digits, data_root)
    return _make(chosen, split, parts)


def read_planted(name: str = NAME, data_root: Path | None = None) -> RawDataset:
    """A set to train on: up to 120,000 pictures to learn from, 1,000 to validate on, 2,000 to test on.

    Each split is made when it is asked for.

    Raises:
        UsageError: If the name is wrong, pictures have not one label each, or scikit-learn is missing.
        DataError: If MNIST is missing or damaged.
    """
    chosen = parse_planted(name)
    chosen.require_one_label()
    parts, root = _digits(chosen.digits, data_root)  # missing now rather than when a split is asked for
    whose = {"digits": "scikit-learn's digits", "mnist": "MNIST's digits"}[chosen.digits]
    cells = chosen.grid[0] * chosen.grid[1]
    note = f"Made from {whose}: one cell of {cells} shows a digit, the others show digits with shuffled pixels."
    return RawDataset(root, _MadeWhenAsked(chosen, parts), (note,), classes=CLASSES, split_seed=SEED)


@final
class _MadeWhenAsked(Mapping[str, Samples]):
    """The splits of a set: 2,000 pictures to test on should not cost the making of 120,000 others."""

    def __init__(self, chosen: PlantedSet, digits: Mapping[str, Samples]) -> None:
        self._chosen, self._digits, self._made = chosen, digits, dict[str, Samples]()

    def __getitem__(self, split: str) -> Samples:
        if split not in self._made:
            made = _make(self._chosen, split, self._digits)
            pictures = ArrayImages(made.pixels, f"{self._chosen.label}/{split}")
            self._made[split] = labelled(pictures, made.labels[:, 0], CLASSES)
        return self._made[split]

    def __contains__(self, split: object) -> bool:
        return split in COUNTS

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(COUNTS, key=lambda split: COUNTS[split]))  # who only wants to see one sees a small one

    def __len__(self) -> int:
        return len(COUNTS)


def _words(name: str) -> list[str]:
    """The options behind the name."""
    return name.removeprefix(NAME).removeprefix(":").split(",") if name != NAME else []


def _digits(which: str, data_root: Path | None) -> tuple[Mapping[str, Samples], str]:
    """What is planted, by split, and where it was read from."""
    if which == "digits":
        found = read_digits()
        return found.splits, found.root
    found = read_idx("mnist", data_root)
    train, validation = hold_out(found.splits[TRAIN], HELD_OUT, SPLIT_SEED)
    return {TRAIN: train, VALIDATION: validation, TEST: found.splits[TEST]}, found.root


def _make(chosen: PlantedSet, split: str, digits: Mapping[str, Samples]) -> Planted:
    """All pictures of a split, a piece at a time where they are large."""
    part, count = digits[split], chosen.count(split)
    assert isinstance(part.inputs, ArrayImages)
    number, piece = list(COUNTS).index(split), AT_ONCE // (chosen.size[0] * chosen.size[1])
    pixels = np.empty((count, *chosen.size), dtype=np.uint8)
    made = []
    for index, first in enumerate(range(0, count, piece)):
        seed = SEED * len(COUNTS) + number + 1000 * len(COUNTS) * index
        some = min(piece, count - first)
        one = plant(part.inputs.pixels, labels_of(part), some, variant=chosen.variant, grid=chosen.grid, seed=seed)
        pixels[first : first + some] = one.pixels
        made.append((one.labels, one.cells))
    labels, cells = (np.concatenate(each) for each in zip(*made, strict=True))
    return Planted(pixels, labels, cells, chosen.grid, SIDES[chosen.digits])
