"""Finished runs that all tests share: each is trained once in a pytest session, whichever worker asks first.

    from tests.shared_runs import copy_of, run_of

    def test_it(tmp_path):
        run = run_of("digits")                   # the path of a finished run; look, do not write
        mine = copy_of("digits", tmp_path)       # tmp_path / "digits", to be damaged or gone on with
        data, options = asked_of("digits")       # what it was trained with, to train it again to the same bits
        stored(run)["weights"]                   # evaluation.json: weights, accuracy, loss, ...

A session fixture would train again in each xdist worker. Here a worker that finds a run missing trains it behind a
file lock while the others wait; the folder belongs to this session alone, so no run of another commit is ever met.
Ask before you patch anything: what is patched while a run is made is in it for everybody. The runs:

    digits          1,258 digits, 2 epochs of 7 steps, seed 3; knows little
    digits-stopped  the same, stopped by SIGTERM behind step 9 of 14; going on gives the weights of `digits`
    photos          a, b and c of `photographs()` at 32 x 32, until it tells them apart
    sort-digits     texts to texts, 60 strings, one epoch
    strings         images to texts, the `labels.csv` of `strings()`, one epoch

`once(name, make)` shares anything else that is dear: `make` fills an empty folder.
"""

import hashlib
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from PIL import Image

import vitrail
from tests.photographs import make_photographs
from vitrail.options import TrainOptions
from vitrail.training.events import Event, Stopped
from vitrail.training.loop import StepDone

_FOLDER: list[Path] = []

SMALL = {
    "photos": (
        "network: {patch_size: 8, width: 48, depth: 2, heads: 3, mlp_dim: 96, stochastic_depth: 0.0}\n"
        "optimization: {warmup_epochs: 1, ema_decay: 0.0, learning_rate: 0.003}\n"
        "augmentation: {trivial_augment: false, crop_scale: [0.7, 1.0], label_smoothing: 0.0}\n"
    ),
    "sort-digits": (
        "network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32}\n"
        "counts: {train: 60, validation: 20, test: 30}\n"
    ),
    "strings": ("network: {encoder: {width: 16, depth: 1, heads: 2, mlp_dim: 32}, decoder_depth: 1, mlp_dim: 32}\n"),
}
"""Configurations of networks that train in seconds, to be written into a file for `--config`."""


def share_below(folder: Path) -> None:
    """Where the runs of this session lie: once in each worker, the same folder in all (tests/conftest.py)."""
    _FOLDER[:] = [folder]


def once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills once for the whole session; the other workers wait for it.

    Args:
        name: Of the folder, one for everything that is ever shared.
        make: Gets the folder, which is there and empty. When it fails, the next one who asks tries again.
    """
    (root,) = _FOLDER
    root.mkdir(parents=True, exist_ok=True)
    folder, done = root / name, root / f"{name}.done"
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.write_text(json.dumps(stamps(folder)))
    return folder


def hashes(folder: Path) -> dict[str, str]:
    """The checksum of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def stamps(folder: Path) -> dict[str, list[int]]:
    """The size of every file below a folder, and when it was written, in nanoseconds: a copy has the same."""
    files = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: [found.st_size, found.st_mtime_ns] for name, found in files.items()}


def must_be_unchanged() -> None:
    """Fails when a test has written into what all share; asked at the end of each worker (tests/conftest.py)."""
    (root,) = _FOLDER
    changed = [done.stem for done in root.glob("*.done") if json.loads(done.read_text()) != stamps(root / done.stem)]
    assert not changed, f"a test has changed {changed}, which all tests share: take copy_of(name, tmp_path)"


@cache
def run_of(name: str) -> Path:
    """The run folder of this name (see above), trained if nobody has; to be read, never changed."""
    _, options = asked_of(name)

    def make(folder: Path) -> None:
        threads = torch.get_num_threads()
        with torch.random.fork_rng(devices=()):
            _train(name, folder / name, options)
        torch.set_num_threads(threads)

    return once(name, make) / name


def copy_of(name: str, folder: Path) -> Path:
    """A copy of this run, of the same name inside a folder: to be changed."""
    return shutil.copytree(run_of(name), folder / name)


def stored(run: Path) -> dict[str, Any]:
    """What a finished run found on its test images, and the hash of its weights."""
    return json.loads((run / "evaluation.json").read_text())


def asked_of(name: str) -> tuple[str, TrainOptions]:
    """The data and the options that a run is trained with; with them `vitrail.train` gives the same bits."""
    plain = TrainOptions(threads=1, device="cpu", seed=3)
    match name:
        case "digits" | "digits-stopped":
            return "digits", replace(plain, epochs=2, batch_size=200)
        case "photos":
            small = replace(plain, epochs=16, image_size=32, batch_size=18, config=configuration("photos"))
            return str(photographs() / "abc"), small
        case "sort-digits":
            return "sort-digits", replace(plain, epochs=1, config=configuration("sort-digits"))
        case "strings":
            small = replace(plain, epochs=1, batch_size=12, config=configuration("strings"))
            return str(strings() / "labels.csv"), small
    raise KeyError(name)


def configuration(name: str) -> Path:
    """A file with one of the configurations of `SMALL`."""
    return once(f"{name}-configuration", lambda folder: (folder / "small.yaml").write_text(SMALL[name])) / "small.yaml"


def photographs() -> Path:
    """Class folders a, b, c in abc/train/ (12 of each) and abc/val/ (4 of each), and b, c, d in bcd/ (4 of each)."""

    def make(folder: Path) -> None:
        make_photographs(folder / "abc" / "train", ("a", "b", "c"), per_class=12, seed=0)
        make_photographs(folder / "abc" / "val", ("a", "b", "c"), per_class=4, seed=1)
        make_photographs(folder / "bcd", ("b", "c", "d"), per_class=4, seed=2)

    return once("photographs", make)


def strings() -> Path:
    """24 grey images of 16 x 48 and `labels.csv`, which gives each the text ab or abab and a split."""

    def make(folder: Path) -> None:
        draw, rows = np.random.default_rng(0), ["path,text,split"]
        for number in range(24):
            pixels = draw.integers(0, 255, (16, 48)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            rows.append(f"{number}.png,{'ab' * (1 + number % 2)},{('train', 'train', 'val', 'test')[number % 4]}")
        (folder / "labels.csv").write_text("\n".join(rows))

    return once("strings-data", make)


def _train(name: str, run: Path, options: TrainOptions) -> None:
    data, _ = asked_of(name)
    if name.endswith("-stopped"):
        try:
            vitrail.train(data, run, options, _stop)
        except Stopped:
            return
        raise AssertionError(f"{name} came to its end")
    else:
        vitrail.train(data, run, options)


def _stop(event: Event) -> None:
    if isinstance(event, StepDone) and event.step == 9:
        signal.raise_signal(signal.SIGTERM)
