"""Trainings that are killed, and go on: the same bits, no epoch left out, no sample twice.

First with SIGKILL, at the places around the end of an epoch and at random moments (`killed.py`). Then between any two
writes at the end of a training, which leaves a run that is unfinished, or one that is whole.

Python says of each change to the file system that it is about to be made (an audit event), wherever the code stands
that makes it. Here the k-th one and all behind it are refused: what lies on the disk is what a kill would leave.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.locks import leave_lock
from tests.shared_runs import once, stored
from tests.training.killed import IMAGES, PLACES
from tests.training.tiny import AGAIN, STEPS, Killed, must_equal, steps_of, stopped, whole
from vitrail.errors import DataError
from vitrail.training.events import Finished

pytestmark = pytest.mark.usefixtures("as_a_user")

ROOT = Path(__file__).parents[2]
UNBROKEN = [{"place": "", "accumulate": accumulate} for accumulate in (1, 3)]
TOGETHER = [{**case, "processes": 2} for case in UNBROKEN]
ALONE = [  # each place with one micro-batch and with three, and in turn without workers and with two
    {"place": place, "accumulate": accumulate, "workers": 2 * ((number + turn) % 2)}
    for number, place in enumerate(PLACES)
    for turn, accumulate in enumerate((1, 3))
]
BOTH = [  # each place once, and all four pairs of micro-batches and workers
    {"place": place, "accumulate": (1, 3)[number % 2], "workers": 2 * (number // 2 % 2), "processes": 2}
    for number, place in enumerate(PLACES)
]
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "shutil.rmtree"}
SOME = (0.0, 0.6, 0.9, 1.0)  # of the way to the last write, for make test

Write = tuple[str, str]  # what is done, and to which file inside the run


def kind_of(case: dict[str, Any]) -> tuple[int, int]:
    """What the weights of a training hang on: micro-batches and processes."""
    return case.get("accumulate", 1), case.get("processes", 1)


def must_go_on(cases: Sequence[dict[str, Any]], folder: Path, whole: Sequence[dict[str, Any]] = UNBROKEN) -> None:
    """Trainings that are killed as these cases say end as those that were never broken."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killed", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        input="".join(json.dumps(case) + "\n" for case in (*whole, *cases)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["case"] for one in found] == [*whole, *cases]
    unbroken = {kind_of(one["case"]): one for one in found[: len(whole)]}
    for one in found:
        case = one["case"]
        assert one["killed"] == (case["kills"] if "kills" in case else bool(case["place"])), case
        assert one["weights"] == unbroken[kind_of(case)]["weights"], case
        assert one["rows"] == unbroken[kind_of(case)]["rows"], case
        assert [row["samples"] for row in one["rows"]] == [IMAGES, IMAGES], case


@pytest.mark.timeout(900)  # three trainings, on a machine that is busy
def test_a_kill_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """Where its state is saved; at all six places and at random moments in `make soak`."""
    must_go_on([{"place": "save", "accumulate": 3}], tmp_path, UNBROKEN[1:])


@pytest.mark.soak
def test_every_kill_around_the_end_of_an_epoch(tmp_path: Path) -> None:
    must_go_on(ALONE, tmp_path)


@pytest.mark.soak
def test_every_kill_around_the_end_of_an_epoch_of_two_processes(tmp_path: Path) -> None:
    must_go_on(BOTH, tmp_path, TOGETHER)


@pytest.mark.soak
def test_fifty_kills_at_random(tmp_path: Path) -> None:
    must_go_on([{"kills": 50, "seed": 1}], tmp_path)


class Watch:
    """Sees each change below a folder; refuses the k-th and all that follow."""

    def __init__(self) -> None:
        self.folder, self.last, self.writes = Path(), 0, list[Write]()
        self.on = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            _, mode, flags = arguments
            written = isinstance(mode, str) and set(mode) & set("wax+")
            if not written and not (mode is None and isinstance(flags, int) and flags & 0o3):
                return
        elif event not in CHANGES:
            return
        paths = [str(each) for each in arguments[:2] if isinstance(each, str | Path)]
        inside = [path for path in paths if path.startswith(str(self.folder))]
        if not inside:
            return
        name = inside[-1].removeprefix(str(self.folder)).lstrip("/")
        if len(self.writes) < self.last:
            self.writes.append((event, name))
        elif not name.startswith("lock"):  # which this process would hold for ever
            raise Killed


WATCH = Watch()
sys.addaudithook(WATCH.hook)  # for good; it sleeps unless a test here wakes it


@contextmanager
def killed_at(last: int, folder: Path) -> Iterator[list[Write]]:
    """Within, `last` changes below the folder are made and no more; gives them."""
    WATCH.folder, WATCH.last, WATCH.writes, WATCH.on = folder, last, [], True
    try:
        yield WATCH.writes
    finally:
        WATCH.on = False


def almost_done() -> Path:
    """The tiny run of digits, stopped behind its last step but one; to be copied."""
    return once("tiny-almost", lambda folder: stopped("digits", folder / "run", STEPS["digits"] - 1)) / "run"


def go_on(folder: Path, last: int = 10**6) -> tuple[list[Write], int]:
    """The writes of a run that goes on until it is killed or finished, and how many there were before `Finished`."""
    told: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, Finished):
            told.append(len(writes))

    with killed_at(last, folder) as writes:
        try:
            vitrail.train("digits", folder, AGAIN, listen)
        except Killed:
            return writes, len(writes)
    return writes, told[0]


def model_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "model").iterdir() if path.suffix != ".writing"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Write], int]:
    """The run gone on with to its end, the writes of that, and how many of them came before `Finished`."""
    whole("digits")
    folder = shutil.copytree(almost_done(), tmp_path_factory.mktemp("kills") / "run")
    return folder, *go_on(folder)


def test_nothing_is_written_after_finished_and_the_evaluation_comes_last(
    unbroken: tuple[Path, list[Write], int],
) -> None:
    _, writes, told = unbroken
    assert len(writes) > 20, "the watch sees what is written"
    assert [name for _, name in writes[told:]] == ["lock"], "only the lock is let go"
    assert writes[told - 1] == ("os.rename", "evaluation.json"), "with it the run is finished"


def test_the_background_is_filtered_before_they_are_saved(unbroken: tuple[Path, list[Write], int]) -> None:
    _, writes, _ = unbroken
    assert len([write for write in writes if write == ("os.rename", "model/background.safetensors")]) == 1


def must_be_unfinished_or_whole(unbroken: tuple[Path, list[Write], int], last: int, folder: Path) -> None:
    """Kill at a write; then look, evaluate, and go on."""
    end, writes, _ = unbroken
    run = shutil.copytree(almost_done(), folder / "run")
    made, _ = go_on(run, last)
    leave_lock(run / "lock", pid=2**22 + 1)
    assert made == writes[:last], "the same run makes the same writes"
    expected, where = model_of(end), f"killed before write {last}: {writes[last : last + 1]}"
    if (run / "evaluation.json").exists():
        assert model_of(run) == expected, where
        assert stored(run) == stored(end), where
        same = {name: stored(end)[name] for name in ("weights", "calibration")}
        assert vitrail.evaluate(run).to_dict() | same == stored(end)
    else:
        try:
            vitrail.load(run)
        except DataError:  # no model yet
            pass
        else:
            kept = model_of(run)
            assert {name: kept[name] for name in kept if name != "README.md"} == {
                name: expected[name] for name in expected if name in kept and name != "README.md"
            }, where
    events: list[Any] = []
    must_equal(vitrail.train("digits", run, AGAIN, events.append), "digits")
    assert len(steps_of(events)) <= 1, "it does not start over"
    assert model_of(run) == expected, where
    assert stored(run) == stored(end), where
    assert not list(run.rglob("*.writing")), "what the kill left is cleared away"


@pytest.mark.parametrize("place", SOME)
def test_a_kill_at_some_writes(place: float, unbroken: tuple[Path, list[Write], int], tmp_path: Path) -> None:
    must_be_unfinished_or_whole(unbroken, round(place * (len(unbroken[1]) - 1)), tmp_path)


@pytest.mark.soak
def test_a_kill_at_every_write(unbroken: tuple[Path, list[Write], int], tmp_path: Path) -> None:
    for last in range(len(unbroken[1])):
        must_be_unfinished_or_whole(unbroken, last, tmp_path / str(last))
