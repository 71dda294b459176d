"""What is written behind the loop's back: in order, one at a time, and nothing on top of what failed."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.errors import must_raise
from tests.shared_runs import once
from tests.training.tiny import (
    AGAIN,
    STEPS,
    Killed,
    ended_at,
    must_equal,
    options,
    photographs,
    rows,
    saved,
    states,
    stopped,
)
from vitrail.data import tensor_files
from vitrail.errors import DataError, RunError, UsageError
from vitrail.runs import folder as folder_module
from vitrail.training import checkpoint, job
from vitrail.training.checkpoint import Saver
from vitrail.training.events import Event
from vitrail.training.loop import StepDone


def test_it_writes_in_order_while_others_go_on() -> None:
    begin, done, threads = threading.Event(), list[int](), set[int]()

    def write(number: int) -> Callable[[], None]:
        def work() -> None:
            begin.wait(60)
            done.append(number)
            threads.add(threading.get_ident())

        return work

    with Saver() as saver:
        for number in range(20):
            saver.later(write(number))
        saver.look()
        assert done == [], "asking and looking wait for nothing"
        begin.set()
        saver.wait()
        assert done == list(range(20))
        assert threads.isdisjoint({threading.get_ident()})
        assert len(threads) == 1, "never two writers"
        saver.later(write(20))
    assert done[-1] == 20, "at its end all is written"


def test_what_failed_is_raised_to_whoever_looks_and_nothing_is_written_on_top() -> None:
    done = list[str]()
    with Saver() as saver:
        saver.later(lambda: done.append("before"))
        saver.later(lambda: 1 / 0)
        saver.later(lambda: done.append("behind"))
        with pytest.raises(ZeroDivisionError):
            saver.wait()
        with pytest.raises(ZeroDivisionError):
            saver.look()
        saver.later(lambda: done.append("later"))
        with pytest.raises(ZeroDivisionError):
            saver.wait()
    assert done == ["before"]


def test_the_training_goes_on_while_a_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first state is written when three more steps are made, and holds the numbers of its own step."""
    saved(monkeypatch, often=False)
    release, steps, save = threading.Event(), list[int](), checkpoint.save_state

    def slow(state: checkpoint.Saving, *rest: object) -> Path:
        if state.step == 1:
            assert release.wait(60)
        return save(state, *rest)

    def listen(event: Event) -> None:
        if isinstance(event, StepDone):
            steps.append(event.step)
            monkeypatch.setattr(job, "SAVE_WITHIN_EPOCH_SECONDS", -1.0 if event.step == 1 else 1e9)
            if event.step == 4:
                assert not states(tmp_path / "run")
                release.set()

    monkeypatch.setattr(job, "save_state", slow)
    must_equal(vitrail.train("digits", tmp_path / "run", options("digits"), listen), "digits")
    assert steps == list(range(1, STEPS["digits"] + 1))


def test_a_save_that_fails_behind_its_back_ends_the_run_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(monkeypatch, often=True)
    save, steps = checkpoint.save_state, list[int]()

    def full(state: checkpoint.Saving, *rest: object) -> Path:
        if state.step == 3:
            raise OSError(28, "No space left on device", str(tmp_path / "run" / "resume"))
        return save(state, *rest)

    def listen(event: Event) -> None:
        steps.extend([event.step] if isinstance(event, StepDone) else [])

    monkeypatch.setattr(job, "save_state", full)
    with must_raise(RunError):
        vitrail.train("digits", tmp_path / "run", options("digits"), listen)
    assert steps[-1] in (3, 4), "one step at most is told before it is known"
    assert [place.name for place in states(tmp_path / "run")] == ["000000001", "000000002"]
    monkeypatch.setattr(job, "save_state", save)
    must_equal(vitrail.train("digits", tmp_path / "run", AGAIN), "digits")


def without_memory(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, failing: Callable[..., bool]) -> None:
    """From now on a function finds no memory where the calls that are to fail make use of it."""
    before = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        if failing(*given, **named):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        return before(*given, **named)

    monkeypatch.setattr(owner, name, call)


def test_a_state_without_memory_for_a_copy_is_written_while_the_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(monkeypatch, often=True)
    events, found = list[Event](), list[list[str]]()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepDone) and event.step == 6:
            found.append([place.name for place in states(tmp_path / "run")])

    without_memory(monkeypatch, torch.Tensor, "to", lambda *given, copy=False, **named: copy)
    must_equal(vitrail.train("digits", tmp_path / "run", options("digits"), listen), "digits")
    assert found == [["000000004", "000000005"]]
    assert any(isinstance(each, str) and "memory" in each and "step 5" in each for each in events)


def test_memory_that_runs_out_while_a_state_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(monkeypatch, often=True)
    with monkeypatch.context() as scarce:
        calls = count()  # a state of this network has 99 tensors, and 6 hold what is known of the images
        without_memory(scarce, tensor_files, "_buffer", lambda tensor: next(calls) > 150)
        with must_raise(RunError, "memory") as caught:
            vitrail.train("digits", tmp_path / "run", options("digits"))
    assert "resume='auto'" in str(caught.value.hint)
    whole_ones = states(tmp_path / "run")
    assert whole_ones
    again = list[Event]()
    must_equal(vitrail.train("digits", tmp_path / "run", AGAIN, again.append), "digits")
    assert any(isinstance(each, str) and f"from step {int(whole_ones[-1].name)}" in each for each in again)


def test_a_torn_row_of_the_metrics_is_lost_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the newest state knows, which no kill leaves behind: it was on the disk before the state."""
    saved(monkeypatch, often=True)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        vitrail.train("digits", folder, options("digits"), ended_at(11))
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-4])  # the row of step 10
    events = list[Event]()
    finished = vitrail.train("digits", folder, AGAIN, events.append)
    said = [each for each in events if isinstance(each, str)]
    assert any("metrics.jsonl" in each for each in said)
    must_equal(finished, "digits")
    steps = [row["step"] for row in rows(folder, "step")]
    assert steps == [2, 4, 6, 8, 12, 14]


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are those of Linux")
@pytest.mark.parametrize("free", [0, 16, 64, 128])
def test_a_training_that_runs_out_of_memory_ends_with_two_lines_and_goes_on(free: int, tmp_path: Path) -> None:
    """A network whose state has 150 MiB, with so many MiB free from its third step on."""
    code = f"""
import resource, sys
from pathlib import Path
import vitrail
from tests.training.tiny import save
from vitrail.errors import VitrailError
from vitrail.training.loop import StepDone

def listen(event):
    if isinstance(event, StepDone) and event.step == 3 and sys.argv[2] == "scarce":
        there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (there + {free} * 2**20,) * 2)

save(often=True)
Path(sys.argv[1], "wide.yaml").write_text("network: {{patch_size: 4, width: 512, depth: 4, heads: 8, mlp_dim: 2048}}")
options = vitrail.TrainOptions(
    epochs=1, threads=1, device="cpu", batch_size=200, precision="fp32",
    config=Path(sys.argv[1], "wide.yaml"), resume="auto",
)
try:
    print(vitrail.train("digits", Path(sys.argv[1], "run"), options, listen).weights)
except VitrailError as error:
    sys.exit(str(error))
"""
    root = Path(__file__).parents[2]

    def run(kind: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        asked = [sys.executable, "-c", code, str(folder), kind]
        paths = f"{root / 'src'}{os.pathsep}{root}"
        return subprocess.run(
            asked, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}
        )

    def unbroken(folder: Path) -> None:
        done = run("plenty", folder)
        assert done.returncode == 0, done.stderr
        (folder / "weights").write_text(done.stdout)

    wanted = (once("wide-unbroken", unbroken) / "weights").read_text()
    broken = run("scarce")
    if broken.returncode:
        assert broken.returncode == 1, broken.stderr
        lines = broken.stderr.splitlines()
        assert len(lines) == 2, broken.stderr
        assert "memory" in lines[0]
        assert lines[1].startswith("try: ")
        broken = run("plenty")
    assert broken.returncode == 0, broken.stderr
    halved = (tmp_path / "run" / "schedule.json").exists()  # smaller micro-batches, which are rounded otherwise
    assert halved or broken.stdout == wanted


def test_other_versions_are_listed_and_go_on_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped("digits", tmp_path / "run", 4)
    now = folder_module.versions()
    monkeypatch.setattr(folder_module, "versions", lambda: {**now, "torch": "3.0"})
    with must_raise(UsageError, re.escape(f"{now['torch']} -> 3.0")) as caught:
        vitrail.train("digits", folder, AGAIN)
    assert caught.value.hint.flags == {"resume": "anyway"}
    said = list[Event]()
    must_equal(vitrail.train("digits", folder, vitrail.TrainOptions(resume="anyway"), said.append), "digits")
    assert any(isinstance(each, str) and "-> 3.0" in each for each in said)


def test_other_data_is_listed(tmp_path: Path) -> None:
    root = photographs(tmp_path)
    folder = stopped("photos", tmp_path / "run", 2, data=str(root))
    gone = sorted((root / "a").iterdir())[:3]
    for file in gone:
        file.rename(tmp_path / file.name)
    with must_raise(DataError, " -> "):
        vitrail.train(str(root), folder, AGAIN)
    for file in gone:
        (tmp_path / file.name).rename(file)
    (root / "c").mkdir()
    gone[0].rename(root / "c" / "x.png")
    with must_raise(DataError, r"\+c"):
        vitrail.train(str(root), folder, AGAIN)
