"""Evaluating a network on a feed: each picture once, in order, by the model's own preprocessing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitrail.data.batches import evaluation_batches
from vitrail.data.feed import Feed
from vitrail.data.pictures import Pictures
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import Split
from vitrail.errors import DataError
from vitrail.model import Model
from vitrail.nn.mode import evaluating
from vitrail.training.metrics import Counting, Scores


@torch.no_grad()
def evaluate_network(
    network: nn.Module,
    feed: Feed,
    labels: NDArray[np.int64],
    classes: int,
    preprocessing: Preprocessing,
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> Scores:
    """Scores of a network, which is put into eval mode for the time and left as it was.

    Args:
        network: Gives logits (b, classes).
        feed: Pixels at the model's size.
        labels: (n,) indices into the model's classes.
        classes: Number of the model's classes.
        preprocessing: Of the model.
        batch_size: Pictures at a time; does not change what is counted.
        progress: Called with the number of pictures done.
    """
    counting = Counting(classes)
    device = next(network.parameters()).device
    with evaluating(network):
        for batch in evaluation_batches(feed, labels, preprocessing, batch_size, device):
            counting.add(network(batch.images).float(), batch.labels, batch.ids)
            progress(min((batch.number + 1) * batch_size, len(labels)))
    return counting.scores()


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One evaluation of a model, complete.

    Attributes:
        scores: What was counted.
        classes: The model's class names.
        split: Name of the split.
        pictures: The pictures that were evaluated, by id.
        labels: (n,) their true classes, by id.
        feed: Their pixels, by id.
        unknown: Pictures of classes that the model does not know, by class; they are not counted.
        data: The data, as it is called; empty within a training.
        notes: Everything odd about it, one sentence each.
    """

    scores: Scores
    classes: tuple[str, ...]
    split: str
    pictures: Pictures
    labels: NDArray[np.int64]
    feed: Feed
    unknown: Mapping[str, int]
    data: str = ""
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> tuple[str, float]:
        """The accuracy."""
        return f"{self.split} accuracy", self.scores.accuracy

    def sentence(self) -> str:
        """Of how many pictures, and the interval."""
        low, high = self.scores.interval
        pictures = f"{self.scores.images:,} picture{'s' * (self.scores.images != 1)}"
        return f"of {pictures} (95 % interval {100 * low:.2f} % to {100 * high:.2f} %)"

    def feeds(self) -> list[tuple[Feed, int]]:
        """The one that was evaluated."""
        return [(self.feed, len(self.labels))]

    def to_dict(self) -> dict[str, Any]:
        """What `vitrail evaluate --json` prints."""
        scores = self.scores
        return {
            "split": self.split,
            "images": scores.images,
            "accuracy": scores.accuracy,
            "interval": list(scores.interval),
            "loss": scores.loss,
            "per_class": scores.per_class(self.classes),
            "unknown": dict(self.unknown),
            "unreadable": list(self.feed.unreadable.values()),
        }


def evaluate_model(
    model: Model,
    split: Split,
    name: str,
    feed: Feed,
    unknown: Mapping[str, int],
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluated:
    """Evaluate a model on a split whose labels index into the model's classes.

    Args:
        model: What is evaluated.
        split: Pictures and labels.
        name: Of the split.
        feed: Its pixels at the model's size.
        unknown: What was left out, by class.
        progress: Called with the number of pictures done.

    Raises:
        DataError: If no picture at all can be read.
    """
    scores = evaluate_network(
        model.network, feed, split.labels, len(model.classes), model.preprocessing, progress=progress
    )
    if not scores.images:
        first = next(iter(feed.unreadable.values()), "it is empty")
        raise DataError(f"none of the {len(split)} pictures of the {name} split can be read: {first}", "other pictures")
    return Evaluated(scores, model.classes, name, split.pictures, split.labels, feed, unknown)
