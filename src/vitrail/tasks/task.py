"""What a task is: one value that holds what is learnt, from which column, how it is measured, and what is predicted.

The loop, the job, run folders, pages, cards, `evaluate`, `predict` and their JSON know tasks by this value only. A new
task is one file with a final class (or a file of your own, whose value is passed to `vitrail.train(task=...)`), and one
row in `CLASS_OF` (`choice.py`). A task gets network, input and output, never a model.

    codec       from the column of the training split to classes, a vocabulary, numbers: what is stored with the model
    network     what the data decides of the network's configuration
    objective   (network, batch) -> summed loss, count, measures: see `Objective` below
    metrics     answers batch by batch, and what all answers come to: a `Result`
    outputs     from inputs to what the codec turns into answers: one call of the network, unless a text is generated
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.columns import BEGIN, END, PADDING, Vocabulary
from vitrail.data.preprocessing import CHANNELS, Preprocessing
from vitrail.errors import UsageError, counted
from vitrail.nn import grid_of
from vitrail.nn.networks import NetworkConfig, SequenceConfig, output_count, reads_of
from vitrail.statistics import wilson_interval
from vitrail.tasks.codec import NO_FACTS, Codec, Prediction
from vitrail.text import percent

if TYPE_CHECKING:  # who loads a model needs nothing that only a training has
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch, Blend
    from vitrail.data.columns import RawDataset, Samples
    from vitrail.nn import Search
    from vitrail.pages.run_views import Section

Input = Preprocessing | Vocabulary
"""What turns a source into what a network expects: of an image, or of a text."""

Known = TypeVar("Known", bound=Codec)
Measures = dict[str, Float[Tensor, ""]]
Network = Callable[..., Tensor]  # a module, or one that was compiled or wrapped: only called
Objective = Callable[[Network, Any], tuple[Float[Tensor, ""], int, Measures]]
"""Network and batch to the summed loss, the count it is a sum over, and further sums by name.

Sums and counts add up exactly over micro-batches, uneven ends and samples that were left out; the loop divides once. An
objective calls only `network(...)`; what else it needs, it reads from a record. A loss over pairs of samples is no such
sum: it must be computed on whole batches (`accumulate: 1`).
"""


@dataclass(frozen=True)
class Metric:
    """The primary figure of a task.

    Attributes:
        key: Its name in files: `validation_accuracy` in the metrics is that of the key `accuracy`.
        label: Its name on pages and in messages: "accuracy", "exact match".
        fraction: Whether it is a fraction from 0 to 1, shown in percent; else it is shown as a number.
        better: Which values are better; empty for higher ones of a fraction, and for none of another figure, where
            networks are compared by their loss.
    """

    key: str
    label: str
    fraction: bool = True
    better: Literal["higher", "lower", ""] = ""

    def shown(self, value: float) -> str:
        """A value for people: 98.70 %, or a number with four digits."""
        return percent(value, 2) if self.fraction else f"{value:.4g}"

    def rank(self, value: float) -> float:
        """A number that is greater for a better value; 0 where none is better."""
        return {"higher": value, "lower": -value, "": value if self.fraction else 0.0}[self.better]


@dataclass(frozen=True)
class Example:
    """One sample of an evaluation, to be shown.

    Attributes:
        id: Its number in the split.
        name: Of its input.
        truth: Its label or text.
        answer: What the model predicted.
        probability: Of that prediction; None when the model has none.
        image: As the model sees it, for pages; None where it is not shown.
    """

    id: int
    name: str
    truth: str
    answer: str
    probability: float | None = None
    image: UInt8[np.ndarray, "h w *channels"] | None = field(default=None, repr=False, compare=False)

    @property
    def right(self) -> bool:
        """Whether the answer is what is right."""
        return self.truth == self.answer


SURENESS = (*(tenth / 10 for tenth in range(10)), 0.95, 0.99, 0.999, 1.0)  # between which answers are counted


@dataclass(frozen=True, eq=False)
class Result:
    """The result of an evaluation.

    Attributes:
        metric: The metric of `value`.
        value: The primary figure.
        count: The number of samples.
        loss: The mean loss of the objective, in nats for the tasks of the library.
        details: What `--json` prints, by name, in order.
        sentence: The number of samples, the interval, and what else belongs to the headline.
        about: The same for the page, in full sentences: what the value means, and what it is computed from.
        interval: The 95 % interval of the value, or None where there is none.
        tables: For pages and the terminal.
        examples: Samples to be shown: mistakes, the most confident first; then right answers, class by class, the least
            sure first.
        percentage: What the probability of an example is, in a sentence, where it is not that of one answer.
        truths: (n,) the labels or texts of the samples `ids`, in words.
        answers: (n,) the predictions of the samples `ids`, in words.
        errors: (n,) how wrong each of them is, see `Codec.error`; empty where the task has none.
        confidences: (n,) how sure each of them is, 0 to 1, as `Codec.confidence`; empty where the task has none.
        sureness: The rows of `calibration` where answers are not counted by image: each with what it counts (`of`), of
            numbers with its `name` and how far `off` it is on average.
        ids: (n,) the numbers of the samples.
        split: The name of the split; "" until it is known.
        unit: What one sample is called, in the singular.
        unknown: Samples left out because the model does not know their label, by label; None where that cannot be.
        unreadable: What could not be read, one line each.
        data: The name of the data; empty within a training.
        notes: What is unusual about the data, one sentence each.
    """

    metric: Metric
    value: float
    count: int
    loss: float
    details: Mapping[str, Any]
    sentence: str
    about: tuple[str, str] = ("", "")
    interval: tuple[float, float] | None = None
    tables: "tuple[Section, ...]" = ()
    examples: tuple[Example, ...] = ()
    percentage: str = ""
    ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    truths: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    answers: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    errors: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    confidences: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    sureness: tuple[Mapping[str, Any], ...] = ()
    split: str = ""
    unit: str = "image"
    unknown: Mapping[str, int] | None = None
    unreadable: tuple[str, ...] = ()
    data: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """In at most five lines: the figure with its interval, the loss, the first mistakes."""
        name, value = self.headline
        wrong = [f"  {one.name}: {one.answer}, right is {one.truth}" for one in self.examples if not one.right][:3]
        lines = f"{name} {self.metric.shown(value)} {self.sentence}\n  loss {self.loss:.4g}"
        return "\n".join([f"{lines}{f', data {self.data}' * bool(self.data)}", *wrong])

    @property
    def headline(self) -> tuple[str, float]:
        """The name of the primary figure, and its value: ("test accuracy", 0.987)."""
        return f"{self.split} {self.metric.label}".strip(), self.value

    @property
    def calibration(self) -> list[Mapping[str, Any]]:
        """How many answers are right by how sure they are: `from`, `to`, `images`, `right`; none where unknown."""
        known = np.isfinite(self.confidences)
        if self.sureness or not known.any() or len(known) != len(self.errors):
            return [*self.sureness]
        places = np.searchsorted(SURENESS[1:-1], self.confidences, side="right")
        parts = known, known & (self.errors == 0)
        counts = (np.bincount(places[some], minlength=len(SURENESS) - 1).tolist() for some in parts)
        rows = zip(pairwise(SURENESS), *counts, strict=True)
        return [{"from": low, "to": high, "images": images, "right": right} for (low, high), images, right in rows]

    def to_dict(self) -> dict[str, Any]:
        """What `vitrail evaluate --json` prints."""
        unknown = {} if self.unknown is None else {"unknown": dict(self.unknown)}
        return {"split": self.split, **self.details, **unknown, "unreadable": list(self.unreadable)}

    def _repr_html_(self) -> str:
        """What came out, and its tables, for a notebook."""
        from vitrail import pages

        return pages.in_frame(pages.evaluation_page(self))


class Metrics(ABC):
    """What counts an evaluation: the answers to each batch, then all of them; each sample exactly once.

    Several processes may evaluate, each some of the batches; each then counts the answers to all, in their order.
    """

    @abstractmethod
    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """What the network, which is in eval mode, answers to a batch that is not augmented.

        Returns:
            All that is counted of it, as JSON holds it: numbers, texts, lists and mappings by text.
        """

    @abstractmethod
    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """What the answers to all batches come to, in whole numbers and float64; `name` gives the name of a sample."""


class Task(ABC):
    """What is learnt; see the head of this file. Subclasses are final, frozen and made of plain values."""

    name: str
    """Its name in `--task`, `config.yaml` and `config.json`."""
    column: str | None
    """The column of the data that is learnt; None where nothing but the inputs is read."""
    help: str
    """One line about it, for help texts."""
    metric: Metric
    """The primary figure, by which trainings are compared."""
    networks: tuple[str, ...] = ("ViT",)
    """Kinds of networks that can learn it, by their names in `vitrail.nn.networks.NETWORKS`."""
    counted: str = "images"
    """What the objective counts, by its name in the metrics file."""
    measures: Mapping[str, str] = {}  # never changed
    """Names in the metrics file, behind `training_`, of the objective's measures (means over what is counted)."""
    blend: "Blend | None" = None
    """Makes targets of mixed samples; None where samples cannot be mixed."""
    smooths: bool = False
    """Whether the objective or `blend` smooths labels."""
    invariant: bool = False
    """Whether what is learnt stays the same when an image is cropped, moved, turned, flipped or coloured anew; only
    then are the augmentations of recipes taken over, and only then do images lose what a centre crop cuts away."""
    searches: bool = False
    """Whether `outputs` takes a search."""
    trains: bool = True
    """Whether it can be learnt; the features of networks from elsewhere cannot."""
    background: bool = False
    """Whether explanations are tested with background patches, which the model then carries."""

    @abstractmethod
    def codec(self, raw: "RawDataset", splits: "Mapping[str, Samples]", separator: str = "") -> Codec:
        """What the training split decides of the column.

        Args:
            raw: The data as it was found.
            splits: The same, divided.
            separator: What stands between two tokens of a text; empty for one token a character.

        Raises:
            DataError: The data is not fit to be learnt from.
        """

    @abstractmethod
    def codec_from_dict(self, values: Mapping[str, Any]) -> Codec:
        """The way back from `Codec.to_dict`."""

    def fit(self, network: Mapping[str, Any], output: Codec, splits: "Mapping[str, Samples]") -> dict[str, Any]:
        """The network's configuration with what the data decides; of a ViT, the length of its output.

        Args:
            network: Values of the configuration, with its `kind`.
            output: The codec.
            splits: The data.

        Raises:
            DataError: The network cannot hold what the data has.
        """
        return {**network, "classes": output.outputs}

    @abstractmethod
    def objective(self, augmentation: "Augmentation") -> Objective:
        """The function that is minimised; see `Objective`."""

    @abstractmethod
    def metrics(self, input: Input, output: Codec) -> Metrics:
        """What counts an evaluation."""

    @torch.no_grad()
    def outputs(self, network: nn.Module, inputs: Tensor, search: "Search | None" = None) -> Any:
        """What the codec turns into answers.

        Args:
            network: In eval mode.
            inputs: (b, ...) as the network expects them, on its device.
            search: How the next id is chosen, for a task that generates text; None for greedy search.
        """
        return network(inputs)

    @final
    def predict(
        self,
        network: nn.Module,
        output: Codec,
        inputs: Tensor,
        names: Sequence[str],
        search: "Search | None" = None,
        facts: Mapping[str, Any] = NO_FACTS,
    ) -> Sequence[Prediction]:
        """A prediction for each input.

        Args:
            network: In eval mode.
            output: The codec of the model.
            inputs: As for `outputs`.
            names: (b), the names of the inputs.
            search: As for `outputs`.
            facts: Of the model.
        """
        return output.answer(self.outputs(network, inputs, search), names, facts, inputs)

    def chance_loss(self, output: Codec) -> float | None:
        """The loss, in nats, of a network that has learnt nothing; None where it is not known."""
        return None

    def facts(self, input: Input, augmentation: "Augmentation", train: "Samples") -> dict[str, Any]:
        """Facts of the training that are stored with the model, to interpret its predictions."""
        return {}

    def about(self, output: Codec, facts: Mapping[str, Any]) -> str:
        """How to read the probabilities of predictions, in a sentence; empty where there is nothing to say."""
        return ""


# ---- what tasks have in common


def at_least_fp32(outputs: Tensor) -> Tensor:
    """Outputs in at least fp32, for a loss."""
    return outputs if outputs.dtype.itemsize > 4 else outputs.float()


def answers_in_rows(output: Codec, network: nn.Module, batch: "Batch") -> dict[str, Any]:
    """The summed loss; of each image its number, its several labels (None where unknown) and its outputs, as JSON."""
    outputs, labels = at_least_fp32(network(batch.inputs)).detach().cpu().double(), batch.labels.cpu()
    known = [[None if value != value else value for value in row] for row in labels.tolist()]
    loss = float(output.loss(outputs, labels, "sum"))
    return {"loss": loss, "ids": batch.ids.tolist(), "labels": known, "outputs": outputs.tolist()}


def known_alone(
    ids: NDArray[np.int64], errors: NDArray[np.float64], *rows: Any
) -> tuple[NDArray[np.int64], NDArray[np.float64], list[Any], str]:
    """The samples of which something is known, so that nothing is said of the others.

    Args:
        ids: (n,) their numbers.
        errors: (n,) of each, NaN where nothing is known.
        *rows: (n, ...) what else there is of each, arrays or tensors.

    Returns:
        The same of those samples, and how many others were left out, in words.
    """
    known = ~np.isnan(errors)
    left = f"; {counted(int((~known).sum()), 'image')} of which nothing is known left out" if not known.all() else ""
    return ids[known], errors[known], [each[known] for each in rows], left


def unit_of(input: Input) -> str:
    """What one sample is called, in the singular."""
    return "image" if isinstance(input, Preprocessing) else "pair"


def fraction_result(
    metric: Metric,
    errors: NDArray[np.float64],
    unit: str,
    done: str,
    loss: float,
    details: Mapping[str, Any],
    more: str = "",
    **rest: Any,
) -> Result:
    """A result whose figure is the fraction of samples that are right, with its interval, in JSON and in sentences.

    Args:
        metric: Which figure.
        errors: (n,) of each sample, 0 where it is right.
        unit: What one is called, in the singular.
        done: What was done rightly with those, such as "classified correctly".
        loss: Mean of the objective's loss.
        details: What JSON has besides count, fraction, interval and loss.
        more: What else belongs to the headline.
        **rest: The other fields of a `Result`.
    """
    right, count = int((errors == 0).sum()), len(errors)
    value, (low, high) = right / max(1, count), wilson_interval(right, count)
    ends = percent(low, 2), percent(high, 2)
    likely = f"the {metric.label} on {unit}s like these lies between {ends[0]} and {ends[1]} (Wilson interval)."
    return Result(
        metric=metric,
        value=value,
        count=count,
        loss=loss,
        errors=errors,
        interval=(low, high),
        details={
            f"{unit}s": count,
            metric.label.replace(" ", "_"): value,
            "interval": [low, high],
            "loss": loss,
            **details,
        },
        sentence=f"of {counted(count, unit)} (95 % interval {ends[0]} to {ends[1]}){more and f', {more}'}",
        about=(
            f"{'is' if count == 1 else 'are'} {done}",
            f"With 95 % confidence {likely}{more and f' {more[0].upper()}{more[1:]}.'}",
        ),
        **rest,
    )


def without_interval(result: Result) -> Result:
    """A result of samples that were trained on: no interval speaks of others like these, so none is stated."""
    from vitrail import pages  # of an evaluation alone

    stated = re.compile(
        r" \(95 % interval [^)]*\)|With 95 % confidence .*?\.(?: |$)"
        r"| \([−\d][^()]* to [−\d][^()]*\)|[\d.]+ % to [\d.]+ %$"
    )

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: None if name in ("interval", "intervals") else bare(each) for name, each in value.items()}
        return [*map(bare, value)] if isinstance(value, list) else value

    def plain(section: Any) -> Any:
        if not isinstance(section, pages.Table):
            return section
        return replace(section, rows=tuple(tuple(stated.sub("", cell) for cell in row) for row in section.rows))

    sentence, done, likely = (stated.sub("", words) for words in (result.sentence, *result.about))
    tables, details = tuple(map(plain, result.tables)), bare(dict(result.details))
    return replace(result, interval=None, details=details, sentence=sentence, about=(done, likely), tables=tables)


def expect_codec(output: Codec, kind: type[Known], example: str) -> Known:
    """The codec, which must be of this kind.

    Raises:
        UsageError: It is of another one; `example` is how one of the right kind is made.
    """
    if not isinstance(output, kind):
        raise UsageError(f"the output of this task must be {kind.__name__}, got {type(output).__name__}", example)
    return output


def check_model_fit(config: object, input: Input, output: Codec) -> None:
    """Hold the configuration of a network of the library against what it is fed and what its outputs mean.

    Raises:
        UsageError: They do not belong together.
    """
    if not isinstance(config, NetworkConfig):
        return
    if (logits := output_count(config)) != output.outputs:
        problem = f"the output has {output.outputs} {output.describe()[0]}, but the network returns {logits} logits"
        raise UsageError(problem, f"an output of {logits}, one for each logit")
    if isinstance(config, SequenceConfig) and (config.pad_id, config.bos_id, config.eos_id) != (PADDING, BEGIN, END):
        problem = f"the network has the special ids {config.pad_id}, {config.bos_id}, {config.eos_id}"
        raise UsageError(problem, f"pad_id={PADDING}, bos_id={BEGIN}, eos_id={END}, as in every Vocabulary")
    reads = reads_of(config)
    if isinstance(reads, int):
        if not isinstance(input, Vocabulary) or input.outputs != reads:
            has = f"{input.outputs} ids" if isinstance(input, Vocabulary) else "none"
            problem = f"the network reads texts of {reads} ids, but the input's vocabulary has {has}"
            raise UsageError(problem, f"a vocabulary of {reads - 3} tokens")
        return
    if reads.channels not in CHANNELS:
        raise UsageError(f"networks of {reads.channels} channels are not supported", "a network of 1 channel, or of 3")
    if not isinstance(input, Preprocessing) or input.channels != reads.channels:
        makes = f"{input.channels} channels" if isinstance(input, Preprocessing) else "texts"
        problem = f"preprocessing makes {makes}, but the network needs {reads.channels} channels"
        raise UsageError(problem, f"Preprocessing(channels={reads.channels}, ...)")
    grid_of(input.size, reads.patch)
