"""A small task for a network that reads and writes: a string of digits in, the same digits in order out.

    30713 -> 01337

Every string is made from (seed, split, number) by the hash of `plan.py`, so nothing is stored. A hash of the string
itself decides to which split it belongs, so a string that is tested was never trained on, whatever the seeds.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from vitrail.data.columns import TEXT, Texts
from vitrail.data.dataset import DIGITS, TEST, TRAIN, VALIDATION, Counts, RawDataset, Samples
from vitrail.data.plan import uniforms
from vitrail.errors import DataError

LONGEST = 10  # digits of a string; each length is drawn equally often
SHORT = 2  # strings of so few digits are all trained on: there are only 110, too few to hold some out
SPLITS = (TRAIN, VALIDATION, TEST)
HELD_OUT = 0.1  # of all strings for validation, and as many for test
TURNS = 200  # draws of a whole set, after which there are too few strings of a split

# streams of random numbers; those below 100 belong to images
_STRINGS, _BELONGING = 110, 111


def split_of(strings: Sequence[str]) -> list[str]:
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
        drawn = _drawn(np.arange(max(count, 1000), dtype=np.int64), SPLITS.index(split), seed, turn, longest)
        found += [string for string, own in zip(drawn, split_of(drawn), strict=True) if own == split]
        if split != TRAIN:
            found = list(dict.fromkeys(found))
        if len(found) >= count:
            return tuple(found[:count])
    raise DataError(f"there are no {count:,} strings of at most {longest} digits in the split {split}", "fewer of them")


def _drawn(numbers: Int64[np.ndarray, " n"], split: int, seed: int, turn: int, longest: int) -> list[str]:
    """A string for each number, of any split: a length, a palette of 1 to 10 digits, and digits out of that palette.

    Without the palette hardly a string would have many equal digits, and a network would not learn to count them.
    """
    draws = uniforms(numbers, 12 + longest, seed=seed, epoch=turn, stream=_STRINGS + 10 * (split + 1))
    lengths = 1 + (draws[:, 0] * longest).astype(int)
    sizes, palettes = 1 + (draws[:, 1:2] * 10).astype(int), (draws[:, 2:12] * 10).astype(int)
    digits = np.take_along_axis(palettes, (draws[:, 12:] * sizes).astype(int), axis=1)
    return ["".join(map(str, row[:length])) for row, length in zip(digits.tolist(), lengths.tolist(), strict=True)]


def in_order(strings: Sequence[str]) -> tuple[str, ...]:
    """What is to be written for each string: its digits, smallest first."""
    return tuple("".join(sorted(string)) for string in strings)


def read_sort_digits(
    what: str, data_root: Path | None, split_seed: int = 0, counts: Counts | None = None
) -> RawDataset:
    """Strings of digits and the same in order, made of nothing.

    Args:
        what: `sort-digits`.
        data_root: Not looked at.
        split_seed: Of the strings.
        counts: How many are made; the usual numbers when None.

    Raises:
        DataError: There are not so many different strings.
    """
    splits, counts = {}, counts or Counts()
    for name, number in ((TRAIN, counts.train), (VALIDATION, counts.validation), (TEST, counts.test)):
        strings = make_strings(number, name, split_seed)
        splits[name] = Samples(Texts(strings), {TEXT: Texts(in_order(strings))})
    return RawDataset("vitrail", splits, (), DIGITS, split_seed)
