"""Runs of tiny networks, half a second each; how they are ended; and what of them can be compared.

What the tests of whole runs need to know of the insides of a training stands here, once.
"""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.photographs import make_photographs
from tests.shared_runs import once, stored
from vitrail.data import loader
from vitrail.training import job
from vitrail.training.events import Event, Finished, Stopped
from vitrail.training.loop import StepDone

CONFIGURATIONS = {
    "digits": "network: {patch_size: 4, width: 8, depth: 1, heads: 2, mlp_dim: 16}\n",
    "photos": "network: {patch_size: 4, width: 16, depth: 1, heads: 2, mlp_dim: 16}\n",
    "sort-digits": (
        "network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32, dropout: 0.1}\n"
        "counts: {train: 120, validation: 30, test: 40}\n"
        "optimization: {batch_size: 24, ema_decay: 0.9}\n"
        "augmentation: {label_smoothing: 0.1}\n"
    ),
}
STEPS = {"digits": 14, "sort-digits": 10}  # 1,258 images in batches of 200, 120 strings in batches of 24; twice
PLAIN = vitrail.TrainOptions(epochs=2, threads=1, device="cpu", seed=3)
AGAIN = vitrail.TrainOptions(resume="auto")
CLOCK = {"seconds", "images_per_second", "waiting_fraction"}  # what a row of the metrics says of time

Listen = Callable[[Event], None]


def options(name: str, **changes: Any) -> vitrail.TrainOptions:
    """How the run of this name is trained; with `changes` another one."""
    config = once(f"tiny-{name}-config", lambda folder: (folder / "tiny.yaml").write_text(CONFIGURATIONS[name]))
    sizes = {
        "digits": {"batch_size": 200},
        "photos": {"epochs": 1, "batch_size": 16, "image_size": 16, "lr": 1e-4, "workers": 1},
    }
    return replace(PLAIN, config=config / "tiny.yaml", **{**sizes.get(name, {}), **changes})


def whole(name: str) -> Path:
    """The unbroken run of this name, which others must equal; to be read, never changed."""
    asked = options(name)
    return once(f"tiny-{name}", lambda folder: vitrail.train(name, folder / "run", asked)) / "run"


def student_options(**changes: Any) -> vitrail.DistillOptions:
    """How the student of the digits is trained; its teacher is `whole("digits")`."""
    return replace(vitrail.DistillOptions(**vars(options("digits"))), **changes)


def student() -> Path:
    """The unbroken run of that student."""
    teacher, asked = whole("digits"), student_options()
    return once("tiny-student", lambda folder: vitrail.distill("digits", teacher, folder / "run", asked)) / "run"


def stopped(name: str, folder: Path, step: int, data: str = "", **changes: Any) -> Path:
    """The same, stopped by SIGTERM behind a step; its state is saved."""
    hit = partial(os.kill, os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        vitrail.train(data or name, folder, options(name, **changes), ended_at(step, hit))
    return folder


def photographs(root: Path) -> Path:
    """A folder of two classes, 30 photographs each."""
    make_photographs(root / "photos", ("a", "b"), per_class=30, seed=0)
    return root / "photos"


class Killed(BaseException):
    """The end of a process, as far as it can be had without one."""


def die() -> None:
    raise Killed


def ended_at(step: int, end: Callable[[], None] = die) -> Listen:
    """A listener that ends the run behind a step."""

    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            end()

    return listen


def steps_of(events: list[Event]) -> list[int]:
    """The numbers of the steps that were made."""
    return [event.step for event in events if isinstance(event, StepDone)]


def save(often: bool) -> None:
    """From now on a state is saved behind every step, or never before the end."""
    job.SAVE_SECONDS = job.SAVE_WITHIN_EPOCH_SECONDS = -1.0 if often else 1e9


def saved(monkeypatch: pytest.MonkeyPatch, often: bool) -> None:
    """The same until the end of a test; and a row of the metrics for every second step."""
    for name in ("SAVE_SECONDS", "SAVE_WITHIN_EPOCH_SECONDS"):
        monkeypatch.setattr(job, name, -1.0 if often else 1e9)
    monkeypatch.setattr(job, "LOG_STEPS", 2)


def stream_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes decode images whenever they are needed, however few they are."""
    monkeypatch.setattr(loader, "RESIDENT_BYTES", 0)


def rows(folder: Path, kind: str = "epoch") -> list[dict[str, Any]]:
    """The rows of the metrics of one kind."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def what_was_learnt(folder: Path) -> list[dict[str, Any]]:
    """The rows of the metrics, one for each epoch, without what depends on the clock."""
    return [{key: value for key, value in row.items() if key not in CLOCK} for row in rows(folder)]


def states(folder: Path) -> list[Path]:
    """The saved states of a run, oldest first."""
    return sorted((folder / "resume").glob("[0-9]*[0-9]"))


def content(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def must_equal(finished: Finished, name: str) -> None:
    """A run that was broken off and went on is, to the bit, the unbroken one."""
    assert finished.weights == stored(whole(name))["weights"]
    assert what_was_learnt(finished.folder) == what_was_learnt(whole(name))
