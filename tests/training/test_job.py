"""A whole training: what it leaves, and that it goes on from any end with the same bits."""

import ast
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits

import vitrail
from tests.errors import must_raise
from tests.locks import leave_lock
from tests.pages.structure import Structure
from tests.shared_runs import copy_of, run_of, stored
from tests.training.tiny import (
    AGAIN,
    STEPS,
    Killed,
    content,
    ended_at,
    must_equal,
    options,
    photographs,
    rows,
    saved,
    states,
    steps_of,
    stopped,
    stream_all,
    what_was_learnt,
    whole,
)
from vitrail.errors import DataError, RunError, UsageError, VitrailError
from vitrail.runs import folder as folders
from vitrail.runs.folder import RunFolder
from vitrail.tasks import Result
from vitrail.training import report
from vitrail.training.events import EpochScored, Event, Finished, Reading, Started, Stopped

pytestmark = pytest.mark.usefixtures("as_a_user")
ROOT = Path(__file__).parents[2]
LAST = STEPS["digits"]


def test_what_a_new_run_refuses_a_resumed_one_refuses(tmp_path: Path) -> None:
    folder = shutil.copytree(whole("sort-digits"), tmp_path / "run")
    with must_raise(UsageError, "--verdicts"):
        vitrail.train("sort-digits", folder, replace(AGAIN, verdicts=3))


def test_a_run_leaves_a_whole_folder() -> None:
    folder = run_of("digits")
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "command.txt", "config.yaml", "data.json", "env.json", "evaluation.json", "log.txt", "metrics.jsonl", "model",
        "resume", "run.html",
    }  # fmt: skip
    assert "lock" not in names
    assert not [name for name in names if name.endswith(".writing")]
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["data"], settings["seed"]) == ("digits", 3)
    assert settings["optimization"]["epochs"] == 2
    assert settings["execution"]["threads"] == 1
    data = json.loads((folder / "data.json").read_text())
    assert data["classes"] == list("0123456789")
    assert data["images"] == {"train": 1258, "validation": 180, "test": 359}
    assert data["skipped"] == []
    assert json.loads((folder / "env.json").read_text())["torch"]
    assert (folder / "log.txt").read_text()
    assert "</html>" in (folder / "run.html").read_text()
    assert (folder / "command.txt").read_text().startswith("vitrail.train('digits', ")
    assert [row["images"] for row in rows(folder)] == [1258, 1258], "each image once in each epoch"
    assert [row["samples"] for row in rows(folder)] == [1258, 1258]
    assert [row["step"] for row in rows(folder)] == [7, 14]
    last = rows(folder)[-1]
    assert 0 <= last["validation_accuracy"] <= 1
    assert last["learning_rate"] > 0
    assert last["gradient_norm"] > 0
    assert 0 <= last["waiting_fraction"] <= 1


def test_the_model_of_a_run_says_what_the_run_says() -> None:
    """Loaded again and evaluated through the files, it counts the same; and asked image by image."""
    run = run_of("digits")
    model, found = vitrail.load(run), stored(run)
    answer, result = vitrail.evaluate(model).to_dict(), vitrail.evaluate(run)
    assert found == answer | {"weights": found["weights"], "calibration": result.calibration}
    assert answer == result.to_dict()
    must_show_itself(result)
    assert found["images"] == sum(row["images"] for row in found["per_class"]) == 359
    everyone = load_digits()
    images = [Image.fromarray(pixels) for pixels in np.rint(everyone.images * 255 / 16).astype(np.uint8)]
    right = sum(
        prediction.label == str(label) for label, prediction in zip(everyone.target, model.predict(images), strict=True)
    )
    counted = [vitrail.evaluate(run, split=split).to_dict() for split in ("train", "validation", "test")]
    assert sum(one["images"] for one in counted) == len(images)
    assert right == sum(round(one["accuracy"] * one["images"]) for one in counted)


def must_show_itself(result: Result) -> None:
    """In a notebook: the figure, of how many, and each class, in a page that loads nothing."""
    (page,) = Structure(result._repr_html_()).attribute("iframe", "srcdoc")
    shown = Structure(page)
    text = "".join(shown.text)
    assert text.count(result.metric.shown(result.value)) == 1
    assert "359" in text
    headers = [row.split("</th>")[0].rpartition(">")[2] for row in page.split('<th scope="row"')[1:]]
    assert set(headers) >= set("0123456789")
    assert shown.attribute("script", "src") == shown.attribute("link", "href") == shown.attribute("img", "src") == []


def test_the_configuration_of_a_run_makes_it_again(tmp_path: Path) -> None:
    """The same seed is the same bits, and every event comes."""
    events: list[Event] = []
    config = whole("digits") / "config.yaml"
    again = vitrail.train(
        out=tmp_path / "runs" / "again", options=vitrail.TrainOptions(config=config), listen=events.append
    )
    must_equal(again, "digits")
    assert (again.folder / "config.yaml").read_text() == config.read_text()
    assert steps_of(events) == list(range(1, LAST + 1))
    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.images, started.steps_per_epoch, started.epochs, started.step) == (1258, 7, 2, 0)
    assert started.seconds > 0
    assert len([event for event in events if isinstance(event, EpochScored)]) == 2
    assert isinstance(events[-1], Finished)
    assert (tmp_path / "runs" / "latest").resolve() == again.folder.resolve()


def test_another_seed_gives_other_weights_and_the_command_is_what_was_typed(tmp_path: Path) -> None:
    typed = "vitrail train digits --seed 4"
    other = vitrail.train("digits", tmp_path / "other", options("digits", seed=4), command=typed)
    assert other.weights != stored(whole("digits"))["weights"]
    assert (tmp_path / "other" / "command.txt").read_text().strip() == typed


def test_a_finished_run_goes_on_to_nothing(tmp_path: Path) -> None:
    folder, events = copy_of("digits", tmp_path), []
    again = vitrail.train("digits", folder, AGAIN, events.append)
    assert not steps_of(events)
    assert again.weights == stored(run_of("digits"))["weights"]
    assert what_was_learnt(folder) == what_was_learnt(run_of("digits"))
    assert stored(folder) == stored(run_of("digits"))


# ---- ends, and going on


def test_a_run_of_the_recipe_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Behind SIGTERM at step 9, with all that the recipe does: averaged weights, augmentation, mixup."""
    folder, events = copy_of("digits-stopped", tmp_path), []
    assert not (folder / "evaluation.json").exists()
    again = vitrail.train("digits", folder, AGAIN, events.append)
    assert steps_of(events) == list(range(10, 15))
    assert again.weights == stored(run_of("digits"))["weights"]
    assert what_was_learnt(folder) == what_was_learnt(run_of("digits"))


@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGINT, 1), (signal.SIGTERM, 7), pytest.param(signal.SIGINT, 12, marks=pytest.mark.soak)],
)
def test_a_signal_stops_and_the_run_goes_on(tmp_path: Path, step: int, number: int) -> None:
    folder, hit = tmp_path / "stopped", partial(os.kill, os.getpid(), number)
    with pytest.raises(Stopped) as caught:
        vitrail.train("digits", folder, options("digits"), ended_at(step, hit))
    assert caught.value.exit_code == 130
    call = ast.parse(str(caught.value.hint), mode="eval").body  # what is typed to go on
    assert isinstance(call, ast.Call)
    assert [ast.literal_eval(word) for word in call.args[:2]] == ["digits", str(folder)]
    assert "resume='auto'" in ast.unparse(call.args[2])
    assert states(folder)
    assert (folder / "run.html").exists()
    assert not (folder / "evaluation.json").exists()
    must_equal(vitrail.train("digits", folder, AGAIN), "digits")


@pytest.mark.parametrize("often", [True, False])
@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.soak), 9])
def test_a_run_that_died_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, often: bool) -> None:
    """From the last state, or from the start where there is none; no row comes twice, no image counts twice."""
    expected = whole("digits")
    saved(monkeypatch, often)
    folder, events = tmp_path / "died", []
    with pytest.raises(Killed):
        vitrail.train("digits", folder, options("digits"), ended_at(step))
    assert bool(states(folder)) == often
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:  # whoever is killed leaves its lock
        leave_lock(folder / "lock", pid=dead.pid)
    again = vitrail.train("digits", folder, AGAIN, events.append)
    assert not (folder / "lock").exists()
    assert again.weights == stored(expected)["weights"]
    assert what_was_learnt(folder) == what_was_learnt(expected)
    assert [row["step"] for row in rows(folder, "step")] == [2, 4, 6, 8, 10, 12, 14]
    assert len(steps_of(events)) == (LAST - step + 1 if often else LAST), "it does not start over without need"


def test_the_log_has_the_time_at_which_each_line_was_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of lines that were printed before there was a folder; a resumed run goes on behind them."""
    now, heard = 0, list[Event]()

    def listen(event: Event) -> None:
        nonlocal now
        heard.append(event)
        now += 1  # and the next is printed later

    for module in (report, folders):
        monkeypatch.setattr(module, "clock", lambda: f"T{now}")
    run = RunFolder(tmp_path)
    for _ in range(2):
        log = report.Log(listen)
        for event in ("first", Reading("x", 1, 2), "second"):
            log(event)
        log.open(run)
        log(Started(tmp_path, 10, 2, 8, 4, 1.0))
        run.append_log("silent")
        log("last")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["T0", "T2", "T3", "T4", "T4", "T5", "T7", "T8", "T9", "T9"]
    assert [line.split("  ")[1] for line in lines][:2] == ["first", "second"]
    assert len(heard) == 10


def test_a_damaged_state_is_passed_over_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, folder = whole("digits"), tmp_path / "died"
    saved(monkeypatch, often=True)
    with pytest.raises(Killed):
        vitrail.train("digits", folder, options("digits"), ended_at(9))
    newest = states(folder)[-1]
    (newest / "optimizer.safetensors").write_bytes(b"gone")
    said: list[Event] = []
    again = vitrail.train("digits", folder, AGAIN, said.append)
    assert again.weights == stored(expected)["weights"]
    assert any(isinstance(event, str) and str(newest) in event for event in said)
    assert str(newest) in (folder / "log.txt").read_text()
    assert what_was_learnt(folder) == what_was_learnt(expected)
    for place in states(folder):
        (place / "state.json").unlink()
    before = sorted(path.name for path in folder.rglob("*"))
    with must_raise(DataError):
        vitrail.train("digits", folder, AGAIN)
    assert before == sorted(path.name for path in folder.rglob("*")), "nothing is started over what is there"


PROCESS = """
import sys
from pathlib import Path
from tests import shared_runs as runs
from tests.training import tiny
import vitrail

def listen(event):
    for step in tiny.steps_of([event]):
        print(step, flush=True)
        sys.stdin.readline()

runs.share_below(Path(sys.argv[1]))
tiny.save(often=True)
vitrail.train("digits", sys.argv[2], tiny.options("digits"), listen)
"""


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_real_process_is_ended_and_goes_on(tmp_path: Path, number: int) -> None:
    """`make test` has one that Ctrl-C ends (tests/cli/test_interruption.py), and above the lock of one that died."""
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "shared"), str(folder)]
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
    must_equal(vitrail.train("digits", folder, AGAIN), "digits")
    assert not (folder / "lock").exists()


def test_another_number_of_workers_goes_on(tmp_path: Path) -> None:
    root = str(photographs(tmp_path))
    whole = vitrail.train(root, tmp_path / "whole", options("photos"))
    folder = stopped("photos", tmp_path / "stopped", 2, data=root)
    assert vitrail.train(root, folder, replace(AGAIN, workers=3)).weights == whole.weights


def test_a_finished_run_without_its_states_is_not_trained_again(tmp_path: Path) -> None:
    run = shutil.copytree(whole("digits"), tmp_path / "run")
    shutil.rmtree(run / "resume")
    before = content(run / "model")
    with must_raise(UsageError):
        vitrail.train("digits", run, AGAIN)
    assert content(run / "model") == before
    (run / "evaluation.json").unlink()
    events: list[Event] = []
    must_equal(vitrail.train("digits", run, AGAIN, events.append), "digits")
    assert steps_of(events) == list(range(1, LAST + 1)), "unfinished and without a state: it begins again"


# ---- what is refused


def test_a_folder_that_exists_is_refused() -> None:
    run = whole("digits")
    before = content(run)
    with must_raise(UsageError):
        vitrail.train("digits", run, options("digits"))
    with must_raise(UsageError) as caught:
        vitrail.train("digits", run, replace(AGAIN, epochs=1, seed=0))
    for name, old, new in (("epochs", 2, 1), ("seed", 3, 0)):
        assert f"{name}: {old} -> {new}" in caught.value.problem
    with must_raise(UsageError, "digits -> mnist"):
        vitrail.train("mnist", run, AGAIN)
    assert before == content(run)


@pytest.mark.parametrize("asked", [{"recipe": "minst"}, {"size": "S"}, {"epochs": 0}, {"lr": -1.0}, {"threads": 0}])
def test_bad_options_leave_no_folder(tmp_path: Path, asked: dict) -> None:
    with must_raise(VitrailError):
        vitrail.train("digits", tmp_path / "run", vitrail.TrainOptions(**asked))
    assert not (tmp_path / "run").exists()


def test_no_data_leaves_no_folder(tmp_path: Path) -> None:
    with must_raise(UsageError):
        vitrail.train("", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_gone_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(whole("digits"), tmp_path / "copy")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["execution"]["device"] = "cuda:63"
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    with must_raise(UsageError, "cuda:63"):
        vitrail.train("digits", folder, AGAIN)


@pytest.mark.parametrize("name", ["data.json", "config.yaml"])
def test_a_damaged_run_is_named(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(whole("digits"), tmp_path / "copy")
    (folder / name).write_text("{")
    with must_raise(VitrailError, name):
        vitrail.train("digits", folder, AGAIN)


# ---- photographs in files


def test_data_that_changed_is_refused(tmp_path: Path) -> None:
    root = photographs(tmp_path)
    run = stopped("photos", tmp_path / "run", 1, str(root))
    shutil.copy(root / "a" / "a_000.jpg", root / "b" / "new.jpg")
    with must_raise(DataError):
        vitrail.train(str(root), run, AGAIN)
    (root / "b" / "new.jpg").unlink()
    assert vitrail.train(str(root), run, AGAIN).evaluated.to_dict()["images"] > 0


def _swap(root: Path) -> None:
    one, other = root / "a" / "a_001.jpg", root / "b" / "b_002.jpg"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def _flip(root: Path) -> None:
    path = root / "a" / "a_001.jpg"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_flip, r": other content: a/a_001\.jpg \((train|validation)\)$"),
        (_swap, r": other content: b/b_002\.jpg \(train\), a/a_001\.jpg \(validation\)$"),
        (lambda root: (root / "b" / "b_002.jpg").unlink(), r"missing: b/b_002\.jpg \(\w+\)$"),
        (lambda root: shutil.copy(root / "a" / "a_000.jpg", root / "b" / "new.jpg"), r"added: b/new\.jpg \(\w+\)$"),
        (
            lambda root: (root / "b" / "b_002.jpg").rename(root / "b" / "b_2.jpg"),
            r"missing: b/b_002\.jpg \(\w+\); added: b/b_2\.jpg",
        ),
    ],
)
def test_the_samples_that_changed_are_named(tmp_path: Path, change: Callable[[Path], object], named: str) -> None:
    root = photographs(tmp_path)
    run = stopped("photos", tmp_path / "run", 1, str(root))
    change(root)
    with must_raise(DataError) as caught:
        vitrail.train(str(root), run, AGAIN)
    assert re.search(named, caught.value.problem), caught.value.problem
    (run / "samples.jsonl").unlink()  # as in a run of an older version, and for more samples than are listed
    with must_raise(DataError, re.escape(str(root))):
        vitrail.train(str(root), run, AGAIN)


def test_samples_with_another_label_are_named(tmp_path: Path) -> None:
    root, manifest = photographs(tmp_path), tmp_path / "labels.csv"
    lines = [f"{path},{path.parent.name}" for path in sorted(root.rglob("*.*g"))]
    manifest.write_text("\n".join(["path,label", *lines]) + "\n")
    run = stopped("photos", tmp_path / "run", 1, str(manifest))
    lines[3], name = lines[3].removesuffix(",a") + ",b", lines[3].partition(",")[0]
    manifest.write_text("\n".join(["path,label", *lines]) + "\n")
    with must_raise(DataError, Path(name).name):
        vitrail.train(str(manifest), run, AGAIN)


def test_a_run_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photographs(tmp_path)
    finished = vitrail.train(str(root), tmp_path / "whole", options("photos"))
    monkeypatch.chdir(tmp_path)
    stopped("photos", Path("stopped"), 2, "photos")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert vitrail.train("../photos", "../stopped", AGAIN).weights == finished.weights
    model = vitrail.load("../stopped")
    assert vitrail.evaluate(replace(model, loaded_from="../stopped")).to_dict() == finished.evaluated.to_dict()
    assert vitrail.evaluate("../stopped").to_dict() == finished.evaluated.to_dict()


@pytest.mark.parametrize("fed", ["resident", "streamed"])
def test_unreadable_images_are_named_once_and_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fed: str
) -> None:
    """A class folder for each split; one file of each is empty."""
    root = tmp_path / "both"
    for split in ("train", "val"):
        shutil.copytree(photographs(tmp_path), root / split, dirs_exist_ok=True)
    bad = [root / split / "a" / "a_003.png" for split in ("train", "val")]
    for path in bad:
        path.write_bytes(b"")
    if fed == "streamed":
        stream_all(monkeypatch)
    said: list[Event] = []
    folder = tmp_path / "run"
    ended = vitrail.train(str(root), folder, options("photos", epochs=2), said.append)
    first_epoch = next(number for number, event in enumerate(said) if isinstance(event, EpochScored))
    skipped = json.loads((folder / "data.json").read_text())["skipped"]
    log = [line.split("  ", 1) for line in (folder / "log.txt").read_text().splitlines()]
    assert {event for event in said if isinstance(event, str)} < {words for _, words in log}, "and how it ended"
    times = [datetime.fromisoformat(time) for time, _ in log]
    assert times == sorted(times)
    assert all(time.tzinfo is not None and not time.microsecond for time in times)
    assert len(skipped) == 2
    for path in bad:
        (named,) = [number for number, event in enumerate(said) if isinstance(event, str) and str(path) in event]
        assert named < first_epoch, "not only at the end"
        assert said[named] in skipped
        assert (folder / "log.txt").read_text().count(str(path)) == 1
        assert path.name in (folder / "run.html").read_text()
    assert [row["images"] for row in rows(folder)] == [59, 59]
    assert ended.evaluated.to_dict()["images"] == 59
    assert len(ended.evaluated.to_dict()["unreadable"]) == 1


def test_too_many_unreadable_images_end_a_streamed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photographs(tmp_path)
    for path in sorted(root.rglob("*.png"))[:8]:
        path.write_bytes(b"no image")
    stream_all(monkeypatch)
    with must_raise(DataError, "7 of 54") as caught:
        vitrail.train(str(root), tmp_path / "run", options("photos"))
    assert caught.value.hint.flags == {"out": f"{tmp_path / 'run'}-2"}, "repaired, these are other data"


EDITS = {
    "batch_size: 200 -> 100": {"batch_size: 200": "batch_size: 100"},
    "seed: 3 -> 4; epochs: 2 -> 3": {"epochs: 2": "epochs: 3", "seed: 3": "seed: 4"},
    "width: 64 -> 32": {"width: 64": "width: 32"},
    "teacher: none -> digits": {"distillation: null": "distillation: {teacher: digits}"},
}


@pytest.mark.parametrize("name", ["digits-stopped", "digits"])
def test_an_edited_configuration_file_is_refused(tmp_path: Path, name: str) -> None:
    run = copy_of(name, tmp_path)
    text = (run / "config.yaml").read_text()
    for named, edits in EDITS.items():
        edited = text
        for old, new in edits.items():
            assert f"{old}\n" in text
            edited = edited.replace(f"{old}\n", f"{new}\n")
        (run / "config.yaml").write_text(edited)
        before = content(run)
        with must_raise(UsageError, named) as caught:
            vitrail.train("digits", run, AGAIN)
        assert content(run) == before, named
        assert caught.value.hint.flags == {"config": str(run / "config.yaml"), "out": f"{run}-2"}
    (run / "config.yaml").write_text(text.replace("workers: 1", "workers: 3"))
    assert vitrail.train("digits", run, AGAIN).weights == stored(run_of("digits"))["weights"]


def test_a_new_run_by_an_edited_configuration_file(tmp_path: Path) -> None:
    """The hint above works when it is typed."""
    run = copy_of("digits-stopped", tmp_path)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 2\n", "epochs: 1\n"))
    ended = vitrail.train("digits", f"{run}-2", vitrail.TrainOptions(config=config, resume="auto"))
    assert [row["epoch"] for row in rows(ended.folder)] == [1]


def test_a_state_of_an_older_version_does_not_hold_the_settings(tmp_path: Path) -> None:
    run = copy_of("digits-stopped", tmp_path)
    for place in states(run):
        facts = json.loads((place / "state.json").read_text())
        assert facts.pop("settings")["optimization"]["batch_size"] == 200
        del facts["sha256"]
        facts["sha256"] = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        (place / "state.json").write_text(json.dumps(facts))
    assert vitrail.train("digits", run, AGAIN).weights == stored(run_of("digits"))["weights"]


def test_going_on_with_a_configuration_file_of_another_task_is_refused(tmp_path: Path) -> None:
    run = copy_of("digits-stopped", tmp_path)
    other = tmp_path / "other.yaml"
    other.write_text("task: sequences\n")
    with must_raise(UsageError, "classify -> sequences"):
        vitrail.train("digits", run, vitrail.TrainOptions(resume="auto", config=other))


# ---- what can go wrong on the way


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with must_raise(RunError, r"step \d+"):
        vitrail.train("digits", folder, options("digits", lr=1e38))
    assert (folder / "run.html").exists()
    assert not (folder / "model").exists()
    assert not (folder / "lock").exists()


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "space"), (errno.EFBIG, "ulimit -f unlimited")])
def test_a_full_disk_and_a_limit_of_files_are_named(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state gets its name by `os.rename`."""

    def full(*given: object) -> None:
        raise OSError(number, os.strerror(number))

    ready = options("digits", epochs=1)
    monkeypatch.setattr(os, "rename", full)
    with must_raise(RunError, os.strerror(number)) as caught:
        vitrail.train("digits", tmp_path / "run", ready)
    assert hint in str(caught.value.hint)


def test_an_empty_config_of_a_run_is_named_with_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").touch()
    with must_raise(UsageError, "config.yaml") as caught:
        vitrail.train("digits", folder, options("digits", resume="auto"))
    assert caught.value.hint.flags == {"out": str(tmp_path / "run-2")}
