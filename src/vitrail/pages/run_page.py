"""The page of a run: how well it does, how it learnt, where it errs, and what it was told to do.

The order is that of a reader's questions. Everything is in the page without its script; the script adds reading of
values by pointer or arrow keys and the sorting of the class table.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8
from markupsafe import Markup

from vitrail.io import write_file
from vitrail.pages.chart import Series, line_chart
from vitrail.pages.colour import PALE, STRENGTH, overlay_pixels
from vitrail.pages.html import number
from vitrail.pages.render import document
from vitrail.pages.views import (
    ClassTable,
    Confusion,
    EvaluationView,
    Example,
    ImageView,
    RunView,
    Section,
    Table,
)
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


def _column(history: list[dict], key: str) -> list[float | None]:
    return [finite(row.get(key)) for row in history]


def _charts(run: RunView) -> list[Markup]:
    """Loss, metric and learning rate over epochs; none where there was no epoch."""
    history = run.history
    if not history:
        return []
    epochs = [position + 1.0 if e is None else e for position, e in enumerate(_column(history, "epoch"))]
    training, validation = _column(history, "training_loss"), _column(history, "validation_loss")
    losses = [value for value in training + validation if value is not None and value > 0]

    def write(value: float) -> str:
        return f"{number(100 * value)} %" if run.fraction else number(value)

    return [
        line_chart(
            "Loss",
            epochs,
            [Series("training", training), Series(run.scored, validation)],
            log=bool(losses) and max(losses) > 30 * min(losses),
        ),
        line_chart(
            run.metric.capitalize(),
            epochs,
            [Series(label, _column(history, key)) for label, key in run.curves]
            + ([Series(run.level[0], [run.level[1]] * len(epochs))] if run.level else []),
            write=write,
        ),
        line_chart("Learning rate", epochs, [Series("learning rate", _column(history, "learning_rate"))]),
    ]


@dataclass(frozen=True)
class ShownSection:
    """One section of an evaluation: a confusion matrix, the rows of classes, or else a plain table.

    Args:
        title: What it shows.
        matrix: A confusion matrix.
        classes: One row per class.
        header: Titles of the columns of a plain table.
        rows: Its cells.
    """

    title: str
    matrix: Matrix | None = None
    classes: Sequence[ClassRow] | None = None
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def _section(section: Section) -> ShownSection:
    match section:
        case Table():
            return ShownSection(section.title, header=section.header, rows=section.rows)
        case ClassTable():
            return ShownSection(section.title, classes=class_rows(section.rows))
        case Confusion():
            return ShownSection(section.title, matrix=matrix_of(section.counts, section.names))


def _surest_first(examples: Sequence[Example]) -> list[Example]:
    return sorted(examples, key=lambda example: -(example.probability or 0.0))


class Look(NamedTuple):
    """One explained image: its map over it, and what is known of the map."""

    name: str
    image: UInt8[np.ndarray, "h w 3"]
    answer: str
    verdict: str
    sentence: str


def _looks(images: Sequence[ImageView]) -> list[Look]:
    """The first map of each image."""
    found = []
    for one in images:
        attribution, answer = one.attributions[0], one.top[0][0] if one.top else one.answer
        assert attribution.trust is not None
        drawn = overlay_pixels(
            one.image, attribution.values, attribution.signed, None, STRENGTH * (PALE if attribution.pale else 1.0)
        )
        found.append(Look(one.name, drawn, answer, attribution.trust.verdict, attribution.trust.sentence))
    return found


def evaluation_page(found: EvaluationView) -> str:
    """The page of an evaluation by itself, as text: what came out, what was left out, and its tables."""
    values = {"found": found, "sections": [_section(each) for each in found.sections]}
    return document("evaluation.html", f"{found.split} · evaluation", "evaluation", values)


def run_page(run: RunView) -> str:
    """The page of a run as text; the same values always give the same text."""
    wrong = [example for example in run.examples if example.truth != example.answer]
    right = [example for example in run.examples if example.truth == example.answer]
    values = {
        "run": run,
        "charts": _charts(run),
        "epochs": history_table(run.history, run.unit),
        "sections": [_section(each) for each in run.evaluation.sections] if run.evaluation else [],
        "matrices": {name: matrix_of(each.counts, each.names) for name, each in run.sides.confusions.items()}
        if run.sides
        else {},
        "groups": (
            ("Mistakes, the most confident first", _surest_first(wrong)),
            ("Correct predictions, the most confident first", _surest_first(right)),
        ),
        "looks": _looks(run.verdicts.images) if run.verdicts else (),
        "settings": settings_rows(run.settings),
        "environment": settings_rows(run.environment),
    }
    return document("run.html", f"{run.title} · run", "run", values)


def write_run_page(path: Path, run: RunView) -> None:
    """Write the page of a run, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        run: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, run_page(run))
