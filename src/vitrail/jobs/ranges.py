"""Images in order, so many at a time: what is computed at once, stored as one part, and never done twice.

The one pass of a network over images: some are decoded while others are computed. On a processor a batch is small and
one thread's, from its files to what is stored of it, and as many are under way as torch has threads: so threads change
no bit. On an accelerator batches are large, one at a time, and other processes decode the next ones.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.data.images import Images
from vitrail.data.loader import Loaded, Loader, StreamedLoader, open_loader
from vitrail.data.preprocessing import Preprocessing
from vitrail.runtime import in_order, processors

BATCH, LARGE_BATCH = 16, 64  # of a thread; of an accelerator

Answer = TypeVar("Answer")
Ids = Int64[np.ndarray, " _"]


def answered(
    answer: Callable[[Ids, Tensor], Answer],
    loader: Loader,
    input: Preprocessing,
    device: torch.device,
    wanted: Sequence[Ids],
    decoded_elsewhere: bool = False,
) -> Iterator[tuple[Ids, Answer | None]]:
    """What is answered to each array of images, in turn, with the ids of those that can be read.

    Args:
        answer: From ids (b,) and images (b, c, h, w) as the network expects them; called by more than one thread, never
            without an image.
        loader: Where pixels come from; it knows why an image cannot be read.
        input: The model's preprocessing.
        device: Where the network is.
        wanted: (m,) ids each: how many go through the network at a time.
        decoded_elsewhere: Whether the loader's worker processes decode, on a processor, too.
    """

    def one(ids: Ids, got: Loaded | None = None) -> tuple[Ids, Answer | None]:
        got = loader.read(ids) if got is None else got
        readable = ids[got.readable.numpy()]
        if not len(readable):
            return readable, None
        pixels = got.pixels if len(readable) == len(ids) else got.pixels[got.readable]
        with torch.no_grad():
            return readable, answer(readable, input.normalise(pixels.to(device)))

    if device.type != "cpu":
        yield from map(one, wanted, loader.fetch(wanted))
    elif decoded_elsewhere:
        tasks = (partial(one, ids, got) for ids, got in zip(wanted, loader.fetch(wanted), strict=True))
        yield from in_order(tasks, torch.get_num_threads())
    else:
        yield from in_order((partial(one, ids) for ids in wanted), torch.get_num_threads())


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


ROWS = 256  # images of a range


class Range(NamedTuple):
    """Some images of one split, in order.

    Attributes:
        number: Which range of the job, and which part.
        first: How many images of the job stand before it.
        images: Where its images are, among others.
        ids: (n,) which of them.
    """

    number: int
    first: int
    images: Images
    ids: Int64[np.ndarray, " n"]

    def alone(self) -> "Range":
        """The same without the other images, to be sent to another process."""
        if self.images.renewed:
            return self
        return self._replace(images=self.images.select(self.ids), ids=np.arange(len(self.ids), dtype=np.int64))


@runtime_checkable
class Kind(Protocol):
    """How a part lies on disk; plain values, which are sent to other processes.

    Attributes:
        ending: Of its files.
    """

    @property
    def ending(self) -> str:
        """Of its files."""
        ...

    def to_bytes(self, part: Any) -> bytes:
        """A part as a file; equal parts have equal bytes."""
        ...

    def check(self, content: bytes) -> None:
        """Look at every byte of a file.

        Raises:
            ValueError: It is no whole part.
        """
        ...


Compute = Callable[[Sequence[Range]], Iterator[Any]]
"""The part of each range, in turn."""


Work = Callable[[], Compute]
"""What a worker is sent: loads the model, and gives what computes with it; made of plain values."""


def split_up(splits: Iterable[Images], rows: int) -> list[Range]:
    """All images, so many at a time, none of which reaches from one split into the next."""
    found, first = list[Range](), 0
    for images in splits:
        for row in range(0, len(images), rows):
            ids = np.arange(row, min(row + rows, len(images)), dtype=np.int64)
            found.append(Range(len(found), first + row, images, ids))
        first += len(images)
    return found


class Found(NamedTuple):
    """What came of a range.

    Attributes:
        batches: Of each batch the places in the range (m,) that could be read, and what was answered to them.
        unreadable: Why the others could not be, by their places.
    """

    batches: Sequence[tuple[Ids, Any]]
    unreadable: dict[int, str]


def each_range(
    ranges: Sequence[Range],
    answer: Callable[[Range, Ids, Tensor], Any],
    input: Preprocessing,
    device: torch.device,
    workers: int | None = None,
) -> Iterator[Found]:
    """What is answered to each range, in turn; images of the next ones are decoded meanwhile.

    Args:
        ranges: In order.
        answer: From a range, places in it (b,) and images (b, c, h, w) as the network expects them; see `answered`.
        input: The model's preprocessing.
        device: Where the network is.
        workers: Processes that decode files; see `loader_of`.
    """
    for _, group in groupby(ranges, key=lambda each: id(each.images)):
        some = list(group)
        loader, starts = loader_of(some[0].images, input, device, workers), [int(each.ids[0]) for each in some]

        def answer_own(ids: Ids, images: Tensor) -> Any:
            each = some[bisect_right(starts, int(ids[0])) - 1]  # noqa: B023  # all are answered before the next group
            return answer(each, ids - each.ids[0], images)

        batches = [in_batches(each.ids, device) for each in some]
        wanted = [ids for own in batches for ids in own]
        stream = answered(answer_own, loader, input, device, wanted, workers is not None)
        for each, own in zip(some, batches, strict=True):
            got, before = [next(stream) for _ in own], int(each.ids[0])
            bad = {row - before: loader.unreadable[row] for row in each.ids.tolist() if row in loader.unreadable}
            yield Found([(ids - before, found) for ids, found in got if len(ids)], bad)
