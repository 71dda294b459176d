"""The one pass of a network over images for what it knows of them: some are decoded while others are computed.

On a processor a batch is small and one thread's, from its files to what is kept of it, and as many are under way as
torch has threads. On an accelerator batches are large, one at a time, and other processes decode the next ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.data.loader import Loaded, Loader
from vitrail.data.preprocessing import Preprocessing
from vitrail.runtime import in_order

BATCH, LARGE_BATCH = 16, 64  # of a thread; of an accelerator

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
    decoded_elsewhere: bool = False,
) -> Iterator[Described]:
    """What is kept of each array of images, in turn; those that cannot be read are left out, and the loader says why.

    Args:
        describe: Runs the network, which is in eval mode; more than one thread does.
        loader: Where pixels come from.
        input: The model's preprocessing.
        device: Where the network is.
        wanted: (m,) ids each: how many go through the network at a time.
        decoded_elsewhere: Whether the loader's worker processes decode, on a processor, too.
    """

    def answer(ids: Int64[np.ndarray, " _"], got: Loaded | None = None) -> Described:
        got = loader.read(ids) if got is None else got
        kept = ids[got.readable.numpy()]
        if not len(kept):
            return Described(kept, {})
        pixels = got.pixels if len(kept) == len(ids) else got.pixels[got.readable]
        with torch.no_grad():
            values = describe(input.normalise(pixels.to(device)))
        return Described(kept, {name: value.float().cpu() for name, value in values.items()})

    if device.type != "cpu":
        yield from map(answer, wanted, loader.fetch(wanted))
    elif decoded_elsewhere:
        tasks = (partial(answer, ids, got) for ids, got in zip(wanted, loader.fetch(wanted), strict=True))
        yield from in_order(tasks, torch.get_num_threads())
    else:
        yield from in_order((partial(answer, ids) for ids in wanted), torch.get_num_threads())


def in_batches(ids: Int64[np.ndarray, " n"], device: torch.device) -> list[Int64[np.ndarray, " _"]]:
    """Ids in order, as many at a time as suit a device."""
    size = BATCH if device.type == "cpu" else LARGE_BATCH
    return [ids[first : first + size] for first in range(0, len(ids), size)]
