"""A whole training: what it leaves, and that it goes on from any end with the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

import vitrail
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.training.ended import Killed, ended_at, what_was_learnt
from vitrail.data.feed import open_feed
from vitrail.errors import DataError, RunError, UsageError, VitrailError
from vitrail.jobs import evaluate, open_for, train
from vitrail.training import classifier, job, prepare
from vitrail.training.checkpoint import states, weights_hash
from vitrail.training.events import EpochScored, Event, Finished, Started, Stopped
from vitrail.training.loop import StepDone
from vitrail.training.options import TrainOptions
from vitrail.training.run import RunFolder
from vitrail.training.settings import read_yaml, settings_from_dict

ROOT = Path(__file__).parents[2]
SHORT = TrainOptions(epochs=2, batch_size=200, threads=1, workers=1, device="cpu", seed=3)
STEPS = 14  # 1,258 pictures: seven steps in each epoch
AGAIN = TrainOptions(resume="auto")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The unbroken run that others must equal."""
    return train("digits", tmp_path_factory.mktemp("job") / "runs" / "whole", SHORT)


def rows(folder: Path, kind: str = "epoch") -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def test_a_run_leaves_a_whole_folder(finished: Finished) -> None:
    folder = finished.folder
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "command.txt", "config.yaml", "data.json", "env.json", "evaluation.json", "log.txt", "metrics.jsonl", "model",
        "resume", "run.html",
    }  # fmt: skip
    assert "lock" not in names
    assert not [name for name in names if name.endswith(".writing")]
    settings = settings_from_dict(read_yaml(folder / "config.yaml"))
    assert (settings.data, settings.seed, settings.optimization.epochs, settings.execution.threads) == (
        "digits",
        3,
        2,
        1,
    )
    data = json.loads((folder / "data.json").read_text())
    assert data["classes"] == list("0123456789")
    assert data["images"] == {"train": 1258, "validation": 180, "test": 359}
    assert data["skipped"] == []
    assert json.loads((folder / "env.json").read_text())["torch"]
    assert "accuracy" in (folder / "log.txt").read_text()
    assert "</html>" in (folder / "run.html").read_text()
    assert (folder.parent / "latest").resolve() == folder.resolve()
    assert [row["images"] for row in rows(folder)] == [1258, 1258], "each picture once in each epoch"
    assert [row["samples"] for row in rows(folder)] == [1258, 1258]
    assert [row["step"] for row in rows(folder)] == [7, 14]
    last = rows(folder)[-1]
    assert 0 <= last["validation_accuracy"] <= 1
    assert last["learning_rate"] > 0
    assert last["gradient_norm"] > 0
    assert 0 <= last["waiting_share"] <= 1


def test_the_model_of_a_run_says_what_the_run_says(finished: Finished) -> None:
    """Loaded again and evaluated through the files, it counts the same on each of the 359 test pictures."""
    model = vitrail.load(finished.folder)
    assert weights_hash(model.network) == finished.weights
    stored = json.loads((finished.folder / "evaluation.json").read_text())
    evaluated = evaluate(model, run=finished.folder)
    assert stored == evaluated.to_dict() | {"weights": finished.weights}
    assert stored["images"] == 359
    assert sum(row["images"] for row in stored["per_class"]) == 359
    assert finished.evaluated.scores.accuracy == stored["accuracy"]
    pictures = open_for(model, finished.folder, "digits").split.pictures
    labels = [model.classes.index(each.label) for each in model.predict([pictures.open(index) for index in range(359)])]
    np.testing.assert_array_equal(labels, evaluated.scores.predicted)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(finished: Finished, tmp_path: Path) -> None:
    events: list[Event] = []
    again = train("digits", tmp_path / "again", SHORT, events.append)
    assert again.weights == finished.weights
    assert what_was_learnt(again.folder) == what_was_learnt(finished.folder)
    assert len([event for event in events if isinstance(event, StepDone)]) == STEPS
    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.images, started.steps_per_epoch, started.epochs, started.step) == (1258, 7, 2, 0)
    assert started.seconds > 0
    assert len([event for event in events if isinstance(event, EpochScored)]) == 2
    assert isinstance(events[-1], Finished)
    other = train("digits", tmp_path / "other", TrainOptions(epochs=2, batch_size=200, threads=1, seed=4))
    assert other.weights != finished.weights


def test_the_configuration_of_a_run_makes_it_again(finished: Finished, tmp_path: Path) -> None:
    again = train(out=tmp_path / "again", options=TrainOptions(config=finished.folder / "config.yaml"))
    assert again.weights == finished.weights
    assert (again.folder / "config.yaml").read_text() == (finished.folder / "config.yaml").read_text()


def test_a_finished_run_goes_on_to_nothing(finished: Finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    events: list[Event] = []
    again = train("digits", folder, AGAIN, events.append)
    assert again.weights == finished.weights
    assert not [event for event in events if isinstance(event, StepDone)]
    assert what_was_learnt(folder) == what_was_learnt(finished.folder)
    assert (folder / "evaluation.json").read_text() == (finished.folder / "evaluation.json").read_text()


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 1), (signal.SIGTERM, 7), (signal.SIGINT, 12)])
def test_a_signal_stops_and_the_run_goes_on(finished: Finished, tmp_path: Path, step: int, number: int) -> None:
    folder = tmp_path / "stopped"
    with pytest.raises(Stopped, match=f"stopped at step {step}") as caught:
        train("digits", folder, SHORT, ended_at(step, lambda: os.kill(os.getpid(), number)))
    assert caught.value.exit_code == 130
    assert f"--out {folder} --resume auto" in caught.value.hint
    assert states(folder / "resume")
    assert (folder / "run.html").exists()
    assert not (folder / "evaluation.json").exists()
    again = train("digits", folder, AGAIN)
    assert again.weights == finished.weights
    assert what_was_learnt(folder) == what_was_learnt(finished.folder)


@pytest.mark.parametrize("saves", ["often", "never"])
@pytest.mark.parametrize("step", [3, 9])
def test_a_run_that_died_goes_on(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, saves: str
) -> None:
    """From the last state, or from the start where there is none; no row comes twice, no picture counts twice."""
    monkeypatch.setattr(job, "SAVE_SECONDS", 0.0 if saves == "often" else 1e9)
    monkeypatch.setattr(job, "SAVE_WITHIN_EPOCH_SECONDS", 0.0 if saves == "often" else 1e9)
    monkeypatch.setattr(job, "LOG_STEPS", 2)
    folder = tmp_path / "died"
    with pytest.raises(Killed):
        train("digits", folder, SHORT, ended_at(step))
    assert bool(states(folder / "resume")) == (saves == "often")
    events: list[Event] = []
    again = train("digits", folder, AGAIN, events.append)
    assert again.weights == finished.weights
    assert what_was_learnt(folder) == what_was_learnt(finished.folder)
    assert [row["step"] for row in rows(folder, "step")] == [2, 4, 6, 8, 10, 12, 14]
    made = len([event for event in events if isinstance(event, StepDone)])
    assert made == (STEPS - step + 1 if saves == "often" else STEPS), "it does not start over without need"


def test_a_damaged_state_is_passed_over_aloud(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "SAVE_WITHIN_EPOCH_SECONDS", 0.0)
    folder = tmp_path / "died"
    with pytest.raises(Killed):
        train("digits", folder, SHORT, ended_at(9))
    newest = states(folder / "resume")[-1]
    (newest / "optimizer.safetensors").write_bytes(b"gone")
    said: list[Event] = []
    again = train("digits", folder, AGAIN, said.append)
    assert again.weights == finished.weights
    assert any(isinstance(event, str) and str(newest) in event and "is damaged" in event for event in said)
    assert str(newest) in (folder / "log.txt").read_text()
    assert what_was_learnt(folder) == what_was_learnt(finished.folder)
    for place in states(folder / "resume"):
        (place / "state.json").unlink()
    before = sorted(path.name for path in folder.rglob("*"))
    with pytest.raises(DataError, match="none of the 2 saved states"):
        train("digits", folder, AGAIN)
    assert before == sorted(path.name for path in folder.rglob("*")), "nothing is started over what is there"


PROCESS = """
import sys
from vitrail.jobs import train
from vitrail.training.loop import StepDone
from vitrail.training.options import TrainOptions
import vitrail.training.job as job
job.SAVE_WITHIN_EPOCH_SECONDS = 0.0

def listen(event):
    if isinstance(event, StepDone):
        print(event.step, flush=True)
        sys.stdin.readline()

train("digits", sys.argv[1], TrainOptions(epochs=2, batch_size=200, threads=1, workers=1, device="cpu", seed=3), listen)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_real_process_is_ended_and_goes_on(finished: Finished, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROCESS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 4:
                child.send_signal(number)
            child.stdin.write("\n")
            child.stdin.flush()
            if int(line) == 4:
                break
    assert child.returncode != 0
    assert (folder / "lock").exists() == (number == signal.SIGKILL)
    assert not (folder / "evaluation.json").exists()
    again = train("digits", folder, AGAIN)
    assert again.weights == finished.weights
    assert what_was_learnt(folder) == what_was_learnt(finished.folder)
    assert not (folder / "lock").exists()


def test_a_folder_that_exists_is_refused(finished: Finished) -> None:
    before = {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="exists already"):
        train("digits", finished.folder, SHORT)
    with pytest.raises(UsageError, match="was started with other options: epochs: 2 -> 5; seed: 3 -> 0"):
        train("digits", finished.folder, TrainOptions(resume="auto", epochs=5, seed=0))
    with pytest.raises(UsageError, match="data: digits -> mnist"):
        train("mnist", finished.folder, AGAIN)
    assert before == {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()}


def test_bad_options_leave_no_folder(tmp_path: Path) -> None:
    for options in (
        TrainOptions(recipe="minst"),
        TrainOptions(size="S"),
        TrainOptions(epochs=0),
        TrainOptions(lr=-1.0),
    ):
        with must_raise(VitrailError):
            train("digits", tmp_path / "run", options)
    with pytest.raises(UsageError, match="no data given"):
        train("", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# photographs in files


SMALL = TrainOptions(
    epochs=1, batch_size=16, image_size=16, recipe="small-pictures", threads=1, workers=1, seed=1, lr=1e-4
)


def small_config(folder: Path) -> TrainOptions:
    """A network of one block, from a part of a configuration."""
    file = folder / "part.yaml"
    file.write_text("network: {width: 16, depth: 1, heads: 2, mlp_dim: 16}\n")
    return TrainOptions(**{**vars(SMALL), "config": file})


def photographs(root: Path) -> Path:
    make_photographs(root / "photos", ("a", "b"), per_class=30, seed=0)
    return root / "photos"


def test_data_that_changed_is_refused(tmp_path: Path) -> None:
    root = photographs(tmp_path)
    with pytest.raises(Stopped):
        train(
            str(root),
            tmp_path / "run",
            small_config(tmp_path),
            ended_at(1, lambda: os.kill(os.getpid(), signal.SIGINT)),
        )
    shutil.copy(root / "a" / "a_000.jpg", root / "b" / "new.jpg")
    with must_raise(DataError, "has changed since"):
        train(str(root), tmp_path / "run", AGAIN)
    (root / "b" / "new.jpg").unlink()
    assert train(str(root), tmp_path / "run", AGAIN).evaluated.scores.images > 0


def test_a_run_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, options = photographs(tmp_path), small_config(tmp_path)
    whole = train(str(root), tmp_path / "whole", options)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped):
        train("photos", "stopped", options, ended_at(2, lambda: os.kill(os.getpid(), signal.SIGINT)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train("../photos", "../stopped", AGAIN).weights == whole.weights
    model = vitrail.load("../stopped")
    assert evaluate(model, run="../stopped").to_dict() == whole.evaluated.to_dict()
    assert evaluate("../stopped").to_dict() == whole.evaluated.to_dict()


@pytest.mark.parametrize("fed", ["resident", "streamed"])
def test_unreadable_pictures_are_named_once_and_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fed: str
) -> None:
    root, options = photographs(tmp_path), small_config(tmp_path)
    splits = vitrail.data.source.open_source(str(root))
    bad = [Path(root) / split.pictures.name(3) for split in (splits.train, splits.validation)]
    for path in bad:
        path.write_bytes(b"")
    if fed == "streamed":
        for module in (prepare, classifier):
            monkeypatch.setattr(module, "open_feed", partial(open_feed, resident_bytes=0))
    said: list[Event] = []
    folder = tmp_path / "run"
    ended = train(str(root), folder, TrainOptions(**{**vars(options), "epochs": 2}), said.append)
    named = [event for event in said if isinstance(event, str) and event.startswith("left out: ")]
    assert len(named) == 2
    first_epoch = next(number for number, event in enumerate(said) if isinstance(event, EpochScored))
    assert all(said.index(sentence) < first_epoch for sentence in named), "not only at the end"
    for path in bad:
        assert sum(str(path) in sentence for sentence in named) == 1
        assert (folder / "log.txt").read_text().count(str(path)) == 1
        assert path.name in (folder / "run.html").read_text()
    data = json.loads((folder / "data.json").read_text())
    assert sorted(data["skipped"]) == sorted(named)
    assert [row["images"] for row in rows(folder)] == [len(splits.train) - 1] * 2
    assert ended.evaluated.scores.images == len(splits.validation) - 1
    assert len(ended.evaluated.to_dict()["unreadable"]) == 1
    assert {path for path in root.rglob("*") if path.is_file()} == set(root.rglob("*.*"))


def test_too_many_unreadable_pictures_end_a_streamed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, options = photographs(tmp_path), small_config(tmp_path)
    for path in sorted(root.rglob("*.png"))[:8]:
        path.write_bytes(b"no picture")
    monkeypatch.setattr(prepare, "open_feed", partial(open_feed, resident_bytes=0))
    with pytest.raises(DataError, match="pictures cannot be read, at most 1% may be"):
        train(str(root), tmp_path / "run", options)


# what can go wrong on the way


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunError, match=r"step \d+: the .* the weights are still those of the step before"):
        train("digits", folder, TrainOptions(epochs=2, batch_size=200, lr=1e38, threads=1))
    assert (folder / "run.html").exists()
    assert not (folder / "model").exists()
    assert not (folder / "lock").exists()


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(job, "save_state", full)
    with must_raise(RunError, r"step 7 cannot be saved in .*No space left on device"):
        train("digits", tmp_path / "run", TrainOptions(epochs=1, batch_size=200, threads=1))


def test_a_device_that_is_gone_is_said(finished: Finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    content = yaml.safe_load((folder / "config.yaml").read_text())
    content["execution"]["device"] = "cuda:63"
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError, match="device 'cuda:63' is not there"):
        train("digits", folder, AGAIN)


@pytest.mark.parametrize("name", ["data.json", "config.yaml"])
def test_a_damaged_run_is_said(finished: Finished, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    (folder / name).write_text("{")
    with must_raise(VitrailError, name):
        train("digits", folder, AGAIN)


def test_another_number_of_workers_goes_on(finished: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    with pytest.raises(Killed):
        train("digits", folder, SHORT, ended_at(2))
    assert train("digits", folder, TrainOptions(resume="auto", workers=3)).weights == finished.weights
    assert RunFolder(folder).history()


def test_a_finished_run_without_its_states_is_not_trained_again(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.folder, run)
    shutil.rmtree(run / "resume")
    before = (run / "model" / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="is finished, and its saved states are gone"):
        vitrail.train("digits", run, vitrail.TrainOptions(resume="auto"))
    assert (run / "model" / "model.safetensors").read_bytes() == before
    (run / "evaluation.json").unlink()
    heard: list[object] = []
    vitrail.train("digits", run, vitrail.TrainOptions(resume="auto"), heard.append)
    assert "no saved state: beginning again" in heard


def test_the_command_is_what_was_typed_or_the_call(finished: Finished, tmp_path: Path) -> None:
    assert (finished.folder / "command.txt").read_text().startswith("vitrail.train('digits', ")
    vitrail.train("digits", tmp_path / "run", vitrail.TrainOptions(epochs=1, threads=1), command="vitrail train digits")
    assert (tmp_path / "run" / "command.txt").read_text() == "vitrail train digits\n"
