"""A network divided among processes (`--shard`) trains as a whole one does; its states are read by any number."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from tests.cli.command import call, must_refuse
from tests.errors import must_raise
from tests.training.lab import bits, fresh, run, same, tiny_set
from tests.training.processes import trained
from tests.training.test_checkpoint import Crashes
from tests.training.test_distributed import (
    ALIKE,
    NAMES,
    STEP,
    Launched,
    apart,
    asked,
    divided,
    launched,
    launches_of,
    make_photos,
    must_be_alike,
    must_say_once,
    short,
)
from tests.training.tiny import whole
from vitrail.data import tensor_files
from vitrail.errors import DataError
from vitrail.training.checkpoint import Saving, copy_state, describe_files, load_state, save_state, saving_of, states
from vitrail.training.distributed.shard import Shards, write_parts
from vitrail.training.loop import State

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are forked")
SHARD = {"shard": True}
FAULT = {"kind": "kill", "step": STEP, "rank": 1}


@pytest.fixture(scope="module")
def all_launches() -> Launched:
    return launches_of("divided")


def test_a_divided_network_trains_as_a_whole_one(all_launches: Launched) -> None:
    """With mixup, CutMix, an average, micro-batches, clipped gradients and uneven ends."""
    must_be_alike(
        all_launches.folder, "run", all_launches.shares("whole", "run"), *all_launches.shares("alone", "run-alone")
    )


def test_a_killed_one_goes_on_divided_or_not(all_launches: Launched, tmp_path: Path) -> None:
    """As many processes to the same bits; one alone to weights that differ by rounding."""
    assert all_launches.ended("kill").codes[1] == -9
    (state, *_) = states(all_launches.folder / "run-kill" / "resume")
    manifest = json.loads((state / "state.json").read_text())
    assert len([name for name in manifest["files"] if name.endswith(".safetensors")]) == 2, "each has written its parts"
    (unbroken,), (again,) = (
        {one["weights"] for one in all_launches.shares(*each)} for each in (("whole", "run"), ("again", "run-again"))
    )
    assert again == unbroken
    one = shutil.copytree(all_launches.folder / "run-kill", tmp_path / "run-one")
    finished, _ = trained(one, short(tmp_path))
    assert apart(finished.folder, all_launches.folder / "run") < ALIKE
    newest = states(one / "resume")[-1]
    assert {file.name for file in newest.iterdir()} >= {"network.safetensors", "average.safetensors"}


@pytest.mark.soak
def test_memory_that_runs_out_in_a_save_leaves_the_state_before(tmp_path: Path) -> None:
    """Of one of them, which has written some of its tensors; the run goes on to the same bits."""
    first = {
        "whole": {"world": 2, "trainings": {"run": divided(tmp_path)}},
        "save": {"world": 2, "trainings": {"run-save": divided(tmp_path, fault={**FAULT, "kind": "save"})}},
    }
    second = {"room": {"world": 2, "trainings": {"run-room": divided(tmp_path, after="run-save")}}}
    found = launched(tmp_path, first, second)
    ended = found.ended("save")
    assert ended.codes == [1, 1]
    must_say_once(ended, "memory ran out")
    resume = tmp_path / "run-save" / "resume"
    assert int(states(resume)[-1].name) == STEP - 1
    assert not list(resume.glob("*.writing/shard-00002*")), "nothing is left of the file that was not whole"
    both = [found.shares(*each) for each in (("whole", "run"), ("room", "run-room"))]
    assert len({one["weights"] for shares in both for one in shares}) == 1


@pytest.fixture
def group() -> Iterator[None]:
    """Of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def saved_in_parts(state: State) -> Saving:
    """A state that is written in parts, by one process."""

    def write(folder: Path) -> dict[str, Any]:
        assert state.shards is not None
        write_parts(state.shards, state, folder)
        return describe_files(folder)

    return saving_of(state, write)


@pytest.mark.soak
@pytest.mark.usefixtures("group")
def test_a_crash_at_every_call_of_a_divided_save_leaves_a_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one that is whole: call 1, 2, 3, ... to the file system fails, and the state before is found."""
    former, state = (run(fresh(), tiny_set(), stop=stop).state for stop in (2, 5))
    old, new = bits(former), bits(state)
    state.shards = Shards(state.network, state.optimizer, state.average)
    divided_state = saved_in_parts(state)
    number, crashed = 0, True
    while crashed:
        number += 1
        folder = tmp_path / str(number)
        save_state(copy_state(former), folder, {})
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            crashes = Crashes(patch, number)
            save_state(divided_state, folder, {})
        crashed = crashes.made >= number
        again = fresh(seed=77)
        _, notes = load_state(again, folder)
        assert same(bits(again), new) or same(bits(again), old), f"call {number}"
        assert notes == [], f"call {number}"
    assert same(bits(again), new)
    assert number > 10, "the crashes reach every kind of call"


@pytest.mark.usefixtures("group")
def test_a_divided_state_that_memory_has_no_room_for_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = run(fresh(), tiny_set(), stop=2).state
    state.shards = Shards(state.network, state.optimizer, state.average)
    place = save_state(saved_in_parts(state), tmp_path, {})
    monkeypatch.setattr(tensor_files, "free_memory", lambda device: 1000)
    with must_raise(DataError, "memory"):
        load_state(fresh(), tmp_path)
    assert states(tmp_path) == [place]


@pytest.mark.soak
def test_a_full_disk_ends_all_and_the_run_goes_on(tmp_path: Path) -> None:
    """Of one of them, which writes its parts elsewhere than the first; also by more processes."""
    first = {
        "whole": {"world": 2, "trainings": {"run": divided(tmp_path)}},
        "disk": {"world": 2, "trainings": {"run-disk": divided(tmp_path, fault={**FAULT, "kind": "disk"})}},
    }
    second = {
        "room": {"world": 2, "trainings": {"run-room": divided(tmp_path, after="run-disk")}},
        "three": {"world": 3, "trainings": {"run-three": divided(tmp_path, after="run-disk")}},
    }
    found = launched(tmp_path, first, second)
    ended = found.ended("disk")
    assert ended.codes == [1, 1]
    must_say_once(ended, os.strerror(errno.ENOSPC))
    places = states(tmp_path / "run-disk" / "resume")
    assert int(places[-1].name) == STEP - 1
    both = [found.shares(*each) for each in (("whole", "run"), ("room", "run-room"))]
    assert len({one["weights"] for shares in both for one in shares}) == 1
    assert {len(each["steps"]) for each in found.shares("three", "run-three")} == {14 - (STEP - 1)}
    assert apart(tmp_path / "run-three", tmp_path / "run") < ALIKE


def test_one_process_alone_divides_nothing(tmp_path: Path) -> None:
    answer = call("train", "digits", "--shard", "--out", tmp_path / "run")
    must_refuse(answer, 2, "--shard")
    assert not (tmp_path / "run").exists()


@pytest.mark.soak
def test_every_kind_of_training_divided(tmp_path: Path) -> None:
    """Classes over 100 steps, sequences, photographs of which one cannot be read, a student, fine-tuning, adapters."""
    make_photos(tmp_path)
    whole("digits")
    names = [name for name in (*NAMES, "tuned") if name != "digits"]
    asks = {name: asked(tmp_path, name) for name in names}
    adapted = asked(tmp_path, "tuned", lora=2)
    many = {
        name: {**each, "options": {**each["options"], **SHARD}} for name, each in {**asks, "adapted": adapted}.items()
    }
    alone = {f"{name}-alone": each for name, each in {**asks, "adapted": adapted}.items()}
    found = launched(tmp_path, {"many": {"world": 2, "trainings": many}, "alone": {"world": 1, "trainings": alone}})
    for name in many:
        must_be_alike(tmp_path, name, found.shares("many", name), *found.shares("alone", f"{name}-alone"))
