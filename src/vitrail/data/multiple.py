"""Columns with several values for each sample: labels, of which it may have some, and numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64

from vitrail.arguments import typed
from vitrail.data.columns import Values
from vitrail.errors import UsageError
from vitrail.text import canonical, canonical_texts


@typed
@final
@dataclass(frozen=True, eq=False, repr=False)
class LabelSets(Values):
    """Several labels, one or none for each sample.

    Args:
        values: (n, labels), 1 where a label is there, 0 where not, -1 where nobody knows; or whether each is there.
        names: The names of the labels, by number.
    """

    values: Int8[np.ndarray, "n labels"] | Bool[np.ndarray, "n labels"]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that every label has a name, which is stored in its one form."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        object.__setattr__(self, "values", self.values.astype(np.int8, copy=False))
        if self.values.shape[1:] != (len(self.names),):
            problem = f"{self.values.shape[1:]} labels a sample for {len(self.names)} names"
            raise UsageError(problem, "one column for each name")

    @staticmethod
    def of(sets: Sequence[Iterable[str]]) -> "LabelSets":
        """The column that names some labels for each sample; they are sorted by name."""
        every = [[canonical(name) for name in names] for names in sets]
        known = sorted({name for names in every for name in names})
        number_of, values = {name: i for i, name in enumerate(known)}, np.zeros((len(every), len(known)), np.int8)
        for row, names in enumerate(every):
            values[row, [number_of[name] for name in names]] = 1
        return LabelSets(values, tuple(known))

    def labels(self, index: int) -> list[str]:
        """The names of its labels."""
        return [self.names[number] for number in np.flatnonzero(self.values[index] > 0)]

    def word(self, index: int) -> str:
        """The same in one text."""
        return ", ".join(self.labels(index))

    def strata(self) -> Int64[np.ndarray, " n"]:
        """The number of the rarest label of each sample; samples without any are of one more."""
        there = self.values > 0
        counts = np.where(there, there.sum(axis=0), len(self) + 1)
        least = counts.argmin(axis=1) if len(self.names) else np.zeros(len(self), np.int64)
        return np.where(there.any(axis=1), least, len(self.names))

    def counts(self) -> dict[str, int]:
        """How many samples each label has, labels without any left out."""
        return {name: int(n) for name, n in zip(self.names, (self.values > 0).sum(axis=0), strict=True) if n}


@typed
@final
@dataclass(frozen=True, eq=False, repr=False)
class Quantities(Values):
    """One or several numbers for each sample.

    Args:
        values: (n, k), in their own unit; NaN where nobody knows.
        names: (k,) what each is called.
    """

    values: Float64[np.ndarray, "n k"]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that every number has a name."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        if self.values.shape[1:] != (len(self.names),):
            problem = f"{self.values.shape[1:]} numbers a sample for {len(self.names)} names"
            raise UsageError(problem, "one column for each name")

    def word(self, index: int) -> str:
        """Its numbers; of one that nobody knows nothing."""
        return ", ".join("" if np.isnan(value) else f"{value:.15g}" for value in self.values[index].tolist())

    def strata(self) -> Int64[np.ndarray, " n"]:
        """The tenth in which the first number of each lies; samples where it is not known are of one more."""
        first = self.values[:, 0]
        known = ~np.isnan(first)
        ends = np.unique(np.quantile(first[known], np.arange(1, 10) / 10)) if known.any() else first[:0]
        return np.where(known, np.searchsorted(ends, first, side="right"), len(ends) + 1)
