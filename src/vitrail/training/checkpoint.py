"""The state of a training on disk, so that a run goes on after any end with the same bits; and its best network.

    resume/000000120/   network, average, optimizer, totals (safetensors) and state.json, which is written last and
                        holds the size and SHA-256 of every other file, and its own

A state is written into a folder of its own, flushed to disk and renamed into place; nothing is thrown away before that,
and the one before it is kept. Reading verifies every byte and falls back to the state before. No pickle anywhere.

What is written is a copy, so that the training goes on meanwhile (`Saver`): it waits for the copy alone. Where
memory has no room for one, what is trained is written itself, and the training waits for that.

    best/3.safetensors  where the run chooses, the network behind epoch 3, written before its row of the metrics

Which network is best is read from the metrics (`best_of`), which a resume cuts to the length that its state knows;
a file is removed only when no saved state knows it as its best any more. So a run that was killed anywhere chooses the
same network.
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from vitrail.data.tensor_files import check_size, read_tensors, write_tensors
from vitrail.errors import DataError, out_of_memory
from vitrail.io import WRITING, flush, other_out, write_file, written
from vitrail.runs.folder import RunFolder
from vitrail.tasks import Metric
from vitrail.training.loop import State

Row = Mapping[str, Any]  # an epoch in the metrics

MANIFEST = "state.json"
KEEP = 2
DAMAGED = ".damaged"
_NAME = re.compile(r"\d{9,}(-\d+)?")


@dataclass(frozen=True)
class Saving:
    """A state to be saved.

    Attributes:
        step: Optimizer steps done.
        facts: What `state.json` holds beside its files.
        write: Writes its files into a folder; gives the size and hash of each.
        apart: Whether it is a copy; else the next step would change it.
    """

    step: int
    facts: Mapping[str, Any]
    write: Callable[[Path], dict[str, Any]]
    apart: bool = False


def saving_of(state: State, write: Callable[[Path], dict[str, Any]], apart: bool = False) -> Saving:
    """The state as it is now, with what writes its files."""
    facts = {"step": state.step, "epoch": state.epoch, "batch": state.batch}
    return Saving(state.step, {**facts, "gradient_norm": float(state.gradient_norm)}, write, apart)


def _facts_of(file: Path) -> dict[str, Any]:
    with file.open("rb") as handle:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(handle, "sha256").hexdigest()}


def copy_state(state: State) -> Saving:
    """The state as it is now; a copy where memory has room for one."""
    files = _tensors(state)
    copies = {name: copy for name, tensors in files.items() if (copy := copy_of(tensors)) is not None}
    apart = len(copies) == len(files)
    return saving_of(state, partial(write_files, copies if apart else files), apart)


def write_files(files: Mapping[str, Mapping[str, Tensor]], folder: Path) -> dict[str, Any]:
    """Write the tensors of each file; gives its size and hash."""
    return {name: write_tensors(folder / name, tensors, checksum=False) for name, tensors in files.items()}


def describe_files(folder: Path) -> dict[str, Any]:
    """The size and hash of each file in a folder, once all are on the disk."""
    for file in folder.iterdir():
        flush(file)
    return {file.name: _facts_of(file) for file in sorted(folder.iterdir())}


def save_state(state: Saving, folder: Path, extra: dict[str, Any]) -> Path:
    """Write a state; an interruption at any moment leaves the former states whole.

    Args:
        state: What to save.
        folder: The run's `resume` folder.
        extra: More values for `state.json`.

    Returns:
        The folder written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = _free(folder, state.step)
    writing = folder / f"{place.name}{WRITING}"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    files = state.write(writing)
    manifest = {**state.facts, "files": files, **extra}
    manifest["sha256"] = _manifest_hash(manifest)
    write_file(writing / MANIFEST, json.dumps(manifest, indent=1))
    with written(place):
        flush(writing)
        os.rename(writing, place)
        flush(folder)
    _tidy(folder, place)
    return place


def states(folder: Path) -> list[Path]:
    """The state folders, oldest first; a folder has its name only when all of it was written."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_age)


def _age(place: Path) -> tuple[int, int]:
    step, _, again = place.name.partition("-")
    return int(step), int(again or 0)


def _free(folder: Path, step: int) -> Path:
    """Where a state of this step goes: beside a former one of the same step, never over it."""
    again = max((_age(place)[1] + 1 for place in states(folder) if _age(place)[0] == step), default=0)
    return folder / (f"{step:09d}-{again}" if again else f"{step:09d}")


def _tidy(folder: Path, newest: Path) -> None:
    """Keep the newest state and those of earlier steps; what is behind it is damaged, and was gone on without."""
    before = [place for place in states(folder) if _age(place) < _age(newest)]
    earlier = [place for place in before if _age(place)[0] < _age(newest)[0]]  # none where a run was stopped at once
    wanted = {newest, *(earlier or before)[-(KEEP - 1) :]}
    for other in folder.iterdir():
        if other not in wanted and (_NAME.fullmatch(other.name) or other.name.endswith(WRITING)):
            shutil.rmtree(other, ignore_errors=True)


def _manifest_hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()


def load_state(state: State, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Fill `state` from the newest whole state in `folder`; damaged ones that were tried before it are set aside.

    Args:
        state: What is filled.
        folder: The run's `resume` folder.

    Returns:
        The manifest, and a sentence for every damaged state that was passed over.

    Raises:
        DataError: If there are states but none is whole, or one is too large for the memory that is free.
    """
    notes, damaged, found = list[str](), list[Path](), states(folder)
    for place in reversed(found):
        try:
            manifest = _read_manifest(place / MANIFEST)
            for name, facts in manifest["files"].items():
                if _facts_of(place / name) != facts:
                    raise ValueError(f"{name} has changed since it was written")
            check_size(place, sum(facts["bytes"] for facts in manifest["files"].values()))
            _fill(state, _kinds(place, manifest["files"]), manifest)
        except (OSError, ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
            if out_of_memory(error) or isinstance(error, DataError):  # that damages no state
                raise
            notes.append(f"{place} is damaged ({error})")
            damaged.append(place)
        else:
            for each in damaged:  # no longer among the states, of which two are kept
                aside = each.with_name(f"{each.name}{DAMAGED}")
                shutil.rmtree(aside, ignore_errors=True)
                with suppress(OSError):  # another process may have done so already
                    each.rename(aside)
            return manifest, [f"{note}; the checkpoint before it is used" for note in notes]
    why = notes[-1] if notes else "there is none"
    raise DataError(f"none of the {len(found)} checkpoints in {folder} can be used: {why}", other_out(folder.parent))


def manifest_of(place: Path) -> dict[str, Any]:
    """The `state.json` of a state; empty where it is damaged."""
    try:
        return _read_manifest(place / MANIFEST)
    except (OSError, ValueError):
        return {}


def newest_manifest(folder: Path) -> dict[str, Any]:
    """The `state.json` of the newest state in `folder` whose own is whole; empty where there is none."""
    return next(filter(None, map(manifest_of, reversed(states(folder)))), {})


def _kinds(place: Path, files: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """The tensors of a state, by what they are of."""
    if any(name.startswith("shard-") for name in files):
        from vitrail.training.distributed.shard import read_parts  # with all of torch's checkpoint

        return read_parts(place)
    mapped = {name: safetensors.torch.load_file(place / name) for name in files}
    return {
        name.removesuffix(".safetensors"): {each: tensor.clone() for each, tensor in tensors.items()}
        for name, tensors in mapped.items()
    }


def copy_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Tensors as they are now, on the CPU; None where memory has no room for them.

    None shares memory with another, nor with what is trained.
    """
    try:
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    return None


def _tensors(state: State) -> dict[str, dict[str, Tensor]]:
    of_parameters = state.optimizer.state_dict()["state"].items()
    moments = {f"{index}.{name}": value for index, values in of_parameters for name, value in values.items()}
    files = {"network": state.network.state_dict(), "optimizer": moments, "totals": state.totals}
    if state.average is not None:
        files["average"] = state.average.network.state_dict()
    return {f"{name}.safetensors": tensors for name, tensors in files.items()}


def _fill(state: State, files: dict[str, dict[str, Tensor]], manifest: dict[str, Any]) -> None:
    state.network.load_state_dict(files["network"])
    if state.average is not None:
        state.average.network.load_state_dict(files["average"])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in files["optimizer"].items():
        index, _, name = key.partition(".")
        moments.setdefault(int(index), {})[name] = value
    whole = state.optimizer.state_dict()
    state.optimizer.load_state_dict({"state": moments, "param_groups": whole["param_groups"]})
    device = next(state.network.parameters()).device
    state.totals = {name: value.to(device) for name, value in files["totals"].items()}
    state.step, state.epoch, state.batch = manifest["step"], manifest["epoch"], manifest["batch"]
    state.gradient_norm = torch.tensor(manifest["gradient_norm"])


def _read_manifest(file: Path) -> dict[str, Any]:
    manifest = json.loads(file.read_text(encoding="utf-8"))
    stated = manifest.pop("sha256", None) if isinstance(manifest, dict) else None
    if stated is None or stated != _manifest_hash(manifest):
        raise ValueError(f"{file.name} has changed since it was written")
    return manifest


class Saver:
    """One thread that writes copies behind the loop's back; a context, at whose end nothing is being written any more.

    It works in the order of asking: a state that is whole on the disk has everything behind it that was written before
    it. After a failure nothing more is written, since it would stand on what is missing, and whoever looks learns of
    it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vitrail-save")
        self._last = Future[None]()
        self._last.set_result(None)

    def __enter__(self) -> "Saver":
        """Write from here on."""
        return self

    def __exit__(self, *error: object) -> None:
        """What is being written is written to its end, also where the training has failed."""
        self._thread.shutdown(wait=True)

    def later(self, write: Callable[[], object]) -> None:
        """Have the thread do something behind all that was handed to it before, unless that failed."""
        before = self._last

        def work() -> None:
            before.result()  # raises its failure again, and writes nothing
            write()

        self._last = self._thread.submit(work)

    def look(self) -> None:
        """Raise what has failed; waits for nothing."""
        if self._last.done():
            self._last.result()

    def wait(self) -> None:
        """Wait until all that was handed to it is done; raise what has failed."""
        self._last.result()


def quality(row: Row, metric: Metric) -> tuple[float, float]:
    """How good an epoch is: its metric, if that has a direction; then its loss."""

    def known(key: str, rank: Callable[[float], float]) -> float:
        value = row.get(key)
        return -math.inf if value is None or math.isnan(value) else rank(float(value))

    return known(f"validation_{metric.key}", metric.rank), known("validation_loss", lambda loss: -loss)


def best_of(history: Sequence[Row], metric: Metric) -> Row | None:
    """The best of the epochs, the first of equals; None if there is none.

    If a run began to choose at a later epoch, those before were evaluated on other samples and are not compared.
    """
    comparable = [row for row in history if "scored_on" in row] or history
    return max(comparable, key=lambda row: (quality(row, metric), -row["epoch"]), default=None)


def out_of_patience(history: Sequence[Row], metric: Metric, patience: int, since: int = 0) -> bool:
    """Whether there was no improvement for this many epochs.

    Args:
        history: The epochs so far.
        metric: The task's.
        patience: Epochs; 0 for no limit.
        since: Epochs before this step do not count, in a finished run that continues.
    """
    best = best_of(history, metric)
    if not patience or best is None:
        return False
    waited = [row for row in history if row["epoch"] > best["epoch"] and row["step"] > since]
    return len(waited) >= patience


def keep_if_best(folder: RunFolder, network: nn.Module, row: Row, metric: Metric, saver: Saver) -> None:
    """Have the network behind an epoch written, whose row is not in the metrics yet, where none before was as good.

    The row may be in the metrics before the file is there: a run that is killed between the two goes on from a state
    that was saved before, which knows neither.
    """
    if best_of([*folder.history(), row], metric) is not row:
        return
    tensors, file = copy_of(network.state_dict()), folder.best / f"{row['epoch']}.safetensors"
    saver.later(lambda: write_tensors(file, network.state_dict() if tensors is None else tensors))
    if tensors is None:
        saver.wait()


def tidy_best(folder: RunFolder, metric: Metric) -> None:
    """Remove the networks that no saved state knows as its best."""
    wanted = set[str]()
    for place in states(folder.resume):
        length = manifest_of(place).get("metrics_bytes")
        if length is None:
            return  # a damaged state: better one file too many
        if best := best_of(folder.history(length), metric):
            wanted.add(f"{best['epoch']}.safetensors")
    for file in folder.best.glob("*.safetensors") if wanted else ():
        if file.name not in wanted:
            file.unlink()


def load_best(folder: RunFolder, network: nn.Module, metric: Metric, notify: Callable[[str], object]) -> Row | None:
    """Put the best checkpoint's numbers into a network; where its file is lost, those of the next best that is whole.

    Args:
        folder: Of the run.
        network: Keeps the numbers of the last epoch where no file is whole.
        metric: The task's.
        notify: Called with a sentence on a file that is lost.

    Returns:
        The row of its epoch; None where no file is whole.
    """
    history = folder.history()
    best = best_of(history, metric)
    while row := best_of(history, metric):
        file = folder.best / f"{row['epoch']}.safetensors"
        try:
            network.load_state_dict(read_tensors(file, ""))
        except DataError as error:
            if row is best or file.exists():
                notify(f"warning: the best checkpoint is lost, and the next best one is used: {error.problem}")
            history = [each for each in history if each["epoch"] != row["epoch"]]
        else:
            return row
    return None
