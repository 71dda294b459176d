"""A run that is stopped, by whatever, goes on with `--resume auto` and ends with the weights of one that was not."""

import importlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.command import Answer, call_outside, hashes, start

EPOCHS = 12
WORDS = ("train", "digits", "--epochs", EPOCHS, "--threads", 1, "--seed", 5)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict]]:
    """Hash of the weights, and the epochs, of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    answer = call_outside(*WORDS, "--out", folder, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)["weights"], epochs(folder)


def epochs(folder: Path) -> list[dict]:
    """The rows of the metrics, without what a clock decides."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("epoch", "step", "training_loss", "validation_loss", "validation_accuracy")
    return [{key: row[key] for key in kept} for row in rows if row["kind"] == "epoch"]


def stopped(folder: Path, number: int, *more: object) -> Answer:
    """Start a run, send it a signal once two epochs are done, and wait for its end."""
    process = start(*WORDS, "--out", folder, *more)
    until = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() or len(epochs(folder)) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return Answer(process.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_stopped_run_goes_on(number: int, unbroken: tuple[str, list[dict]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    answer = stopped(folder, number)
    assert answer.code == 130
    assert f"everything is saved in {folder}" in answer.problem
    assert f"--out {folder} --resume auto" in answer.hint
    assert 2 <= len(epochs(folder)) < EPOCHS
    assert not (folder / "lock").exists()
    again = call_outside(*WORDS, "--out", folder, "--resume", "auto", "--json")
    assert again.code == 0, again.err
    assert "going on with" in again.err
    assert json.loads(again.out)["weights"] == unbroken[0]
    assert epochs(folder) == unbroken[1]


def test_a_killed_run_goes_on(unbroken: tuple[str, list[dict]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert stopped(folder, signal.SIGKILL).code == -signal.SIGKILL
    again = call_outside(*WORDS, "--out", folder, "--resume", "auto", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["weights"] == unbroken[0]
    assert epochs(folder) == unbroken[1]


def test_the_comparison_can_fail(unbroken: tuple[str, list[dict]], tmp_path: Path) -> None:
    other = call_outside(*WORDS[:-1], 6, "--out", tmp_path / "run", "--json")
    assert json.loads(other.out)["weights"] != unbroken[0]


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("train", "digits", "--epochs", 1, "--threads", 1, "--out", folder, "--resume", "auto", "--json")
    first = call_outside(*words)
    before = hashes(folder / "model")
    second = call_outside(*words)
    assert (first.code, second.code) == (0, 0), second.err
    for key in ("weights", "accuracy", "loss"):
        assert json.loads(first.out)[key] == json.loads(second.out)[key]
    assert hashes(folder / "model") == before


def test_interrupted_before_anything_was_begun(tmp_path: Path) -> None:
    """While it still imports: no run folder is left that a second try would have to step around."""
    process = start(*WORDS, "--out", tmp_path / "run")
    time.sleep(0.6)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if not (tmp_path / "run" / "config.yaml").exists():
        assert not (tmp_path / "run").exists()
    assert process.returncode == 130, err


def test_an_interruption_that_an_import_wraps_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while torch makes its classes: Python gives a RuntimeError whose cause it is."""

    def wrapped(_: object) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    command = importlib.import_module("vitrail.cli.main")
    monkeypatch.setattr(command, "run", wrapped)
    with pytest.raises(SystemExit) as left:
        command.main(["models"])
    assert left.value.code == 130
    assert capsys.readouterr().err == "vitrail: interrupted\ntry: the same command again\n"
