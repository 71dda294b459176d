"""A task of the tests alone: two numbers an image, by their squared errors; its figure may be better high or low."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tasks.patterns import SPLITS, images
from vitrail.data import Column, Match, RawDataset, Samples, Values
from vitrail.data.batches import Batch
from vitrail.tasks import ChosenTarget, Codec, Metric, Metrics, OutputTarget, Result, Task
from vitrail.tasks.target import choose_output


def read_amounts(what: str, data_root: Path | None = None) -> RawDataset:
    """How strong the first and the second pattern of an image are, from -1 to 1; the third says nothing."""
    splits = {}
    for seed, (name, count) in enumerate(SPLITS.items()):
        strengths = np.random.default_rng(seed).uniform(-1, 1, (count, 3))
        values = strengths[:, :2].astype(np.float32)
        splits[name] = Samples(images(strengths, name, seed), {"amounts": Values(values)})
    return RawDataset(what, splits)


@final
@dataclass(frozen=True)
class Amounts(Codec):
    """Two numbers, less their means of the training split."""

    means: tuple[float, float]

    is_wrong = False
    loss = staticmethod(F.mse_loss)

    @property
    def outputs(self) -> int:
        return 2

    def match(self, column: Column) -> Match:
        return Match(column)

    def targets(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values) - torch.tensor(self.means)

    def describe(self) -> tuple[str, str]:
        return "amounts", "first, second"

    def to_dict(self) -> dict[str, Any]:
        return {"means": list(self.means)}

    def answer(
        self, outputs: Tensor, names: Sequence[str], facts: Any = None, inputs: Any = None
    ) -> "list[AmountsPrediction]":
        rows = (outputs.float().cpu() + torch.tensor(self.means)).tolist()
        return [AmountsPrediction(name, *row) for name, row in zip(names, rows, strict=True)]

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).norm(dim=1)

    def divergence(self, outputs: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
        return F.mse_loss(outputs, teacher.detach(), reduction="sum")

    def vote(self, targets: Tensor, cosines: Tensor) -> Tensor:
        return targets.double().mean(dim=1)

    def choose(self, outputs: Tensor, wanted: Any = None) -> ChosenTarget:
        chosen = choose_output(outputs, wanted)
        assert isinstance(chosen, OutputTarget)
        return chosen


@dataclass(frozen=True)
class AmountsPrediction:
    """Two numbers for an image."""

    name: str
    first: float
    second: float
    notes: tuple[str, ...] = ()
    top: tuple[tuple[str, float], ...] = ()

    def sentence(self) -> str:
        return f"{self.first:.2f} and {self.second:.2f}"

    def brief(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second}

    def cells(self) -> tuple[str, ...]:
        return self.name, f"{self.first:.2f}", f"{self.second:.2f}"

    def row(self) -> dict[str, Any]:
        return {"file": self.name, **self.brief()}

    def to_dict(self) -> dict[str, Any]:
        return self.row()


DISTANCE = Metric("distance", "mean distance", fraction=False, better="lower")
EXPLAINED = Metric("explained", "explained variance", fraction=False, better="higher")


@dataclass
class AmountMetrics(Metrics):
    """Distances of what is told from what is true."""

    output: Amounts
    metric: Metric

    def answers(self, network: nn.Module, batch: Batch) -> dict[str, Any]:
        outputs = network(batch.inputs).float()
        return {"rows": list(zip(batch.ids.tolist(), batch.labels.tolist(), outputs.tolist(), strict=True))}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        rows = [row for each in answers for row in each["rows"]]
        truths, found = (np.array([row[side] for row in rows]).reshape(-1, 2) for side in (1, 2))
        errors, squares = np.linalg.norm(found - truths, axis=1), ((found - truths) ** 2).mean()
        value = errors.mean() if self.metric == DISTANCE else 1 - squares / max(1e-9, truths.var())
        details = {"images": len(errors), self.metric.key: float(value), "loss": float(squares)}
        return Result(
            metric=self.metric,
            value=float(value),
            count=len(errors),
            loss=float(squares),
            details=details,
            sentence=f"of {len(errors)} images",
            ids=np.array([row[0] for row in rows], np.int64),
            truths=truths,
            answers=found,
            errors=errors,
        )


def squared_errors(network: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    return F.mse_loss(network(batch.inputs).float(), batch.targets, reduction="sum"), len(batch), {}


@final
@dataclass(frozen=True)
class TellAmounts(Task):
    """Two numbers for each image."""

    metric: Metric = DISTANCE  # pyrefly: ignore

    name = "two-numbers"
    column = "amounts"
    help = "two numbers for each image"
    background = True

    def codec(self, raw: RawDataset, splits: Mapping[str, Samples], separator: str = "") -> Amounts:
        first, second = splits["train"].column(self.column).values.mean(axis=0).tolist()
        return Amounts((first, second))

    def codec_from_dict(self, values: Mapping[str, Any]) -> Amounts:
        first, second = values["means"]
        return Amounts((first, second))

    def objective(self, augmentation: Any) -> Callable[..., Any]:
        return squared_errors

    def metrics(self, input: Any, output: Codec) -> AmountMetrics:
        assert isinstance(output, Amounts)
        return AmountMetrics(output, self.metric)
