"""A task of the tests alone: several labels an image, each there or not, by binary cross-entropy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tasks.patterns import SPLITS, images
from vitrail.data import Column, Match, RawDataset, Samples, Texts
from vitrail.data.batches import Batch
from vitrail.errors import Hint, UsageError
from vitrail.pages.run_views import Table
from vitrail.tasks import Agreement, ChosenTarget, Codec, Hub, Metric, Metrics, Result, Task
from vitrail.tasks.target import indices_of, pick
from vitrail.tasks.task import fraction_result

NAMES = ("bird", "cat", "dog")
LEAST = 3.0  # nats, from which on there is evidence for a label or for its absence


def read_pets(what: str, data_root: Path | None = None) -> RawDataset:
    """Which of three patterns an image has, as the words of a text: "cat dog", or nothing at all."""
    splits = {}
    for seed, (name, count) in enumerate(SPLITS.items()):
        there = np.random.default_rng(seed).integers(0, 2, (count, len(NAMES)))
        words = tuple(" ".join(word for word, has in zip(NAMES, row, strict=True) if has) for row in there)
        splits[name] = Samples(images(2.0 * there - 1, name, seed, purity=0.8), {"animals": Texts(words)})
    return RawDataset(what, splits)


@final
@dataclass(frozen=True)
class LabelSets(Codec):
    """Some of these labels."""

    names: tuple[str, ...]

    hub = Hub("image-classification", "multi_label_classification")

    @property
    def outputs(self) -> int:
        return len(self.names)

    def match(self, column: Column) -> Match:
        assert isinstance(column, Texts)
        unknown = [value for value in column.values if not {*value.split()} <= {*self.names}]
        ids = np.array([row for row, value in enumerate(column.values) if value not in unknown], np.int64)
        counts = {value: unknown.count(value) for value in unknown}
        return Match(column.select(ids), ids, counts) if unknown else Match(column)

    def targets(self, values: Sequence[str]) -> Tensor:
        return torch.tensor([[name in value.split() for name in self.names] for value in values]).float()

    def describe(self) -> tuple[str, str]:
        return "labels", ", ".join(self.names)

    def to_dict(self) -> dict[str, Any]:
        return {"labels": list(self.names)}

    def answer(
        self, outputs: Tensor, names: Sequence[str], facts: Any = None, inputs: Any = None
    ) -> "list[LabelPrediction]":
        rows = outputs.float().sigmoid().cpu().tolist()
        return [LabelPrediction(name, dict(zip(self.names, row, strict=True))) for name, row in zip(names, rows)]  # noqa: B905

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs > 0) != (targets > 0.5)).any(dim=1).double()

    def confidence(self, outputs: Tensor) -> Tensor:
        return outputs.float().abs().sigmoid().amin(dim=1)

    def agree(self, outputs: Tensor, others: Tensor) -> Agreement:
        return Agreement(((outputs > 0) == (others > 0)).all(dim=1), (2 * outputs.sigmoid() - 1).abs().amin(dim=1))

    def divergence(self, outputs: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
        if kind == "hard":
            return F.binary_cross_entropy_with_logits(outputs, (teacher > 0).to(outputs), reduction="sum")
        softened = (teacher.detach() / temperature).sigmoid()
        own = F.binary_cross_entropy_with_logits(outputs / temperature, softened, reduction="sum")
        return own * temperature**2

    def vote(self, targets: Tensor, cosines: Tensor) -> Tensor:
        return targets.double().mean(dim=1) - 0.5

    def strata(self, targets: Tensor) -> Tensor:
        return (targets.long() * 2 ** torch.arange(self.outputs)).sum(dim=1)

    @staticmethod
    def loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs), reduction=reduction)

    def choose(self, outputs: Tensor, wanted: Any = None) -> ChosenTarget:
        """A label of each image, the surest one when None: that it is there, or that it is not."""
        at, against = indices_of(outputs, wanted, outputs.abs().argmax(dim=1))
        if against is not None:
            raise UsageError("labels do not exclude each other, so there is no contrast", Hint(drop=["contrast"]))
        return LabelTarget(at, sign=pick(outputs, at).sign())


@final
@dataclass(frozen=True, eq=False)
class LabelTarget(ChosenTarget):
    """That a label is there, or with the sign -1 that it is not: the log-odds."""

    sign: Tensor = field(kw_only=True)  # (b,)

    kind: ClassVar[Any] = None
    unit: ClassVar[Any] = "nats"
    has_probability: ClassVar[bool] = True

    @property
    def least(self) -> float:
        return LEAST

    def __call__(self, outputs: Tensor) -> Tensor:
        return self.sign * pick(outputs, self.target)

    def named(self, sample: int, name: Callable[[int], str]) -> str:
        return f"{'no ' * bool(self.sign[sample] < 0)}{super().named(sample, name)}"

    def probability(self, outputs: Tensor) -> Tensor:
        return self(outputs).sigmoid()

    def effect(self, outputs: Tensor, without: Tensor) -> Tensor:
        theirs = self(without[:, None].expand(-1, len(outputs), -1)).double().median(dim=0).values
        return (self(outputs).double() - theirs).cpu()

    def select(self, samples: slice | Tensor) -> ChosenTarget:
        return replace(self, target=self.target[samples], sign=self.sign[samples])


@dataclass(frozen=True)
class LabelPrediction:
    """Which labels an image has."""

    name: str
    probabilities: Mapping[str, float]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> str:
        return " ".join(label for label, probability in self.probabilities.items() if probability > 0.5)

    @property
    def top(self) -> tuple[tuple[str, float], ...]:
        return tuple(sorted(self.probabilities.items(), key=lambda each: -each[1]))

    def sentence(self) -> str:
        return self.labels or "(none)"

    def brief(self) -> dict[str, Any]:
        return {"labels": self.labels}

    def cells(self) -> tuple[str, ...]:
        return self.name, self.labels or "(none)"

    def row(self) -> dict[str, Any]:
        return {"file": self.name, "labels": self.labels, **self.probabilities}

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.name, "labels": self.labels, "probabilities": dict(self.probabilities)}


ALL_RIGHT = Metric("accuracy", "exact set")


@dataclass
class SetMetrics(Metrics):
    """The fraction of images all of whose labels are right."""

    output: LabelSets

    def answers(self, network: nn.Module, batch: Batch) -> dict[str, Any]:
        outputs = network(batch.inputs).float()
        loss = float(self.output.loss(outputs, batch.labels, reduction="sum"))
        return {
            "loss": loss,
            "rows": list(zip(batch.ids.tolist(), batch.labels.tolist(), outputs.tolist(), strict=True)),
        }

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        rows = [row for each in answers for row in each["rows"]]
        truths, found = (torch.tensor([row[side] for row in rows]).reshape(-1, len(NAMES)) for side in (1, 2))
        errors = self.output.error(found, truths).numpy()
        wrong = ((found > 0) != (truths > 0.5)).float().mean(dim=0).tolist() if len(errors) else [math.nan] * 3
        words = [[f"{label} {value:.2f}" for label, value in zip(NAMES, wrong, strict=True)]]
        return fraction_result(
            ALL_RIGHT,
            errors,
            "image",
            "given exactly their labels",
            sum(each["loss"] for each in answers) / max(1, len(errors)),
            {},
            tables=(Table("Wrong by label", NAMES, tuple(map(tuple, words))),),
            ids=np.array([row[0] for row in rows], np.int64),
            truths=self._words(truths > 0.5),
            answers=self._words(found > 0),
        )

    def _words(self, there: Tensor) -> np.ndarray:
        rows = there.tolist()
        return np.array([" ".join(n for n, has in zip(NAMES, row, strict=True) if has) for row in rows], dtype=object)


def binary_cross_entropy(network: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    outputs = network(batch.inputs).float()
    right = ((outputs.detach() > 0) == (batch.labels > 0.5)).all(dim=1).sum().float()
    return LabelSets.loss(outputs, batch.targets, reduction="sum"), len(batch), {"right": right}


@final
@dataclass(frozen=True)
class TellLabels(Task):
    """Several labels for each image."""

    name = "label-sets"
    column = "animals"
    help = "some labels for each image"
    metric = ALL_RIGHT
    measures = {"right": "accuracy"}  # noqa: RUF012
    background = True

    def codec(self, raw: RawDataset, splits: Mapping[str, Samples], separator: str = "") -> LabelSets:
        column = splits["train"].column(self.column)
        return LabelSets(tuple(sorted({word for value in column.values for word in value.split()})))

    def codec_from_dict(self, values: Mapping[str, Any]) -> LabelSets:
        return LabelSets(tuple(values["labels"]))

    def objective(self, augmentation: Any) -> Callable[..., Any]:
        return binary_cross_entropy

    def metrics(self, input: Any, output: Codec) -> SetMetrics:
        assert isinstance(output, LabelSets)
        return SetMetrics(output)

    def chance_loss(self, output: Codec) -> float:
        return output.outputs * math.log(2)
