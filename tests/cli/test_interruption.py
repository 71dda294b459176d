"""A run that is stopped, by whatever, goes on with `--resume auto` and ends with the weights of one that was not.

The signals are real and so are the processes, but no clock decides when one comes.
"""

import importlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.command import INTERRUPTED, Cli, call_outside, signal_behind
from tests.shared_runs import copy_of, hashes, run_of, stored
from tests.training.tiny import options, photographs, whole

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def words(folder: Path) -> tuple[object, ...]:
    """The command that makes `whole("digits")`, a run of a tiny network."""
    how = options("digits")
    given = ("--epochs", how.epochs, "--batch-size", how.batch_size, "--seed", how.seed, "--threads", 1)
    return ("train", "digits", "--config", how.config, *given, "--device", "cpu", "--out", folder)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_stopped_run_goes_on(number: signal.Signals, cli: Cli, tmp_path: Path) -> None:
    """One of each kind; tests/training stops runs at other steps, and by SIGTERM."""
    expected = stored(whole("digits"))
    folder = tmp_path / "run"
    answer = call_outside(
        *words(folder), before=f"from tests.cli.command import signal_behind; signal_behind(9, {int(number)})"
    )
    if number == signal.SIGKILL:
        assert answer.code == -signal.SIGKILL, answer.err
    else:
        assert answer.code == INTERRUPTED, answer.err
        assert str(folder) in answer.problem
        assert f"--out {folder} --resume auto" in answer.hint
        assert not (folder / "lock").exists()
    assert not (folder / "evaluation.json").exists()
    again = cli(*words(folder), "--resume", "auto", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["weights"] == stored(folder)["weights"] == expected["weights"]


TO_ALL = """
import os, subprocess
from tests.cli import command
from vitrail.data import loader
os.setsid()
loader.RESIDENT_BYTES = 0
command.signal_behind(3, NUMBER, send=lambda process, number: subprocess.run(["kill", f"-{number}", "0"]))
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch ends what decodes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_stops_a_run_at_a_step(number: signal.Signals, cli: Cli, tmp_path: Path) -> None:
    """As SLURM, systemd and a terminal send it: to those that decode, too (alone: tests/data/test_loader.py)."""
    how = options("photos")
    given = ("--config", how.config, "--epochs", how.epochs, "--batch-size", how.batch_size)
    given = ("train", photographs(tmp_path), *given, "--image-size", 16, "--threads", 1, "--device", "cpu")
    run = tmp_path / "run"
    answer = call_outside(*given, "--out", run, "--workers", 2, before=TO_ALL.replace("NUMBER", str(int(number))))
    assert answer.code == INTERRUPTED, answer.err
    assert "step 3" in answer.problem
    assert str(run) in answer.problem
    assert f"--out {run} --resume auto" in answer.hint
    assert len(answer.err.splitlines()) == 2, answer.err
    assert not (run / "lock").exists()
    assert not (run / "evaluation.json").exists()
    assert cli(*given, "--out", run, "--workers", 0, "--resume", "auto").code == 0
    assert cli(*given, "--out", tmp_path / "whole", "--workers", 0).code == 0
    assert stored(run)["weights"] == stored(tmp_path / "whole")["weights"]


@pytest.mark.soak
def test_the_hint_of_a_stopped_run_can_be_typed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, weights = copy_of("digits-stopped", tmp_path), stored(run_of("digits"))["weights"]
    with monkeypatch.context() as patch:
        signal_behind(10, signal.SIGINT, patch.setattr)
        stopped = cli("train", "digits", "--out", run, "--resume", "auto")
    assert stopped.code == INTERRUPTED
    hint = shlex.split(stopped.hint)
    behind = hint[hint.index("--out") :]
    again = cli("train", "digits", *behind, "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["weights"] == weights


def test_a_finished_run_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    run, before = copy_of("digits", tmp_path), stored(run_of("digits"))
    again = cli("train", "digits", "--out", run, "--resume", "auto", "--json")
    assert again.code == 0, again.err
    for key in ("weights", "accuracy", "loss"):
        assert json.loads(again.out)[key] == before[key]
    assert hashes(run / "model") == hashes(run_of("digits") / "model")


WHILE_IT_IMPORTS = """
import os, signal, sys
class Interrupter:
    def find_spec(self, name, *_):
        if name == "torch":
            os.kill(os.getpid(), signal.NUMBER)
            raise RuntimeError("the process is to have ended")
sys.meta_path.insert(0, Interrupter())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_before_anything_was_begun(number: signal.Signals, tmp_path: Path) -> None:
    """While it still imports: no run folder is left that a second try would have to step around."""
    answer = call_outside(*words(tmp_path / "run"), before=WHILE_IT_IMPORTS.replace("NUMBER", number.name))
    assert answer.code == INTERRUPTED
    assert answer.problem
    assert len(answer.err.splitlines()) == 2
    assert not (tmp_path / "run").exists()


def test_sigterm_ends_a_verb_as_ctrl_c_does() -> None:
    """When it has begun: what it holds is put away."""
    number = f"lambda *given: os.kill(os.getpid(), {int(signal.SIGTERM)})"
    before = f"import os; from vitrail.cli import models; models.run_models = {number}"
    answer = call_outside("models", "S/16", before=before)
    assert answer.code == INTERRUPTED, answer.err
    assert answer.problem


def test_sigterm_ends_a_server_that_still_starts_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "export.onnx").touch()
    before = WHILE_IT_IMPORTS.replace("NUMBER", "SIGTERM").replace('"torch"', '"h11"')
    answer = call_outside("serve", tmp_path / "export.onnx", "--port", 0, before=before)
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_an_interruption_that_an_import_wraps_is_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while torch makes its classes: Python gives a RuntimeError whose cause it is."""

    def wrapped(_: object) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(importlib.import_module("vitrail.cli.main"), "run", wrapped)
    answer = cli("models")
    assert answer.code == INTERRUPTED
    assert answer.problem
