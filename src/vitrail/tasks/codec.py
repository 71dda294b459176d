"""What targets and outputs mean, in one place: from a column of the data to targets, from outputs to an answer.

A codec is a small plain value that is stored with the model. Its first half reads data (`match`, `targets`), its second
half reads what a network returns: words and probabilities (`answer`), how wrong that is (`error`), whether two outputs
say the same (`agree`), what a teacher's outputs ask of a student's (`divergence`), what neighbours vote for (`vote`),
which number is explained and how evidence for it is measured (`choose`), and which head fits features best (`fit`).

What a task does not have is None, so that a verb can say so before it reads any data. Nothing outside codecs takes a
softmax or an argmax of outputs, or asks which codec it has.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsIndex, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.data.columns import Column, Match
from vitrail.errors import Hint, UsageError, check_index, no_coverage, no_such_name, some_of
from vitrail.text import canonical, percent, percent_in_words

if TYPE_CHECKING:
    from vitrail.tasks.linear import LinearFit

Outputs = Float[Tensor, "b v"]
NO_FACTS: Mapping[str, Any] = {}
FAR = 0.02  # of the length of the outputs: what is nearer agrees, where nothing else says what agreeing is


@runtime_checkable
class Prediction(Protocol):
    """The prediction of a model for one input."""

    @property
    def name(self) -> str:
        """The input: a file, or a text."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons to doubt the prediction, one sentence each."""

    @property
    def top(self) -> tuple[tuple[str, float], ...]:
        """What is predicted with its probability, the most probable first; empty where there are no probabilities."""

    def sentence(self) -> str:
        """What is predicted, in words; empty where it is the first of `top`."""

    def brief(self) -> dict[str, Any]:
        """What is predicted, as plain values by name, the answer itself first."""

    def cells(self) -> tuple[str, ...]:
        """A line of a table for people."""

    def row(self) -> dict[str, Any]:
        """A line of a CSV file, by column."""

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""


class Agreement(NamedTuple):
    """Whether the second of two outputs says what the first says, for each sample.

    Attributes:
        same: (b,), whether the answer is the same.
        margin: (b,), how far the first one's answer was from another one, 0 to 1; nan where that is not known.
    """

    same: Bool[Tensor, " b"]
    margin: Float[Tensor, " b"]


class Hub(NamedTuple):
    """What hubs call a task.

    Attributes:
        pipeline: The tag of a model card, such as "image-classification".
        problem: transformers' `problem_type`; empty for the usual one.
    """

    pipeline: str
    problem: str = ""


def softmax_head(column: str, names: Sequence[str], calibration: Any) -> dict[str, Any]:
    """One class of those of a column, as `Codec.portable` has it."""
    temperature, limits = (1.0, ()) if calibration is None else (calibration.temperature, calibration.limits)
    of = {"names": list(names), "temperature": temperature, "limits": list(limits[0]) if limits else []}
    return {"kind": "softmax", "column": column, **of}


def tally(words: Sequence[str], of: int) -> str:
    """How often each word is there, the most frequent first: "clock 2 of 5, chair 1 of 5"."""
    return some_of([f"{word} {count} of {of}" for word, count in Counter(words).most_common()])


class Codec(ABC):
    """What targets and outputs mean; see the head of this file. Subclasses are final, frozen and of plain values.

    Attributes:
        names: The name of each output, texts; empty where they have none.
        generates: Whether outputs are made one token after the other; then tokens are explained, not outputs.
        describes: Whether outputs are the coordinates of a vector, whose direction says what an image is like.
        hub: What hubs call the task; None where they have no name for it.
        is_wrong: Whether an error is 0 for right and 1 for wrong; else it is a distance.
        folds_calibrate: Whether training images, each answered by a probe of the others, calibrate a probe where there
            are fewer than `calibration.FOR_SETS` validation images to do so.
        beside_grey: Whether a page says what the mean grey value of an image alone reaches.
        most: How many outputs a prediction names, where that can be chosen; it is not stored.
        calibration: A `vitrail.tasks.calibration.Calibration`, where there is one.
        coverage: How often a prediction's set or interval holds what is true; None for no set. It is not stored.
        promises: What such a set or interval is called, in the plural; empty where the task has none.

    Methods that a task may have, None where it has none; their shapes are those of `vitrail.tasks.classify.Classes`:

        error: (outputs, targets) -> (b,): how wrong each answer is; NaN where nothing is known of what is right.
        confidence: (outputs) -> (b,): how sure each answer is, 0 to 1.
        divergence: (outputs, teacher's outputs, kind, temperature) -> the summed loss of a student against its teacher.
        vote: (targets (n, k, ...) of neighbours, cosines (n, k)) -> what they vote for, as outputs (n, v).
        strata: (targets) -> (n,): which samples are alike, so that each part of a split gets some of each.
        loss: (outputs, targets, reduction="mean" or "sum") -> a loss, convex in the outputs, for a linear head.
        weighted: (training samples by name, a `vitrail.tasks.losses.Weighing`) -> a `loss` for rare classes; `rare` are
            the options that it follows.
        settle: (outputs, targets) -> the codec with what it decides on validation samples that are not reported on;
            what that is, in words, is its `settled`.
        calibrate: (outputs, targets, on) -> the codec with what its probabilities or intervals need, of samples of the
            split `on` that did not choose the network, if there are enough; in words its `calibrated`.
        predicted: (outputs, most) -> the outputs that each answer names, the most probable first, at most so many; each
            is explained by itself.
        limits: (v), from which probability on each output is predicted, where each is by itself.
        choose: (outputs, wanted) -> what is explained of them, a `ChosenTarget`; `wanted` is one of `target.Wanted`.
    """

    names: Any = ()
    generates: bool = False
    describes: bool = False
    hub: Hub | None = None
    is_wrong: bool = True
    folds_calibrate: bool = False
    beside_grey: bool = False
    most: Any = None
    calibration: Any = None
    coverage: Any = None
    promises: str = ""
    error: Any = None
    confidence: Any = None
    divergence: Any = None
    vote: Any = None
    strata: Any = None
    loss: Any = None
    weighted: Any = None
    rare: tuple[str, ...] = ()
    settle: Any = None
    calibrate: Any = None
    predicted: Any = None
    limits: Any = None
    choose: Any = None

    @property
    def settled(self) -> str:
        """What `settle` has decided, in words."""
        return ""

    @property
    def besides(self) -> str:
        """What an explanation without a target leaves out, and how it is asked for, in words; empty where nothing."""
        return ""

    @property
    def temperature(self) -> float:
        """What outputs are divided by before they become probabilities."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def calibrated(self) -> str:
        """What `calibrate` has decided, in words."""
        if self.calibration is None:
            return "probabilities stay as they are, since for a temperature these are too few"
        more = "; none is wrong, but one wrong answer is counted, so that a few right ones make nobody certain"
        divided = f"outputs are divided by {self.temperature:.3g} (the temperature) before they become probabilities"
        return f"{divided}{more * (self.calibration.right == 1)}"

    # ---- from data

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs of a network: for a sample, or for a token."""

    @property
    def number_of(self) -> Mapping[str, int]:
        """The outputs by each name that they have."""
        return {name: index for index, name in enumerate(self.names)}

    @abstractmethod
    def match(self, column: Column) -> Match:
        """A column of other data, in this codec's terms.

        Raises:
            DataError: A value cannot be used.
            UsageError: The column is of another kind.
        """

    @abstractmethod
    def targets(self, values: Any) -> Tensor:
        """Targets (b, ...) on the CPU, from b values as `Column.take` returns them."""

    @abstractmethod
    def describe(self) -> tuple[str, str]:
        """What the outputs are called, and a list of them in words: ("classes", "cat, dog")."""

    @property
    def size(self) -> str:
        """How many outputs there are, where a list of them is too long."""
        return str(self.outputs)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which the task makes it again."""

    # ---- from outputs

    def portable(self) -> list[dict[str, Any]]:
        """How outputs become an answer, as plain values for a reader without vitrail; empty where that cannot be said.

        One head behind the other, each of some of the outputs. By `kind`: "softmax" (one of `names`, of the `column`),
        "sigmoid" (those whose probability reaches their of `thresholds`), "number" (each times its of `deviations`, and
        its of `means` added), "vector" (the outputs themselves). `temperature` divides outputs; `limits` are those of
        `Calibration`.
        """
        return []

    @abstractmethod
    def answer(
        self, outputs: Any, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> Sequence[Prediction]:
        """A prediction for each sample.

        Args:
            outputs: (b, ...), what `Task.outputs` gave.
            names: (b), the names of the inputs.
            facts: Of the model.
            inputs: (b, ...), what the network read, where that is at hand.
        """

    def among(self, cells: Sequence[Mapping[str, str]]) -> str:
        """What some samples have, in words: how many of those where it is known have each word of a column.

        Args:
            cells: Of each sample its words by column, as `Column.cells` has them; empty where they are not known.
        """
        names = [*dict.fromkeys(name for each in cells for name in each)]
        columns = {name: [each[name] for each in cells if each.get(name)] for name in names}
        found = {name: tally(words, len(words)) for name, words in columns.items() if words}
        return "; ".join(f"{name}: {words}" if len(names) > 1 else words for name, words in found.items())

    def agree(self, outputs: Outputs, others: Outputs) -> Agreement:
        """Whether other outputs say the same: here, whether they are near, beside the length of the first."""
        same = (outputs - others).norm(dim=1) <= FAR * outputs.norm(dim=1)
        return Agreement(same, torch.full_like(same, math.nan, dtype=torch.float64))

    def promising(self, coverage: float | None) -> "Codec":
        """The same whose predictions have sets or intervals that hold what is true so often; None: as they are.

        Raises:
            UsageError: It has none, or this is no coverage.
            DataError: It is not calibrated, or on too few images.
        """
        if coverage is None:
            return self
        if not self.promises:
            raise no_coverage(self.describe()[0])
        return replace(self, coverage=coverage)  # pyrefly: ignore[bad-specialization]

    def promise(self) -> str:
        """What the sets or intervals of its predictions promise, in a sentence; empty where it promises nothing."""
        if self.coverage is None or self.calibration is None:
            return ""
        words = f"{percent_in_words(self.coverage)} of {self.promises} hold what is true"
        right = self.calibration.right
        alone = "; the top class alone was right as often there" if right and right >= self.coverage else ""
        return f"{self.calibration.promise(self.coverage, words)}{alone}"

    def fit(self, features: Float[Tensor, "n d"], targets: Tensor, loss: Any = None) -> "LinearFit":
        """The linear head that fits features best by a loss, or by its own; the penalty is cross-validated.

        Raises:
            DataError: Nothing can be learnt from these targets.
        """
        from vitrail.tasks.linear import fit_linear  # of a training alone

        return fit_linear(self, features, targets, loss)

    def score(self, errors: Float[Tensor, " n"]) -> float:
        """What errors come to: the fraction that is right, or the mean distance of those where it is known."""
        return float((errors == 0).double().mean() if self.is_wrong else errors.double().nanmean())

    def shown(self, score: float) -> str:
        """A score for people."""
        return percent(score) if self.is_wrong else f"error {score:.3g}"

    # ---- what is explained

    def name(self, index: int) -> str:
        """What an output is called."""
        index = check_index("index", index, self.outputs)
        return self.names[index] if self.names else f"number {index}"

    def index(self, word: str | SupportsIndex, argument: str = "target") -> int:
        """The output that a word means: its name, or in Python its index.

        Args:
            word: A name; or an index, also of numpy or torch. Of outputs without names, digits are an index.
            argument: `target` or `contrast`, for the message.

        Raises:
            UsageError: There is no such output; names those that there are, or the nearest of many.
        """
        is_text, last = isinstance(word, str), self.outputs - 1
        if is_text and (name := canonical(str(word))) in self.number_of:
            return self.number_of[name]
        digits = str(word).removeprefix("" if self.names else "number ")  # as `name` calls it
        numbered = int(digits) if not isinstance(word, bool) and digits.isdecimal() else -1
        if 0 <= numbered <= last and not (is_text and self.names):
            return numbered
        if not self.names:
            problem = f"{argument} must be one of the model's numbers, 0 to {last}, got '{word}'"
            raise UsageError(problem, Hint({argument: 0}))
        kind = self.describe()[0]
        if not is_text:
            raise UsageError(f"{argument} must be an index of {kind}, 0 to {last}, got {word}", Hint({argument: last}))
        raise no_such_name(str(word), self.names, kind, argument)


# ---- two answers to the same samples


@dataclass(frozen=True)
class Gain:
    """By how much a second network is less wrong than a first one, on the same samples.

    Attributes:
        won: Samples on which the second is less wrong.
        lost: Samples on which the first is.
        images: All samples.
        difference: The mean error of the first less that of the second; of right and wrong, of their accuracies.
        interval: 95 % interval of it.
    """

    won: int
    lost: int
    images: int
    difference: float
    interval: tuple[float, float]

    @property
    def better(self) -> bool:
        """Whether the second is less wrong, significantly or not."""
        return self.difference > 0

    @property
    def significant(self) -> bool:
        """Whether the interval lies on one side of zero."""
        low, high = self.interval
        return low > 0 or high < 0


def gain(before: Float[Tensor, " n"], after: Float[Tensor, " n"], is_wrong: bool) -> Gain:
    """Compare the errors of two networks, sample by sample.

    The interval is that of paired fractions for right and wrong (Agresti and Min, 2005: half a sample added to each
    cell), and of a mean of paired differences for distances.

    Args:
        before: Errors of the first, n of at least one.
        after: Of the second.
        is_wrong: As of `Codec.is_wrong`.
    """
    less = before.double() - after.double()
    won, lost, count = int((less > 0).sum()), int((less < 0).sum()), len(less)
    if not is_wrong:
        middle, half = float(less.mean()), 1.959964 * float(less.std(correction=min(1, count - 1))) / math.sqrt(count)
        return Gain(won, lost, count, middle, (middle - half, middle + half))
    more, fewer, images = won + 0.5, lost + 0.5, count + 2.0
    middle = (more - fewer) / images
    half = 1.959964 * math.sqrt(more + fewer - (more - fewer) ** 2 / images) / images
    return Gain(won, lost, count, (won - lost) / count, (middle - half, middle + half))
