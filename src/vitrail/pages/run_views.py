"""What the page of a run shows, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt8


@dataclass(frozen=True)
class Table:
    """A table of finished cells.

    Args:
        title: What it shows.
        header: Names of the columns.
        rows: Cells, as they are to be read.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ClassTable:
    """How well each class does.

    Args:
        title: What it shows.
        rows: One mapping per class with `class`, `images`, `precision`, `recall`, `f1` (None where undefined).
    """

    title: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Confusion:
    """Which classes are taken for which.

    Args:
        title: What it shows.
        counts: (classes, classes); rows are the true classes.
        names: Of the classes.
    """

    title: str
    counts: Int64[np.ndarray, "k k"]
    names: tuple[str, ...]


Section = Table | ClassTable | Confusion
"""What an evaluation may show."""


@dataclass(frozen=True)
class Example:
    """One image of the evaluation that is worth a look.

    Args:
        picture: (h, w) or (h, w, 3), uint8.
        name: Where it comes from, such as a file name.
        truth: What is right.
        answer: What the model said.
        probability: What the model gave to its answer, in [0, 1]; None where it gives none.
    """

    picture: UInt8[np.ndarray, "h w *channels"]
    name: str
    truth: str
    answer: str
    probability: float | None = None


@dataclass(frozen=True)
class EvaluationView:
    """What one evaluation found.

    Args:
        split: Name of the split, such as `test`.
        count: Samples counted.
        value: The primary figure, as it is to be read.
        metric: What it is called.
        statement: What the value says of the samples ("are classified correctly"); empty where its name says it.
        about: Sentences on it.
        loss: Mean of the objective's loss.
        unit: What one sample is called.
        sections: Tables.
        unknown: Samples that show what the model does not know, by name; they are not counted.
        unreadable: Files that could not be read.
    """

    split: str
    count: int
    value: str
    metric: str = "accuracy"
    statement: str = ""
    about: str = ""
    loss: float = 0.0
    unit: str = "image"
    sections: tuple[Section, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RunView:
    """Everything that the page of a run shows; only the title is needed.

    Args:
        title: What was trained, such as `digits, S/4`.
        state: Whether the run goes on, came to its end, or was stopped before.
        facts: Headline pairs of label and value.
        history: One mapping per epoch: `epoch`, `training_loss`, `validation_loss`, `learning_rate`, `seconds`,
            `images_per_second`, `waiting_share`, and what `curves` name; any may be missing.
        metric: What the metric that is drawn is called.
        fraction: Whether it lies from 0 to 1 and is shown in percent.
        curves: Of the metric: what each is called, and its key in the history.
        evaluation: The evaluation, once there is one.
        settings: The resolved configuration, nested.
        environment: Versions and machine.
        notes: What a reader should know: skipped files, threads and recipe and why.
        command: The command line that started the run.
        examples: Images that the model got right and wrong.
        unit: What one sample of the training is called.
        document: What a founding document states of the same set-up.
        about_probabilities: What to know of the probabilities that the page shows.
    """

    title: str
    state: Literal["running", "finished", "stopped"] = "running"
    facts: list[tuple[str, str]] = field(default_factory=list)
    history: list[dict] = field(default_factory=list)
    metric: str = "accuracy"
    fraction: bool = True
    curves: Sequence[tuple[str, str]] = (("training", "training_accuracy"), ("validation", "validation_accuracy"))
    evaluation: EvaluationView | None = None
    settings: Mapping = field(default_factory=dict)
    environment: Mapping = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = ""
    examples: tuple[Example, ...] = ()
    unit: str = "image"
    document: str = ""
    about_probabilities: str = ""
