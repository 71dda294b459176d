"""The page of a run: how well it does, how it learnt, where it errs, and what it was told to do.

The order is that of a reader's questions. Everything is in the page without its script; the script adds reading of
values by pointer or arrow keys and the sorting of the class table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from markupsafe import Markup

from vitrail.io import write_file
from vitrail.pages.chart import Series, line_chart
from vitrail.pages.colour import PALE, STRENGTH, overlay_pixels
from vitrail.pages.html import number
from vitrail.pages.render import document
from vitrail.pages.tables import ClassRow, Matrix, class_rows, finite, history_table, matrix_of, settings_rows
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
