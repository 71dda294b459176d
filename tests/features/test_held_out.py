"""What nearest training images say of held-out ones, against scikit-learn."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

import vitrail
from tests.cli.command import USAGE, call, must_refuse
from tests.errors import must_raise
from tests.features.test_embed import CLASSES, model_of
from tests.photographs import make_photographs
from vitrail.errors import UsageError
from vitrail.text import percent


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders in train/ and val/, one of which the model does not know, and a file that is no image."""
    root = tmp_path_factory.mktemp("held-out")
    make_photographs(root / "train", (*CLASSES, "d"), per_class=6, seed=0)
    make_photographs(root / "val", CLASSES, per_class=4, seed=1)
    (root / "train" / "a" / "a_001.jpg").write_text("no image")
    return root


def test_the_votes_are_scikit_learns(photos: Path, tmp_path: Path) -> None:
    model = model_of(pooling="mean")
    found = vitrail.embed(model, photos)
    splits, labels = np.array(found.splits), np.array(found.labels)
    known, held = (splits == "train") & (labels != "d"), splits == "validation"
    result = vitrail.evaluate(model, str(photos), neighbours=1)
    told = result.to_dict()["neighbours"]
    assert (told["count"], told["images"], told["train_images"]) == (1, 12, 17)
    assert told["poolings"].keys() == {"class", "mean"}
    for name, each in told["poolings"].items():
        theirs = KNeighborsClassifier(1, metric="cosine").fit(found.values[name][known], labels[known])
        wanted = (theirs.predict(found.values[name][held]) == labels[held]).mean()
        assert each["accuracy"] == pytest.approx(wanted)
        assert each["interval"][0] < wanted <= each["interval"][1]
    usual = vitrail.evaluate(model, str(photos))
    assert "neighbours" not in usual.to_dict()
    assert {name: value for name, value in result.to_dict().items() if name != "neighbours"} == usual.to_dict()
    vitrail.save(model, tmp_path / "model")
    words = ("evaluate", tmp_path / "model", photos, "--neighbours", 1)
    answer = call(*words)
    for each in told["poolings"].values():
        assert percent(each["accuracy"], 2) in answer.out
    assert json.loads(call(*words, "--json").out)["neighbours"]["poolings"] == told["poolings"]


def test_where_neighbours_would_say_nothing(photos: Path, tmp_path: Path) -> None:
    vitrail.save(model_of(), tmp_path / "model")
    for data, more in ((photos / "train", ()), (photos, ("--split", "train"))):
        must_refuse(call("evaluate", tmp_path / "model", data, "--neighbours", 3, *more), USAGE, str(data))
    must_refuse(call("evaluate", tmp_path / "model", photos, "--neighbours", 0), USAGE, "0")
    shutil.copytree(photos / "val", tmp_path / "only" / "val")
    with must_raise(UsageError, named="train"):
        vitrail.evaluate(model_of(), str(tmp_path / "only"), neighbours=3)
