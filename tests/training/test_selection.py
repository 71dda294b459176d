"""Validation is cut once; what is chosen on one half is judged on the other, and marked where it is not."""

import errno
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import vitrail
from tests.errors import figures, must_raise
from tests.photographs import make_photographs
from tests.shared_runs import once, stamps, stored
from tests.training.tiny import (
    AGAIN,
    Killed,
    die,
    ended_at,
    options,
    rows,
    saved,
    states,
    steps_of,
    student_options,
    what_was_learnt,
    whole,
)
from vitrail.data.columns import Labels, RawDataset, Texts
from vitrail.data.dataset import Counts, Samples, label_inputs, match_split
from vitrail.data.multiple import LabelSets
from vitrail.data.tensor_files import tensors_to_bytes, write_tensors
from vitrail.errors import RunError, UsageError
from vitrail.io import write_file
from vitrail.runs.data import LEAST, PARTS, REPORT, SELECT, WHOLE, cut
from vitrail.runs.folder import RunFolder
from vitrail.tasks import Classes, Metric, MultiLabels
from vitrail.training import checkpoint
from vitrail.training.checkpoint import best_of, out_of_patience
from vitrail.training.events import Event, Started
from vitrail.training.prepared import open_data, rare_notes

pytestmark = pytest.mark.usefixtures("as_a_user")
ACCURACY = Metric("accuracy", "accuracy")


def named(names: Sequence[str], classes: Sequence[int]) -> Samples:
    return label_inputs(Texts(tuple(names)), np.array(classes, np.int64), ("a", "b", "c"))


def sides(samples: Samples) -> tuple[list[str], list[str]]:
    halves = cut(samples, "label", Classes(("a", "b", "c")))
    return [samples.name(one) for one in halves.parts[SELECT].tolist()], [
        samples.name(one) for one in halves.parts[REPORT].tolist()
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_cut_is_a_partition_that_no_order_changes(seed: int) -> None:
    """Of names of any kind, in classes of very different sizes."""
    random = np.random.default_rng(seed)
    pool = [f"{'äx/-'[number % 4]}{number}" for number in range(400)]
    names = [pool[number] for number in random.permutation(400)[:100]]
    classes = [0] * 90 + [1] * 8 + [2] * 2
    members = list(zip(names, classes, strict=True))
    choose, calibrate = sides(named(names, classes))
    assert sorted([*choose, *calibrate]) == sorted(names)
    shuffled = [members[place] for place in random.permutation(len(members))]
    again = sides(named(*zip(*shuffled, strict=True)))
    assert [set(half) for half in again] == [set(choose), set(calibrate)]
    of = dict(members)
    for label in set(classes):
        if classes.count(label) > 1:
            assert label in {of[name] for name in choose}
            assert label in {of[name] for name in calibrate}


def test_the_cut_is_the_same_on_every_machine_and_halves() -> None:
    names = [f"val/{number}.jpg" for number in range(1000)]
    choose, _ = sides(named(names, [0] * 1000))
    assert abs(len(choose) - 500) < 60
    assert choose[:8] == [f"val/{number}.jpg" for number in (0, 2, 3, 4, 8, 10, 12, 14)]


@pytest.mark.parametrize("left_out", [True, False])
def test_what_is_unknown_is_counted_in_the_part_that_has_it(left_out: bool) -> None:
    """Of classes such an image is left out, of several labels it stays: each part counts its own."""
    names, words = [f"{number}.jpg" for number in range(300)], np.array(["a", "b", "new", "newer"])[np.arange(300) % 4]
    column, codec = (
        (Labels.of(words.tolist()), Classes(("a", "b")))
        if left_out
        else (LabelSets.of([[word] for word in words]), MultiLabels(("a", "b")))
    )
    raw = RawDataset("list", {"validation": Samples(Texts(tuple(names)), {"column": column})})
    split = match_split("list", raw, "column", codec, "validation")
    found = cut(split.samples, "column", codec, PARTS)
    parts = {name: found.take(split, name, "column", codec) for name in PARTS}
    assert (
        sum((Counter(part.unknown) for part in parts.values()), Counter()) == split.unknown == {"new": 75, "newer": 75}
    )
    if not left_out:
        for part in parts.values():
            there = Counter(words[[names.index(part.samples.name(row)) for row in range(len(part.samples))]].tolist())
            assert part.unknown == {name: there[name] for name in ("new", "newer")}
    assert all(10 < sum(part.unknown.values()) < 90 for part in parts.values())


def test_too_few_are_not_cut() -> None:
    few = named([str(number) for number in range(2 * LEAST - 1)], [0] * (2 * LEAST - 1))
    halves = cut(few, "label", Classes(("a", "b", "c")))
    assert halves.to_dict() == WHOLE
    assert halves.parts[SELECT].tolist() == halves.parts[REPORT].tolist() == list(range(2 * LEAST - 1))


def test_the_best_epoch_and_the_end_of_patience() -> None:
    def row(epoch: int, accuracy: float, loss: float) -> dict[str, Any]:
        return {"epoch": epoch, "step": 10 * epoch, "validation_accuracy": accuracy, "validation_loss": loss}

    history = [row(1, 0.5, 1.0), row(2, 0.7, 0.9), row(3, 0.7, 0.8), row(4, 0.7, 0.8), row(5, 0.6, 0.1)]
    assert best_of(history, ACCURACY) is history[2]  # the most right, the least loss, the earliest
    assert best_of(history, Metric("accuracy", "an error", fraction=False)) is history[4]  # better may be less
    assert best_of([*history, row(6, float("nan"), float("nan"))], ACCURACY) is history[2]
    assert [out_of_patience(history[:end], ACCURACY, 2) for end in range(6)] == [False] * 5 + [True]
    assert not out_of_patience(history, ACCURACY, 0)
    assert not out_of_patience(history, ACCURACY, 2, since=40)  # gone on with behind epoch 4


def photographs() -> Path:
    """Two classes, of which 36 images are held out."""

    def make(folder: Path) -> None:
        for part, count in (("train", 20), ("val", 25)):
            make_photographs(folder / part, ("a", "b"), per_class=count, seed=count)

    return once("halved-photographs", make)


def asked(**changes: Any) -> vitrail.TrainOptions:
    return options("photos", **{"epochs": 30, "lr": 0.1, "patience": 2, "workers": 0} | changes)


def patient() -> Path:
    """A run that ends when it does no better, whole."""
    return once("patient", lambda folder: vitrail.train(str(photographs()), folder / "run", asked())) / "run"


def badge_of(page: str) -> list[str]:
    """The numbers in what a page says of the end of its run."""
    (words,) = re.findall('<p class="state finished"><span>(.*?)</span>', page)
    return figures(words)


def test_a_run_that_chooses_is_judged_on_the_other_half(tmp_path: Path) -> None:
    found, data = stored(patient()), json.loads((patient() / "data.json").read_text())
    assert (found["split"], found["images"]) == ("report", data["parts"]["report"])
    assert found["chosen_on"] == {"split": "select", "images": data["parts"]["select"]}
    history = rows(patient())
    best = best_of(history, ACCURACY)
    assert best is not None
    assert found["best"]["epoch"] == best["epoch"]
    assert {row["scored_on"] for row in history} == {"select"}
    on_select = vitrail.evaluate(patient(), split="select")
    assert on_select.value == pytest.approx(best["validation_accuracy"])  # the model is that of the best epoch
    assert on_select.loss == pytest.approx(best["validation_loss"], rel=1e-5)
    page = (patient() / "run.html").read_text()
    assert f"after epoch {best['epoch']}, " in page
    assert badge_of(page) == [str(len(history)), "30"], "epochs, of those that were wanted"
    assert f"{found['images']} of {sum(data['parts'].values())} " in page
    assert vitrail.evaluate(patient()).to_dict().items() <= found.items()
    assert len(on_select.ids) == data["parts"]["select"]
    older = shutil.copytree(patient(), tmp_path / "older")
    (older / "data.json").write_text(json.dumps({"halves": data["parts"]} | {k: data[k] for k in data if k != "parts"}))
    assert vitrail.evaluate(older).to_dict().items() <= found.items(), "of a run that calls them halves"
    assert on_select.notes
    assert vitrail.evaluate(patient(), split="validation").notes
    assert not vitrail.evaluate(patient()).notes


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("step", "often"), [(10, True), *(pytest.param(*case, marks=SOAK) for case in ((4, True), (8, True), (9, False)))]
)
def test_a_killed_run_chooses_the_same(step: int, often: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(monkeypatch, often)
    run = tmp_path / "run"
    with pytest.raises(Killed):
        vitrail.train(str(photographs()), run, asked(), ended_at(step, die))
    (run / "lock").unlink(missing_ok=True)
    finished = vitrail.train(str(photographs()), run, AGAIN)
    assert finished.weights == stored(patient())["weights"]
    assert what_was_learnt(run) == what_was_learnt(patient())
    assert stored(run) == stored(patient())


def test_a_run_that_its_patience_ended_does_not_train_on(tmp_path: Path) -> None:
    run = shutil.copytree(patient(), tmp_path / "run")
    assert len(rows(run)) < 30, "else its patience ended nothing"
    events: list[Event] = []
    finished = vitrail.train(str(photographs()), run, AGAIN, events.append)
    assert not steps_of(events)
    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.step, started.seconds) == (started.steps, 0), "nothing is left to do"
    assert finished.weights == stored(patient())["weights"]
    names = {file.stem for file in (run / "best").iterdir()}
    assert str(stored(run)["best"]["epoch"]) in names
    assert len(names) <= len(states(run))


def test_a_set_too_small_to_cut_is_marked_everywhere(tmp_path: Path) -> None:
    for part, count in (("train", 8), ("val", 6)):
        make_photographs(tmp_path / "few" / part, ("a", "b"), per_class=count, seed=count)
    run = vitrail.train(str(tmp_path / "few"), tmp_path / "run", asked(epochs=1)).folder
    assert json.loads((run / "data.json").read_text())["parts"] == WHOLE
    assert stored(run)["split"] == stored(run)["chosen_on"]["split"] == "validation"
    assert "chose" in (run / "model" / "README.md").read_text().split("| fact |")[0]
    assert "chose" in (run / "run.html").read_text()
    assert vitrail.evaluate(run).notes
    with must_raise(UsageError, "select"):
        vitrail.evaluate(run, split="select")


def test_a_best_checkpoint_that_is_lost_gives_way_to_the_next_best(tmp_path: Path) -> None:
    """A damaged file made a run that was trained to its end one that could not be finished."""
    folder, said = RunFolder(tmp_path), list[str]()
    for epoch, accuracy in enumerate((0.5, 0.9, 0.7), start=1):
        folder.append_metrics({"kind": "epoch", "epoch": epoch, "step": epoch, "validation_accuracy": accuracy})
        write_file(folder.best / f"{epoch}.safetensors", tensors_to_bytes({"weight": torch.full((1, 1), float(epoch))}))
    network = torch.nn.Linear(1, 1, bias=False)

    def loaded() -> tuple[object, float]:
        row = checkpoint.load_best(folder, network, ACCURACY, said.append)
        return row and row["epoch"], network.weight.item()

    assert loaded() == (2, 2.0)
    assert not said
    content = bytearray((folder.best / "2.safetensors").read_bytes())
    content[-1] ^= 1  # of a number, which the format itself does not see
    (folder.best / "2.safetensors").write_bytes(content)
    assert loaded() == (3, 3.0)
    (folder.best / "3.safetensors").unlink()
    assert loaded() == (1, 1.0)
    assert all("2.safetensors" in sentence for sentence in said)
    said.clear()
    shutil.rmtree(folder.best)
    with torch.no_grad():
        network.weight.fill_(7.0)  # of the last step
    assert loaded() == (None, 7.0)
    assert len(said) == 1, "of the best one, also where its file is not there"
    assert "2.safetensors" in said[0]


def test_a_full_disk_costs_the_epoch_that_was_to_be_kept_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first best checkpoint is written, the next one is not; with room again the same run comes of it."""
    saved(monkeypatch, often=True)
    writes: list[str] = []

    def full(file: Path, tensors: Mapping[str, torch.Tensor], **how: bool) -> Any:
        writes.extend([file.name] if file.parent.name == "best" else [])
        if len(writes) > 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        return write_tensors(file, tensors, **how)

    run = tmp_path / "run"
    with monkeypatch.context() as context, must_raise(RunError, os.strerror(errno.ENOSPC)):
        context.setattr(checkpoint, "write_tensors", full)
        vitrail.train(str(photographs()), run, asked())
    assert len(writes) == 2
    assert vitrail.train(str(photographs()), run, AGAIN).weights == stored(patient())["weights"]
    assert what_was_learnt(run) == what_was_learnt(patient())


def test_more_epochs_go_on_where_patience_ended(tmp_path: Path) -> None:
    """Patience counts anew from there, and the best of all epochs is kept."""
    run = shutil.copytree(patient(), tmp_path / "run")
    ended = rows(run)[-1]["epoch"]
    vitrail.train(str(photographs()), run, vitrail.TrainOptions(resume="auto", epochs=40))
    history = rows(run)
    assert ended + 2 <= len(history) <= 40
    best_row = best_of(history, ACCURACY)
    assert best_row is not None
    assert stored(run)["best"]["epoch"] == best_row["epoch"]


def test_patience_comes_with_more_epochs_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cuts validation from there on, chooses among the new epochs alone, and a kill changes no bit of it."""
    plain, more = asked(epochs=2, patience=None), vitrail.TrainOptions(resume="auto", epochs=30, patience=2)
    first = vitrail.train(str(photographs()), tmp_path / "first", plain).folder
    assert "chosen_on" not in stored(first)
    killed = shutil.copytree(first, tmp_path / "killed")
    finished = vitrail.train(str(photographs()), first, more)
    found, history, data = stored(first), rows(first), json.loads((first / "data.json").read_text())
    assert [row.get("scored_on") for row in history[:3]] == [None, None, "select"]
    assert 2 + 2 < len(history) < 30, "patience ended it"
    best = best_of(history[2:], ACCURACY)
    assert best is not None
    assert found["best"]["epoch"] == best["epoch"] > 2
    assert (found["split"], found["images"]) == ("report", data["parts"]["report"])
    assert found["chosen_on"] == {"split": "select", "images": data["parts"]["select"]}
    assert vitrail.evaluate(first).to_dict().items() <= found.items()
    assert yaml.safe_load((first / "config.yaml").read_text())["optimization"]["patience"] == 2
    saved(monkeypatch, often=True)
    with pytest.raises(Killed):
        vitrail.train(str(photographs()), killed, more, ended_at(history[3]["step"], die))
    assert vitrail.train(str(photographs()), killed, AGAIN).weights == finished.weights  # as it has stored by then
    assert stored(killed)["best"] == found["best"]


def test_patience_that_would_change_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a finished run without more epochs, what is to be typed names both; and one that is not finished stays."""
    before = stamps(patient())
    with must_raise(UsageError, "patience: 2 -> 5") as caught:
        vitrail.train(str(photographs()), patient(), vitrail.TrainOptions(resume="auto", patience=5))
    assert caught.value.hint.flags == {"epochs": 60, "patience": 5}
    with must_raise(UsageError, "patience"):
        vitrail.train(str(photographs()), patient(), vitrail.TrainOptions(resume="auto", epochs=40, patience=0))
    assert stamps(patient()) == before
    saved(monkeypatch, often=True)
    with pytest.raises(Killed):
        vitrail.train(str(photographs()), tmp_path / "run", asked(), ended_at(4, die))
    (tmp_path / "run" / "lock").unlink(missing_ok=True)
    with must_raise(UsageError, "patience: 2 -> 3"):
        vitrail.train(str(photographs()), tmp_path / "run", vitrail.TrainOptions(resume="auto", epochs=30, patience=3))


@pytest.mark.parametrize("kind", ["sort-digits", "student", "max-time"])
def test_patience_ends_any_training(kind: str, tmp_path: Path) -> None:
    """At a rate of next to nothing no epoch is much better: the best is kept, and it is said which half chose it."""
    still: dict[str, Any] = {"epochs": 12, "patience": 1, "lr": 1e-12}
    if kind == "student":
        vitrail.distill("digits", whole("digits"), tmp_path / "run", student_options(**still))
    elif kind == "max-time":
        vitrail.train("digits", tmp_path / "run", options("digits", **still | {"max_time": "10m"}))
    else:
        vitrail.train(kind, tmp_path / "run", options(kind, **still))
    history = rows(tmp_path / "run")
    assert len(history) < 12
    assert stored(tmp_path / "run")["best"]["epoch"] in [row["epoch"] for row in history]
    assert stored(tmp_path / "run")["chosen_on"]["split"] in ("select", "validation")


def test_a_class_with_one_image_and_one_that_nobody_asks_for_are_named(tmp_path: Path) -> None:
    for part, classes in (("train", {"a": 3, "b": 1, "c": 2}), ("val", {"a": 2, "b": 2})):
        for name, count in classes.items():
            make_photographs(tmp_path / part, (name,), per_class=count, seed=count)
    dataset, task = open_data(str(tmp_path), "auto", None, 0, Counts())
    single, unseen = rare_notes(dataset, task.column)
    assert [name in single for name in ("'a'", "'b'", "'c'")] == [False, True, False]
    assert [name in unseen for name in ("'a'", "'b'", "'c'")] == [False, False, True]
    dataset, task = open_data(str(photographs()), "auto", None, 0, Counts())
    assert rare_notes(dataset, task.column) == ()
