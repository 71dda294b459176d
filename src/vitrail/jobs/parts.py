"""What lies beside a file until it is whole: its parts, each written once, and the job that they are of.

    x.csv.parts/job.json         inputs, model, ranges, batch, precision, versions: another job is refused
    x.csv.parts/000012.jsonl     the 13th part, which has this name only when all of it was written

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import PIL
import torch

from vitrail.errors import DataError, RunError, UsageError
from vitrail.io import FULL, free_name, locked, once, read_json, to_json, write_file
from vitrail.jobs.ranges import Compute, Kind, Range, batch_of

SUFFIX, JOB = ".parts", "job.json"
NOT_COMPARED = ("threads",)  # of a job: what changes no byte of its parts

Progress = Callable[[int, int], None]
"""Called with the number of images done, and of all."""
Carry = Callable[[Sequence[Range]], Iterator[Range]]
"""Computes ranges and writes their parts; gives each back when its part is there, in any order."""


@dataclass(frozen=True)
class Parts:
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
        """Whether a part is there, every byte of it."""
        try:
            self.kind.check(self.file(number).read_bytes())
        except (OSError, ValueError):
            return False
        return True

    def write(self, number: int, part: Any) -> None:
        """Write a part, under another name until it is whole; whoever else writes the same one writes the same bytes.

        Raises:
            OSError: It cannot be written, or nobody waits for it any more: its folder is gone.
        """
        self.folder.stat()
        file = self.file(number)
        own = file.with_name(f"{file.name}.{socket.gethostname()}-{os.getpid()}")
        write_file(own, self.kind.to_bytes(part))
        os.replace(own, file)

    def remove(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def open_parts(out: Path, kind: Kind, job: Mapping[str, Any]) -> Parts:
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
            raise UsageError(f"{folder}, the folder for parts, exists", _elsewhere(out))
        write_file(file, to_json(own))
    theirs = read_json(file, shlex.join(["rm", "-r", str(folder)]))
    differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name) and name not in NOT_COMPARED]
    if differing:
        raise UsageError(f"{folder} was started with other {' and '.join(differing)}", _elsewhere(out))
    return Parts(folder, kind)


def job_entry(out: Path, name: str) -> Any:
    """An entry of the job that was started for a file; None where none was, or it has no such entry."""
    file = folder_of(out) / JOB
    return read_json(file, shlex.join(["rm", "-r", str(file.parent)])).get(name) if file.is_file() else None


def choices(rows: int, device: torch.device, threads: int, precision: str) -> dict[str, Any]:
    """What decides the bytes of parts besides inputs and model: the same in every worker, and in one process.

    Args:
        rows: Images of a range.
        device: Where the network is.
        threads: Of each process, which change no byte: a batch is one thread's.
        precision: In which the network is computed.
    """
    return {
        "rows": rows,
        "batch": batch_of(device),
        "device": device.type,
        "precision": precision,
        "versions": versions(),
        "threads": threads,
    }


def versions() -> dict[str, str]:
    """Of what decodes and computes."""
    return {"vitrail": version("vitrail"), "torch": torch.__version__, "pillow": PIL.__version__}


def digest_of(folder: Path) -> str:
    """A hash of the job that parts are of; empty where the folder has none."""
    try:
        return hashlib.blake2b((folder / JOB).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def complete(parts: Any, ranges: Sequence[Range], carry: Carry, progress: Progress) -> None:
    """Every part that is not there yet.

    Args:
        parts: `Parts`, or what answers `is_whole`.
        ranges: All of the job.
        carry: Who computes; see `here` and `vitrail.jobs.on_ray.by_workers`.
        progress: Called with images done, and all.
    """
    left = [each for each in ranges if not parts.is_whole(each.number)]
    total = sum(len(each.ids) for each in ranges)
    done = total - sum(len(each.ids) for each in left)
    progress(done, total)
    for each in carry(left) if left else ():
        done += len(each.ids)
        progress(done, total)


def here(compute: Compute, parts: Any) -> Carry:
    """By this process, in order."""

    def carry(ranges: Sequence[Range]) -> Iterator[Range]:
        for each, part in zip(ranges, compute(ranges), strict=True):
            parts.write(each.number, part)
            yield each

    return carry


# ---- the file


@contextmanager
def finished_parts(
    out: Path,
    kind: Kind,
    job: Mapping[str, Any],
    ranges: Sequence[Range],
    carrier: Callable[[Parts], Carry],
    progress: Progress,
) -> Iterator[Parts]:
    """All parts of a file, to be put together in the block; they are removed behind it, and stay if it cannot write.

    Args:
        out: The file.
        kind: How its parts lie on disk.
        job: What decides their bytes.
        ranges: All of the job.
        carrier: From the parts to who computes them; see `here` and `vitrail.jobs.on_ray.by_workers`.
        progress: Called with images done, and all.

    Raises:
        UsageError: There are parts of another job, or nothing can be written there.
        RunError: The disk is full, or another process writes that file.
    """
    with writing(out), alone(out):
        parts = open_parts(out, kind, job)
        complete(parts, ranges, carrier(parts), progress)
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


def _elsewhere(out: Path) -> str:
    return shlex.join(["--out", str(other_name(out))])


@contextmanager
def writing(out: Path) -> Iterator[None]:
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
        raise UsageError(problem, f"--out {shlex.quote(str(Path.home() / out.name))}") from error


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Two processes that write the same file would each remove what the other has done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out, out.with_name(f"{out.name}.lock")):
        try:
            yield
        finally:
            folder = folder_of(out)
            if folder.is_dir() and {file.name for file in folder.iterdir()} <= {JOB}:
                shutil.rmtree(folder, ignore_errors=True)  # nothing was done


@dataclass(frozen=True)
class Lines:
    """Objects, a line each.

    Attributes:
        ending: Of its files.
    """

    ending: str = ".jsonl"

    def to_bytes(self, part: Sequence[Any]) -> bytes:
        """The lines and their seal."""
        lines = "".join(to_json(each, indent=None) for each in part).encode("utf-8", "surrogateescape")
        return lines + _seal(lines)

    def check(self, content: bytes) -> None:
        """Hold the lines against their seal.

        Raises:
            ValueError: They are not those that were written.
        """
        lines, seal = _divided(content)
        if seal != _seal(lines):
            raise ValueError("no whole part")


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a part that is whole."""
    lines, _ = _divided(file.read_bytes())
    for line in lines.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        yield json.loads(line)


def _divided(content: bytes) -> tuple[bytes, bytes]:
    """The lines, and the last of them, which seals the others."""
    cut = content.rstrip(b"\n").rfind(b"\n") + 1
    return content[:cut], content[cut:]


def _seal(lines: bytes) -> bytes:
    return to_json({"blake2b": hashlib.blake2b(lines, digest_size=16).hexdigest()}, indent=None).encode()
