"""One class for each image: softmax cross-entropy, accuracy with its interval, the probability of each class."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.data.columns import LABEL, Column, Labels, Match
from vitrail.errors import DataError, UsageError
from vitrail.tasks.calibration import (
    COVERAGE,
    FEWEST,
    FOR_SETS,
    Calibration,
    calibration_from,
    check_coverage,
    check_fitted,
    fit_temperature,
    limits_of,
    reliability,
    stored,
)
from vitrail.tasks.choice import check_classes
from vitrail.tasks.codec import NO_FACTS, Agreement, Codec, Hub, Outputs, softmax_head
from vitrail.tasks.task import (
    Example,
    Input,
    Measures,
    Metric,
    Metrics,
    Network,
    Objective,
    Result,
    Task,
    at_least_fp32,
    expect_codec,
    fraction_result,
)
from vitrail.text import ShortRepr, canonical_texts, percent

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.columns import RawDataset, Samples
    from vitrail.tasks.linear import LinearFit
    from vitrail.tasks.losses import Loss, Weighing
    from vitrail.tasks.target import ChosenTarget

TOP = 5  # classes that a prediction names
ALIKE = "all classes have the same score, as with an untrained head: this is not a prediction"
EXAMPLE = 'Classes(("cat", "dog"))'
SHOWN = 12  # examples of each kind
ROUNDING = 2e-5  # of a probability in fp32: another batch or runtime moves those of ViT-Ti by 3e-6

ACCURACY = Metric("accuracy", "accuracy")
Targets = Int[Tensor, " b"]


def cross_entropy(
    network: Network, batch: "Batch", loss: Any = F.cross_entropy
) -> tuple[Float[Tensor, ""], int, Measures]:
    """Cross-entropy of the logits with hard targets (b,) or mixed ones (b, classes).

    Args:
        network: Gives logits (b, classes).
        batch: Images and targets.
        loss: Of logits and targets, where classes are weighted.

    Returns:
        The summed loss in nats, the number of images, and `correct`: how many have their own label as top class.
    """
    logits = at_least_fp32(network(batch.inputs))
    summed = loss(logits, batch.targets, reduction="sum")
    correct = (logits.detach().argmax(dim=1) == batch.labels).sum().float()
    return summed, len(batch), {"correct": correct}


def divergence(outputs: Outputs, teacher: Outputs, kind: str, temperature: float) -> Float[Tensor, ""]:
    """The teacher's part of a student's loss, summed over the images, in nats; nothing flows back into the teacher.

    Args:
        outputs: Logits of the student.
        teacher: Logits of the teacher.
        kind: "hard" for cross-entropy with the teacher's first choice; "soft" for T^2 times the Kullback-Leibler
            divergence of both softened distributions ("Distilling the knowledge in a neural network", 2015).
        temperature: T, above 0.
    """
    teacher = teacher.detach()
    if kind == "hard":
        return F.cross_entropy(outputs, teacher.argmax(dim=1), reduction="sum")
    ours, theirs = ((logits / temperature).log_softmax(dim=1) for logits in (outputs, teacher))
    return F.kl_div(ours, theirs, reduction="sum", log_target=True) * temperature**2


def blend(
    own: Targets, partners: Targets, weights: Float[Tensor, " b"] | None, smoothing: float, classes: int
) -> Targets | Outputs:
    """Targets of mixed images: the classes of both by their weights ("mixup", 2017), then evenly smoothed.

    Args:
        own: Class of each image.
        partners: Class of what is mixed in.
        weights: Of its own class, from 0 to 1; None where nothing is mixed.
        smoothing: e: of each target 1 - e stays and e / classes goes to every class ("Rethinking Inception", 2015).
        classes: How many there are.
    """
    if weights is None and not smoothing:
        return own
    targets = F.one_hot(own, classes).float()
    if weights is not None:
        weight = weights.cpu()[:, None]
        targets = weight * targets + (1 - weight) * F.one_hot(partners, classes).float()
    return (1 - smoothing) * targets + smoothing / classes


@dataclass(frozen=True, repr=False)
class ClassPrediction(ShortRepr):
    """The prediction of a classifier for one image.

    Attributes:
        name: The file, or "image".
        label: The most probable class.
        probability: Of that class, from 0 to 1.
        top: The most probable classes (five, or `Classes.most`) with their probabilities, the most probable first.
        notes: A sentence when all classes have the same score.
        set: The classes that hold the true one as often as was asked for, the most probable first; empty when not.
    """

    name: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()
    set: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Nothing that `top` does not say."""
        return ""

    def brief(self) -> dict[str, Any]:
        """Label and probability."""
        return {"label": self.label, "probability": self.probability}

    def cells(self) -> tuple[str, ...]:
        """The class, and the next two, or those of the set."""
        if self.set:
            return self.name, self.label, percent(self.probability, 1), f"{{{', '.join(self.set)}}}"
        others = "  ".join(f"{name} {percent(value, 1)}" for name, value in self.top[1:3])
        return self.name, self.label, percent(self.probability, 1), f"({others})"

    def row(self) -> dict[str, Any]:
        """File, label, probability, and the set with bars between."""
        row = {"file": self.name, "label": self.label, "probability": f"{self.probability:.6f}"}
        return row | ({"set": "|".join(self.set)} if self.set else {})

    def to_dict(self) -> dict[str, Any]:
        """The same with the top classes, and the set and notes where there are some."""
        more = {name: each for name, each in (("set", self.set), ("notes", self.notes)) if each}
        return {"file": self.name, **self.brief(), "top": self.top, **more}


@typed
@final
@dataclass(frozen=True, repr=False)
class Classes(ShortRepr, Codec):
    """The classes of a classifier, in the order of its logits.

    Args:
        names: The name of each class, all different.
        ids: A second name of each class in the same order, such as the WordNet ids of ImageNet's classes; may be
            empty. Where there are ids, a name may list synonyms with commas between, and each of them names the class.
        calibration: By which logits become probabilities, and sets of classes are made.
        most: How many classes a prediction names; it is not stored.
        coverage: How often the set of classes of a prediction holds the true one, 0 to 1; None for no set. Not stored.

    Raises:
        UsageError: A name occurs twice, there are not as many ids as names, or the coverage is none.
        DataError: There is a coverage, and no calibration for it.
    """

    names: tuple[str, ...]  # pyrefly: ignore[bad-override]  # a plain value
    ids: tuple[str, ...] = ()
    calibration: Calibration | None = field(default=None, repr=False)  # pyrefly: ignore[bad-override]
    most: int = field(default=TOP, compare=False, repr=False)  # pyrefly: ignore[bad-override]
    coverage: float | None = field(default=None, compare=False, repr=False)  # pyrefly: ignore[bad-override]

    def __post_init__(self) -> None:
        """Refuse names that are not all different in their one form."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        if twice := [name for name, count in Counter(self.names).items() if count > 1]:
            raise UsageError(f"the class name '{twice[0]}' occurs twice", "one name for each class")
        if self.ids and len(self.ids) != len(self.names):
            raise UsageError(f"{len(self.ids)} ids for {len(self.names)} class names", "one id for each class, or none")
        check_coverage(self.coverage)
        if self.coverage is not None:
            check_fitted(self.calibration, self.promises, FOR_SETS)

    promises = "sets of classes"
    hub = Hub("image-classification")
    loss = staticmethod(F.cross_entropy)
    divergence = staticmethod(divergence)
    rare = ("class_weights", "logit_adjustment")

    def weighted(self, counts: Mapping[str, int], by: "Weighing") -> "Loss":
        """See `vitrail.tasks.losses.class_loss`."""
        from vitrail.tasks.losses import class_loss  # of a training alone

        return class_loss([counts.get(name, 0) for name in self.names], self.names, by)

    @property
    def number_of(self) -> dict[str, int]:
        """The number of a class by its name, its id, or a synonym that no other class has."""
        found = dict[str, int]()
        if self.ids:
            synonyms = [(word.strip(), index) for index, name in enumerate(self.names) for word in name.split(",")]
            shared = Counter(word for word, _ in synonyms)
            found = {word: index for word, index in synonyms if shared[word] == 1}
        return {**found, **{name: index for many in (self.ids, self.names) for index, name in enumerate(many)}}

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return len(self.names)

    def match(self, column: Column) -> Match:
        """Labels with the numbers that their names have here; classes that are not here are left out and counted."""
        if not isinstance(column, Labels):
            raise UsageError(f"classes are learnt from labels, got {type(column).__name__}", "a column of Labels")
        number_of = self.number_of
        translation = np.array([number_of.get(name, -1) for name in column.names], dtype=np.int64)
        values = translation[column.values] if len(column.values) else column.values
        unknown = {name: count for name, count in column.counts().items() if name not in number_of}
        ids = np.flatnonzero(values >= 0) if unknown else None
        return Match(Labels(values if ids is None else values[ids], self.names), ids, unknown)

    def targets(self, values: Int64[np.ndarray, " b"]) -> Tensor:
        """(b,) class indices."""
        return torch.from_numpy(values)

    def describe(self) -> tuple[str, str]:
        """The first twenty names."""
        return "classes", ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")

    def to_dict(self) -> dict[str, Any]:
        """The names, and the ids and the calibration where there are any."""
        ids = {"ids": list(self.ids)} if self.ids else {}
        return {"classes": list(self.names), **ids, **stored(self.calibration)}

    def portable(self) -> list[dict[str, Any]]:
        """One softmax."""
        return [softmax_head("", self.names, self.calibration)]

    def probabilities(self, outputs: Outputs) -> Float[Tensor, "b v"]:
        """Of each class, in at least fp32."""
        return (at_least_fp32(outputs) / self.temperature).softmax(dim=-1)

    def least(self, coverage: float | None) -> float:
        """The probability from which on a class belongs to a set; above 1 where there are none. The top class does."""
        if coverage is None or self.calibration is None or not self.calibration.limits:
            return 2.0
        return 1 - self.calibration.limit(coverage) - ROUNDING

    def answer(
        self, outputs: Outputs, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> "list[ClassPrediction]":
        """The most probable class of each image; of equals the first, as explanations have it."""
        values, indices = self.probabilities(outputs.float()).cpu().sort(dim=-1, descending=True, stable=True)
        least = self.least(self.coverage)
        answers = []
        for name, fractions, order in zip(names, values.tolist(), indices[:, : self.most].tolist(), strict=True):
            top = tuple((self.names[index], fraction) for index, fraction in zip(order, fractions, strict=False))
            notes = (ALIKE,) if len(self.names) > 1 and fractions[0] == fractions[-1] else ()
            held = max(1, sum(fraction >= least for fraction in fractions)) if self.coverage is not None else 0
            chosen = tuple(self.names[index] for index in indices[len(answers), :held].tolist())
            answers.append(ClassPrediction(name, top[0][0], top[0][1], top, notes, chosen))
        return answers

    def error(self, outputs: Outputs, targets: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """1 where another class is the most probable one."""
        return (outputs.argmax(dim=1) != targets).double()

    def confidence(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The probability of the most probable class."""
        return self.probabilities(outputs.float()).amax(dim=1)

    def agree(self, outputs: Outputs, others: Outputs) -> Agreement:
        """Whether the most probable class is the same; the margin is to the second most probable one."""
        if self.outputs == 1:
            return super().agree(outputs, others)
        two = self.probabilities(outputs).topk(2).values
        return Agreement(outputs.argmax(dim=1) == others.argmax(dim=1), two[:, 0] - two[:, 1])

    def vote(self, targets: Int[Tensor, "n k"], cosines: Float[Tensor, "n k"]) -> Float[Tensor, "n v"]:
        """The votes of each class: the greatest is that of most neighbours; of two as frequent, of the nearer ones."""
        votes = torch.zeros(len(targets), self.outputs, dtype=torch.float64)
        votes.scatter_add_(1, targets, 1 + 1e-3 * cosines.double())  # less than a vote in all
        return votes

    def strata(self, targets: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """The classes themselves."""
        return targets

    def fit(self, features: Float[Tensor, "n d"], targets: Int[Tensor, " n"], loss: Any = None) -> "LinearFit":
        """Multinomial logistic regression; cross-validated class by class.

        Raises:
            DataError: All are of one class.
        """
        if len(targets.unique()) < 2:
            raise DataError("all training images are of one class", "images of two")
        return super().fit(features, targets, loss)

    def choose(self, outputs: Outputs, wanted: Any = None) -> "ChosenTarget":
        """A class of each image, its top class when None; or one rather than another."""
        from vitrail.tasks.target import choose_class  # of explanations alone

        return choose_class(outputs, wanted, self.temperature)

    def calibrate(self, outputs: Outputs, targets: Int[Tensor, " n"], on: str) -> "Classes":
        """The same with a temperature from ten images on, and with limits of sets from fifty."""
        count, classes = outputs.shape
        if count < FEWEST or classes < 2:
            return self
        logits, targets = outputs.double().cpu(), targets.cpu()
        smoothing = classes / (classes - 1) / (count + 2)  # one wrong answer more than there is

        def loss(temperature: Tensor) -> Tensor:
            return F.cross_entropy(logits / temperature, targets, label_smoothing=smoothing)

        temperature, right = fit_temperature(loss, count), float((logits.argmax(dim=1) == targets).double().mean())
        own = (logits / temperature).softmax(dim=1).gather(1, targets[:, None])[:, 0]
        limits = (limits_of(1 - own),) if count >= FOR_SETS else ()
        return replace(self, calibration=Calibration(on, count, temperature, right, limits))


@dataclass(frozen=True)
class ClassMetrics(Metrics):
    """Images by true and predicted class.

    Args:
        classes: The model's.
    """

    classes: Classes

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The summed loss; of each image its number, class, top class, that of its set and of its own; see `result`."""
        logits, labels = network(batch.inputs).detach().float().to("cpu", torch.float64), batch.labels.cpu()
        every = self.classes.probabilities(logits)
        best, own = every.max(dim=1), every.gather(1, labels[:, None])
        inside = every >= self.classes.least(COVERAGE)
        inside.scatter_(1, best.indices[:, None], value=True)
        columns = (
            torch.from_numpy(batch.ids),
            labels,
            best.indices,
            (every > own).sum(dim=1),
            inside.gather(1, labels[:, None])[:, 0].long(),
            inside.sum(dim=1),
            best.values,
        )
        loss = float(F.cross_entropy(logits, labels, reduction="sum"))
        return {"loss": loss, "columns": [column.tolist() for column in columns]}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """Accuracy and figures beside it, a row for each class, the confusion, and the images to look at."""
        from vitrail import pages  # of an evaluation alone; a prediction needs none
        from vitrail.tasks.by_class import figures_of

        *_, probability = columns = np.hstack([np.zeros((7, 0)), *(each["columns"] for each in answers)])
        ids, true, predicted, before, inside, sizes = columns[:6].astype(np.int64)
        names = self.classes.names
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (true, predicted), 1)
        by_name = per_class(confusion, names)
        truths, said = (np.array(names, dtype=object)[one] for one in (true, predicted))
        sets = (inside, sizes) if (calibration := self.classes.calibration) and calibration.limits else None
        details, sections = figures_of(confusion, before < TOP, reliability(probability, true == predicted), sets)
        return fraction_result(
            ACCURACY,
            (true != predicted).astype(np.float64),
            "image",
            "classified correctly",
            sum(each["loss"] for each in answers) / max(1, len(ids)),
            {**details, "per_class": by_name},
            tables=(
                *sections,
                pages.Confusion("Confusion matrix", confusion, names),
                pages.ClassTable("Class by class", tuple(by_name)),
            ),
            examples=tuple(
                Example(int(ids[row]), name(int(ids[row])), truths[row], said[row], float(probability[row]))
                for row in _worth_a_look(true, predicted == true, probability)
            ),
            ids=ids,
            truths=truths,
            answers=said,
            confidences=probability,
            unknown={},
        )


def per_class(confusion: Int64[np.ndarray, "k k"], names: Sequence[str]) -> list[dict[str, Any]]:
    """Images, precision, recall and F1 of each class; None where they are undefined (nothing to divide by).

    Args:
        confusion: Counts; rows are the true classes, columns the predicted ones.
        names: Of the classes.
    """
    counts = (each.tolist() for each in (confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)))
    return [
        {
            "class": name,
            "images": true,
            "precision": hit / predicted if predicted else None,
            "recall": hit / true if true else None,
            "f1": 2 * hit / (true + predicted) if true + predicted else None,
        }
        for name, hit, true, predicted in zip(names, *counts, strict=True)
    ]


def _worth_a_look(true: NDArray[np.int64], right: NDArray[np.bool_], probability: NDArray[np.float64]) -> list[int]:
    """Mistakes, the most confident first; then right answers class by class, the least sure first.

    Of each class there is one before there is a second of any.

    Args:
        true: (n,) the class of each image.
        right: (n,) whether it was the top class.
        probability: (n,) of the top class.
    """
    chosen = list[int]()
    for good, keys in ((False, -probability), (True, probability)):
        order = [row for row in np.lexsort((keys, true)).tolist() if right[row] == good]
        turn = {row: place for _, rows in groupby(order, true.__getitem__) for place, row in enumerate(rows)}
        some = sorted(order, key=lambda row: (turn[row], keys[row]))[:SHOWN]
        chosen += sorted(some, key=lambda row: (good * true[row], keys[row]))
    return chosen


@final
@dataclass(frozen=True)
class Classification(Task):
    """One class for each image."""

    name = "classify"
    column = LABEL
    help = "one class for each image"
    metric = ACCURACY
    measures = {"correct": "accuracy"}  # noqa: RUF012  # never changed
    blend = staticmethod(blend)
    smooths = True
    invariant = True
    background = True

    def codec(self, raw: "RawDataset", splits: "Mapping[str, Samples]", separator: str = "") -> Classes:
        """The classes of the training split, in their published order or sorted by name.

        Raises:
            DataError: There is only one, or they are amounts, of which most stand at a single image.
        """
        labels = splits["train"].column(self.column)
        if not isinstance(labels, Labels):
            raise DataError(f"the column {self.column} contains no class names", "Labels, one for each image")
        classes = tuple(sorted(labels.counts())) if raw.classes is None else raw.classes
        check_classes(raw.root, splits["train"], labels.counts(), classes)
        return Classes(classes)

    def codec_from_dict(self, values: Mapping[str, Any]) -> Classes:
        """The class names, and their ids where there are any."""
        names, ids = (tuple(map(str, values.get(name, ()))) for name in ("classes", "ids"))
        return Classes(names, ids, calibration_from(values.get("calibration")))

    def objective(self, augmentation: "Augmentation") -> Objective:
        """Cross-entropy; what is mixed or smoothed stands in the targets."""
        return cross_entropy

    def metrics(self, input: Input, output: Codec) -> ClassMetrics:
        """Accuracy and what belongs to it."""
        return ClassMetrics(expect_codec(output, Classes, EXAMPLE))

    def chance_loss(self, output: Codec) -> float:
        """Of a network that finds every class as likely as the others."""
        return float(np.log(output.outputs))
