"""What an evaluation counts: every image exactly once, in whole numbers and float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor


def wilson_interval(correct: int, images: int) -> tuple[float, float]:
    """95 % interval of a fraction (Wilson, 1927): sensible also near 0 and 1 and for few images; (0, 1) for none."""
    if images == 0:
        return 0.0, 1.0
    z = 1.959963984540054
    found, zz = correct / images, z * z
    middle = (found + zz / (2 * images)) / (1 + zz / images)
    half = z / (1 + zz / images) * math.sqrt(found * (1 - found) / images + zz / (4 * images * images))
    return max(0.0, min(found, middle - half)), min(1.0, max(found, middle + half))


@dataclass(frozen=True, eq=False)
class Scores:
    """What was counted.

    Attributes:
        confusion: (classes, classes) counts; rows are the true classes, columns the predicted ones.
        loss_sum: Summed cross-entropy in nats.
        ids: (n,) which images, in order.
        true: (n,) the true class of each.
        predicted: (n,) the top class of each.
        probability: (n,) what the model gave to that class.
        own_probability: (n,) what it gave to the true class.
    """

    confusion: Int64[np.ndarray, "k k"]
    loss_sum: float
    ids: NDArray[np.int64]
    true: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float64]
    own_probability: NDArray[np.float64]

    @property
    def images(self) -> int:
        """Images counted."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Images whose top class is the true one."""
        return int(np.trace(self.confusion))

    @property
    def accuracy(self) -> float:
        """Fraction of correct images; 0 when there is none."""
        return self.correct / self.images if self.images else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy."""
        return wilson_interval(self.correct, self.images)

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats."""
        return self.loss_sum / self.images if self.images else 0.0

    def per_class(self, names: tuple[str, ...]) -> list[dict[str, str | int | float | None]]:
        """Images, precision, recall and F1 of each class; None where they are undefined (nothing to divide by)."""
        rows: list[dict[str, str | int | float | None]] = []
        for index, name in enumerate(names):
            hit, true, said = (
                int(self.confusion[index, index]),
                int(self.confusion[index].sum()),
                int(self.confusion[:, index].sum()),
            )
            rows.append(
                {
                    "class": name,
                    "images": true,
                    "precision": hit / said if said else None,
                    "recall": hit / true if true else None,
                    "f1": 2 * hit / (true + said) if true + said else None,
                }
            )
        return rows


@dataclass
class Counting:
    """Counts batch by batch; `scores` is the sum.

    Args:
        classes: Number of classes.
    """

    classes: int
    _confusion: NDArray[np.int64] = field(init=False)
    _loss: float = 0.0
    _rows: list[tuple[NDArray, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._confusion = np.zeros((self.classes, self.classes), np.int64)

    def add(self, logits: Float[Tensor, "b v"], labels: Int[Tensor, " b"], ids: NDArray[np.int64]) -> None:
        """Count one batch."""
        logs = logits.detach().to("cpu", torch.float64).log_softmax(dim=1)
        labels = labels.cpu()
        best = logs.max(dim=1)
        own = logs.gather(1, labels[:, None])[:, 0]
        np.add.at(self._confusion, (labels.numpy(), best.indices.numpy()), 1)
        self._loss -= float(own.sum())
        self._rows.append((ids, labels.numpy(), best.indices.numpy(), best.values.exp().numpy(), own.exp().numpy()))

    def scores(self) -> Scores:
        """What was counted so far."""
        whole = np.zeros(0, np.int64)
        empty = (whole, whole, whole, np.zeros(0), np.zeros(0))
        columns = [np.concatenate(column) for column in zip(*(self._rows or [empty]), strict=True)]
        return Scores(self._confusion.copy(), self._loss, *columns)


def edits(written: Sequence[str], wanted: Sequence[str]) -> int:
    """Fewest tokens to insert, remove or replace until `written` is `wanted` (Levenshtein, 1966)."""
    before = list(range(len(wanted) + 1))
    for row, one in enumerate(written, start=1):
        here = [row]
        for column, other in enumerate(wanted, start=1):
            here.append(min(before[column] + 1, here[-1] + 1, before[column - 1] + (one != other)))
        before = here
    return before[-1]
