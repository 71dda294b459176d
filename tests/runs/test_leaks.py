"""Images of one group with what was trained on are counted apart, and images of one group say less than as many others.

A leak is planted: frames of photographs on both sides of a split, under names that say what they are of.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.check.planted import plant, plant_frames
from tests.cli.command import Cli
from tests.photographs import make_photographs
from tests.shared_runs import once
from tests.training import tiny
from vitrail.data import loader
from vitrail.data.columns import GROUP, Samples, Texts
from vitrail.data.layout import Layout
from vitrail.data.loader import OF_GROUP, OF_PICTURE, no_contents
from vitrail.data.pictures import picture_hash
from vitrail.runs.data import Run
from vitrail.runs.evaluate import NO_GROUPS, group_by_group
from vitrail.runs.known import TrainedOn
from vitrail.runs.leaks import FEWEST, TOO_FEW, by_groups, clustered_interval, set_apart
from vitrail.statistics import wilson_interval
from vitrail.tasks import Result
from vitrail.tasks.classify import ACCURACY
from vitrail.tasks.residuals import MEAN_ERROR
from vitrail.tasks.task import fraction_result
from vitrail.text import percent

PATTERN = r"([^/]+)_\d+\.jpg$"
GROUPS = Layout(group_pattern=PATTERN)
FRAMES, KNOWN, NEW = (
    3,
    8,
    3,
)  # of a photograph on either side; photographs of each class on both sides, and in val alone


def make_data(folder: Path) -> None:
    """Frames of 2 x 8 photographs on both sides, of 2 x 3 others in val; and one image on its own on each."""
    draw = np.random.default_rng(0)
    for file in make_photographs(folder / "all", ("a", "b"), per_class=KNOWN + NEW, seed=3):
        frames = plant_frames(file, folder / "frames", draw, 2 * FRAMES)
        new = int(file.stem[-3:]) >= KNOWN
        for number, frame in enumerate(frames[FRAMES * new :]):
            split = "train" if number < FRAMES and not new else "val"
            (folder / "data" / split / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(frame, folder / "data" / split / file.parent.name / frame.name)
    for split, seed in (("train", 8), ("val", 9)):  # of one name, which is no group
        shutil.copy(make_photographs(folder / split, ("a",), 1, seed)[0], folder / "data" / split / "a" / "alone.jpg")


def data() -> Path:
    return once("leaks-data", make_data) / "data"


def run() -> Path:
    def train(folder: Path) -> None:
        vitrail.train(str(data()), folder / "run", tiny.options("photos", group_pattern=PATTERN))

    return once("leaks", train) / "run"


def new_ones(folder: Path) -> Path:
    """The validation images without those of groups that were trained on."""
    copied = Path(shutil.copytree(data() / "val", folder / "new"))
    for file in copied.rglob("*_*.jpg"):
        if int(file.stem.split("_")[1]) < KNOWN:
            file.unlink()
    return copied


def tied(result: Result) -> dict[str, Any]:
    return result.details["trained_on"]


def test_images_of_groups_that_were_trained_on_are_left_out_of_the_figure(tmp_path: Path) -> None:
    stored = json.loads((run() / "evaluation.json").read_text())
    straddling, others = 2 * KNOWN * FRAMES, 2 * NEW * FRAMES + 1
    assert stored["trained_on"]["ties"]["group"] == stored["trained_on"]["images"] == straddling
    assert (stored["images"], stored["trained_on"]["of"]) == (others, straddling + others)
    found = vitrail.evaluate(run())
    clean = vitrail.evaluate(run(), str(new_ones(tmp_path)), layout=GROUPS)
    assert tied(clean)["images"] == 0
    assert (found.value, found.count) == (clean.value, clean.count) == (stored["accuracy"], stored["images"])
    assert found.loss == pytest.approx(clean.loss, rel=1e-6)
    assert tiny.rows(run())[-1]["validation_accuracy"] == found.value
    whole, share = tied(found)["all"], straddling / (straddling + others)
    assert whole["accuracy"] == pytest.approx(share * tied(found)["accuracy"] + (1 - share) * found.value)
    right = round(whole["accuracy"] * tied(found)["of"])
    assert whole["interval"] == [*wilson_interval(right, straddling + others)]
    assert whole["by_group"]["groups"] == 2 * (KNOWN + NEW) + 1


def test_without_groups_the_same_run_counts_all_and_says_how_to_name_them(tmp_path: Path) -> None:
    elsewhere = str(shutil.copytree(data() / "val", tmp_path / "elsewhere"))
    plain = vitrail.evaluate(run(), elsewhere)
    named = vitrail.evaluate(run(), elsewhere, layout=GROUPS)
    assert (tied(plain)["ties"]["group"], tied(named)["ties"]["group"]) == (0, 2 * KNOWN * FRAMES)
    assert NO_GROUPS in plain.notes
    assert NO_GROUPS not in named.notes
    assert "by_group" not in plain.details
    assert tied(plain)["all"]["accuracy"] == tied(named)["all"]["accuracy"]


def test_where_all_images_are_of_such_groups_the_figure_is_of_them_and_has_no_interval(tmp_path: Path) -> None:
    copied = Path(shutil.copytree(data() / "val", tmp_path / "val"))
    for file in [
        *copied.rglob("alone.jpg"),
        *copied.rglob("*_008_*"),
        *copied.rglob("*_009_*"),
        *copied.rglob("*_010_*"),
    ]:
        file.unlink()
    found = vitrail.evaluate(run(), str(copied), layout=GROUPS)
    assert found.count == tied(found)["images"] == tied(found)["of"] == 2 * KNOWN * FRAMES
    assert found.interval is None
    assert "all" not in tied(found)
    assert len(found.notes) >= 1


def test_a_resumed_run_and_one_that_starts_from_it_know_the_groups(tmp_path: Path) -> None:
    learnt = Run(run()).contents["train"]
    groups = np.unique(learnt[learnt[:, OF_GROUP].any(axis=1)][:, OF_GROUP], axis=0)
    assert (len(groups), len(learnt)) == (2 * KNOWN, 2 * KNOWN * FRAMES + 1)
    more = Path(shutil.copytree(run(), tmp_path / "more"))
    resumed = vitrail.train(str(data()), more, tiny.options("photos", group_pattern=PATTERN, epochs=2, resume="auto"))
    assert tied(resumed.evaluated)["ties"]["group"] == 2 * KNOWN * FRAMES
    make_photographs(tmp_path / "other", ("a", "b"), per_class=20, seed=5)
    asked = vitrail.TrainOptions(init=str(run()), epochs=1, threads=1, device="cpu", precision="fp32", verdicts=0)
    tuned = vitrail.train(str(tmp_path / "other"), tmp_path / "tuned", asked).folder
    found = vitrail.evaluate(tuned, str(data()), split="validation", layout=GROUPS)
    assert tied(found)["ties"]["group"] == 2 * KNOWN * FRAMES


def test_a_student_knows_what_its_teacher_was_trained_on(tmp_path: Path) -> None:
    make_photographs(tmp_path / "other", ("a", "b"), per_class=20, seed=5)
    asked = vitrail.DistillOptions(**vars(tiny.options("photos")))
    student = vitrail.distill(str(tmp_path / "other"), run(), tmp_path / "student", asked).folder
    found = vitrail.evaluate(student, str(data()), split="validation", layout=GROUPS)
    assert tied(found)["ties"] == {**tied(found)["ties"], "group": 2 * KNOWN * FRAMES}
    assert tied(vitrail.evaluate(student, str(data()), split="train"))["ties"]["content"] == 2 * KNOWN * FRAMES + 1


def test_the_command_prints_both_figures_and_a_strict_one_refuses(cli: Cli, tmp_path: Path) -> None:
    asked = "evaluate", run(), data(), "--group-pattern", PATTERN, "--split", "validation"
    page = tmp_path / "page.html"
    answer = cli(*asked, "--json", "--out", page)
    found = json.loads(answer.out)
    for figure in (found["trained_on"]["all"]["accuracy"], found["trained_on"]["accuracy"]):
        assert any(percent(figure, 2) in note for note in found["notes"])
        assert percent(figure, 2) in page.read_text()
    assert found["by_group"]["groups"] == 2 * NEW + 1
    assert found["by_group"]["interval"] is None, "of seven groups none is stated"
    assert cli(*asked, "--strict").code == 3


# ---- near copies


@pytest.mark.parametrize("streamed", [False, True])
def test_near_copies_of_training_images_are_left_out_and_strangers_are_not(
    streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        tiny.stream_all(monkeypatch)
    learnt = make_photographs(tmp_path / "data" / "train", ("a", "b"), per_class=20, seed=1)
    make_photographs(tmp_path / "data" / "val", ("a", "b"), per_class=6, seed=2)
    for file in learnt[::8]:
        for kind, copy in plant(file, tmp_path / "planted").items():
            shutil.copy(copy, tmp_path / "data" / "val" / file.parent.name / f"{kind}_{copy.name}")
    finished = vitrail.train(str(tmp_path / "data"), tmp_path / "run", tiny.options("photos", epochs=2))
    assert tied(finished.evaluated)["ties"] == {"content": 5, "group": 0, "near": 15}
    assert finished.evaluated.count == 12
    for file in (tmp_path / "data" / "val").rglob("*_*_*"):
        file.unlink()
    clean = vitrail.evaluate(tmp_path / "run", str(tmp_path / "data"), split="validation")
    assert tied(clean)["ties"] == {"content": 0, "group": 0, "near": 0}
    assert (clean.value, clean.count) == (finished.evaluated.value, 12)
    assert clean.loss == pytest.approx(finished.evaluated.loss, rel=1e-6)


def test_a_picture_is_looked_at_once_and_kept_by_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.stream_all(monkeypatch)
    looked, hashed = list[int](), loader.picture_hash
    monkeypatch.setattr(loader, "picture_hash", lambda *given: looked.append(1) or hashed(*given))
    make_photographs(tmp_path / "data", ("a", "b"), per_class=20, seed=1)
    folder = vitrail.train(str(tmp_path / "data"), tmp_path / "run", tiny.options("photos", epochs=3, workers=0)).folder
    assert len(looked) == 40
    assert Run(folder).contents["train"][:, OF_PICTURE].any(axis=1).all()


def test_near_copies_are_not_looked_for_where_strangers_are_as_near() -> None:
    found = vitrail.evaluate(tiny.whole("digits"))
    assert tied(found)["ties"]["near"] is None
    unknown = vitrail.evaluate(replace(vitrail.load(tiny.whole("digits")), loaded_from=""), "digits")
    assert len(found.about[1]) > len(unknown.about[1])
    photographs = Run(run()).contents["train"]
    assert TrainedOn(photographs).by_picture
    same = photographs.copy()
    same[:, OF_PICTURE] = same[0, OF_PICTURE]
    assert not TrainedOn(same).by_picture, "where all are alike, too"


def test_an_image_of_one_colour_is_no_picture() -> None:
    assert not any(picture_hash(Image.new("RGB", (50, 40), (90, 120, 7))))
    noise = np.random.default_rng(0).integers(0, 65536, (40, 50), dtype=np.uint16)
    assert any(picture_hash(Image.fromarray(noise), 16))


# ---- the interval of images in groups


def test_the_interval_by_group_holds_what_it_says_and_wilsons_does_not() -> None:
    draw, right = np.random.default_rng(0), np.zeros((400, 2), bool)
    for row in right:
        chances, groups = draw.beta(0.6, 0.4, 20), np.repeat(np.arange(20), draw.integers(1, 12, 20))
        hits = draw.random(len(groups)) < chances[groups]
        for place, (low, high) in enumerate(
            [clustered_interval(hits, groups).interval, wilson_interval(int(hits.sum()), len(hits))]
        ):
            row[place] = low <= 0.6 <= high
    by_group, alone = right.mean(axis=0)
    assert 0.92 <= by_group <= 0.98
    assert alone < 0.8


def test_images_that_are_each_alone_have_nearly_wilsons_interval() -> None:
    hits = np.random.default_rng(1).random(500) < 0.7
    found = clustered_interval(hits, np.arange(500))
    assert found.groups == 500
    assert found.effect == pytest.approx(1, abs=0.01)
    assert found.interval == pytest.approx(wilson_interval(int(hits.sum()), 500), abs=1e-3)


def test_groups_of_copies_count_as_one_image_each() -> None:
    hits = np.random.default_rng(2).random(60) < 0.7
    several = clustered_interval(np.repeat(hits, 9), np.repeat(np.arange(60), 9))
    single = clustered_interval(hits, np.arange(60))
    assert several.interval == pytest.approx(single.interval, abs=2e-3)
    all_right = clustered_interval(np.ones(90, bool), np.repeat(np.arange(10), 9))
    assert 0.6 < all_right.interval[0] < wilson_interval(10, 10)[0]
    assert clustered_interval(np.ones(9, bool), np.zeros(9, int)).interval == (0.0, 1.0)


def test_an_interval_by_group_is_of_fractions_of_images_that_are_right_alone() -> None:
    contents, errors = no_contents(60), np.random.default_rng(3).random(60) * (np.arange(60) % 2)
    contents[:, OF_GROUP] = np.random.default_rng(4).integers(0, 255, (20, contents[:, OF_GROUP].shape[1])).repeat(3, 0)
    found = fraction_result(ACCURACY, errors, "image", "told right", 0.0, {})
    assert by_groups(found, contents).details["by_group"]["groups"] == 20
    assert "by_group" not in by_groups(replace(found, value=1 - float(errors.mean())), contents).details


def test_each_group_has_a_figure_of_its_own() -> None:
    """The worst first, with its interval; images without a group, or alone in one, have none; of numbers the error."""
    groups = ["b", "a", "", "b", "a", "b", "c", "c", "c", "c", "row 11", "row 12"]
    samples = Samples(Texts(tuple(f"n{row}" for row in range(12))), {GROUP: Texts(tuple(groups))})
    ids = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11])  # one was not read
    errors = np.array([0.0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1])
    found = fraction_result(ACCURACY, errors, "image", "told right", 0.0, {}, ids=ids)
    shown = group_by_group(found, samples)
    wanted = [("a", 2, 0.5, 1), ("b", 3, 2 / 3, 2), ("c", 3, 1.0, 3)]
    rows = [(row["group"], row["images"], row["accuracy"], tuple(row["interval"])) for row in shown.details["groups"]]
    assert rows == [
        (name, count, pytest.approx(value), wilson_interval(right, count)) for name, count, value, right in wanted
    ]
    assert [line[0] for line in shown.tables[-1].rows] == ["a", "b", "c"]
    numbers = group_by_group(replace(found, metric=MEAN_ERROR, errors=2 * errors), samples).details["groups"]
    assert [(row["group"], row["error"]) for row in numbers] == [("a", 1.0), ("b", pytest.approx(2 / 3)), ("c", 0.0)]
    assert group_by_group(found, Samples(samples.inputs, {})) is found
    singles = Samples(samples.inputs, {GROUP: Texts(("a", "a", *"bcdefghijk"))})
    assert group_by_group(found, singles) is found, "one group of two images"


def test_of_few_images_it_is_not_said_what_a_leak_is_worth() -> None:
    """The images without a tie are wrong, those with one right."""

    def of(right: int, wrong: int) -> Result:
        errors = np.repeat([0.0, 1.0], [right, wrong])
        return fraction_result(ACCURACY, errors, "image", "told right", 0.0, {}, ids=np.arange(right + wrong))

    for others, few in ((1, True), (FEWEST - 1, True), (FEWEST, False)):
        ties = {"content": 40, "group": 0, "near": 0}
        found = set_apart(of(0, others), of(40, 0), of(40, others), ties, "all")
        assert (found.value, found.count, tied(found)["all"]["accuracy"]) == (0, others, 40 / (40 + others))
        said = [TOO_FEW in words for words in (found.sentence, found.about[1], found.notes[-1])]
        assert said == [few] * 3
        assert ("points" in found.notes[-1]) is not few
