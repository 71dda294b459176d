"""What the page of a run shows, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Int64, UInt8


@dataclass(frozen=True)
class Example:
    """One picture of the evaluation that is worth a look.

    Args:
        picture: (h, w) or (h, w, 3), uint8.
        name: Where it comes from, such as a file name.
        label: Its true class.
        predicted: The class that the model chose.
        probability: What the model gave to `predicted`, in [0, 1].
    """

    picture: UInt8[np.ndarray, "h w *channels"]
    name: str
    label: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class EvaluationSummary:
    """What one evaluation found.

    Args:
        split: Name of the split, such as `test`.
        images: Pictures counted.
        accuracy: Share of them classified correctly.
        interval: Low and high end of the 95 % interval of the accuracy (Wilson).
        loss: Mean cross-entropy, in nats.
        confusion: (classes, classes) counts; rows are the true classes.
        per_class: One mapping per class with `class`, `images`, `precision`, `recall`, `f1` (None where undefined).
        unknown: Pictures per class that the model does not know; they are not counted.
        unreadable: Files that could not be read.
    """

    split: str
    images: int
    accuracy: float
    interval: tuple[float, float]
    loss: float
    confusion: Int64[np.ndarray, "k k"]
    per_class: list[dict] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WrittenSummary:
    """What one evaluation of a model that writes found.

    Args:
        split: Name of the split, such as `test`.
        sequences: Texts counted.
        exact: Share of them that are right in every token.
        interval: Low and high end of the 95 % interval of that share (Wilson).
        loss: Mean cross-entropy of a token, in nats.
        tokens: Tokens of the right texts.
        edit_distance: Tokens to insert, remove or replace until all is right.
        by_length: One mapping per length with `length`, `sequences` and `exact` (a count).
        examples: (source, right text, written text, its probability), for texts; pictures are `RunSummary.examples`.
        unreadable: Files that could not be read.
    """

    split: str
    sequences: int
    exact: float
    interval: tuple[float, float]
    loss: float
    tokens: int
    edit_distance: int
    by_length: list[dict[str, int]] = field(default_factory=list)
    examples: list[tuple[str, str, str, float]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RunSummary:
    """Everything that the page of a run shows; only the title is needed.

    Args:
        title: What was trained, such as `digits, S/4`.
        state: Whether the run goes on, came to its end, or was stopped before.
        facts: Headline pairs of label and value.
        history: One mapping per epoch: `epoch`, `training_loss`, `validation_loss`, `training_accuracy`,
            `validation_accuracy`, `learning_rate`, `seconds`, `images_per_second`, `waiting_share`; any may be missing.
        evaluation: The evaluation, once there is one.
        classes: Class names, in the order of the confusion matrix.
        settings: The resolved configuration, nested.
        environment: Versions and machine.
        notes: What a reader should know: skipped files, threads and recipe and why.
        command: The command line that started the run.
        examples: Pictures that the model got right and wrong.
        written: The evaluation of a model that writes, once there is one.
        unit: What one sample of the training is called.
        beside: What a founding document states of the same set-up.
        about_probabilities: What to know of the probabilities that the page shows.
    """

    title: str
    state: Literal["running", "finished", "stopped"] = "running"
    facts: list[tuple[str, str]] = field(default_factory=list)
    history: list[dict] = field(default_factory=list)
    evaluation: EvaluationSummary | None = None
    classes: Sequence[str] = ()
    settings: Mapping = field(default_factory=dict)
    environment: Mapping = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = ""
    examples: tuple[Example, ...] = ()
    written: WrittenSummary | None = None
    unit: str = "picture"
    beside: str = ""
    about_probabilities: str = ""
