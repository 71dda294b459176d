"""Folders of format 1 (commit ec7d80c) open, answer and are evaluated as then, and go on to the same weights.

Those of format 2 (commit 3ed458a), which held a model's keys between those of timm, open and answer as then.

What lies in `old_format` is described in `old_format/write.py`. Bits are compared where processor and torch are those
of then; elsewhere the figures that the run comes to, within a tolerance.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.model.old_format.images import make_images, some_images
from tests.model.old_format.lab import PLACE, SOURCES, machine, teacher
from vitrail.errors import DataError, UsageError
from vitrail.runs.folder import RunFolder

OLD = Path(__file__).with_name("old_format")
EXPECTED = json.loads((OLD / "expected.json").read_text())
AGAIN = vitrail.TrainOptions(resume="auto")
RUNS = ("photos", "student", "stopped", "writing")
NEAR = 2e-3  # of a probability or a loss, on another machine


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images that `photos` learnt from, made again."""
    return make_images(tmp_path_factory.mktemp("old_format") / "images")


@pytest.fixture
def old(images: Path, tmp_path: Path) -> Path:
    """A copy of all folders; the paths in them are those of the images here."""
    folder = shutil.copytree(OLD, tmp_path / "old")
    for run in RUNS:
        for name in ("data.json", "config.yaml"):
            file = folder / run / name
            file.write_text(file.read_text().replace(PLACE, str(images.parent)))
    return folder


def must_be_as_then(name: str, evaluated: Any) -> None:
    """Each figure of the evaluation; counts exactly."""
    then, now = EXPECTED[name]["evaluation"], evaluated.to_dict()
    for key, figure in then.items():
        exactly = isinstance(figure, int) and machine() == EXPECTED["machine"]
        assert now[key] == (figure if exactly else pytest.approx(figure, rel=NEAR, abs=NEAR)), key


def must_have_gone_on(name: str, finished: Any) -> None:
    """To the same weights, where bits can be the same; epochs of before are read like those of now."""
    must_be_as_then(name, finished.evaluated)
    rows = RunFolder(finished.folder).history()
    assert len(rows) > 1
    assert all("waiting_fraction" in row and "waiting_share" not in row for row in rows)
    if machine() == EXPECTED["machine"]:
        assert finished.weights == EXPECTED[name]["weights"]


def must_answer_as_then(name: str, answers: list[Any]) -> None:
    then = EXPECTED[name]["answers"]
    assert [one.text for one in answers] == [text for text, _ in then]
    assert [one.probability for one in answers] == pytest.approx([probability for _, probability in then], rel=NEAR)


def test_a_classifier_of_images_with_jpeg_references(old: Path, images: Path) -> None:
    model, some = vitrail.load(old / "photos"), some_images(images)
    for prediction, (label, probability) in zip(model.predict(some), EXPECTED["photos"]["predictions"], strict=True):
        assert prediction.label == label
        assert prediction.probability == pytest.approx(probability, rel=NEAR)
    tensor = model.tensor(some)
    for name, then in EXPECTED["photos"]["maps"].items():
        found = getattr(vitrail.explain, name)(model.network, tensor)
        torch.testing.assert_close(found.values.double(), torch.tensor(then).double(), rtol=NEAR, atol=1e-6)
    means = model.background.double().mean(dim=(1, 2, 3)).tolist()
    assert means == pytest.approx(EXPECTED["photos"]["references"], abs=0.5)  # decoders differ in a grey value


def test_what_is_tested_against_jpeg_references_gets_a_verdict(old: Path, images: Path) -> None:
    model = vitrail.load(old / "photos")
    tensor = model.tensor(some_images(images)[:1])
    trust = vitrail.explain.trust(model, tensor, vitrail.explain.occlusion(model.network, tensor))
    assert len(trust.verdict) == 1


def test_a_classifier_of_images_is_evaluated_on_its_own_data(old: Path) -> None:
    must_be_as_then("photos", vitrail.evaluate(old / "photos"))


def test_an_old_model_saved_again_is_the_same_model(old: Path, images: Path, tmp_path: Path) -> None:
    model = vitrail.load(old / "photos")
    again = vitrail.load(vitrail.save(model, tmp_path / "again"))
    assert torch.equal(again.background, model.background), "nothing is lost twice"
    some = some_images(images)
    assert again.predict(some) == model.predict(some)


@pytest.mark.parametrize("name", ["plain", "attention"])
def test_a_folder_of_format_2(name: str, tmp_path: Path) -> None:
    """One whose configuration has timm's keys, too; and one with a part by name, whose tensors bear our names."""
    model = vitrail.load(OLD / "format2" / name)
    images = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)
    with torch.no_grad():
        then = torch.tensor(json.loads((OLD / "format2" / "expected.json").read_text())[name])
        torch.testing.assert_close(model.network(images), then)
    assert (model.classes, model.facts) == (("a", "b", "c"), {"seed": 3})
    again = vitrail.load(vitrail.save(model, tmp_path))
    with torch.no_grad():
        assert torch.equal(again.network(images), model.network(images))
    assert "model_type" not in json.loads((tmp_path / "config.json").read_text())


def test_a_stopped_classifier_goes_on(old: Path) -> None:
    must_have_gone_on("stopped", vitrail.train("digits", old / "stopped", AGAIN))
    must_be_as_then("stopped", vitrail.evaluate(old / "stopped"))


def test_a_student_goes_on_with_its_teacher(old: Path) -> None:
    run = old / "student"
    must_be_as_then("student", vitrail.evaluate(run))
    with pytest.raises(UsageError):
        vitrail.train("digits", run, AGAIN)  # the teacher was handed over in Python
    another = vitrail.Teacher(torch.nn.Flatten(), teacher().preprocessing, teacher().classes, "cosine")
    with pytest.raises(DataError):
        vitrail.distill("digits", another, run, vitrail.DistillOptions(resume="auto"))
    must_have_gone_on("student", vitrail.distill("digits", teacher(), run, vitrail.DistillOptions(resume="auto")))


def test_a_model_of_texts_answers_and_goes_on(old: Path) -> None:
    run = old / "writing"
    must_answer_as_then("writing", vitrail.load(run).predict(SOURCES))
    must_be_as_then("writing", vitrail.evaluate(run))
    must_have_gone_on("writing", vitrail.train("sort-digits", run, AGAIN))


def test_a_model_that_reads_images_and_writes_answers(old: Path, images: Path) -> None:
    must_answer_as_then("reading", vitrail.load(old / "reading").predict(some_images(images)))


@pytest.mark.parametrize("name", ["stopped", "student", "writing"])
def test_going_on_otherwise_is_refused(old: Path, name: str) -> None:
    """What the old settings say is understood."""
    data = "sort-digits" if name == "writing" else "digits"
    before = {file: file.read_bytes() for file in (old / name).rglob("*") if file.is_file()}
    for options in ({"lr": 0.5}, {"seed": 4}, {"epochs": 2}):
        with pytest.raises(UsageError):
            vitrail.train(data, old / name, vitrail.TrainOptions(resume="auto", **options))
    assert before == {file: file.read_bytes() for file in (old / name).rglob("*") if file.is_file()}
