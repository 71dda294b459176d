"""A task of the tests alone that needs no column: the network tells how bright the parts of an image are.

It stands for self-supervision: what is learnt is something of the image itself, and what comes out is features, as many
numbers as the network is wide.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tasks.patterns import SPLITS, images
from vitrail.data import RawDataset, Samples
from vitrail.data.batches import Batch
from vitrail.tasks import Codec, Metric, Metrics, Numbers, Result, Task

ROWS, COLUMNS = 4, 8  # parts of an image
WIDTH = ROWS * COLUMNS
UNEXPLAINED = Metric("unexplained", "unexplained variance", fraction=False, better="lower")


def read_nothing(what: str, data_root: Path | None = None) -> RawDataset:
    """Images without any column."""
    splits = {}
    for seed, (name, count) in enumerate(SPLITS.items()):
        strengths = np.random.default_rng(seed).uniform(-1, 1, (count, 3))
        splits[name] = Samples(images(strengths, name, seed), {})
    return RawDataset(what, splits)


def brightness(inputs: Tensor) -> Tensor:
    """(b, 32), of each part less that of the image."""
    parts = F.adaptive_avg_pool2d(inputs.mean(dim=1, keepdim=True), (ROWS, COLUMNS)).flatten(1)
    return parts - parts.mean(dim=1, keepdim=True)


def reconstruction(network: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    return F.mse_loss(network(batch.inputs).float(), brightness(batch.inputs), reduction="sum"), len(batch), {}


@dataclass
class Unexplained(Metrics):
    """The fraction of the variance that the network does not tell."""

    def answers(self, network: nn.Module, batch: Batch) -> dict[str, Any]:
        truths = brightness(batch.inputs)
        squares = (network(batch.inputs).float() - truths).square().sum()
        return {"sums": [float(squares), float(truths.square().sum()), len(batch)]}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        squares, total, count = (sum(column) for column in zip(*(each["sums"] for each in answers), strict=True))
        value = squares / total
        details = {"images": count, UNEXPLAINED.key: value}
        return Result(UNEXPLAINED, value, count, squares / count, details, f"of {count} images")


@final
@dataclass(frozen=True)
class TellBrightness(Task):
    """As many numbers as the network is wide."""

    name = "tell-brightness"
    column = None
    help = "numbers for each image"
    metric = UNEXPLAINED
    background = True

    def codec(self, raw: RawDataset, splits: Mapping[str, Samples], separator: str = "") -> Numbers:
        return Numbers(WIDTH)

    def codec_from_dict(self, values: Mapping[str, Any]) -> Numbers:
        return Numbers(int(values["features"]))

    def fit(self, network: Mapping[str, Any], output: Codec, splits: Mapping[str, Samples]) -> dict[str, Any]:
        return {**network, "width": WIDTH, "classes": 0}

    def objective(self, augmentation: Any) -> Callable[..., Any]:
        return reconstruction

    def metrics(self, input: Any, output: Codec) -> Unexplained:
        return Unexplained()
