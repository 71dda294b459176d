"""The run folder: refused when it exists, held by one process, and with every row once."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.errors import figures, must_raise
from tests.locks import holder, leave_lock
from vitrail.errors import DataError, RunError, UsageError
from vitrail.io import locked, resume_command, write_file
from vitrail.runs.folder import RunFolder, default_folder, environment_of_run, open_folder, point_latest


def test_a_new_folder_is_made_and_an_empty_one_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert not open_folder(folder, resume=False)
    assert folder.is_dir()
    assert not open_folder(folder, resume=False)
    assert not open_folder(folder, resume=True)


@pytest.mark.parametrize("name", ["config.yaml", "photo.jpg"])
def test_a_folder_that_holds_anything_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))) as caught:
        open_folder(tmp_path, resume=False)
    resumed = name == "config.yaml"
    assert caught.value.hint.flags == ({"resume": "auto"} if resumed else {"out": f"{tmp_path}-2"})
    if resumed:
        assert open_folder(tmp_path, resume=True)
        return
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        open_folder(tmp_path, resume=True)


def test_a_run_killed_before_its_first_step_starts_again(tmp_path: Path) -> None:
    for name in ("lock", "command.txt", "env.json.writing"):
        (tmp_path / name).write_text("{}")
    assert not open_folder(tmp_path, resume=True)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        open_folder(tmp_path, resume=True)


def test_a_folder_of_somebody_else_s_json_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        open_folder(tmp_path, resume=True)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, resume in ((tmp_path / "file", True), (tmp_path / "file" / "inner", False)):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            open_folder(path, resume=resume)


HOLDS = """
import sys
from pathlib import Path
from vitrail.io import locked
with locked(Path(sys.argv[1]), Path(sys.argv[1]) / "lock"):
    print("held", flush=True)
    input()
"""


def test_a_living_process_keeps_its_folder_and_a_dead_one_does_not(tmp_path: Path) -> None:
    lock, said = tmp_path / "lock", list[str]()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], **pipes)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match=rf"\b{child.pid}\b") as caught, locked(tmp_path, lock):
            pytest.fail("two processes in one folder")
        assert caught.value.hint.flags == {"out": f"{tmp_path}-2"}
        assert holder(lock) == child.pid
    finally:
        child.kill()
        child.communicate()
    assert lock.exists(), "a killed process leaves it"
    with locked(tmp_path, lock, said.append):
        assert holder(lock) == os.getpid()
        with pytest.raises(RunError, match=str(os.getpid())), locked(tmp_path, lock):
            pytest.fail("twice in one process")
    assert not lock.exists()
    assert len(said) == 1
    assert str(child.pid) in said[0]


def test_a_number_that_another_process_has_by_now_holds_nothing(tmp_path: Path) -> None:
    """This process has it, which began later: no clock decides, as it would of one that began in the same moment."""
    leave_lock(tmp_path / "lock", start=1)
    with locked(tmp_path, tmp_path / "lock"):
        assert holder(tmp_path / "lock") == os.getpid()


def test_another_machine_keeps_its_folder_as_long_as_it_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, said = tmp_path / "lock", list[str]()
    for name, value in (("TOUCH", 0.02), ("STARTING", 0.1), ("SILENT", 60.0)):
        monkeypatch.setattr(f"vitrail.io.{name}", value)

    def says(sentence: str) -> None:
        said.append(sentence)
        threading.Timer(0.1, os.utime, [lock]).start()  # as the other machine does meanwhile

    leave_lock(lock, "another-machine")
    with pytest.raises(RunError, match="another-machine"), locked(tmp_path, lock, says):
        pytest.fail("two machines in one folder")
    assert lock.exists()
    assert len(said) == 1
    said.clear()
    lock.unlink()
    monkeypatch.setattr("vitrail.io.SILENT", 0.5)
    leave_lock(lock, "another-machine")
    with locked(tmp_path, lock, said.append):  # silent for so long while it is waited for
        assert ["waiting" in said[0], "gone" in said[1]] == [True, True]
        before = lock.stat().st_mtime_ns
        while lock.stat().st_mtime_ns == before:  # a sign of life of its own
            time.sleep(0.01)
    assert not lock.exists()


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_a_lock_that_says_nothing_is_taken_over(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not content:  # of another one filelock itself waits
        monkeypatch.setattr("vitrail.io.STARTING", 0.2)
    lock = tmp_path / "lock"
    lock.write_text(content)
    if content == "{}":
        os.utime(lock, (0, 0))  # nor has it been touched for long
    with locked(tmp_path, tmp_path / "lock"):
        assert holder(lock) == os.getpid()
    assert not lock.exists()


def test_the_lock_goes_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path, tmp_path / "lock"):
        raise ZeroDivisionError
    assert not (tmp_path / "lock").exists()


def test_latest_points_at_the_newest(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("one", "two"):
        (runs / name).mkdir(parents=True)
        point_latest(runs / name)
        assert (runs / "latest").resolve() == (runs / name).resolve()
    assert os.readlink(runs / "latest") == "two", "relative, so that the folder can be moved"
    (tmp_path / "elsewhere").mkdir()
    point_latest(tmp_path / "elsewhere")
    assert not (tmp_path / "latest").exists()
    (runs / "latest").unlink()
    (runs / "latest").mkdir()
    point_latest(runs / "one")
    assert (runs / "latest").is_dir(), "a folder of the user is not replaced"
    assert not (runs / "latest").is_symlink()


def test_default_folders_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitrail.runs.folder.time.strftime", lambda form: "20260101-000000")
    names = []
    for data in ("digits", "digits", "some/photos", "list.csv", "digits"):
        folder = default_folder(data)
        assert folder.is_dir()
        names.append(folder.name)
    stem = "20260101-000000"
    assert names == [f"{stem}-digits", f"{stem}-digits-2", f"{stem}-photos", f"{stem}-list", f"{stem}-digits-3"]
    with ThreadPoolExecutor(8) as pool:  # trainings that start in one second
        assert len({*pool.map(default_folder, ["many"] * 16)}) == 16


def test_metrics_are_cut_so_that_no_row_comes_twice(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.history() == []
    assert folder.metrics_bytes() == 0
    assert folder.cut_metrics(0) == []
    folder.append_metrics({"kind": "epoch", "epoch": 1})
    folder.append_metrics({"kind": "step", "step": 5})
    length = folder.metrics_bytes()
    folder.append_metrics({"kind": "epoch", "epoch": 2})
    with open(folder.metrics, "a") as handle:
        handle.write('{"kind": "epo')  # a process that was killed while it wrote
    (note,) = folder.cut_metrics(length)
    assert "incomplete" in note
    assert folder.history() == [{"kind": "epoch", "epoch": 1}]
    folder.append_metrics({"kind": "epoch", "epoch": 2})
    assert [row["epoch"] for row in folder.history()] == [1, 2]
    (note,) = folder.cut_metrics(10**6)  # rows are lost
    assert {str(folder.metrics_bytes()), "1000000"} <= {*figures(note)}
    assert len(folder.history()) == 2
    os.truncate(folder.metrics, length - 3)
    torn, lost = folder.cut_metrics(length)
    assert "incomplete" in torn
    assert "warning" in lost
    assert folder.history() == [{"kind": "epoch", "epoch": 1}]
    folder.metrics.write_text('{"kind": "ep\n' + folder.metrics.read_text())
    with must_raise(DataError, str(folder.metrics)):
        folder.history()
    length = folder.metrics_bytes()
    (note,) = folder.cut_metrics(length)
    assert f"line 1 of {folder.metrics}" in note
    assert folder.metrics_bytes() == length
    assert folder.history() == [{"kind": "epoch", "epoch": 1}]
    assert folder.cut_metrics(0) == []
    assert folder.history() == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("a.json", {"x": "é"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"x": "é"}

    def refuse(*names: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        folder.write_json("a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"x": "é"}


def test_a_file_that_finds_no_room_says_what_it_wanted_and_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    write_file(file, "before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"1\.23 kB") as caught:
        write_file(file, "x" * 1234)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(file))
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"a.txt": "before"}


def test_what_is_typed_to_go_on() -> None:
    path = Path("my runs/x")
    for typed, rest in (
        ("vitrail train 'my photos' --epochs 3", ["--epochs", "3"]),
        ("vitrail train 'my photos' --out 'my runs/x' --resume auto --lora 8", ["--lora", "8"]),
        ("vitrail train 'my photos' --resume=never --out=elsewhere", []),
    ):
        words = ["vitrail", "train", "my photos", *rest, "--out", "my runs/x", "--resume", "auto"]
        assert shlex.split(resume_command(typed, path)) == words


WHOLE = '{"name": "x", "root": "/x", "images": {}, "split_seed": null, "fingerprint": "x"}'


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", "{}", '{"name": "x"}', WHOLE.replace("{}", "null"), WHOLE.replace('"x"', "3", 1)],
)
def test_damaged_memory_of_the_data_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "data.json").write_text(content)
    with must_raise(DataError, r"data\.json"):
        RunFolder(tmp_path).read_data("another --out")
    (tmp_path / "data.json").write_text(WHOLE)
    assert RunFolder(tmp_path).read_data("another --out")["root"] == "/x"


def test_the_environment_names_versions() -> None:
    facts = environment_of_run()
    assert facts["torch"]
    assert facts["vitrail"] != "not installed"
    assert json.loads(json.dumps(facts)) == facts
