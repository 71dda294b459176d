"""Whether an image is unlike anything in training, by what the head of a network reads.

A trained model carries what its head reads of at most 500 of its training images, one of each group. The distance (1
less the cosine) of another image to the nearest of them is held against that of each of them to the nearest other. An
image is unlike them where at most 1 of 100 is as far, so that of images like them 1 of 100 is named: the conformal
p-value of Bates, Candès, Lei, Romano and Sesia, "Testing for outliers with conformal p-values", Annals of Statistics
2023. What looks like a class of training is not found.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.images import evenly
from vitrail.nn import ViT
from vitrail.nn.networks import evaluating
from vitrail.nn.record import Record

if TYPE_CHECKING:
    from vitrail.data.batches import Batches

MOST, FEWEST = 500, 100  # training images that are carried; fewer cannot tell 1 of 100
LIMIT = 0.01
CHANCE = 0.2  # of several images that are named as unlike, what chance gives, at most
AT_ONCE = 64
UNLIKE = "It is unlike anything in training: the answer may mean nothing."


class Noting(nn.Module):
    """A network that also notes what its head reads.

    Args:
        network: In eval mode.

    Attributes:
        pooled: (b, d) of each call, in float32.
    """

    def __init__(self, network: ViT) -> None:
        super().__init__()
        self.network, self.pooled = network, list[Tensor]()

    def forward(self, images: Tensor) -> Tensor:
        """What the network gives."""
        record = Record("pooled")
        outputs = self.network(images, record)
        self.pooled.append(record["pooled"].float())
        return outputs


def chosen_of(units: NDArray[Any], most: int = MOST) -> Int64[np.ndarray, " m"]:
    """The places of the training images that a model is to know: one of each group, evenly spread.

    Args:
        units: Of each image, which group it is of.
        most: How many, at most.
    """
    return np.array(evenly(np.sort(np.unique(units, return_index=True)[1]).tolist(), most), np.int64)


@torch.no_grad()
def familiar_to(network: ViT, chosen: "Batches") -> Float[Tensor, "m d"] | None:
    """What the head reads of some training images, each of length 1, on the CPU; None where there are too few.

    Args:
        network: Trained.
        chosen: The images, as an evaluation sees them.
    """
    if len(chosen) < FEWEST:
        return None
    noting = Noting(network)
    with evaluating(network):
        for batch in chosen.in_order(AT_ONCE):
            noting(batch.inputs)
    return F.normalize(torch.cat(noting.pooled), dim=1).cpu()


def unlike(
    distances: Float[np.ndarray, " n"], among: Float[np.ndarray, " m"], chance: float = CHANCE
) -> Int64[np.ndarray, " k"]:
    """The places of those that are too far, the farthest first (Benjamini and Hochberg, 1995).

    Args:
        distances: Of images outside training to the nearest in it.
        among: Of training images to the nearest other.
        chance: Of those that are named, what chance gives, at most.
    """
    order = np.argsort(-distances, kind="stable")
    beyond = len(among) - np.searchsorted(np.sort(among), distances[order])
    expected = len(order) * (1 + beyond) / (1 + len(among))
    return order[: np.flatnonzero(expected <= chance * np.arange(1, len(order) + 1)).max(initial=-1) + 1]


def is_unlike(pooled: Float[Tensor, "b d"], familiar: Float[Tensor, "m d"]) -> Bool[np.ndarray, " b"]:
    """Whether each of some images, by itself, is unlike those that a network is familiar with.

    Args:
        pooled: What the head reads of the images.
        familiar: The same of training images, each of length 1.
    """
    among = 1 - (familiar @ familiar.T).fill_diagonal_(-1).amax(dim=1).numpy()
    far = 1 - (F.normalize(pooled.cpu(), dim=1) @ familiar.T).amax(dim=1).numpy()
    return np.array([len(unlike(one, among, LIMIT)) > 0 for one in far[:, None]], dtype=bool)
