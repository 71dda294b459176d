"""The committed networks of the lab with known truth, and images for them.

`benchmarks/planted_networks.py` made them. They lie in the repository, so that no test trains one: `make soak` makes
some of them again (tests/soak).
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import vitrail
from tests.data.lab import digit_patches
from vitrail.data.sets.planted import Variant, planted_digits
from vitrail.model import Model

NETWORKS = Path(__file__).parent / "networks"


@cache
def load_planted(name: str) -> Model:
    """A network by its name, as `benchmarks.planted_networks.NAMES` has them; do not change it."""
    model = vitrail.load(NETWORKS / name)
    assert isinstance(model, Model)
    return model


@dataclass(frozen=True)
class Shown:
    """Images of the test digits as a network reads them, and what is true of them."""

    images: Float[Tensor, "b 1 h w"]
    masks: Bool[Tensor, "b digits rows columns"]
    labels: Int[Tensor, "b digits"]

    def select(self, which: slice | Tensor) -> "Shown":
        return Shown(self.images[which], self.masks[which], self.labels[which])


@cache
def shown(name: str, count: int, variant: Variant = "single", seed: int = 31) -> Shown:
    """Images for a network, whatever it says of them."""
    model, made = load_planted(name), planted_digits("test", count, variant, seed=seed)
    images = model.preprocessing.normalise(torch.from_numpy(made.pixels)[:, None])
    return Shown(
        images, torch.from_numpy(digit_patches(made, model.network.config.patch)), torch.from_numpy(made.labels)
    )


@cache
def known(name: str, count: int, variant: Variant = "single", seed: int = 31) -> Shown:
    """The first images whose digit, or both of whose digits, the network says."""
    some = shown(name, count + count // 2 + 5, variant, seed)
    with torch.no_grad():
        logits = torch.cat([load_planted(name).network(few) for few in some.images.split(250)])
    said = logits.topk(some.labels.shape[1], dim=1).indices
    right = (said.sort(dim=1).values == some.labels.sort(dim=1).values).all(dim=1).nonzero()[:count, 0]
    assert len(right) == count
    return some.select(right)
