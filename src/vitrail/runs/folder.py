"""The run folder: everything one training writes, under fixed names.

config.yaml  command.txt  env.json  data.json      settings, command, versions and machine, data
hashes.safetensors                                 of each image that was read the 64 bytes by which it is known (file,
                                                   picture, group: see `vitrail.data.loader.Contents`), zeros of
                                                   others: so an evaluation knows what was trained on, wherever it lies
samples.jsonl                                      split, name, mark of the content (`Images.marks`), and class or mark
                                                   of the target of each sample, so that those that change can be named;
                                                   not of named sets, which do not change, nor of more than `MOST`
metrics.jsonl  log.txt  run.html                   what happened: one JSON object a line, in words with times, a page;
                                                   an epoch has `samples` that were fed, and the `images` (as many) or
                                                   `tokens` that were counted, over which loss and accuracy are means
schedule.json                                      the phases of the schedule, where they differ from config.yaml
model/                                             the model, for `vitrail.load`
best/                                              the best network so far, where the run chooses one
resume/                                            the state from which the run is resumed
"""

import json
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.columns import Labels
from vitrail.data.dataset import Dataset
from vitrail.data.sources import is_named
from vitrail.errors import DataError, Hint, RunError, UsageError, out_of_memory, some_of
from vitrail.io import (
    FULL,
    WRITING,
    append_line,
    check_new,
    free_name,
    home_out,
    once,
    other_out,
    read_json,
    to_json,
    write_file,
)

# what is written before the first step; the last makes it a run
BEGINNING = {"lock", "log.txt", "command.txt", "env.json", "data.json", "samples.jsonl", "config.yaml"}
BEGINNING |= {"probe", "probe.json", "schedule.json", "hashes.safetensors"}
REMEMBERED = {"name": str, "root": str, "images": dict, "split_seed": int | None, "fingerprint": str}
"""What `data.json` holds at least."""
COMPUTING = ("vitrail", "torch", "torchvision", "numpy", "pillow")
PACKAGES = (*COMPUTING, "safetensors")
MOST = 100_000  # samples of a set, of which each is remembered
NAMED = 3  # of each kind of difference

Marks = dict[tuple[str, str], tuple[str, str]]  # content and class by split and name


class RunFolder:
    """The paths of one run, and what is written there.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"  # the settings; re-creates the run
        self.metrics = path / "metrics.jsonl"  # one JSON object a line
        self.samples = path / "samples.jsonl"  # what each sample was, so that one that has changed can be named
        self.hashes = path / "hashes.safetensors"  # the content of each image that was read
        self.page = path / "run.html"
        self.model = path / "model"
        self.probe = path / "probe"  # of a training from pretrained weights: the model before the first step
        self.adapter = path / "adapter"  # of a training with LoRA, in the layout of the library peft
        self.schedule = path / "schedule.json"  # the phases of the schedule, where they differ from the settings
        self.best = path / "best"  # the best networks so far, where a run chooses
        self.resume = path / "resume"  # saved states
        self.evaluation = path / "evaluation.json"  # written last: with it the run is finished

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file whole, or leave the old one."""
        self.write_text(name, to_json(content))

    def write_text(self, name: str, content: str) -> None:
        """Write a file whole, or leave the old one."""
        write_file(self.path / name, content)

    def read_data(self, hint: str | Hint) -> dict[str, Any]:
        """The facts of the data in `data.json`.

        Args:
            hint: What to try if that cannot be read.

        Raises:
            DataError: If `data.json` is missing or damaged.
        """
        content = read_json(self.path / "data.json", hint)
        if "halves" in content:  # as older runs call them
            content["parts"] = content.pop("halves")
        for key, kind in REMEMBERED.items():
            if key not in content or not isinstance(content[key], kind):
                raise DataError(f"{self.path / 'data.json'} is damaged (no {key})", hint)
        return content

    def add_command(self, command: str) -> None:
        """Add the command by which a finished run is continued; once, also after a kill."""
        known = (self.path / "command.txt").read_text(encoding="utf-8").splitlines()
        if known[-1:] != [command]:
            self.write_text("command.txt", "".join(f"{line}\n" for line in (*known, command)))

    def append_metrics(self, row: dict[str, Any]) -> None:
        """One more line of metrics."""
        append_line(self.metrics, to_json(row, indent=None).rstrip("\n"))

    def append_log(self, text: str, at: str = "") -> None:
        """One more line of the log, with the time at which it was printed: now, if none is given."""
        append_line(self.path / "log.txt", f"{at or clock()}  {text}")

    def metrics_bytes(self) -> int:
        """Length of the metrics, so that a resumed run can cut off what was written after its state."""
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def _metrics_content(self) -> bytes:
        return self.metrics.read_bytes() if self.metrics.exists() else b""

    def cut_metrics(self, length: int) -> list[str]:
        """Cut the metrics to a length, so that no row stands twice, and to whole lines.

        Returns:
            A sentence on an incomplete line, on lost rows if they are shorter, and on damaged lines, which are blanked.
        """
        content, notes = self._metrics_content(), list[str]()
        if content[-1:] not in (b"", b"\n"):
            notes.append(f"the last line of {self.metrics} was incomplete and is dropped")
        whole = content[:length].rpartition(b"\n")
        if (left := len(whole[0] + whole[1])) < len(content):
            os.truncate(self.metrics, left)
        if left < length:
            problem = f"{left:,} bytes of the {length:,} with which the state was saved"
            lost = "epochs without a row are missing from the page and cannot be selected"
            notes.append(f"warning: {self.metrics} has {problem}: {lost}")
        lines = content[:left].split(b"\n")
        damaged = [number for number, line in enumerate(lines) if line.strip() and not _is_row(line)]
        for number in damaged:
            lines[number] = b" " * len(lines[number])  # checkpoints know how long the file is
            notes.append(f"warning: line {number + 1} of {self.metrics} is damaged and is left out")
        if damaged:
            write_file(self.metrics, b"\n".join(lines))
        return notes

    def history(self, length: int | None = None) -> list[dict[str, Any]]:
        """The rows of epochs in the metrics, or in so many bytes of them."""
        try:
            lines = self._metrics_content()[:length].decode().splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
        except ValueError as error:
            raise DataError(f"{self.metrics} is damaged ({error})", other_out(self.path)) from error
        return [row for row in rows if row.get("kind") == "epoch"]


def clock() -> str:
    """The time, as the log has it: ISO 8601 to the second, with the offset of the zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def default_folder(data: str) -> Path:
    """Make `runs/<time>-<data>`, with a number if that exists, also if another process has just made it.

    Raises:
        UsageError: It cannot be made.
    """
    data = re.sub(r"[^\w.-]+", "-", Path(data).stem)  # signs that some file systems refuse
    wanted = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{data or 'data'}"
    while not _make(path := free_name(wanted)):
        pass
    return path


def _make(path: Path) -> bool:
    """Make a folder; returns whether it was not there before."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UsageError(f"{path} cannot be made ({error.strerror})", home_out(path)) from error
    return True


def open_folder(path: Path, resume: bool) -> bool:
    """Make the folder of a new run, or check that of a resumed one.

    Returns:
        Whether it holds a run; one that was killed before its first step holds none.

    Raises:
        UsageError: If it holds anything and `resume` is False, or holds something that is no run.
    """
    folder = RunFolder(path)
    if not resume:
        check_new(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if folder.config.is_file():
            return True
        names = {each.name.removesuffix(WRITING) for each in path.iterdir()} if path.is_dir() else set()
        if "lock" not in names or not names <= BEGINNING:
            raise UsageError(f"{path} exists and holds no run (no config.yaml)", other_out(path))
        return False
    _make(path)
    return False


@contextmanager
def beginning(folder: RunFolder) -> Iterator[None]:
    """Remove the files of a run that ends before its settings are written; with its lock."""
    try:
        yield
    finally:
        written = [] if folder.config.is_file() else list(folder.path.iterdir())
        if {each.name.removesuffix(WRITING) for each in written} <= BEGINNING:
            for each in written:
                shutil.rmtree(each) if each.is_dir() else each.unlink()


@contextmanager
def saving(path: Path, command: str, again: str) -> Iterator[None]:
    """Report a full disk or memory with the command that resumes the run; no empty folder is left.

    Args:
        path: The folder, which may not exist yet.
        command: The command that starts the run.
        again: The command that resumes it.

    Raises:
        RunError: A file of the run cannot be written, or memory ran out.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        problem, when = "memory ran out; what was saved before is whole", "where more memory is free"
        if isinstance(error, OSError) and Path(str(error.filename)).is_relative_to(path):
            problem, when = f"{error.filename}: {error.strerror}", once(error)
        elif not out_of_memory(error):  # of something else
            raise
        hint = f"{again if RunFolder(path).config.is_file() else command}  # {when}"
        raise RunError(problem, hint) from error
    finally:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def point_latest(folder: Path) -> None:
    """Point `runs/latest` at this run, if its folder is in one called `runs`."""
    if folder.parent.name != "runs":
        return
    link, beside = folder.parent / "latest", folder.parent / f".latest-{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    try:
        beside.symlink_to(folder.name, target_is_directory=True)
        os.replace(beside, link)
    except OSError:  # a file system without links: the run itself is not worse for it
        beside.unlink(missing_ok=True)


def write_samples(folder: RunFolder, dataset: Dataset) -> None:
    """Write what each sample of a new run is."""
    renewed = dataset.train.inputs.renewed  # in every epoch
    if not (renewed or is_named(dataset.name) or sum(map(len, dataset.splits.values())) > MOST):
        lines = [f"{to_json([*place, *marks], indent=None).strip()}\n" for place, marks in _marked(dataset)]
        folder.write_text(folder.samples.name, "".join(lines))


def _marked(dataset: Dataset) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for split, samples in dataset.splits.items():
        inputs, column = samples.inputs, samples.column(dataset.column)
        contents = samples.images.marks() if samples.has_images else [""] * len(inputs)  # the name of a text is all
        if isinstance(column, Labels):
            values = [column.names[number] for number in column.values]
        else:
            values = [column.select(np.array([index])).digest().hex()[:8] for index in range(len(column))]
        for name, content, value in zip(inputs.names(), contents, values, strict=True):
            yield (split, name), (content, value)


def data_changes(stored: Mapping[str, Any], dataset: Dataset, folder: RunFolder) -> str:
    """How the data have changed since a run was started, old -> new, with the first samples that differ.

    Args:
        stored: The `data.json` of the run.
        dataset: As it is now.
        folder: Of the run.
    """
    was, now = stored["images"], {name: len(samples) for name, samples in dataset.splits.items()}
    sizes = {name: (was.get(name, 0), now.get(name, 0)) for name in {**was, **now}}
    found = [f"{name} {old:,} -> {new:,}" for name, (old, new) in sizes.items() if old != new]
    for name, new in dataset.codec.to_dict().items():
        old = stored.get(name)
        if isinstance(old, list) and isinstance(new, list) and old != new:
            other = [f"-{each}" for each in old if each not in new] + [f"+{each}" for each in new if each not in old]
            found.append(f"{name} {len(old):,} -> {len(new):,} ({some_of(other) if other else 'in another order'})")
    found += _differing(folder, dataset)
    what = "; ".join(found) or "the same number of samples, with other names, contents or labels"
    return f"{dataset.name} has changed since {folder.path} was started: {what}"


def _differing(folder: RunFolder, dataset: Dataset) -> list[str]:
    """What kinds of samples differ, with the first of each; empty where the run does not know its samples."""
    try:
        lines = folder.samples.read_bytes().decode("utf-8", "surrogateescape").split("\n")
        rows = [json.loads(line) for line in lines if line]
        before: Marks = {(split, name): (content, value) for split, name, content, value in rows}
    except (OSError, ValueError):
        return []
    after: Marks = dict(_marked(dataset))
    both = [place for place in after if place in before]
    kinds = {
        "missing": [place for place in before if place not in after],
        "added": [place for place in after if place not in before],
        "other content": [place for place in both if _other(before[place][0], after[place][0])],
        "other label": [place for place in both if before[place][1] != after[place][1]],
    }
    named = {kind: [f"{name} ({split})" for split, name in some] for kind, some in kinds.items() if some}
    return [f"{kind}: {some_of(names, NAMED)}" for kind, names in named.items()]


def _other(old: str, new: str) -> bool:
    """Whether marks differ; one of them may have no CRC-32."""
    return any(one != other for one, other in zip(old.split("-"), new.split("-"), strict=False))


def versions(names: Sequence[str] = COMPUTING) -> dict[str, str]:
    """Versions of packages: of those on which the bits of a training may depend."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def check_versions(folder: RunFolder, saved: Mapping[str, str], anyway: bool) -> list[str]:
    """Refuse to resume with other versions, which may change the last bits, unless `anyway`.

    Args:
        folder: Of the run.
        saved: The versions by which its state was saved.
        anyway: Whether to resume with other versions.

    Returns:
        A sentence on what changed, if anything did.

    Raises:
        UsageError: Lists what changed.
    """
    now = versions()
    changed = ", ".join(f"{name} {old} -> {now.get(name)}" for name, old in saved.items() if old != now.get(name))
    if changed and not anyway:
        problem = f"{folder.path} was saved with other versions, which may change its bits: {changed}"
        raise UsageError(problem, Hint({"resume": "anyway"}))
    return [f"continuing with {changed}: the bits may differ from those of an uninterrupted run"] if changed else []


def environment_of_run() -> dict[str, Any]:
    """Versions and machine."""
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "host": socket.gethostname(),
        **versions(PACKAGES),
    }
