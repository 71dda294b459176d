"""What the pages of a run and of an evaluation show, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt8

from vitrail.pages.chart import Chart

RunState = Literal["running", "finished", "stopped", "untrained"]


@dataclass(frozen=True)
class Table:
    """A table of finished cells.

    Args:
        title: What it shows.
        header: Names of the columns.
        rows: Cells, as they are to be read.
        left: How many more rows there are, in JSON alone.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 0


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
        counts: (classes, classes); rows are the true classes. Of several labels an image: of the images that have the
            label of the row, those in which it is predicted (diagonal), or another one that is absent from them.
        names: Of the classes.
        labels: Of several labels an image, for each how many images have it, how many are known not to, and in how many
            of the latter it is predicted; None where each image has one class.
    """

    title: str
    counts: Int64[np.ndarray, "k k"]
    names: tuple[str, ...]
    labels: Int64[np.ndarray, "k 3"] | None = None

    def __post_init__(self) -> None:
        """A count for each pair of names."""
        of = len(self.names)
        assert self.counts.shape == (of, of), f"{self.counts.shape} counts for {of} classes"

    @property
    def images(self) -> list[int]:
        """How many there are of each row."""
        return (self.counts.sum(1) if self.labels is None else self.labels[:, 0]).tolist()

    def wrongly(self, most: int = 8) -> list[int]:
        """The labels that are predicted of most images that lack them, the most frequent first."""
        assert self.labels is not None, "one class an image"
        counts = self.labels[:, 2]
        return [label for label in np.argsort(-counts, kind="stable")[:most].tolist() if counts[label]]

    def most_confused(self, most: int = 30) -> list[int]:
        """The classes with most mistakes, counted as true class and as answer, in their own order."""
        mistakes = self.counts.sum(0) + self.counts.sum(1) - 2 * np.diag(self.counts)
        return np.sort(np.argsort(-mistakes, kind="stable")[:most]).tolist()

    def mistakes(self, most: int = 8) -> list[tuple[int, int]]:
        """True class and answer of the most frequent mistakes, the most frequent first."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        rows, columns = np.unravel_index(order, wrong.shape)
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        return [(truth, answer) for truth, answer in pairs if wrong[truth, answer] > 0]


Section = Table | ClassTable | Confusion | Chart
"""What an evaluation may show."""


@dataclass(frozen=True)
class Pair:
    """One image that the probe and the tuned network answer differently.

    Args:
        image: (h, w) or (h, w, 3), uint8.
        name: Where it comes from.
        truth: What is right.
        probe: The probe's answer.
        tuned: The tuned network's answer.
    """

    image: UInt8[np.ndarray, "h w *channels"]
    name: str
    truth: str
    probe: str
    tuned: str


@dataclass(frozen=True)
class SidesView:
    """The probe and the tuned network of a run, on the same samples.

    Args:
        kept: Which of them is the model: `probe` or `tuned`.
        sentence: What tuning added, with its interval, and what to know of the samples.
        values: The figure of each, as it is to be read.
        confusions: Of each, where the classes are few enough to be shown.
        won: Images that only the tuned network gets right, or on which it is less wrong; the first of many.
        lost: The same of the probe.
        counts: How many there are of both.
        is_wrong: Whether an answer is right or wrong, and no distance.
        verdicts: Of each, how many explanations of the same images a test supports, in words; empty where not tested.
    """

    kept: str
    sentence: str
    values: Mapping[str, str]
    confusions: Mapping[str, Confusion]
    won: tuple[Pair, ...]
    lost: tuple[Pair, ...]
    counts: tuple[int, int]
    is_wrong: bool = True
    verdicts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunView:
    """Everything that the page of a run shows; only the title is needed.

    Args:
        title: What was trained, such as `digits, S/4`.
        state: Whether the run goes on, came to its end (with or without a step), or was stopped before.
        badge: The same in a few words, such as "stopped by patience after 7 of 20 epochs".
        facts: Headline pairs of label and value.
        history: One mapping per epoch: `epoch`, `training_loss`, `validation_loss`, `learning_rate`, `seconds`,
            `images_per_second`, `waiting_fraction`, and what `curves` name; any may be missing.
        metric: What the metric that is drawn is called.
        fraction: Whether it lies from 0 to 1 and is shown in percent.
        scored: What the samples are called on which each epoch was scored.
        level: The figure of the probe, drawn as a level line, and what it is called; None where there is none.
        sides: The probe and the tuned network beside each other, once there are both.
        verdicts: Whether the network looks at the thing, an `explain.Report`; None where that was not tested.
        about: Which network of the run the model is, and what its figure stands on, or why there is no model; may be
            empty.
        rates: What the rates of parameters are of the learning rate that is drawn, in a sentence; may be empty.
        curves: Of the metric: what each is called, and its key in the history.
        measures: The keys of what else was measured in training, each with a chart of its own.
        evaluation: A `vitrail.tasks.Result`, once there is one.
        settings: The resolved configuration, nested.
        environment: Versions and machine.
        notes: What a reader should know: skipped files, threads and recipe and why.
        command: The command line that started the run.
        changed: What training images are that others are not, such as "mixed and augmented"; may be empty.
        weighted: What the training loss has that the others do not, such as "class weights auto"; may be empty.
        nothing: Answers to composites, which show nothing: each with how many, the median and the highest probability.
        unit: What one sample of the training is called.
        about_probabilities: What to know of the probabilities that the page shows.
    """

    title: str
    state: RunState = "running"
    badge: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    history: list[dict] = field(default_factory=list)
    metric: str = "accuracy"
    fraction: bool = True
    scored: str = "validation"
    level: tuple[str, float] | None = None
    sides: SidesView | None = None
    verdicts: Any = None
    about: str = ""
    rates: str = ""
    curves: Sequence[tuple[str, str]] = (("training", "training_accuracy"), ("validation", "validation_accuracy"))
    measures: Sequence[str] = ()
    evaluation: Any = None
    settings: Mapping = field(default_factory=dict)
    environment: Mapping = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = ""
    changed: str = ""
    weighted: str = ""
    nothing: Sequence[tuple[str, int, float, float]] = ()
    unit: str = "image"
    about_probabilities: str = ""
