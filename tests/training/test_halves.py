"""Validation is cut once; what is chosen on one half is judged on the other, and marked where it is not."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.runs import once, stored
from tests.training.tiny import AGAIN, Killed, die, ended_at, options, rows, saved, states, steps_of, what_was_learnt
from vitrail.data.columns import Texts
from vitrail.data.dataset import Samples, labelled
from vitrail.errors import UsageError
from vitrail.tasks import Metric
from vitrail.training.best import best_of, spent
from vitrail.training.events import Event
from vitrail.training.halves import LEAST, WHOLE, cut

ACCURACY = Metric("accuracy", "accuracy")


def named(names: Sequence[str], classes: Sequence[int]) -> Samples:
    return labelled(Texts(tuple(names)), np.array(classes, np.int64), ("a", "b", "c"))


def sides(samples: Samples) -> tuple[list[str], list[str]]:
    halves = cut(samples, "label")
    return [samples.name(one) for one in halves.choose.tolist()], [
        samples.name(one) for one in halves.calibrate.tolist()
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


def test_too_few_are_not_cut() -> None:
    halves = cut(named([str(number) for number in range(2 * LEAST - 1)], [0] * (2 * LEAST - 1)), "label")
    assert halves.to_dict() == WHOLE
    assert halves.choose.tolist() == halves.calibrate.tolist() == list(range(2 * LEAST - 1))


def test_the_best_epoch_and_the_end_of_patience() -> None:
    def row(epoch: int, accuracy: float, loss: float) -> dict[str, Any]:
        return {"epoch": epoch, "step": 10 * epoch, "validation_accuracy": accuracy, "validation_loss": loss}

    history = [row(1, 0.5, 1.0), row(2, 0.7, 0.9), row(3, 0.7, 0.8), row(4, 0.7, 0.8), row(5, 0.6, 0.1)]
    assert best_of(history, ACCURACY) is history[2]  # the most right, the least loss, the earliest
    assert best_of(history, Metric("accuracy", "an error", fraction=False)) is history[4]  # better may be less
    assert best_of([*history, row(6, float("nan"), float("nan"))], ACCURACY) is history[2]
    assert [spent(history[:end], ACCURACY, 2) for end in range(6)] == [False] * 5 + [True]
    assert not spent(history, ACCURACY, 0)
    assert not spent(history, ACCURACY, 2, since=40)  # gone on with behind epoch 4


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


def test_a_run_that_chooses_is_judged_on_the_other_half() -> None:
    found, data = stored(patient()), json.loads((patient() / "data.json").read_text())
    assert (found["split"], found["images"]) == ("calibrate", data["halves"]["calibrate"])
    assert found["chosen_on"] == {"split": "choose", "images": data["halves"]["choose"]}
    history = rows(patient())
    best = best_of(history, ACCURACY)
    assert best is not None
    assert found["best"]["epoch"] == best["epoch"]
    assert {row["scored_on"] for row in history} == {"choose"}
    on_choose = vitrail.evaluate(patient(), split="choose")
    assert on_choose.value == pytest.approx(best["validation_accuracy"])  # the model is that of the best epoch
    assert on_choose.loss == pytest.approx(best["validation_loss"], rel=1e-5)
    assert vitrail.evaluate(patient()).to_dict().items() <= found.items()
    assert len(on_choose.ids) == data["halves"]["choose"]
    assert on_choose.notes
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
    assert finished.weights == stored(patient())["weights"]
    names = {file.stem for file in (run / "best").iterdir()}
    assert str(stored(run)["best"]["epoch"]) in names
    assert len(names) <= len(states(run))


def test_a_set_too_small_to_cut_is_marked_everywhere(tmp_path: Path) -> None:
    for part, count in (("train", 8), ("val", 6)):
        make_photographs(tmp_path / "few" / part, ("a", "b"), per_class=count, seed=count)
    run = vitrail.train(str(tmp_path / "few"), tmp_path / "run", asked(epochs=1)).folder
    assert json.loads((run / "data.json").read_text())["halves"] == WHOLE
    assert stored(run)["split"] == stored(run)["chosen_on"]["split"] == "validation"
    assert "chose" in (run / "model" / "README.md").read_text().split("| fact |")[0]
    assert "chose this model" in (run / "run.html").read_text()
    assert vitrail.evaluate(run).notes
    with must_raise(UsageError, "choose"):
        vitrail.evaluate(run, split="choose")
