"""The tables of a run's page: epochs, the confusion matrix, the classes, and nested settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from vitrail.pages.html import number
from vitrail.text import percent

MOST_CLASSES = 30

_HISTORY = {
    "epoch": ("Epoch", number),
    "training_loss": ("Training loss", number),
    "validation_loss": ("Validation loss", number),
    "training_accuracy": ("Training accuracy", lambda fraction: percent(fraction, 2)),
    "training_token_accuracy": ("Training, single tokens right", lambda fraction: percent(fraction, 2)),
    "validation_accuracy": ("Validation accuracy", lambda fraction: percent(fraction, 2)),
    "learning_rate": ("Learning rate", number),
    "seconds": ("Seconds", lambda seconds: number(seconds, 3)),
    "images_per_second": ("{unit} per second", lambda rate: number(round(rate) if rate and rate >= 10 else rate, 3)),
    "waiting_fraction": ("Waiting for data", percent),
}


def finite(value: object) -> float | None:
    """A number when the value is a finite one, else None."""
    try:
        shown = float(str(value))
    except ValueError:
        return None
    return shown if math.isfinite(shown) else None


def history_table(history: Sequence[Mapping], unit: str = "image") -> tuple[list[str], list[list[str]]]:
    """The numbers of every epoch, as titles and rows of the columns that occur.

    Args:
        history: One mapping per epoch.
        unit: What one sample is called.
    """
    there = dict.fromkeys(key for row in history for key in row if row[key] is not None)
    others = [key for key in there if key.startswith(("training_", "validation_")) and key not in _HISTORY]
    columns = [key for key in (*_HISTORY, *others) if key in there]
    writers = _HISTORY | {key: (key.replace("_", " ").capitalize(), number) for key in others}
    names = [writers[key][0].format(unit=f"{unit}s".capitalize()) for key in columns]
    return names, [[writers[key][1](finite(row.get(key))) for key in columns] for row in history]


def most_confused(confusion: Int64[np.ndarray, "k k"], most: int = MOST_CLASSES) -> np.ndarray:
    """The classes with most mistakes, counted as true class and as answer, in their own order.

    Args:
        confusion: Counts; rows are the true classes.
        most: How many classes to keep.
    """
    mistakes = confusion.sum(0) + confusion.sum(1) - 2 * np.diag(confusion)
    return np.sort(np.argsort(-mistakes, kind="stable")[:most])


@dataclass(frozen=True)
class Cell:
    """One cell of a confusion matrix.

    Args:
        count: How often.
        of: How many samples have the true class of its row.
        right: Whether the answer is the true class.
        words: The same as a sentence.
    """

    count: int
    of: int
    right: bool
    words: str

    @property
    def fraction(self) -> float:
        """Of its row."""
        return self.count / self.of if self.of else 0.0

    @property
    def step(self) -> int:
        """Its colour: 0 for nothing, else from 1 to 9."""
        return 0 if self.count == 0 else 1 + min(8, math.floor(9 * math.sqrt(self.fraction)))


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix as it is shown.

    Args:
        names: The classes that have a row and a column.
        rows: The name of a true class and its cells; where only some classes are shown, the answers that fall outside
            stand in a cell of their own, so that every row still adds up.
        classes: How many there are in all.
        mistakes: The most frequent ones: true class, answer, how often, and of how many.
    """

    names: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    classes: int
    mistakes: Sequence[tuple[str, str, int, int]]

    @property
    def some(self) -> bool:
        """Whether classes were left out."""
        return len(self.names) < self.classes

    @property
    def upright(self) -> bool:
        """Whether the names of the columns need to stand upright."""
        return len(self.names) > 6 and max(map(len, self.names)) > 4


def matrix_of(confusion: Int64[np.ndarray, "k k"], classes: Sequence[str]) -> Matrix:
    """The confusion matrix as counts with row percentages.

    Args:
        confusion: Counts; rows are the true classes.
        classes: Their names. Of more than `MOST_CLASSES` only the most confused are shown.
    """
    assert confusion.shape == (len(classes), len(classes)), f"{confusion.shape} counts for {len(classes)} classes"
    kept, rows = most_confused(confusion), []
    for true in kept:
        total, outside = int(confusion[true].sum()), int(confusion[true].sum() - confusion[true, kept].sum())
        counted = [(int(confusion[true, k]), classes[k], bool(k == true)) for k in kept]
        counted += [(outside, "a class not shown here", False)] if len(kept) < len(classes) else []
        rows.append((classes[true], [_cell(count, total, classes[true], name, own) for count, name, own in counted]))
    return Matrix([classes[k] for k in kept], rows, len(classes), most_frequent_mistakes(confusion, classes))


def _cell(count: int, of: int, true: str, answer: str, right: bool) -> Cell:
    shown = percent(count / of if of else 0.0)
    return Cell(count, of, right, f"{true} was predicted as {answer} {number(count)} of {number(of)} times ({shown})")


def most_frequent_mistakes(
    confusion: Int64[np.ndarray, "k k"], classes: Sequence[str], most: int = 8
) -> list[tuple[str, str, int, int]]:
    """Mistakes, the most frequent first: true class, answer, how often, and of how many.

    Args:
        confusion: Counts; rows are the true classes.
        classes: Their names.
        most: How many mistakes to name.
    """
    wrong = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    return [
        (classes[true], classes[answer], int(wrong[true, answer]), int(confusion[true].sum()))
        for true, answer in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, answer] > 0
    ]


class ClassRow(NamedTuple):
    """How well one class does.

    Args:
        name: Of the class.
        images: Whose true class this is.
        precision: None where undefined, as
        recall: and
        f1: are.
    """

    name: str
    images: float
    precision: float | None
    recall: float | None
    f1: float | None


def class_rows(per_class: Sequence[Mapping]) -> list[ClassRow]:
    """The rows of `ClassTable`, with numbers where there are any."""
    return [
        ClassRow(
            str(row.get("class", "")),
            finite(row.get("images")) or 0,
            *(finite(row.get(key)) for key in ("precision", "recall", "f1")),
        )
        for row in per_class
    ]


def _leaves(settings: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested settings with their dotted names."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _setting(value: object) -> str:
    """A setting as a person would write it in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(item) for item in value) or "none"
    return str(value) if value not in ("", {}) else "none"


def settings_rows(settings: Mapping) -> list[tuple[str, str]]:
    """Nested settings, one dotted name a row, and its value in words."""
    return [(name, _setting(value)) for name, value in _leaves(settings)]
