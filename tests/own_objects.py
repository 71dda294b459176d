"""What a researcher brings: a task (predict a number), a reader, a part, a network, an objective, a method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from vitrail.data import ArrayImages, Column, Match, RawDataset, Samples, Values
from vitrail.data.batches import Batch
from vitrail.explain.attribution import Attribution
from vitrail.nn import SILENT, Parts, Record, ViT
from vitrail.tasks import Codec, Metric, Metrics, Result, Task
from vitrail.tasks.target import ChosenTarget, choose_output

SMALL = "network: {width: 32, depth: 2, heads: 2, mlp_dim: 64}\noptimization: {ema_decay: 0.0, warmup_epochs: 1}\n"
OPTIONS = vitrail.TrainOptions(epochs=16, batch_size=8, lr=5e-3, threads=1, precision="fp32", image_size=16)


def read_bars(what: str, data_root: Path | None = None) -> RawDataset:
    """Images of one bright bar each; the number is how far down it lies, in bar heights from the middle."""
    splits = {}
    for seed, (name, count) in enumerate((("train", 96), ("validation", 24), ("test", 24))):
        random = np.random.default_rng(seed)
        pixels = random.integers(0, 40, (count, 16, 16), dtype=np.uint8)
        rows = random.integers(0, 4, count)
        for index, row in enumerate(rows):
            pixels[index, 4 * row : 4 * row + 4] += 180
        splits[name] = Samples(ArrayImages(pixels, f"bars/{name}"), {"height": Values(rows.astype(np.float32) - 1.5)})
    return RawDataset(what, splits)


@final
@dataclass(frozen=True)
class Number(Codec):
    """A number, as it is less the mean of the training split."""

    mean: float

    is_wrong = False

    @property
    def outputs(self) -> int:
        return 1

    def match(self, column: Column) -> Match:
        return Match(column)

    def targets(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)) - self.mean

    def describe(self) -> tuple[str, str]:
        return "number", f"around {self.mean:.2f}"

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def answer(
        self, outputs: Tensor, names: Sequence[str], facts: Any = None, inputs: Any = None
    ) -> "list[NumberPrediction]":
        values = (outputs[:, 0] + self.mean).tolist()
        return [NumberPrediction(name, value) for name, value in zip(names, values, strict=True)]

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).abs()

    def choose(self, outputs: Tensor, wanted: Any = None) -> ChosenTarget:
        return choose_output(outputs, wanted)


@dataclass(frozen=True)
class NumberPrediction:
    """A number for an image."""

    name: str
    value: float
    notes: tuple[str, ...] = ()
    top: tuple[tuple[str, float], ...] = ()

    def sentence(self) -> str:
        return f"{self.value:.2f}"

    def brief(self) -> dict[str, Any]:
        return {"value": self.value}

    def cells(self) -> tuple[str, ...]:
        return self.name, f"{self.value:.2f}"

    def row(self) -> dict[str, Any]:
        return {"file": self.name, "value": self.value}

    def to_dict(self) -> dict[str, Any]:
        return self.row()


MAE = Metric("mae", "mean absolute error", fraction=False, better="lower")


@dataclass
class Errors(Metrics):
    """Absolute errors."""

    output: Number

    def answers(self, network: nn.Module, batch: Batch) -> dict[str, Any]:
        values = network(batch.inputs)[:, 0]
        return {"found": list(zip(batch.ids.tolist(), batch.labels.tolist(), values.tolist(), strict=True))}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        errors = np.array([answer - truth for each in answers for _, truth, answer in each["found"]])
        mae = float(np.abs(errors).mean())
        return Result(
            metric=MAE,
            value=mae,
            count=len(errors),
            loss=float((errors**2).mean()),
            details={"images": len(errors), "mae": mae},
            sentence=f"of {len(errors)} images",
        )


@final
@dataclass(frozen=True)
class PredictNumber(Task):
    """One number for each image."""

    name = "predict-height"
    column = "height"
    help = "a number for each image"
    metric = MAE

    def codec(self, raw: RawDataset, splits: Mapping[str, Samples], separator: str = "") -> Number:
        values = splits["train"].column(self.column)
        return Number(float(np.mean(values.take(np.arange(len(values))))))

    def codec_from_dict(self, values: Mapping[str, Any]) -> Number:
        return Number(float(values["mean"]))

    def objective(self, augmentation: Any) -> Callable[..., Any]:
        return squared_error

    def metrics(self, input: Any, output: Codec) -> Errors:
        assert isinstance(output, Number)
        return Errors(output)


def squared_error(network: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    """Summed squared error."""
    return F.mse_loss(network(batch.inputs)[:, 0].float(), batch.targets, reduction="sum"), len(batch), {}


def doubled(network: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    """Another objective."""
    loss, count, _ = squared_error(network, batch)
    return 2 * loss, count, {"twice": 2 * loss.detach()}


def norm_times_image(network: ViT, images: Tensor, target: int = 0) -> Attribution:
    """A method of one's own: the norm of each patch token behind the last block."""
    record = Record("blocks.1.output")
    with torch.no_grad():
        logits = network(images, record=record)
    tokens = record["blocks.1.output"]
    rows, columns = network.config.grid
    values = tokens[:, -rows * columns :].norm(dim=-1).unflatten(1, (rows, columns))
    return Attribution(
        values,
        torch.full((len(images),), target),
        logits[:, target],
        "norm_times_image",
        signed=False,
        class_specific=False,
        notes=tuple(() for _ in images),
    )


class Gaussian(nn.Module):
    """An activation of one's own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-x.square())


def make_gaussian(config: Any) -> nn.Module:
    return Gaussian()


OWN_PARTS = Parts(activation=make_gaussian)


class Columns(nn.Module):
    """A network of one's own, which is no Transformer at all."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(16, outputs)

    def forward(self, images: Tensor, record: Any = SILENT) -> Tensor:
        return self.head(images.mean(dim=(1, 3)))
