"""A small task for a network that reads and writes: a string of digits in, the same digits in order out.

    30713 -> 01337

Every string is made from (seed, split, number) by the hash of `order.py`, so nothing is stored. A hash of the string
itself says to which split it belongs, so a string that is tested was never trained on, whatever the seeds.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from vitrail.data.order import uniforms
from vitrail.data.parts import TEST, TRAIN, VALIDATION
from vitrail.errors import DataError

DIGITS = tuple("0123456789")
LONGEST = 10  # digits of a string; each length is drawn equally often, but of the short ones there are only few
SPLITS = (TRAIN, VALIDATION, TEST)
HELD_OUT = 0.1  # of all strings for validation, and as many for test
TURNS = 200  # draws of a whole set, after which there are too few strings of a split

# streams of random numbers; those below 100 belong to pictures
_STRINGS, _BELONGING = 110, 111


def split_of(strings: Sequence[str]) -> list[str]:
    """The split that each string of digits belongs to: 80 % train, 10 % validation, 10 % test, by a hash of itself.

    Args:
        strings: Digits only, 18 at most.
    """
    keys = np.array([int(f"1{string}") for string in strings], np.int64)  # 1 in front, so that 7 and 07 differ
    share = uniforms(keys, 1, seed=0, epoch=0, stream=_BELONGING)[:, 0]
    chosen = np.where(share < HELD_OUT, 2, np.where(share < 2 * HELD_OUT, 1, 0))
    return [SPLITS[number] for number in chosen]


def make_strings(count: int, split: str, seed: int = 0, longest: int = LONGEST) -> tuple[str, ...]:
    """The strings of a split, no string twice.

    Args:
        count: How many.
        split: `train`, `validation` or `test`.
        seed: Of the strings; it never moves one into another split.
        longest: Most digits of a string, 18 at most.

    Raises:
        DataError: There are fewer strings of at most `longest` digits in the split.
    """
    found: dict[str, None] = {}
    for turn in range(TURNS):
        drawn = _drawn(np.arange(max(count, 1000), dtype=np.int64), SPLITS.index(split), seed, turn, longest)
        found |= dict.fromkeys(s for s, own in zip(drawn, split_of(drawn), strict=True) if own == split)
        if len(found) >= count:
            return tuple(found)[:count]
    raise DataError(f"there are no {count:,} strings of at most {longest} digits in the split {split}", "fewer of them")


def _drawn(numbers: Int64[np.ndarray, " n"], split: int, seed: int, turn: int, longest: int) -> list[str]:
    """A string for each number, of any split."""
    draws = uniforms(numbers, longest + 1, seed=seed, epoch=turn, stream=_STRINGS + 10 * (split + 1))
    lengths = 1 + (draws[:, 0] * longest).astype(int)
    digits = (draws[:, 1:] * 10).astype(int)
    return ["".join(map(str, row[:length])) for row, length in zip(digits.tolist(), lengths.tolist(), strict=True)]


def in_order(strings: Sequence[str]) -> tuple[str, ...]:
    """What is to be written for each string: its digits, smallest first."""
    return tuple("".join(sorted(string)) for string in strings)
