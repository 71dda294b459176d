"""Where two images agree, as far as a network's patch tokens tell: for each patch the one of the other most like it.

    cosine    of two patch tokens behind the last norm
    usual     the cosine that the patch reaches, at best, in a middle one of other images: tokens in which a network
              keeps what is the same for every image (sinks) have it as high as can be, and agree with nothing
    beyond    cosine less usual: what this pair has and a middle one has not

A pair of patches that agree is no evidence of what the likeness of the images depends on: tokens mix what all patches
know, and nothing is covered here. What it depends on is what an explanation of that likeness tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Grid = Float[Tensor, "gh gw d"]


@dataclass(frozen=True, eq=False)
class Agreement:
    """For each patch of an image, its partner in another.

    Attributes:
        partners: (rows, columns) number of the most similar patch of the other, in reading order.
        cosines: (rows, columns) of both.
        usual: (rows, columns) what the patch reaches in a middle one of other images; 0 where there were none.
    """

    partners: Int[np.ndarray, "rows columns"]
    cosines: Float[np.ndarray, "rows columns"]
    usual: Float[np.ndarray, "rows columns"]

    @property
    def beyond(self) -> Float[np.ndarray, "rows columns"]:
        """What the pair has above the usual."""
        return self.cosines - self.usual

    def to_dict(self) -> dict[str, Any]:
        """Plain values; partners as (row, column) are those of the other's grid in reading order."""
        return {name: getattr(self, name).tolist() for name in ("partners", "cosines", "usual")}


def agreement(own: Grid, other: Grid, others: Sequence[Grid] = ()) -> Agreement:
    """The partner of each patch of an image in another.

    Args:
        own: (rows, columns, d) patch tokens of the image.
        other: Those of the other.
        others: Those of images that say what is usual.
    """
    best = _alike(own, other).max(dim=1)
    usual = torch.zeros_like(best.values)
    if others:
        usual = torch.stack([_alike(own, each).max(dim=1).values for each in others]).quantile(0.5, dim=0)
    shape = own.shape[:2]
    partners, cosines, usual = (each.reshape(shape).cpu().numpy() for each in (best.indices, best.values, usual))
    return Agreement(partners, cosines, usual)


def _alike(own: Grid, other: Grid) -> Float[Tensor, "n m"]:
    """The cosine of each patch of one with each of the other."""
    return F.normalize(own.flatten(0, 1), dim=1) @ F.normalize(other.flatten(0, 1), dim=1).T
