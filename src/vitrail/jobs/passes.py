"""The one pass of a network over images for what it knows of them: some are decoded while others are computed.

On a processor a batch is small and one thread's, from its files to what is kept of it, and as many are under way as
torch has threads: so threads change no bit. On an accelerator batches are large, one at a time, and other processes
decode the next ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.data.images import Images
from vitrail.data.loader import Loaded, Loader, StreamedLoader, open_loader
from vitrail.data.preprocessing import Preprocessing
from vitrail.runtime import in_order, processors

BATCH, LARGE_BATCH = 16, 64  # of a thread; of an accelerator

Answer = TypeVar("Answer")
Ids = Int64[np.ndarray, " _"]
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


def answered(
    answer: Callable[[Ids, Tensor], Answer],
    loader: Loader,
    input: Preprocessing,
    device: torch.device,
    wanted: Sequence[Ids],
    decoded_elsewhere: bool = False,
) -> Iterator[tuple[Ids, Answer | None]]:
    """What is answered to each array of images, in turn, with the ids of those that can be read; the loader says why.

    Args:
        answer: From ids (b,) and images (b, c, h, w) as the network expects them; more than one thread asks. It is not
            asked of no image at all.
        loader: Where pixels come from.
        input: The model's preprocessing.
        device: Where the network is.
        wanted: (m,) ids each: how many go through the network at a time.
        decoded_elsewhere: Whether the loader's worker processes decode, on a processor, too.
    """

    def one(ids: Ids, got: Loaded | None = None) -> tuple[Ids, Answer | None]:
        got = loader.read(ids) if got is None else got
        kept = ids[got.readable.numpy()]
        if not len(kept):
            return kept, None
        pixels = got.pixels if len(kept) == len(ids) else got.pixels[got.readable]
        with torch.no_grad():
            return kept, answer(kept, input.normalise(pixels.to(device)))

    if device.type != "cpu":
        yield from map(one, wanted, loader.fetch(wanted))
    elif decoded_elsewhere:
        tasks = (partial(one, ids, got) for ids, got in zip(wanted, loader.fetch(wanted), strict=True))
        yield from in_order(tasks, torch.get_num_threads())
    else:
        yield from in_order((partial(one, ids) for ids in wanted), torch.get_num_threads())


def described(
    describe: Describe,
    loader: Loader,
    input: Preprocessing,
    device: torch.device,
    wanted: Sequence[Ids],
    decoded_elsewhere: bool = False,
) -> Iterator[Described]:
    """What is kept of each array of images, in turn; those that cannot be read are left out. See `answered`."""

    def answer(ids: Ids, images: Tensor) -> dict[str, Tensor]:
        return {name: value.float().cpu() for name, value in describe(images).items()}

    for kept, values in answered(answer, loader, input, device, wanted, decoded_elsewhere):
        yield Described(kept, values or {})


def in_batches(ids: Int64[np.ndarray, " n"], device: torch.device) -> list[Ids]:
    """Ids in order, as many at a time as suit a device."""
    size = batch_of(device)
    return [ids[first : first + size] for first in range(0, len(ids), size)]


def batch_of(device: torch.device) -> int:
    """How many images go through a network at a time."""
    return BATCH if device.type == "cpu" else LARGE_BATCH


def loader_of(images: Images, input: Preprocessing, device: torch.device, workers: int | None) -> Loader:
    """Files are decoded while others are computed; what lies in memory or is made is taken from there.

    Args:
        images: The images.
        input: The model's preprocessing.
        device: Where the network is.
        workers: Processes that decode files. None: on a processor each thread decodes what it computes, and an
            accelerator has as many processes as there are processors.
    """
    if not images.encoded:
        return open_loader(images, input, workers=1)
    if workers is None:
        workers = 0 if device.type == "cpu" else processors()
    return StreamedLoader(images, input, workers)
