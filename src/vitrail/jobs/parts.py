"""Images in order, so many at a time: what is computed at once, stored as one part, and never done twice.

The one pass of a network over images: some are decoded while others are computed. On a processor a batch is small and
one thread's, from its files to what is stored of it, and as many are under way as torch has threads: so threads change
no bit. On an accelerator batches are large, one at a time, and other processes decode the next ones.

What lies beside a file until it is whole: its parts, and the job that they are of.

    x.csv.parts/job.json         inputs, model, ranges, batch, precision, versions: another job is refused
    x.csv.parts/000012.jsonl     the 13th part, which has this name only when all of it was written;
                                 its last line seals the bytes before

Whatever ends the work, the same command continues after the parts that are whole. A part is decided by its range alone,
whoever computes it and however often: so the file that is put together in the end has the same bytes.
"""

import errno
import hashlib
import json
import os
import shlex
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import PIL
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.data.images import Images
from vitrail.data.loader import Loaded, Loader, StreamedLoader, open_loader
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, Hint, RunError, UsageError, remove
from vitrail.io import FULL, free_name, home_out, locked, once, read_json, to_json, write_file
from vitrail.runtime import in_order, processors

BATCH, LARGE_BATCH = 16, 64  # of a thread; of an accelerator
ROWS = 256  # images of a range
SUFFIX, JOB = ".parts", "job.json"
KEY = b"vitrail"  # of the metadata of a table

Answer = TypeVar("Answer")
Ids = Int64[np.ndarray, " _"]


def answer_in_order(
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


def split_into_batches(ids: Int64[np.ndarray, " n"], device: torch.device) -> list[Ids]:
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


class IdRange(NamedTuple):
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

    def alone(self) -> "IdRange":
        """The same without the other images, to be sent to another process."""
        if self.images.renewed:
            return self
        return self._replace(images=self.images.select(self.ids), ids=np.arange(len(self.ids), dtype=np.int64))


class Kind(NamedTuple):
    """How a part lies on disk; sent to other processes.

    Attributes:
        ending: Of its files.
        to_bytes: A part as the content of a file; equal parts have equal bytes.
        read: The part that is in a file.
    """

    ending: str
    to_bytes: Callable[[Any], bytes]
    read: Callable[[Path], Any]


Compute = Callable[[Sequence[IdRange]], Iterator[Any]]
"""The part of each range, in turn."""


Work = Callable[[], Compute]
"""What a worker is sent: loads the model, and gives what computes with it; made of plain values."""


def split_up(splits: Iterable[Images], rows: int) -> list[IdRange]:
    """All images, so many at a time, none of which reaches from one split into the next."""
    found, first = list[IdRange](), 0
    for images in splits:
        for row in range(0, len(images), rows):
            ids = np.arange(row, min(row + rows, len(images)), dtype=np.int64)
            found.append(IdRange(len(found), first + row, images, ids))
        first += len(images)
    return found


def answer_ranges(
    ranges: Sequence[IdRange],
    answer: Callable[[Images, int, Ids, Tensor], Any],
    input: Preprocessing,
    device: torch.device,
    workers: int | None = None,
) -> Iterator[tuple[list[tuple[Ids, Any]], dict[int, str]]]:
    """What is answered to each range, in turn; images of the next ones are decoded meanwhile.

    Args:
        ranges: In order.
        answer: From all images of a split, how many of the job stand before them, which of them these are (b,), and
            their pixels (b, c, h, w) as the network expects them; see `answer_in_order`.
        input: The model's preprocessing.
        device: Where the network is.
        workers: Processes that decode files; see `loader_of`.

    Yields:
        Of each batch the places in the range (m,) that could be read, and what was answered to them; and why the others
        could not, by their places.
    """
    for _, group in groupby(ranges, key=lambda each: id(each.images)):
        some = list(group)
        images, loader = some[0].images, loader_of(some[0].images, input, device, workers)
        batches = [split_into_batches(each.ids, device) for each in some]
        wanted = [ids for own in batches for ids in own]
        answer_some = partial(answer, images, some[0].first - int(some[0].ids[0]))
        stream = answer_in_order(answer_some, loader, input, device, wanted, workers is not None)
        for each, own in zip(some, batches, strict=True):
            got, before = [next(stream) for _ in own], int(each.ids[0])
            bad = {row - before: loader.unreadable[row] for row in each.ids.tolist() if row in loader.unreadable}
            yield [(ids - before, found) for ids, found in got if len(ids)], bad


# ---- the parts of a file


Progress = Callable[[int, int], None]
"""Called with the number of images done, and of all."""


@dataclass(frozen=True)
class PartFiles:
    """The parts of a file on disk; plain values, which are sent to other processes.

    Args:
        folder: Where they lie.
        kind: How.
    """

    folder: Path
    kind: Kind

    def file(self, number: int) -> Path:
        """Where a part is, or is to be."""
        return self.folder / f"{number:06d}{self.kind.ending}"

    def is_whole(self, number: int) -> bool:
        """Whether a part is there, every byte of it as its seal has it."""
        with suppress(OSError):
            content = self.file(number).read_bytes()
            return content[-SEAL:] == _seal(content[:-SEAL])
        return False

    def read(self, number: int) -> Any:
        """A part that is whole."""
        return self.kind.read(self.file(number))

    def write(self, number: int, part: Any) -> None:
        """Write a part, under another name until it is whole; whoever else writes the same one writes the same bytes.

        Raises:
            OSError: It cannot be written, or nobody waits for it any more: its folder is gone.
        """
        self.folder.stat()
        file = self.file(number)
        own = file.with_name(f"{file.name}.{socket.gethostname()}-{os.getpid()}")
        content = self.kind.to_bytes(part)
        write_file(own, content + _seal(content))
        os.replace(own, file)

    def remove(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)


Carry = Callable[[PartFiles, Sequence[IdRange]], Iterator[IdRange]]
"""Computes ranges and writes their parts; gives each back when its part is there, in any order."""


def open_parts(out: Path, kind: Kind, job: Mapping[str, Any]) -> PartFiles:
    """The parts of a file, of which some may be there.

    Args:
        out: The file.
        kind: How its parts lie on disk.
        job: What decides their bytes.

    Raises:
        UsageError: There are parts of another job.
        OSError: Nothing can be written there.
    """
    folder, own = folder_of(out), json.loads(to_json(job))
    file = folder / JOB
    if not file.is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"{folder}, the folder for parts, exists", hint_elsewhere(out))
        write_file(file, to_json(own))
    theirs = read_json(file, remove(folder, folder=True))
    if differing := [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]:
        raise UsageError(f"{folder} was started with other {' and '.join(differing)}", hint_elsewhere(out))
    return PartFiles(folder, kind)


def job_entry(out: Path, name: str) -> Any:
    """An entry of the job that was started for a file; None where none was, or it has no such entry."""
    file = folder_of(out) / JOB
    return read_json(file, remove(file.parent, folder=True)).get(name) if file.is_file() else None


def choices(rows: int, device: torch.device, precision: str) -> dict[str, Any]:
    """What decides the bytes of parts besides inputs and model: the same in all workers, whatever their threads.

    Args:
        rows: Images of a range.
        device: Where the network is.
        precision: In which the network is computed.
    """
    return {
        "rows": rows,
        "batch": batch_of(device),
        "device": device.type,
        "precision": precision,
        "versions": decoder_versions(),
    }


def decoder_versions() -> dict[str, str]:
    """Of what decodes and computes."""
    return {"vitrail": version("vitrail"), "torch": torch.__version__, "pillow": PIL.__version__}


def digest_of_job(folder: Path) -> str:
    """A hash of the job that parts are of; empty where the folder has none."""
    try:
        return hashlib.blake2b((folder / JOB).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def carry_here(compute: Compute, parts: PartFiles, ranges: Sequence[IdRange]) -> Iterator[IdRange]:
    """By this process, in order."""
    for each, part in zip(ranges, compute(ranges), strict=True):
        parts.write(each.number, part)
        yield each


# ---- the file itself


@contextmanager
def complete_parts(
    out: Path,
    kind: Kind,
    job: Mapping[str, Any],
    ranges: Sequence[IdRange],
    carry: Carry,
    progress: Progress,
) -> Iterator[PartFiles]:
    """All parts of a file, to be put together in the block; they are removed behind it, and stay if it cannot write.

    Args:
        out: The file.
        kind: How its parts lie on disk.
        job: What decides their bytes.
        ranges: All of the job.
        carry: Computes what is missing; see `vitrail.jobs.cluster.carry_of`.
        progress: Called with images done, and all.

    Raises:
        UsageError: There are parts of another job, or nothing can be written there.
        RunError: The disk is full, or another process writes that file.
    """
    with writing_table(out), hold_table(out):
        parts = open_parts(out, kind, job)
        left = [each for each in ranges if not parts.is_whole(each.number)]
        total = sum(len(each.ids) for each in ranges)
        done = total - sum(len(each.ids) for each in left)
        progress(done, total)
        for each in carry(parts, left) if left else ():
            done += len(each.ids)
            progress(done, total)
        try:
            yield parts
        except DataError:  # no image can be read: nothing is worth keeping
            parts.remove()
            raise
        parts.remove()


def folder_of(out: Path) -> Path:
    """Where the parts of a file lie."""
    return out.with_name(out.name + SUFFIX)


def other_name(out: Path) -> Path:
    """A file of another name, which is not there yet, nor its parts."""
    return free_name(out, lambda file: file.exists() or folder_of(file).exists())


def hint_elsewhere(out: Path) -> Hint:
    """To write the same to such a file."""
    return Hint({"out": str(other_name(out))})


@contextmanager
def writing_table(out: Path) -> Iterator[None]:
    """A file that cannot be written becomes an error with a hint."""
    try:
        yield
    except OSError as error:
        problem = f"{out} cannot be written: {error.strerror or error}"
        if error.errno in (*FULL, errno.EFBIG):
            parts = folder_of(out)
            more = f" continues with what is in {parts}" if parts.is_dir() and any(parts.iterdir()) else ""
            first, when = shlex.join(["df", "-h", str(out.parent)]), f"{once(error)}, the same command again"
            if error.errno == errno.EFBIG:
                first, when = "ulimit -f unlimited", "in a new shell where that is refused; then the same command again"
            raise RunError(problem, f"{first}  # {when}{more}") from error
        raise UsageError(problem, home_out(out)) from error


@contextmanager
def hold_table(out: Path) -> Iterator[None]:
    """Two processes that write the same file would each remove what the other has done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out, out.with_name(f"{out.name}.lock")):
        try:
            yield
        finally:
            folder = folder_of(out)
            if folder.is_dir() and {file.name for file in folder.iterdir()} <= {JOB}:
                shutil.rmtree(folder, ignore_errors=True)  # nothing was done


def _lines_to_bytes(part: Sequence[Any]) -> bytes:
    return "".join(to_json(each, indent=None) for each in part).encode()


def _read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_bytes()[:-SEAL].decode().split("\n")[:-1]]


LINES = Kind(".jsonl", _lines_to_bytes, _read_lines)
"""Objects, a line each."""

SEAL = 33  # bytes of the last line of a part, whatever its kind


def _seal(content: bytes) -> bytes:
    """A hash of the bytes in front of it."""
    return f"{hashlib.blake2b(content, digest_size=16).hexdigest()}\n".encode()
