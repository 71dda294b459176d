"""Columns with several values for each sample: labels, of which it may have some, numbers, and classes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

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

    @property
    def named(self) -> tuple[Any, ...]:
        """The names."""
        return (self.names,)

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

    def cells(self, index: int, name: str) -> dict[str, str]:
        """The names of its labels with bars between, as a list has them."""
        return {name: "|".join(self.labels(index))}

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

    @property
    def named(self) -> tuple[Any, ...]:
        """The names."""
        return (self.names,)

    def word(self, index: int) -> str:
        """Its numbers; of one that nobody knows nothing."""
        return ", ".join(self.cells(index, "").values())

    def cells(self, index: int, name: str) -> dict[str, str]:
        """Each of its numbers, in a column of its own."""
        values = ("" if np.isnan(value) else f"{value:.15g}" for value in self.values[index].tolist())
        return dict(zip(self.names, values, strict=True))

    def strata(self) -> Int64[np.ndarray, " n"]:
        """The tenth in which the first number of each lies; samples where it is not known are of one more."""
        first = self.values[:, 0]
        known = ~np.isnan(first)
        ends = np.unique(np.quantile(first[known], np.arange(1, 10) / 10)) if known.any() else first[:0]
        return np.where(known, np.searchsorted(ends, first, side="right"), len(ends) + 1)


@typed
@final
@dataclass(frozen=True, eq=False, repr=False)
class ClassColumns(Values):
    """A class of each of several columns, such as colour and shape, for each sample.

    Args:
        values: (n, columns), the number of the class in its column; -1 where nobody knows.
        names: What each column is called.
        classes: The names of the classes of each, by number.
    """

    values: Int64[np.ndarray, "n columns"]
    names: tuple[str, ...]
    classes: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Check that every column and every value has a name."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        object.__setattr__(self, "classes", tuple(map(canonical_texts, self.classes)))
        counts = np.array([len(each) for each in self.classes], np.int64)
        if not self.values.shape[1:] == counts.shape == (len(self.names),) or (self.values >= counts).any():
            problem = f"{self.values.shape[1:]} columns of classes for {len(self.names)} names"
            raise UsageError(problem, "a name for each column, and for each of its classes")

    @property
    def named(self) -> tuple[Any, ...]:
        """The names of columns and classes."""
        return self.names, self.classes

    @staticmethod
    def of(columns: Mapping[str, Sequence[str]]) -> "ClassColumns":
        """The column of some cells by the name of their column; empty ones are not known, classes sorted by name."""
        found = {name: [canonical(cell) for cell in cells] for name, cells in columns.items()}
        classes = tuple(tuple(sorted({*cells} - {""})) for cells in found.values())
        places = [{"": -1, **{word: place for place, word in enumerate(each)}} for each in classes]
        rows = [[places[n][cell] for cell in cells] for n, cells in enumerate(found.values())]
        return ClassColumns(np.array(rows, np.int64).T, tuple(found), classes)

    def cells(self, index: int, name: str) -> dict[str, str]:
        """Each of its classes, in a column of its own."""
        pairs = zip(self.names, self.classes, self.values[index].tolist(), strict=True)
        return {column: classes[number] if number >= 0 else "" for column, classes, number in pairs}

    def word(self, index: int) -> str:
        """Its classes, such as `colour=red`; of a column of which nobody knows it nothing."""
        return ", ".join(f"{column}={name}" for column, name in self.cells(index, "").items() if name)

    def flags(self) -> LabelSets:
        """The same as labels that are there or not, such as `colour=red`."""
        known = [
            (self.values[:, n, None] >= 0, self.values[:, n, None], len(own)) for n, own in enumerate(self.classes)
        ]
        there = [np.where(is_known, at == np.arange(count), -1) for is_known, at, count in known]
        return LabelSets(np.concatenate(there, axis=1).astype(np.int8), flat_names(self.names, self.classes))

    def strata(self) -> Int64[np.ndarray, " n"]:
        """The number of the rarest class of each sample, among those of all columns."""
        return self.flags().strata()

    def counts(self) -> dict[str, int]:
        """How many samples each class of each column has."""
        return self.flags().counts()


def flat_names(columns: Sequence[str], classes: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What the classes of several columns are called beside each other: `colour=red`."""
    return tuple(f"{column}={name}" for column, own in zip(columns, classes, strict=True) for name in own)
