"""Images in order, so many at a time: what is computed at once, kept as one part, and never done twice."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.data.images import Images
from vitrail.data.preprocessing import Preprocessing
from vitrail.jobs.passes import Ids, answered, in_batches, loader_of

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


@runtime_checkable
class Work(Protocol):
    """What is done with every range; made of plain values, which are sent to other processes.

    Attributes:
        kind: How its parts lie on disk.
    """

    @property
    def kind(self) -> Kind:
        """How its parts lie on disk."""
        ...

    def open(self) -> Compute:
        """Load the model; what comes back holds it.

        Raises:
            VitrailError: It is not there, or not the one that the job was begun with.
        """
        ...


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

        def asked(ids: Ids, images: Tensor) -> Any:
            each = some[bisect_right(starts, int(ids[0])) - 1]  # noqa: B023  # all are answered before the next group
            return answer(each, ids - each.ids[0], images)

        batches = [in_batches(each.ids, device) for each in some]
        wanted = [ids for own in batches for ids in own]
        stream = answered(asked, loader, input, device, wanted, workers is not None)
        for each, own in zip(some, batches, strict=True):
            got, before = [next(stream) for _ in own], int(each.ids[0])
            bad = {row - before: loader.unreadable[row] for row in each.ids.tolist() if row in loader.unreadable}
            yield Found([(ids - before, found) for ids, found in got if len(ids)], bad)
