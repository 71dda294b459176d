"""Two ways to the same uint8 pixels: a small set lives in memory, a large one is decoded by worker processes.

A loader returns the inputs with these ids. What happens to them afterwards (`batches.py`) is the same for
both, so a training does not depend on which one it has. A loader is made once for a whole run: its worker processes
live as long as it does. An image that cannot be read is never replaced by another: the loader notes it, and it is left
out of the batch and of every count.

For random crops images are read *whole*: each keeps its own shape and stands at the top left of the batch's pixels, and
its extent (height, width) comes with it. `vitrail.data.augmentation` crops it.
"""

import abc
import ctypes
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.arguments import typed
from vitrail.data.augmentation import frames_of
from vitrail.data.columns import PADDING, Texts, Vocabulary
from vitrail.data.images import HASH, ArrayImages, Images, evenly
from vitrail.data.pictures import PICTURE, are_told_apart, picture_hash
from vitrail.data.preprocessing import LONGEST, Preprocessing
from vitrail.errors import DataError, Hint, RunError, worker_ended
from vitrail.runtime import cores
from vitrail.text import ShortRepr

RESIDENT_BYTES = 2**30  # larger sets are streamed
UNREADABLE = 0.01  # of the images of a set, at most
REPAIRED = "repair or move these files, then run the same command again"
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h: the signal that a process gets when its parent ends
SPARE = 2  # times the size that is wanted, at least, at which an image is decoded that is then scaled down

Image = UInt8[Tensor, "_ _ _"]  # (c, h, w), each of its own shape
JUDGED = 1000  # images in memory by which it is told whether more are hashed as pictures
CONTENT, OF_PICTURE, OF_GROUP = slice(0, HASH), slice(HASH, HASH + PICTURE), slice(HASH + PICTURE, None)
Contents = UInt8[np.ndarray, "n 64"]
"""By what images are known, each by zeros where it is not: hash of the content, of the picture, and of the group."""


class Loaded(NamedTuple):
    """Inputs of a few ids, and which of them could be read."""

    pixels: UInt8[Tensor, "n c h w"] | Int64[Tensor, "n s"]  # of images, or ids of texts
    extents: Int64[Tensor, "n 2"] | None  # each image's own height and width; None where all fill the pixels
    readable: Bool[Tensor, " n"]

    def images(self) -> list[Image]:
        """The pixels of each image that could be read, without what fills them up."""
        rows = self.readable.nonzero()[:, 0].tolist()
        if self.extents is None:
            return [self.pixels[row] for row in rows]
        sizes = self.extents.tolist()
        return [self.pixels[row, :, : sizes[row][0], : sizes[row][1]] for row in rows]


def no_contents(count: int) -> Contents:
    """Of so many inputs that were not read."""
    return np.zeros((count, OF_GROUP.start + HASH), np.uint8)


def are_read(contents: Contents) -> Bool[np.ndarray, " n"]:
    """Which were read, so that their content is known."""
    return contents[:, CONTENT].max(axis=1) > 0


def of_hashes(hashes: Sequence[bytes], part: slice = CONTENT) -> Contents:
    """Contents of which this part is known, and what is behind it as far as the hashes reach; zeros for empty ones."""
    found = no_contents(len(hashes))
    for row, each in enumerate(hashes):
        found[row, part.start : part.start + len(each)] = np.frombuffer(each, np.uint8)
    return found


class Loader(abc.ABC):
    """Inputs by id.

    Attributes:
        unreadable: For each id that could not be read so far: why, in one line that names the file.
        contents: (n, 64) for each image that was read so far the hash of its content (see `Images`), zeros for others.
            (0, 64) where there are none: of texts, and images that are made.
    """

    unreadable: dict[int, str]
    contents: Contents = no_contents(0)

    @abc.abstractmethod
    def read(self, ids: NDArray[np.int64], epoch: int = 0) -> Loaded:
        """Inputs of these ids, in the calling thread; only what is made anew in every epoch looks at that."""

    def learn(self, ids: NDArray[np.int64], contents: Contents) -> None:
        """Add the contents of some inputs, each part as far as it is known."""
        for part in (CONTENT, OF_PICTURE, OF_GROUP):
            known = np.flatnonzero(contents[:, part].any(axis=1))
            self.contents[ids[known], part] = contents[known, part]

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Loaded]:
        """Inputs of each array of ids, in turn."""
        for ids in wanted:
            yield self.read(ids, epoch)


@dataclass(eq=False, repr=False)
class ResidentLoader(ShortRepr, Loader):
    """All pixels in memory, gathered by index.

    Args:
        pixels: Images of one size as one tensor; or, of whole images, one tensor for each.
        unreadable: For each id that could not be read: why.
        pin: Whether batches are pinned in memory, from where a GPU takes them while it computes.
        contents: (n, 64) by what each image is known, or (0, 64) where they are not.
    """

    pixels: UInt8[Tensor, "n c h w"] | Sequence[Image]
    unreadable: dict[int, str] = field(default_factory=dict)
    pin: bool = False
    contents: Contents = field(default_factory=partial(no_contents, 0))

    def read(self, ids: NDArray[np.int64], epoch: int = 0) -> Loaded:
        """Gather them."""
        rows, extents = torch.from_numpy(ids), None
        if isinstance(self.pixels, Tensor):
            pixels = self.pixels[rows.to(self.pixels.device)]
        else:
            pixels, extents = fill_up([self.pixels[row] for row in ids.tolist()])
        readable = torch.tensor([id not in self.unreadable for id in ids.tolist()], dtype=torch.bool)
        return Loaded(pixels.pin_memory() if self.pin else pixels, extents, readable)


class StreamedLoader(Loader):
    """Files decoded by worker processes when they are needed, a few batches ahead.

    There are at most as many workers as cores: more would only wait for each other, and torch warns of them. They are
    started once and serve every pass. One pass at a time: a new one ends the one before.

    Args:
        images: The set.
        preprocessing: How an image becomes pixels.
        workers: Processes; with 0 the calling thread decodes.
        whole: Whether images keep their own shape.
        pin: Whether batches are pinned in memory.
        pictures: Whether images are known by their pictures, too; see `vitrail.data.pictures`.
    """

    def __init__(
        self,
        images: Images,
        preprocessing: Preprocessing,
        workers: int,
        whole: bool = False,
        pin: bool = False,
        pictures: bool = False,
    ) -> None:
        self.images, self.preprocessing, self.whole, self.pin = images, preprocessing, whole, pin
        self.pictures = pictures
        self.workers = min(workers, cores())
        self.unreadable, self.contents = {}, no_contents(len(images))
        self._passes = 0
        self._wanted: list[_Wanted] = []  # of the pass under way; torch reads it at the start of each
        self._decoder = _Decoder(images, preprocessing, whole)
        self._decoded = DataLoader(
            self._decoder,
            sampler=self._wanted,
            batch_size=None,
            num_workers=self.workers,
            worker_init_fn=begin_worker if self.workers else None,
            persistent_workers=self.workers > 0,
            pin_memory=pin,
            generator=torch.Generator(),  # else torch's random numbers, which are the training's, would move on
        )

    def read(self, ids: NDArray[np.int64], epoch: int = 0) -> Loaded:
        """Decode them here, whatever the workers do."""
        got = self._loaded(ids, self._decoder[self._want(ids)])
        return got._replace(pixels=got.pixels.pin_memory()) if self.pin else got

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Loaded]:
        """Decode each array of ids, in this order."""
        if not self.workers:
            yield from super().fetch(wanted, epoch)
            return
        self._passes += 1
        mine, self._wanted[:] = self._passes, map(self._want, wanted)
        with signals_blocked() if self._passes == 1 else nullcontext():  # the first pass starts the workers
            decoded = iter(self._decoded)
        for ids, _ in list(self._wanted):
            assert self._passes == mine, "one pass at a time"
            try:
                found = next(decoded)
            except (RuntimeError, ConnectionError, EOFError) as error:
                raise (worker_ended(error) or error) from error
            yield self._loaded(ids, found)

    def _want(self, ids: NDArray[np.int64]) -> "_Wanted":
        """These, and of which the picture is looked at: of those that were not read before."""
        return _Wanted(ids, ~are_read(self.contents[ids]) & self.pictures)

    def _loaded(self, ids: NDArray[np.int64], found: Sequence[Any] | RunError) -> Loaded:
        """What the decoder gave; each problem and each hash is kept."""
        if isinstance(found, RunError):
            raise RunError(found.problem, found.hint)  # a new one, or frame and error would hold each other
        pixels, extents, problems, hashes = found
        self.learn(ids, of_hashes(hashes))
        readable = torch.ones(len(pixels), dtype=torch.bool)
        for row, index, problem in problems:
            readable[row] = False
            self.unreadable[index] = problem
        return Loaded(pixels, extents, readable)


class _Wanted(NamedTuple):
    """Images that a worker is to decode, and of which their pictures are to be hashed, too."""

    ids: NDArray[np.int64]
    pictures: Bool[np.ndarray, " n"]


class _Decoder(Dataset):
    """What a worker does: from ids to pixels, extents, a list of (row, id, problem), and hashes."""

    def __init__(self, images: Images, preprocessing: Preprocessing, whole: bool) -> None:
        self.images, self.preprocessing, self.whole = images, preprocessing, whole

    def __getitem__(self, index: _Wanted) -> tuple[Tensor, Tensor | None, list[Any], Any] | RunError:
        """A RunError, which ends the run, is handed over: torch would make another error of it."""
        ids = index.ids.tolist()
        try:
            decoded, problems, hashes = zip(*map(self.one, ids, index.pictures.tolist()), strict=True)
        except RunError as error:
            return error
        pixels, extents = fill_up(decoded) if self.whole else (torch.stack(decoded), None)
        unread = [(row, ids[row], problem) for row, problem in enumerate(problems) if problem]
        return pixels, extents, unread, hashes

    def one(self, index: int, picture: bool) -> tuple[Image, str, bytes]:
        """The pixels of one image, and the hashes of content and picture; black ones, and why, where it is not read."""
        wanted, least = self.preprocessing, None
        if self.whole:  # for random crops, which change far more than what is left out here
            least = SPARE * math.ceil(max(wanted.size) / wanted.crop_pct)
        try:
            opened, known = self.images.read(index, least)
            pixels = wanted.to_uint8(opened, whole=self.whole)
            return pixels, "", known + (picture_hash(opened, wanted.bits) if picture else bytes(PICTURE))
        except (DataError, OSError) as error:  # the second by images of a person's own
            name, problem = self.images.name(index), error.problem if isinstance(error, DataError) else str(error)
            problem = problem if name in problem else f"{name}: {problem}"
            return torch.zeros(wanted.channels, *wanted.size, dtype=torch.uint8), problem, b""


STOPS = (signal.SIGINT, signal.SIGTERM)  # a stop; on a cluster, or by Ctrl-C, each process gets it


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that are started within are not stopped by a signal: what started them is, and may still need them."""
    if sys.platform != "linux":  # there it is torch that ends them
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(worker: int) -> None:
    """One thread decodes; only the parent ends this process, by SIGTERM (as torch does) or by its own end.

    Torch's workers look for their parent every 5 s, between two batches; one whose parent ended before, never.
    """
    torch.set_num_threads(1)
    if sys.platform != "linux":
        return
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_await_end, args=(parent.pid,), daemon=True).start()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:
        os._exit(0)


def _await_end(parent: int) -> None:
    while signal.sigwaitinfo(STOPS).si_pid != parent:
        pass
    os._exit(0)


def fill_up(images: Sequence[Image]) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, "n 2"]]:
    """One or more images at the top left of one tensor, which has room for the frame of each, and their extents."""
    extents = torch.tensor([image.shape[1:] for image in images], dtype=torch.int64)
    high, wide = frames_of(extents).amax(dim=0).tolist()
    pixels = torch.zeros(len(images), images[0].shape[0], high, wide, dtype=torch.uint8)
    for row, image in enumerate(images):
        pixels[row, :, : image.shape[1], : image.shape[2]] = image
    return pixels, extents


@typed
def load_resident(
    images: Images,
    preprocessing: Preprocessing,
    threads: int,
    progress: Callable[[int], None] = lambda done: None,
    *,
    whole: bool = False,
    pin: bool = False,
    pictures: bool = False,
) -> ResidentLoader:
    """Read a whole set into memory.

    Args:
        images: The set.
        preprocessing: How an image becomes pixels.
        threads: Images decoded at the same time (Pillow releases the interpreter lock).
        progress: Called with the number of images done.
        whole: Whether images keep their own shape; see `Preprocessing.to_uint8`.
        pin: Whether batches are pinned in memory, for a GPU.
        pictures: Whether images are known by their pictures, too; see `vitrail.data.pictures`.

    Returns:
        A loader of all images; those that cannot be read are noted as `unreadable`.
    """
    count = len(images)
    if isinstance(images, ArrayImages) and (fits := preprocessing.as_pixels(images.pixels)) is not None:
        contents = of_hashes([*map(images.content_hash, range(count))])
        contents[:, OF_PICTURE] = _pictures_of(images)[:, OF_PICTURE] if pictures else 0
        return ResidentLoader(list(fits) if whole else fits, pin=pin, contents=contents)
    pixels: Tensor | list[Image] = [torch.empty(0)] * count
    if not whole:  # of one size, in one piece from the start: never twice in memory
        pixels = torch.empty(count, preprocessing.channels, *preprocessing.size, dtype=torch.uint8)
    unreadable, hashes = dict[int, str](), list[bytes]()
    with ThreadPoolExecutor(max_workers=threads) as pool:
        decoded = pool.map(_Decoder(images, preprocessing, whole).one, range(count), repeat(pictures))
        for index, (one, problem, known) in enumerate(decoded):
            pixels[index] = one
            hashes.append(known)
            if problem:
                unreadable[index] = problem
            progress(index + 1)
    return ResidentLoader(pixels, unreadable, pin, of_hashes(hashes))


def _pictures_of(images: Images) -> Contents:
    """Images in memory by their pictures; not one of many whose near copies are not told from strangers."""

    def hashed(ids: Sequence[int]) -> Contents:
        return of_hashes([picture_hash(images.open(index)) for index in ids], OF_PICTURE)

    some = hashed(evenly(range(len(images)), JUDGED))
    if len(images) > JUDGED and not are_told_apart(some[:, OF_PICTURE].copy().view(np.uint64)):
        return no_contents(len(images))
    return hashed(range(len(images)))


class TextLoader(Loader):
    """Texts as ids, all in memory."""

    def __init__(self, texts: Texts, vocabulary: Vocabulary) -> None:
        self.rows = torch.from_numpy(vocabulary.rows(texts.values, framed=False))
        self.unreadable = {}

    def read(self, ids: NDArray[np.int64], epoch: int = 0) -> Loaded:
        """Ids, with no more padding than the longest text needs."""
        rows = self.rows[torch.from_numpy(ids)]
        longest = int((rows != PADDING).sum(dim=1).max()) if len(ids) else 1
        return Loaded(rows[:, :longest], None, torch.ones(len(ids), dtype=torch.bool))


class RenewedLoader(Loader):
    """Images that are made when they are read."""

    def __init__(self, images: Images, preprocessing: Preprocessing) -> None:
        self.images, self.preprocessing = images, preprocessing
        self.unreadable = {}

    def read(self, ids: NDArray[np.int64], epoch: int = 0) -> Loaded:
        """The images of the epoch, at the model's size."""
        images = self.images.in_epoch(ids, epoch)
        return load_resident(images, self.preprocessing, threads=1).read(np.arange(len(ids)))


def open_loader(
    inputs: Images | Texts,
    input: Preprocessing | Vocabulary,
    *,
    workers: int,
    whole: bool = False,
    pin: bool = False,
    pictures: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Loader:
    """The loader that fits: files are resident when all pixels take at most `RESIDENT_BYTES`, streamed otherwise.

    Args:
        inputs: Images or texts.
        input: How one is read: its preprocessing (at the size to be fetched), or the vocabulary of its texts.
        workers: Worker processes (streamed) or threads at the start (resident) that decode images.
        whole: Whether images keep their own shape, for random crops; see `Preprocessing.to_uint8`. Else each is brought
            to the size.
        pin: Whether batches are pinned in memory, for a GPU.
        pictures: Whether images are known by their pictures, too; see `vitrail.data.pictures`.
        progress: Called with the number of images read at the start (resident only).

    Raises:
        DataError: A text has a token that the vocabulary does not know, or the inputs are of another kind.
    """
    if isinstance(input, Vocabulary):
        if not isinstance(inputs, Texts):
            raise DataError("the data contain images, but texts are needed", "data with texts")
        return TextLoader(inputs, input)
    if isinstance(inputs, Texts):
        raise DataError("the data contain texts, but images are needed", "data with images")
    if inputs.renewed:
        return RenewedLoader(inputs, input)
    size = len(inputs) * input.channels * input.size[0] * input.size[1]
    if size * (LONGEST if whole else 1) <= RESIDENT_BYTES:
        return load_resident(inputs, input, max(1, workers), progress, whole=whole, pin=pin, pictures=pictures)
    return StreamedLoader(inputs, input, workers, whole, pin, pictures)


def check_readable(
    unreadable: Mapping[int, str], count: int, hint: str | Hint = REPAIRED, limit: float = UNREADABLE
) -> None:
    """Stop when too many images cannot be read.

    Args:
        unreadable: Those so far, and why.
        count: Images in the whole set.
        hint: What to try.
        limit: The fraction of the set that may be unreadable, and one image at least.

    Raises:
        DataError: More of them are unreadable; lists the first files.
    """
    bad = len(unreadable)
    if bad > max(1, int(limit * count)):
        first = "; ".join(list(unreadable.values())[:5])
        problem = f"{bad} of {count} images cannot be read, more than the limit of {limit:.3g}: {first}"
        raise DataError(problem, hint)
