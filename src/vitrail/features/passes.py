"""The one pass of a network over images whose answer is not an answer: some are decoded while others are computed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.data.loader import Loader
from vitrail.data.preprocessing import Preprocessing

BATCH = 64

Describe = Callable[[Tensor], Mapping[str, Tensor]]
"""(images (b, c, h, w) as the network expects them) to what is kept of them, each (b, ...), by name."""


class Described(NamedTuple):
    """What is kept of a few images.

    Attributes:
        ids: (b,) which images: those that can be read.
        values: Each (b, ...) float32 on the CPU, by name; empty where no image can be read.
    """

    ids: Int64[np.ndarray, " _"]
    values: Mapping[str, Float[Tensor, "_ *_"]]


def described(
    describe: Describe,
    loader: Loader,
    input: Preprocessing,
    device: torch.device,
    wanted: Sequence[Int64[np.ndarray, " _"]],
) -> Iterator[Described]:
    """What is kept of each array of images, in turn; those that cannot be read are left out, and the loader says why.

    Args:
        describe: Runs the network, which is in eval mode.
        loader: Where pixels come from.
        input: The model's preprocessing.
        device: Where the network is.
        wanted: (m,) ids each: how many go through the network at a time.
    """
    for ids, got in zip(wanted, loader.fetch(wanted), strict=True):
        kept = ids[got.readable.numpy()]
        if not len(kept):
            yield Described(kept, {})
            continue
        pixels = got.pixels if len(kept) == len(ids) else got.pixels[got.readable]
        with torch.no_grad():
            values = describe(input.normalise(pixels.to(device)))
        yield Described(kept, {name: value.float().cpu() for name, value in values.items()})


def in_batches(count: int, size: int = BATCH) -> list[Int64[np.ndarray, " _"]]:
    """All ids from 0 in order, so many at a time."""
    return [np.arange(first, min(first + size, count), dtype=np.int64) for first in range(0, count, size)]
