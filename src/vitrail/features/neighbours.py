"""The nearest images by cosine, and the class that most of them have: the one k-NN."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.features.head import Features

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
