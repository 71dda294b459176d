"""A state on disk: the same bits back, and a good one is found whatever happens while one is written or afterwards."""

import builtins
import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.errors import must_raise
from tests.training.lab import CHOICES, NOISY, TINY, bits, fresh, run, same, tiny_set
from vitrail import io
from vitrail.errors import DataError
from vitrail.nn.networks import weights_hash
from vitrail.training.checkpoint import KEEP, MANIFEST, copy_state, load_state, save_state, states
from vitrail.training.loop import State

ROOT = Path(__file__).parents[2]
Bits = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def three() -> list[State]:
    """The state of one training after 2, 5 and 9 events."""
    return [run(fresh(), tiny_set(), stop=stop).state for stop in (2, 5, 9)]


def loaded(folder: Path) -> tuple[Bits, list[str]]:
    """What a fresh training finds in a folder, and the notes."""
    state = fresh(seed=77)
    _, notes = load_state(state, folder)
    return bits(state), notes


def test_everything_comes_back(three: list[State], tmp_path: Path) -> None:
    place = save_state(copy_state(three[1]), tmp_path, {"metrics_bytes": 17, "torch": "x"})
    state = fresh(seed=3)
    manifest, notes = load_state(state, tmp_path)
    assert same(bits(state), bits(three[1]))
    assert notes == []
    assert (manifest["metrics_bytes"], manifest["torch"]) == (17, "x")
    assert states(tmp_path) == [place]
    kinds = {path.suffix for path in place.iterdir()}
    assert kinds == {".safetensors", ".json"}, "no pickle"


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are those of Linux")
def test_a_state_is_written_without_a_second_copy_in_memory(tmp_path: Path) -> None:
    """64 MiB of tensors, with 32 MiB free: safetensors' own function aborts the process there."""
    code = f"""
import resource
from functools import partial
from pathlib import Path
import torch
from vitrail.training.checkpoint import Saving, save_state, write_files
tensors = {{"a": torch.arange(2.0**24), "b": torch.tensor(3)}}
there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (there + 2**25,) * 2)
write = partial(write_files, {{"network.safetensors": tensors}})
save_state(Saving(2, {{}}, write), Path({str(tmp_path)!r}), {{}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (place,) = states(tmp_path)
    found = safetensors.torch.load_file(place / "network.safetensors")
    assert torch.equal(found["a"], torch.arange(2.0**24))
    assert found["b"] == 3


def test_two_are_kept_and_the_newest_is_used(three: list[State], tmp_path: Path) -> None:
    for state in three:
        save_state(copy_state(state), tmp_path, {})
    assert len(states(tmp_path)) == KEEP == 2
    assert sorted(tmp_path.iterdir()) == states(tmp_path), "nothing else is left behind"
    assert same(loaded(tmp_path)[0], bits(three[2]))


def test_the_same_step_saved_twice_never_goes_through_nothing(three: list[State], tmp_path: Path) -> None:
    first, second, third = (
        save_state(copy_state(three[0]), tmp_path, {"metrics_bytes": number}) for number in range(3)
    )
    assert len({first, second, third}) == 3
    assert states(tmp_path) == [second, third]
    assert load_state(fresh(), tmp_path)[0]["metrics_bytes"] == 2


def test_a_step_that_is_saved_twice_does_not_displace_the_one_before(three: list[State], tmp_path: Path) -> None:
    """Else both that are kept would be of one step, as where a run is stopped right after a save."""
    before, _, again = (save_state(copy_state(state), tmp_path, {}) for state in (three[0], three[1], three[1]))
    assert states(tmp_path) == [before, again]


def test_a_state_gets_its_name_in_one_step(three: list[State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is written and flushed under another name; then one rename makes it a state."""
    seen, rename, fsync, flushed = [], os.rename, os.fsync, []

    def watched(source: Path, place: Path) -> None:
        assert not place.exists()
        assert sorted(path.name for path in source.iterdir()) == sorted(FILES)
        assert len(flushed) == len(FILES) + 1, "every file and their folder"
        rename(source, place)
        seen.append(place)

    monkeypatch.setattr(os, "rename", watched)
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(fsync(handle)))
    assert save_state(copy_state(three[0]), tmp_path, {}) == seen[0]
    assert len(flushed) == len(FILES) + 2, "and the folder with the new name"


class Crash(OSError):
    """The planted end of a process."""


class Crashes:
    """Counts the calls to the file system while a state is saved, and lets one of them fail, half done if it can be.

    Args:
        monkeypatch: What replaces the functions.
        number: The call that fails, from 1.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.number, self.kinds, self.remove = number, list[str](), shutil.rmtree
        for name in ("rename", "replace", "fsync", "open", "mkdir"):
            monkeypatch.setattr(os, name, self.breaking(name, getattr(os, name)))
        monkeypatch.setattr(io, "open", lambda *named: HalfWritten(self, *named), raising=False)
        monkeypatch.setattr(shutil, "rmtree", self.half_removed)

    @property
    def made(self) -> int:
        return len(self.kinds)

    def due(self, kind: str) -> bool:
        self.kinds.append(kind)
        return self.made == self.number

    def breaking(self, kind: str, call: Callable) -> Callable:
        def broken(*args, **options):
            if self.due(kind):
                raise Crash(f"call {self.number}")
            return call(*args, **options)

        return broken

    def half_removed(self, path: Path, **options: bool) -> None:
        if self.due("rmtree"):
            for inner in sorted(path.glob("*"))[:2]:
                inner.unlink()
            raise Crash(f"call {self.number}")
        self.remove(path, **options)


class HalfWritten:
    """A file that takes half of what it is given when the crash is due."""

    def __init__(self, crashes: Crashes, *named: object) -> None:
        self.crashes, self.named = crashes, named

    def __enter__(self) -> "HalfWritten":
        self.file = builtins.open(*self.named)
        self.flush, self.fileno = self.file.flush, self.file.fileno
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, content: bytes) -> None:
        if self.crashes.due("write"):
            self.file.write(content[: len(content) // 2])
            raise Crash(f"call {self.crashes.number}")
        self.file.write(content)


def telling(kinds: list[str]) -> list[int]:
    """The calls, from 1, without those between the first and the last write of a file: there are many, all alike."""
    around = zip(["", *kinds], kinds, [*kinds[1:], ""], strict=False)
    return [number for number, three in enumerate(around, 1) if set(three) != {"write"}]


@pytest.mark.parametrize(
    ("before", "every"),
    [
        pytest.param((0,), True, id="one before", marks=pytest.mark.soak),
        pytest.param((0, 1), True, id="two before", marks=pytest.mark.soak),
        pytest.param((1,), True, id="the same step before", marks=pytest.mark.soak),
        pytest.param((1,), False, id="the same step before, at the calls that differ"),
    ],
)
def test_a_crash_at_every_call_leaves_a_good_state(
    before: tuple[int, ...], every: bool, three: list[State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the crash some states are saved; then one is saved, and call 1, 2, 3, ... to the file system fails."""
    new = three[1] if before == (1,) else three[2]
    old = three[before[-1]]

    def crashed(number: int) -> Crashes:
        folder = tmp_path / str(number)
        for one in before:
            save_state(copy_state(three[one]), folder, {"metrics_bytes": 0})
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            crashes = Crashes(patch, number)
            save_state(copy_state(new), folder, {"metrics_bytes": 1})
        return crashes

    kinds = crashed(0).kinds
    assert set(kinds) == {"open", "mkdir", "write", "fsync", "rename", "replace", "rmtree"}
    numbers = range(1, len(kinds) + 1) if every else telling(kinds)
    assert len(numbers) > 30
    for number in numbers:
        assert crashed(number).made >= number
        folder = tmp_path / str(number)
        found, notes = loaded(folder)
        assert same(found, bits(new)) or same(found, bits(old)), f"call {number}"
        assert notes == [], f"call {number}: only what is no longer needed may be thrown away in part"
        save_state(copy_state(new), folder, {"metrics_bytes": 2})
        assert same(loaded(folder)[0], bits(new))
        assert len(states(folder)) <= KEEP
        assert not list(folder.glob("*.writing")), "what a crash left is cleared away"


def test_a_state_written_in_place_would_be_seen(
    three: list[State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: a crash in the middle of a file that has its last name already."""
    file = save_state(copy_state(three[0]), tmp_path, {}) / FILES[0]
    whole, crashes = file.read_bytes(), Crashes(monkeypatch, 1)
    with contextlib.suppress(Crash), HalfWritten(crashes, file, "wb") as half:
        half.write(whole)
    with pytest.raises(DataError, match=r"\b1\b"):
        loaded(tmp_path)


def damage(place: Path, name: str, kind: str) -> None:
    file = place / name
    content = bytearray(file.read_bytes())
    match kind:
        case "truncated":
            file.write_bytes(content[: len(content) // 2])
        case "flipped":
            content[random.Random(name).randrange(len(content))] ^= 1
            file.write_bytes(content)
        case "longer":
            file.write_bytes(content + b"\0")
        case "empty":
            file.write_bytes(b"")
        case _:
            file.unlink()


FILES = ("network.safetensors", "average.safetensors", "optimizer.safetensors", "totals.safetensors", MANIFEST)


@pytest.mark.parametrize("kind", ["truncated", "flipped", "longer", "empty", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_state_is_passed_over_and_named(name: str, kind: str, three: list[State], tmp_path: Path) -> None:
    save_state(copy_state(three[0]), tmp_path, {})
    place = save_state(copy_state(three[1]), tmp_path, {})
    assert sorted(FILES) == sorted(path.name for path in place.iterdir())
    damage(place, name, kind)
    found, notes = loaded(tmp_path)
    assert same(found, bits(three[0]))
    assert len(notes) == 1
    assert str(place) in notes[0]
    assert [path.name for path in states(tmp_path)] == [f"{three[0].step:09d}"], "the damaged one is set aside"
    again = save_state(copy_state(three[1]), tmp_path, {})
    for each in (again, states(tmp_path)[0]):
        damage(each, name, kind)
    with must_raise(DataError, r"\b2\b"):
        loaded(tmp_path)
    assert len(states(tmp_path)) == 2, "nothing is set aside where nothing can be used"


def test_a_flipped_bit_of_the_manifest_is_noticed(three: list[State], tmp_path: Path) -> None:
    """A step or an epoch that is one digit off would go on silently; blanks between the values may change."""
    file = save_state(copy_state(three[1]), tmp_path, {"metrics_bytes": 120}) / MANIFEST
    whole, (told, _) = file.read_bytes(), load_state(fresh(), tmp_path)
    state, noticed, positions = fresh(), 0, range(0, len(whole), 5)
    for position in positions:
        content = bytearray(whole)
        content[position] ^= 1
        file.write_bytes(content)
        try:
            assert load_state(state, tmp_path) == (told, [])
        except DataError:
            noticed += 1
    assert noticed > 0.8 * len(positions)


def test_a_run_that_goes_on_behind_a_damaged_state_keeps_two_good_ones(three: list[State], tmp_path: Path) -> None:
    save_state(copy_state(three[0]), tmp_path, {})
    damage(save_state(copy_state(three[2]), tmp_path, {}), "network.safetensors", "truncated")
    state = fresh()
    load_state(state, tmp_path)
    run(state, tiny_set(), stop=2)
    place = save_state(copy_state(state), tmp_path, {})
    assert states(tmp_path) == [tmp_path / f"{three[0].step:09d}", place]
    found, notes = loaded(tmp_path)
    assert same(found, bits(state))
    assert notes == []


def test_a_damaged_state_does_not_displace_a_good_one(three: list[State], tmp_path: Path) -> None:
    """The run goes on from the first, past the damaged second, and saves a third."""
    good = save_state(copy_state(three[0]), tmp_path, {})
    damage(save_state(copy_state(three[1]), tmp_path, {}), "network.safetensors", "truncated")
    load_state(fresh(), tmp_path)
    last = save_state(copy_state(three[2]), tmp_path, {})
    assert states(tmp_path) == [good, last]
    damage(last, "network.safetensors", "truncated")
    assert same(loaded(tmp_path)[0], bits(three[0]))


def test_a_state_of_another_network_is_refused(three: list[State], tmp_path: Path) -> None:
    save_state(copy_state(three[0]), tmp_path, {})
    with pytest.raises(DataError, match=r"\b1\b"):
        load_state(fresh(TINY), tmp_path)
    assert states(tmp_path / "nowhere") == []
    with pytest.raises(DataError, match=r"\b0\b"):
        load_state(fresh(), tmp_path / "nowhere")


def test_the_hash_of_weights_sees_one_bit() -> None:
    network = fresh(NOISY, CHOICES).network
    before = weights_hash(network)
    assert before == weights_hash(fresh(NOISY, CHOICES).network)
    with torch.no_grad():
        network.head.bias[0] = torch.nextafter(network.head.bias[0], torch.tensor(9.0))
    assert weights_hash(network) != before
