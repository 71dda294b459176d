"""A task without a column learns from images alone: a third one that stands in the tests, for self-supervision."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.cli.command import DATA, USAGE, call, must_refuse
from tests.tasks.label_sets import TellLabels, read_pets
from tests.tasks.patterns import OPTIONS, SMALL, images
from tests.tasks.pretext import WIDTH, TellBrightness, brightness, read_nothing
from tests.training.tiny import rows
from vitrail.cli.refusals import CHECKS
from vitrail.data import sources
from vitrail.data.sources import FORMATS, Format
from vitrail.features.file import read_features
from vitrail.tasks import TASKS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixty images in a folder, which nothing sorts; the last twelve once more."""
    here = tmp_path / "images"
    here.mkdir()
    some = images(np.random.default_rng(3).uniform(-1, 1, (60, 3)), "some", seed=3)
    for row in range(72):
        some.open(min(row, 119 - row)).save(here / f"{row:02}.png")
    return here


@pytest.mark.usefixtures("as_a_user")
def test_from_a_folder_without_labels_by_the_command_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sources, "FORMATS", (*FORMATS, Format("nothing", "images without labels", read_nothing, is_set=True))
    )
    monkeypatch.setitem(TASKS, TellBrightness.name, TellBrightness())
    monkeypatch.setitem(CHECKS, "task", lambda name: None)  # of the tasks of the library alone
    (tmp_path / "small.yaml").write_text(SMALL)
    run, image = tmp_path / "run", folder / "00.png"
    typed = ("--config", tmp_path / "small.yaml", "--image-size", 24, "--batch-size", 16, "--threads", 1, "--epochs", 3)
    trained = call("train", folder, "--task", "tell-brightness", "--out", run, *typed)
    assert trained.code == 0, trained.err
    must_refuse(call("train", folder, "--out", tmp_path / "x", *typed), DATA, str(folder))
    model = vitrail.load(run)
    assert model.network.config.width == model.output.outputs == WIDTH
    losses = [row["training_loss"] for row in rows(run)]
    assert losses[-1] < losses[0]
    told = json.loads(call("evaluate", run, "nothing", "--json").out)
    pixels = model.tensor([read_nothing("").splits["test"].inputs.open(row) for row in range(32)])
    with torch.no_grad():
        squares = (model.network(pixels) - brightness(pixels)).square().sum() / brightness(pixels).square().sum()
    assert told["unexplained"] == pytest.approx(float(squares), rel=1e-4)
    learnt = json.loads(call("evaluate", run, folder, "--split", "train", "--json").out)["trained_on"]
    assert learnt["images"] == learnt["of"] > 60  # and metrics that cannot end without a sample were not asked to

    (answer,) = json.loads(call("predict", run, image, "--json").out)
    with torch.no_grad():
        assert answer["features"] == pytest.approx(model.network(model.tensor([image]))[0].tolist(), abs=1e-5)
    assert call("embed", run, folder, "--out", tmp_path / "features.npz").code == 0
    features = read_features(tmp_path / "features.npz")
    assert (len(features), features.labels) == (72, None)
    assert features.values["mean"][0] == pytest.approx(np.array(answer["features"]), abs=1e-5)  # there is no head
    assert call("similar", run, image, folder, "--out", tmp_path / "similar.html").code == 0

    must_refuse(call("explain", run, image, "--out", tmp_path / "page.html"), USAGE, str(WIDTH))
    page = call("explain", run, image, "--target", 3, "--background", folder, "--json", "--out", tmp_path / "page.html")
    (one,) = json.loads(page.out)["images"]
    assert one["attributions"][0]["target"] == "number 3"
    assert one["attributions"][0]["trust"]["verdict"] != "supported"
    must_refuse(call("doctor", run), USAGE, TellBrightness.help)
    words = ("distill", folder, "--task", "tell-brightness", "--teacher", run, "--out", tmp_path / "x", *typed)
    must_refuse(call(*words), USAGE, "tell-brightness")
    must_refuse(call("evaluate", run, "nothing", "--neighbours", 3), USAGE, "tell-brightness")
    assert not (tmp_path / "x").exists()


@pytest.mark.usefixtures("as_a_user")
def test_as_an_object_and_as_the_start_of_another_task(folder: Path, tmp_path: Path) -> None:
    """It starts from weights itself, of which nothing is left but the head; and others start from what it learnt."""
    (tmp_path / "small.yaml").write_text(SMALL)
    task, options = TellBrightness(), replace(OPTIONS, epochs=3, patience=3, config=tmp_path / "small.yaml")
    first = vitrail.train("images", tmp_path / "first", options, task=task, reader=read_nothing)
    more = vitrail.TrainOptions(epochs=1, batch_size=16, lr=1e-4, threads=1, init=str(first.folder))
    again = vitrail.train("images", tmp_path / "again", more, task=task, reader=read_nothing)
    assert again.evaluated.value == pytest.approx(first.evaluated.value, rel=0.2)
    opened = vitrail.load(first.folder)  # without the object: features, as any network has them
    assert opened.output == first.model.output
    assert opened.task == TASKS["features"]
    assert np.isfinite(vitrail.embed(first.folder, folder).values["mean"]).all()
    with pytest.raises(vitrail.errors.UsageError):  # which are none to count
        vitrail.evaluate(first.folder, "digits")
    labels = replace(more, epochs=2, lr=2e-3)
    learnt = vitrail.train("pets", tmp_path / "labels", labels, task=TellLabels(), reader=read_pets)
    assert learnt.evaluated.value > 0.3  # an eighth by chance
