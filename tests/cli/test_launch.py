"""One command, many processes: what is refused, what a printed script says, and that both do train."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import ROOT, USAGE, Cli
from tests.shared_runs import stored
from tests.training.tiny import options, whole
from vitrail.runtime import cores

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells of POSIX")


def words(folder: Path) -> list[str]:
    """The command that makes `whole("digits")`."""
    how = options("digits")
    given = ("--epochs", how.epochs, "--batch-size", how.batch_size, "--seed", how.seed, "--threads", 1)
    return [
        str(word) for word in ("train", "digits", "--config", how.config, *given, "--device", "cpu", "--out", folder)
    ]


def environment(folder: Path) -> dict[str, str]:
    """Of one machine of a SLURM that is none: `srun` starts what it is given, and writes that down."""
    stubs = {"srun": f'printf "%s\\n" "$@" > {folder}/srun.txt\nexec "$@"\n', "scontrol": "echo 127.0.0.1\n"}
    for name, text in stubs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    slurm = {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here", "OMP_NUM_THREADS": "1"}
    return {
        **os.environ,
        **slurm,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PORT": "0",
    }


def test_more_processes_than_there_are_are_refused(cli: Cli, tmp_path: Path) -> None:
    for devices in (0, cores() + 1):
        answer = cli(*words(tmp_path / "run"), "--devices", devices)
        assert answer.code == USAGE
        assert answer.problem.endswith(f"got {devices}")
        assert answer.hint.endswith(f" --devices {cores()}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "x"), ("WORLD_SIZE", "two"), ("RANK", "5"), ("MASTER_PORT", "http")]
)
def test_an_environment_that_says_no_place_is_refused(
    name: str, value: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", name: value}
    for each, text in known.items():
        monkeypatch.setenv(each, text)
    answer = cli(*words(tmp_path / "run"))
    assert answer.code == USAGE
    assert name in answer.problem
    assert value in answer.problem
    assert name in answer.hint
    assert not (tmp_path / "run").exists()


def test_a_port_at_which_something_else_listens_is_given_up(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own limit does not end the wait for an answer that never comes."""
    monkeypatch.setattr("vitrail.training.distributed.meeting.LATER", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in {**place, "VITRAIL_TIMEOUT": "0.4"}.items():
            monkeypatch.setenv(name, value)
        answer = cli(*words(tmp_path / "run"))
    assert answer.code == 1
    assert f"127.0.0.1:{port}" in answer.problem
    assert answer.hint.startswith("MASTER_PORT=")


@pytest.mark.parametrize("later", [0.0, 30.0])
def test_a_first_process_that_never_comes_is_named(
    later: float, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens where they were to meet, whether torch says so in time or does not."""
    monkeypatch.setattr("vitrail.training.distributed.meeting.LATER", later)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**place, "VITRAIL_TIMEOUT": "0.4"}.items():
        monkeypatch.setenv(name, value)
    answer = cli(*words(tmp_path / "run"))
    assert answer.code == 1
    assert f"127.0.0.1:{port}" in answer.problem
    assert "RANK=0" in answer.hint


def test_a_process_whose_launcher_is_gone_waits_for_nobody(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not after the 1,000 s in which all others may come."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**place, "VITRAIL_TIMEOUT": "400", "VITRAIL_LAUNCHER": str(os.getppid() + 1)}.items():
        monkeypatch.setenv(name, value)
    answer = cli(*words(tmp_path / "run"))
    assert answer.code == 1
    assert "--resume auto" in answer.hint


def test_processes_of_another_number_are_refused(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    answer = cli(*words(tmp_path / "run"), "--devices", 2)
    assert answer.code == USAGE
    assert "3" in answer.problem
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = cli(*words(tmp_path / "run"), "--devices", 2)
    assert answer.code == USAGE
    assert "MASTER_ADDR" in answer.problem


@pytest.mark.parametrize("kind", ["slurm", "torchrun"])
def test_a_script_says_the_command(kind: str, cli: Cli, tmp_path: Path) -> None:
    answer = cli(*words(tmp_path / "a run"), "--devices=2", "--print-launch", kind)
    assert answer.code == 0
    assert subprocess.run(["bash", "-n"], input=answer.out, text=True, check=False).returncode == 0
    for name in ("torchrun", "srun") if kind == "slurm" else ("torchrun",):
        assert f"{name} " in answer.out
    here = environment(tmp_path)
    (tmp_path / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/torchrun.txt\n')
    (tmp_path / "torchrun").chmod(0o755)
    subprocess.run(["bash"], input=answer.out, text=True, env=here, check=True)
    started = (tmp_path / "torchrun.txt").read_text().splitlines()
    assert started[started.index("-m") + 1 :] == ["vitrail", *words(tmp_path / "a run"), "--resume", "auto"]
    assert started[started.index("--nproc-per-node") + 1] == "2"
    assert started[started.index("--nnodes") + 1] == "1"
    assert cli("train", "digits", "--print-launch", kind).code == USAGE, "without --out nobody can go on with it"


def of_launch(mark: str) -> list[int]:
    """The processes that have a mark in their environment."""
    found = list[int]()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


SILENCE = 20  # seconds: on a machine that is busy a process that starts is silent for longer than some
LIMIT = 3 * SILENCE + 60  # before all have met it takes two and a half
STRIKES = [("SIGKILL", "started"), ("SIGKILL", "met"), ("SIGSTOP", "met"), ("SIGSTOP", "started")]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize(
    ("strike", "when"), [STRIKES[0], *(pytest.param(*each, marks=pytest.mark.soak) for each in STRIKES[1:])]
)
def test_a_launcher_that_is_killed_or_frozen_ends_all_others(strike: str, when: str, tmp_path: Path) -> None:
    mark = f"VITRAIL_TEST_OF_LAUNCH={tmp_path}"
    name, _, value = mark.partition("=")
    around = {**environment(tmp_path), name: value, "VITRAIL_TIMEOUT": str(SILENCE)}
    command = [sys.executable, "-m", "vitrail", *words(tmp_path / "run"), "--devices", "2"]
    command[command.index("--epochs") + 1] = "1000"
    metrics = tmp_path / "run" / "metrics.jsonl"
    with open(tmp_path / "err", "w") as err, subprocess.Popen(command, env=around, cwd=tmp_path, stderr=err) as process:
        try:
            while not metrics.exists() if when == "met" else len(of_launch(mark)) < 3:
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(getattr(signal, strike))
            struck = time.monotonic()
            while {*of_launch(mark)} - {process.pid} and time.monotonic() - struck < LIMIT:
                time.sleep(0.1)
                process.poll()
        finally:  # of those that are left none is waited for, whatever has failed
            found = of_launch(mark)
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    left = {*found} - {process.pid}
    assert not left, f"within {LIMIT} s"
    lines = (tmp_path / "err").read_text().splitlines()
    assert len(lines) in (2, 4), lines
    assert {line.partition(": ")[0] for line in lines} == {"vitrail", "try"}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["slurm", "torchrun", "devices"])
def test_what_is_started_trains(kind: str, cli: Cli, tmp_path: Path) -> None:
    """And goes on with a run that is finished, and leaves the same."""
    expected, run = stored(whole("digits")), tmp_path / "run"
    if kind == "devices":
        command = [sys.executable, "-m", "vitrail", *words(run), "--devices", "2"]
    else:
        script = cli(*words(run), "--devices", 2, "--print-launch", kind).out
        (tmp_path / "script").write_text(script)
        command = ["bash", str(tmp_path / "script")]
    for _ in range(1 if kind == "devices" else 2):
        done = subprocess.run(
            command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("test accuracy") == 1, "one process speaks"
        found = stored(run)
        assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=0.02)
    assert shlex.join(["vitrail", *words(run)]) in (run / "command.txt").read_text()
