"""The nearest images by cosine, and the class that most of them have: the one k-NN."""

import time
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.data.columns import Classes
from vitrail.data.dataset import ALL, TRAIN, Split
from vitrail.errors import UsageError
from vitrail.features.embed import embed_listed
from vitrail.features.file import FeatureSet
from vitrail.features.head import Features
from vitrail.features.listing import Listed
from vitrail.features.poolings import check_network
from vitrail.model import Model
from vitrail.tasks.task import wilson_interval

NEIGHBOURS = 5
ROWS = 1024  # whose neighbours are looked for at a time


class Nearest(NamedTuple):
    """The nearest of known images, the nearest first.

    Attributes:
        cosines: (n, k), at most 1; the distance is 1 less that.
        rows: (n, k), which of the known images.
    """

    cosines: Float[Tensor, "n k"]
    rows: Int[Tensor, "n k"]


def nearest_rows(known: Float[Tensor, "m d"], asked: Float[Tensor, "n d"], count: int) -> Nearest:
    """The known images that are nearest to each that is asked about, by cosine; all where there are fewer.

    Args:
        known: (m, d), one row an image.
        asked: (n, d).
        count: How many neighbours.
    """
    unit, count = F.normalize(known, dim=1), min(count, len(known))
    found = [(F.normalize(some, dim=1) @ unit.T).topk(count, dim=1) for some in asked.split(ROWS)]
    return Nearest(torch.cat([one.values for one in found]), torch.cat([one.indices for one in found]))


def nearest(train: Features, held_out: Features, count: int = NEIGHBOURS) -> Int[Tensor, "n"]:
    """The class that most of the nearest training images have, by cosine; of two as frequent, that of the nearer ones.

    Args:
        train: Among which neighbours are looked for.
        held_out: Whose classes are wanted.
        count: How many neighbours.
    """
    alike, places = nearest_rows(train.values, held_out.values, count)
    votes = torch.zeros(len(alike), int(train.labels.max()) + 1, dtype=torch.float64)
    votes.scatter_add_(1, train.labels[places], 1 + 1e-3 * alike.double())  # less than a vote in all
    return votes.argmax(dim=1)


def neighbours_of(model: Model, train: Split, held_out: Split, count: int) -> dict[str, Any]:
    """The accuracy of nearest neighbours, in plain values; a pass over both splits.

    Args:
        model: A ViT of classes.
        train: Among whose images neighbours are looked for.
        held_out: Whose classes are wanted.
        count: How many neighbours vote.

    Returns:
        `count`, `images` (held out), `train_images`, `seconds`, and `poolings`: `accuracy` and `interval` of each.

    Raises:
        UsageError: It is no ViT.
    """
    began = time.perf_counter()
    check_network(model.network)
    listed = (Listed(each.name, None, {each.split: each.samples}) for each in (train, held_out))
    known, asked = (embed_listed(each, model) for each in listed)
    poolings = {}
    for name in known.values:
        ours, theirs = _with_labels(model, known, name), _with_labels(model, asked, name)
        right = int((nearest(ours, theirs, count) == theirs.labels).sum())
        poolings[name] = {"accuracy": right / len(asked), "interval": list(wilson_interval(right, len(asked)))}
    seconds = time.perf_counter() - began
    facts = {"count": count, "images": len(asked), "train_images": len(known), "seconds": seconds}
    return {**facts, "poolings": poolings}


def check_splits(model: Model, held_out: Split, count: int) -> None:
    """Refuse neighbours of what has none.

    Args:
        model: Whose neighbours are wanted.
        held_out: What it is asked about.
        count: How many.

    Raises:
        UsageError: It tells no classes, the data is not split, or the training images themselves are asked about.
    """
    if count < 1:
        raise UsageError(f"neighbours must be at least 1, got {count}", "--neighbours 5")
    if not isinstance(model.output, Classes):
        problem = f"neighbours vote for classes, but the task {model.task.name} has none"
        raise UsageError(problem, "the same without --neighbours")
    check_network(model.network)
    if held_out.split in (TRAIN, ALL):
        problem = f"neighbours are training images of held-out ones, and {held_out.name} is asked as '{held_out.split}'"
        raise UsageError(problem, "the same without --neighbours")


def _with_labels(model: Model, found: FeatureSet, name: str) -> Features:
    number_of = {name: number for number, name in enumerate(model.classes)}
    labels = torch.tensor([number_of[label] for label in found.labels or ()])
    return Features(torch.from_numpy(found.values[name]), labels)
