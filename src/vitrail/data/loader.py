"""Two ways to the same uint8 pixels: a small set lives in memory, a large one is decoded when it is needed.

Files are decoded by processes, a few of them by one, where processes can be forked. Where one dies, another goes on; an
image at which two did counts as one that cannot be read.

A loader returns the inputs with these ids. What happens to them afterwards (`batches.py`) is the same for
both, so a training does not depend on which one it has. A loader is made once for a whole run: its worker processes
live as long as it does. An image that cannot be read is never replaced by another: the loader notes it, and it is left
out of the batch and of every count.

For random crops images are read *whole*: each keeps its own shape and stands at the top left of the batch's pixels, and
its extent (height, width) comes with it. `vitrail.data.augmentation` crops it.
"""

import abc
import math
import mmap
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitrail.arguments import typed
from vitrail.data.augmentation import frames_of
from vitrail.data.columns import PADDING, Texts, Vocabulary
from vitrail.data.images import HASH, ArrayImages, Images, evenly
from vitrail.data.pictures import PICTURE, are_told_apart, picture_hash
from vitrail.data.preprocessing import LONGEST, Preprocessing
from vitrail.data.workers import FORK, begin_worker, child_handler_kept, how_ended, of_each, signals_blocked
from vitrail.errors import DataError, Hint, RunError, worker_ended
from vitrail.runtime import cores
from vitrail.text import ShortRepr

RESIDENT_BYTES = 2**30  # larger sets are streamed
UNREADABLE = 0.01  # of the images of a set, at most
REPAIRED = "repair or move these files, then run the same command again"
RESTARTS = 10  # of worker processes that ended at no image twice: they have too little memory
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
        self._passes, self._ends = 0, Counter[int]()
        self._wanted: list[_Wanted] = []  # of the pass under way; torch reads it at the start of each
        self._decoder = _Decoder(images, preprocessing, whole)
        self._decoded = self._with_workers()

    def _with_workers(self) -> DataLoader:
        """Torch's loader, which starts the workers at its first pass."""
        self._decoder.at = torch.zeros(self.workers, 2, dtype=torch.int64).share_memory_()
        self._processes = list[BaseProcess]()
        return DataLoader(
            self._decoder,
            sampler=self._wanted,
            batch_size=None,
            num_workers=self.workers,
            worker_init_fn=begin_worker if self.workers else None,
            persistent_workers=self.workers > 0,
            pin_memory=self.pin,
            generator=torch.Generator(),  # else torch's random numbers, which are the training's, would move on
            multiprocessing_context=FORK if self.workers else None,
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
        mine, left, decoded = self._passes, deque(map(self._want, wanted)), None
        while left:
            assert self._passes == mine, "one pass at a time"
            try:
                decoded = decoded or self._begin(left)
                found = next(decoded)
            except Exception as error:
                self._blame(error)
                decoded = None
                continue
            yield self._loaded(left.popleft().ids, found)

    def _begin(self, wanted: Iterable["_Wanted"]) -> Iterator[Any]:
        """A pass, of which the first starts the workers."""
        self._wanted[:], before = wanted, multiprocessing.active_children()
        with signals_blocked(), child_handler_kept():
            self._pass: Any = iter(self._decoded)
        self._processes += [each for each in multiprocessing.active_children() if each not in before]
        return self._pass

    def _blame(self, error: Exception) -> None:
        """Note at which images workers ended; one at which two did is not read any more.

        Raises:
            RunError: They end at other images each time, as where memory is short; or the error, if it is another.
        """
        dead = {each.pid: each for each in self._processes if not each.is_alive()}
        at = {index: dead[process] for process, index in self._decoder.at.tolist() if process in dead}
        self._pass._shutdown_workers()  # now: the error holds it, and what is let go with that is so in any order
        self._decoded = self._with_workers()
        self._ends.update([*at] or [-1])
        alone = sum(count for index, count in self._ends.items() if index < 0 or count == 1)
        if not dead and not isinstance(error, ConnectionError | EOFError):
            raise error
        if alone > RESTARTS:
            raise (worker_ended(error) or error) from error
        for index, process in at.items():
            if index >= 0 and self._ends[index] > 1:
                self._decoder.fatal[index] = f"{self.images.name(index)}: {how_ended(process)}"

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

    at: Int64[Tensor, "workers 2"]  # of each worker the process, and the id that it reads; shared

    def __init__(self, images: Images, preprocessing: Preprocessing, whole: bool) -> None:
        self.images, self.preprocessing, self.whole = images, preprocessing, whole
        self.fatal = dict[int, str]()  # what is not read, and why

    def __getitem__(self, index: _Wanted) -> tuple[Tensor, Tensor | None, list[Any], Any] | RunError:
        """A RunError, which ends the run, is handed over: torch would make another error of it."""
        ids = index.ids.tolist()
        try:
            decoded, problems, hashes = zip(*map(self.one, ids, index.pictures.tolist()), strict=True)
        except RunError as error:
            return error
        pixels, extents = fill_up(decoded) if self.whole else (torch.stack(decoded), None)
        unread = [(row, ids[row], problem) for row, problem in enumerate(problems) if problem]
        self._note(-1)
        return pixels, extents, unread, hashes

    def one(self, index: int, picture: bool) -> tuple[Image, str, bytes]:
        """The pixels of one image, and the hashes of content and picture; black ones, and why, where it is not read."""
        wanted, least = self.preprocessing, None
        self._note(index)
        if self.whole:  # for random crops, which change far more than what is left out here
            least = SPARE * math.ceil(max(wanted.size) / wanted.crop_pct)
        try:
            if index in self.fatal:
                raise DataError(self.fatal[index], REPAIRED)
            opened, known = self.images.read(index, least)
            pixels = wanted.to_uint8(opened, whole=self.whole)
            return pixels, "", known + (picture_hash(opened, wanted.bits) if picture else bytes(PICTURE))
        except (DataError, OSError) as error:  # the second by images of a person's own
            name, problem = self.images.name(index), error.problem if isinstance(error, DataError) else str(error)
            problem = problem if name in problem else f"{name}: {problem}"
            return torch.zeros(wanted.channels, *wanted.size, dtype=torch.uint8), problem, b""

    def _note(self, index: int) -> None:
        """Where a worker is, for when it ends there."""
        if (worker := get_worker_info()) is not None:
            self.at.numpy()[worker.id] = os.getpid(), index


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
        threads: Images decoded at the same time, by processes or threads, see `vitrail.data.workers.of_each`.
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
    shape = preprocessing.channels, *preprocessing.size
    size = math.prod(shape) * (LONGEST**2 if whole else 1)  # at most; of memory only what is filled is taken
    room = torch.frombuffer(mmap.mmap(-1, max(1, count * size)), dtype=torch.uint8)[: count * size].view(count, size)
    decode = partial(_decode_into, room, _Decoder(images, preprocessing, whole), pictures)
    shapes: list[tuple[int, ...]] = [shape] * count
    unreadable, hashes = dict[int, str](), [b""] * count
    for done, (index, found) in enumerate(of_each(decode, images, range(count), threads), 1):
        failed = f"{images.name(index)}: {found}" if isinstance(found, str) else ""
        shapes[index], unreadable[index], hashes[index] = (shape, failed, b"") if failed else found
        progress(done)
    rows = zip(room, shapes, strict=True)
    pixels = [row[: math.prod(own)].view(own) for row, own in rows] if whole else room.view(count, *shape)
    bad = {index: problem for index, problem in sorted(unreadable.items()) if problem}
    return ResidentLoader(pixels, bad, pin, of_hashes(hashes))


def _decode_into(
    room: UInt8[Tensor, "n size"], decoder: _Decoder, picture: bool, index: int
) -> tuple[tuple[int, ...], str, bytes]:
    """What a process or thread does: write the pixels of an image into its row, and give the rest of `one`."""
    pixels, problem, known = decoder.one(index, picture)
    room[index, : pixels.numel()] = pixels.flatten()
    return tuple(pixels.shape), problem, known


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
    once: bool = False,
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
        once: Whether some files are read, and once, so that none is decoded before it is asked for.

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
    if size * (LONGEST if whole else 1) <= RESIDENT_BYTES and not (once and inputs.encoded):
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
