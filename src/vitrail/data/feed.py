"""Two ways to the same uint8 pixels: a small set lives in memory, a large one is decoded by worker processes.

A feed answers one question: the pixels of these ids. What happens to them afterwards (`batches.py`) is the same for
both, so a training does not depend on which one fed it. A picture that cannot be read is never replaced by another:
the feed says so, and it is left out of the batch and of every count.
"""

import abc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.data.pictures import ArrayPictures, Pictures
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError
from vitrail.runtime import cores

RESIDENT_BYTES = 2**30  # larger sets are streamed


class Fetched(NamedTuple):
    """Pixels of a few ids, and which of them could be read."""

    pixels: UInt8[Tensor, "n c h w"] | Int64[Tensor, "n s"]  # of images, or ids of texts
    readable: Bool[Tensor, " n"]


class Feed(abc.ABC):
    """Pixels by id.

    Attributes:
        unreadable: For each id that could not be read so far: why, in one line that names the file.
    """

    unreadable: dict[int, str]

    @abc.abstractmethod
    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Fetched]:
        """Pixels for each array of ids, in turn; only what is made anew in every epoch looks at that."""


class ResidentFeed(Feed):
    """All pixels in memory, gathered by index."""

    def __init__(self, pixels: UInt8[Tensor, "n c h w"], unreadable: dict[int, str] | None = None) -> None:
        self.pixels = pixels
        self.unreadable = unreadable or {}
        self._readable = torch.ones(len(pixels), dtype=torch.bool)
        self._readable[list(self.unreadable)] = False

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Fetched]:
        """Gather each array of ids."""
        for ids in wanted:
            rows = torch.from_numpy(ids)
            yield Fetched(self.pixels[rows.to(self.pixels.device)], self._readable[rows])


class StreamedFeed(Feed):
    """Files decoded by worker processes when they are needed, a few batches ahead.

    There are at most as many workers as cores: more would only wait for each other, and torch warns of them.
    """

    def __init__(self, pictures: Pictures, preprocessing: Preprocessing, workers: int) -> None:
        self.pictures, self.preprocessing, self.workers = pictures, preprocessing, min(workers, cores())
        self.unreadable = {}

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Fetched]:
        """Decode each array of ids, in the order asked for."""
        loader = DataLoader(
            _Decoding(self.pictures, self.preprocessing),
            sampler=list(wanted),  # pyrefly: ignore[bad-argument-type]
            batch_size=None,
            num_workers=self.workers,
            worker_init_fn=_one_thread if self.workers else None,
        )
        for pixels, problems in loader:
            readable = torch.ones(len(pixels), dtype=torch.bool)
            for row, index, problem in problems:
                readable[row] = False
                self.unreadable[index] = problem
            yield Fetched(pixels, readable)


class _Decoding(Dataset):
    """What a worker does: from an array of ids to pixels, and a list of (row, id, problem)."""

    def __init__(self, pictures: Pictures, preprocessing: Preprocessing) -> None:
        self.pictures, self.preprocessing = pictures, preprocessing

    def __getitem__(self, index: NDArray[np.int64]) -> tuple[Tensor, list[tuple[int, int, str]]]:
        pixels = torch.zeros(len(index), self.preprocessing.channels, *self.preprocessing.size, dtype=torch.uint8)
        problems = []
        for row, number in enumerate(index.tolist()):
            try:
                pixels[row] = self.preprocessing.to_uint8(self.pictures.open(number))
            except DataError as error:
                problems.append((row, number, error.problem))
        return pixels, problems


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)


def resident_pixels(
    pictures: Pictures, preprocessing: Preprocessing, threads: int, progress: Callable[[int], None] = lambda done: None
) -> ResidentFeed:
    """Read a whole set into memory.

    Args:
        pictures: The set.
        preprocessing: How a picture becomes pixels.
        threads: Pictures decoded at the same time (Pillow releases the interpreter lock).
        progress: Called with the number of pictures done.
    """
    count = len(pictures)
    if isinstance(pictures, ArrayPictures) and preprocessing.fits(pictures.pixels):
        return ResidentFeed(preprocessing.as_pixels(pictures.pixels))
    pixels = torch.zeros(count, preprocessing.channels, *preprocessing.size, dtype=torch.uint8)
    unreadable: dict[int, str] = {}

    def read(index: int) -> None:
        try:
            pixels[index] = preprocessing.to_uint8(pictures.open(index))
        except DataError as error:
            unreadable[index] = error.problem

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done, _ in enumerate(pool.map(read, range(count)), start=1):
            progress(done)
    return ResidentFeed(pixels, dict(sorted(unreadable.items())))


def open_feed(
    pictures: Pictures,
    preprocessing: Preprocessing,
    *,
    workers: int,
    resident_bytes: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Feed:
    """The feed that fits: resident when all pixels take at most `resident_bytes`, streamed otherwise.

    Args:
        pictures: The set.
        preprocessing: How a picture becomes pixels.
        workers: Worker processes (streamed) or threads at the start (resident).
        resident_bytes: Limit of memory for resident pixels, in bytes; `RESIDENT_BYTES` when None.
        progress: Called with the number of pictures read at the start (resident only).
    """
    size = len(pictures) * preprocessing.channels * preprocessing.size[0] * preprocessing.size[1]
    if size <= (RESIDENT_BYTES if resident_bytes is None else resident_bytes):
        return resident_pixels(pictures, preprocessing, max(1, workers), progress)
    return StreamedFeed(pictures, preprocessing, workers)


def check_readable(feed: Feed, count: int, most: float = 0.01) -> None:
    """Stop when too many pictures cannot be read.

    Args:
        feed: The feed so far.
        count: Pictures in the whole set.
        most: Largest share of the set that may be unreadable (at least one picture may always be).

    Raises:
        DataError: Above that share; lists the first files.
    """
    bad = len(feed.unreadable)
    if bad > max(1, int(most * count)):
        first = "; ".join(list(feed.unreadable.values())[:5])
        raise DataError(
            f"{bad} of {count} pictures cannot be read, at most {most:.0%} may be: {first}",
            "mend or move these files, then run the same command again",
        )
