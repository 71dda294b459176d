"""One class for each image: softmax cross-entropy, accuracy with its interval, the probability of each class."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.columns import LABEL, Classes, Codec, Labels
from vitrail.errors import DataError
from vitrail.tasks.task import (
    NO_FACTS,
    Example,
    Input,
    Measures,
    Metric,
    Metrics,
    Network,
    Objective,
    Result,
    Task,
    expected,
    fraction_result,
)
from vitrail.text import percent

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.dataset import RawDataset, Samples
    from vitrail.nn import Search

TOP = 5  # classes that a prediction names
ALIKE = "all classes have the same score, as with an untrained head: this is not a prediction"
EXAMPLE = 'Classes(("cat", "dog"))'
SHOWN = 12  # examples of each kind

ACCURACY = Metric("accuracy", "accuracy")


def cross_entropy(network: Network, batch: "Batch") -> tuple[Float[Tensor, ""], int, Measures]:
    """Cross-entropy of the logits with hard targets (b,) or mixed ones (b, classes).

    Args:
        network: Gives logits (b, classes).
        batch: Images and targets.

    Returns:
        The summed loss in nats, the number of images, and `correct`: how many have their own label as top class.
    """
    logits = network(batch.inputs).float()
    loss = F.cross_entropy(logits, batch.targets, reduction="sum")
    correct = (logits.detach().argmax(dim=1) == batch.labels).sum().float()
    return loss, len(batch), {"correct": correct}


def blend(
    own: Int[Tensor, " b"],
    partners: Int[Tensor, " b"],
    weights: Float[Tensor, " b"] | None,
    smoothing: float,
    classes: int,
) -> Int[Tensor, " b"] | Float[Tensor, "b v"]:
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


@dataclass(frozen=True)
class ClassPrediction:
    """The prediction of a classifier for one image.

    Attributes:
        name: The file, or "image".
        label: The most probable class.
        probability: Of that class, from 0 to 1.
        top: The five most probable classes with their probabilities, the most probable first.
        notes: A sentence when all classes have the same score.
    """

    name: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """The class, and the next two."""
        others = "  ".join(f"{name} {percent(value, 1)}" for name, value in self.top[1:3])
        return self.name, self.label, percent(self.probability, 1), f"({others})"

    def row(self) -> dict[str, Any]:
        """File, label, probability."""
        return {"file": self.name, "label": self.label, "probability": f"{self.probability:.6f}"}

    def to_dict(self) -> dict[str, Any]:
        """The same with the top classes, and the notes where there are some."""
        values = {"file": self.name, "label": self.label, "probability": self.probability, "top": self.top}
        return {**values, "notes": self.notes} if self.notes else values


@dataclass(eq=False)
class ClassMetrics(Metrics):
    """Counts images by true and predicted class.

    Args:
        classes: The model's.
    """

    classes: Classes
    _loss: float = 0.0
    _rows: list[tuple[NDArray, ...]] = field(default_factory=list)

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The summed loss; of each image its number, class, top class, the probability of that, and of its class."""
        logits = network(batch.inputs)
        logs, labels = logits.detach().float().to("cpu", torch.float64).log_softmax(dim=1), batch.labels.cpu()
        best, own = logs.max(dim=1), logs.gather(1, labels[:, None])[:, 0]
        columns = torch.from_numpy(batch.ids), labels, best.indices, best.values.exp(), own.exp()
        return {"loss": -float(own.sum()), "columns": [column.tolist() for column in columns]}

    def update(self, answers: Mapping[str, Any]) -> None:
        """Count some images."""
        self._loss += answers["loss"]
        kinds = (np.int64,) * 3 + (np.float64,) * 2
        self._rows.append(tuple(np.array(one, kind) for one, kind in zip(answers["columns"], kinds, strict=True)))

    def result(self, name: Callable[[int], str]) -> Result:
        """Accuracy, a row for each class, the confusion, and the images to look at."""
        from vitrail import pages  # of an evaluation alone; a prediction needs none

        nothing = (np.zeros(0, np.int64),) * 3 + (np.zeros(0),) * 2
        ids, true, predicted, probability, own = map(np.concatenate, zip(*self._rows or [nothing], strict=True))
        names, images = self.classes.names, len(ids)
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (true, predicted), 1)
        correct = int(np.trace(confusion))
        per_class = _per_class(confusion, names)
        return fraction_result(
            ACCURACY,
            correct,
            images,
            "image",
            "classified correctly",
            self._loss / max(1, images),
            {"per_class": per_class},
            tables=(
                pages.Confusion("Confusion matrix", confusion, names),
                pages.ClassTable("Class by class", tuple(per_class)),
            ),
            examples=tuple(
                Example(
                    int(ids[row]), name(int(ids[row])), names[true[row]], names[predicted[row]], float(probability[row])
                )
                for row in _worth_a_look(own, predicted == true)
            ),
            ids=ids,
            truths=true,
            answers=predicted,
            unknown={},
        )


def _per_class(confusion: Int64[np.ndarray, "k k"], names: Sequence[str]) -> list[dict[str, Any]]:
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


def _worth_a_look(own: NDArray[np.float64], right: NDArray[np.bool_]) -> list[int]:
    """The images that a model was most wrong about, then those it was surest of and right.

    Args:
        own: (n,) the probability that each image's true class was given.
        right: (n,) whether it was the top class.
    """
    order = np.argsort(own, kind="stable").tolist()
    mistakes = [row for row in order if not right[row]][:SHOWN]
    return mistakes + [row for row in reversed(order) if right[row]][:SHOWN]


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
        """The classes of the training split, in their published order or sorted by name."""
        labels = splits["train"].column(self.column)
        if not isinstance(labels, Labels):
            raise DataError(f"the column {self.column} contains no class names", "Labels, one for each image")
        classes = tuple(sorted(labels.counts())) if raw.classes is None else raw.classes
        if len(classes) < 2:
            raise DataError(f"there is only one class ({', '.join(classes)})", "add a second class folder (or label)")
        return Classes(classes)

    def codec_from_dict(self, values: Mapping[str, Any]) -> Classes:
        """The class names, and their ids where there are any."""
        return Classes(tuple(map(str, values["classes"])), tuple(map(str, values.get("ids", ()))))

    def objective(self, augmentation: "Augmentation") -> Objective:
        """Cross-entropy; what is mixed or smoothed stands in the targets."""
        return cross_entropy

    def metrics(self, input: Input, output: Codec) -> ClassMetrics:
        """Accuracy and what belongs to it."""
        return ClassMetrics(expected(output, Classes, EXAMPLE))

    @torch.no_grad()
    def predict(
        self,
        network: nn.Module,
        output: Codec,
        inputs: Tensor,
        names: Sequence[str],
        search: "Search | None" = None,
        facts: Mapping[str, Any] = NO_FACTS,
    ) -> list[ClassPrediction]:
        """The most probable class of each image; of equals the first, as explanations have it."""
        classes = expected(output, Classes, EXAMPLE).names
        values, indices = network(inputs).float().softmax(dim=-1).cpu().sort(dim=-1, descending=True, stable=True)
        answers = []
        for name, fractions, order in zip(names, values.tolist(), indices[:, :TOP].tolist(), strict=True):
            top = tuple((classes[index], fraction) for index, fraction in zip(order, fractions, strict=False))
            notes = (ALIKE,) if len(classes) > 1 and fractions[0] == fractions[-1] else ()
            answers.append(ClassPrediction(name, top[0][0], top[0][1], top, notes))
        return answers

    def chance_loss(self, output: Codec) -> float:
        """Of a network that finds every class as likely as the others."""
        return float(np.log(output.outputs))
