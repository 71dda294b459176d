"""What stands below an explanation: how often a model is right when it is as sure, and its nearest training images."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.errors import must_raise
from tests.shared_runs import copy_of, photographs, run_of, stored
from vitrail.data.columns import Labels, Samples
from vitrail.data.images import ArrayImages, hash_of, open_image
from vitrail.errors import DataError
from vitrail.features.similar import EMBEDDED, evenly_by_class
from vitrail.model import Model
from vitrail.nn import features
from vitrail.nn.networks import weights_hash
from vitrail.pages.views import BesideView, ImageView
from vitrail.runs.beside import LEAST, add_known, open_training, run_of as of_name, sureness
from vitrail.runs.data import Run
from vitrail.tasks import Result
from vitrail.tasks.classify import ACCURACY
from vitrail.tasks.task import SURENESS, wilson_interval


def result_of(sure: list[float], wrong: list[float]) -> Result:
    return Result(ACCURACY, 0.0, len(sure), 0.0, {}, "", errors=np.array(wrong), confidences=np.array(sure))


def test_answers_are_counted_by_how_sure_they_are() -> None:
    draw = np.random.default_rng(0)
    sure = [*draw.uniform(0, 1, 400), *SURENESS, float("nan")]
    wrong = draw.integers(0, 2, len(sure)).astype(float).tolist()
    rows = result_of(sure, wrong).calibration
    assert [(row["from"], row["to"]) for row in rows] == list(pairwise(SURENESS))
    for row in rows:  # an end belongs to the range above it, and 1 to the last
        own = [
            error for p, error in zip(sure, wrong, strict=True) if row["from"] <= p < row["to"] or p == row["to"] == 1
        ]
        assert (row["images"], row["right"]) == (len(own), own.count(0.0))
    assert result_of([], []).calibration == replace(result_of([0.5], [0.0]), errors=np.zeros(0)).calibration == []


@pytest.mark.parametrize(
    ("p", "low", "high"), [(0.9995, 0.99, 1.0), (0.45, 0.4, 0.5), (0.01, 0.0, 0.5), (1.0, 0.99, 1.0)]
)
def test_ranges_beside_it_are_added_until_there_are_enough(p: float, low: float, high: float) -> None:
    """40 answers at 0.45 are enough; 25 above 0.999 are not, with those above 0.99 they are."""
    rows = result_of([0.45] * 40 + [0.995] * 6 + [0.9999] * 25, [0.0] * 30 + [1.0] * 10 + [0.0] * 31).calibration
    found = sureness({"split": "test", "calibration": rows}, p)
    assert found is not None
    assert (found.low, found.high) == (low, high)
    counted = {0.99: (31, 31), 0.4: (30, 40), 0.0: (30, 40)}[low]
    assert (found.right, found.images) == counted
    assert found.images >= LEAST
    assert found.interval == wilson_interval(*counted)
    assert sureness({"split": "test"}, p) is None
    learnt = {"images": found.images, "of": found.images}
    notes = {sureness({"split": "test", "calibration": rows, "trained_on": each}, p).note for each in ({}, learnt)}
    assert len(notes) == 2


@pytest.fixture(scope="module")
def model() -> Model:
    return vitrail.load(run_of("photos"))


@pytest.fixture(scope="module")
def seen() -> list[Path]:
    """A photograph that the run was trained on, and one that it was not."""
    folder = photographs() / "abc"
    (trained,) = [path for path in (folder / "train" / "b").iterdir() if path.stem == "b_001"]
    return [trained, folder / "val" / "a" / "a_000.jpg"]


def views_of(model: Model, files: list[Path]) -> list[ImageView]:
    opened = [open_image(file) for file in files]
    prints = [BesideView(hash_of(file.read_bytes()).hex()) for file in files]
    return [
        ImageView(file.name, model.preprocessing.to_array(image), None, [("a", 0.6)], [], beside=own)
        for file, image, own in zip(files, opened, prints, strict=True)
    ]


def test_a_run_knows_its_evaluation_and_what_it_was_trained_on(model: Model, seen: list[Path], tmp_path: Path) -> None:
    run, weights = of_name(Run(run_of("photos"))), weights_hash(model.network)
    assert of_name(Run(f"{run.path}/model")).path == run.path.resolve()
    both = add_known(views_of(model, seen), model, run, weights, None)
    assert [view.beside.learnt for view in both] == [True, False]
    evaluation = stored(run.path)
    assert sum(row["images"] for row in evaluation["calibration"]) == evaluation["images"]
    assert sum(row["right"] for row in evaluation["calibration"]) == round(
        evaluation["accuracy"] * evaluation["images"]
    )
    assert both[0].beside.sureness == sureness(evaluation, 0.6, run.facts.get("halves"))
    assert both[0].beside.sureness is not None
    others = add_known(views_of(model, seen), model, run, "of other weights", None)
    assert others[0].beside.sureness is None
    assert not add_known(views_of(model, seen), model, Run("timm:vit_tiny_patch16_224"), weights, None)[0].beside.learnt
    mine = copy_of("photos", tmp_path)
    (mine / "evaluation.json").write_text("{")
    with must_raise(DataError, "evaluation.json"):
        add_known(views_of(model, seen), model, Run(mine), weights, None)


def test_the_nearest_training_images_are_those_of_a_plain_loop(model: Model, seen: list[Path]) -> None:
    known, words = open_training(model, Run(run_of("photos")), None, None, lambda done, of: None)
    assert known is not None
    files = sorted((photographs() / "abc" / "train").rglob("*.*"))
    assert len(known.features) == len(files) <= EMBEDDED
    assert str(len(files)) in words
    found = add_known(views_of(model, seen), model, Run(None), "", known)
    with torch.no_grad():
        vectors, own = (features(model.network, model.tensor(some)).pooled for some in (files, seen))
    for asked, one, view in zip(seen, own, found, strict=True):
        cosines = torch.nn.functional.cosine_similarity(one[None], vectors)
        order = [row for row in cosines.argsort(descending=True).tolist() if files[row] != asked][:3]
        near = view.beside.nearest
        assert [each.name.split("/")[-1] for each in near] == [files[row].name for row in order]
        assert [each.label for each in near] == [files[row].parent.name for row in order]
        np.testing.assert_allclose([each.distance for each in near], (1 - cosines[order]).numpy(), atol=1e-5)
        assert all(max(each.image.shape[:2]) <= 224 for each in near)
    for none in (Run(None), Run("timm:vit_tiny_patch16_224")):
        assert open_training(model, none, None, None, lambda done, of: None) == (None, "")
    assert open_training(model, Run(run_of("photos")), "none", None, lambda done, of: None) == (None, "")


def test_images_that_are_gone_are_no_error(model: Model, tmp_path: Path) -> None:
    mine = copy_of("photos", tmp_path)
    facts = json.loads((mine / "data.json").read_text())
    for change in ({"root": str(tmp_path / "gone")}, {"images": {"train": 10**6}}):
        (mine / "data.json").write_text(json.dumps({**facts, **change}))
        known, words = open_training(model, Run(mine), None, None, lambda done, of: None)
        assert known is None
        assert words


def test_every_class_has_its_part_of_those_that_are_embedded() -> None:
    values = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [300, 150, 30]))
    samples = Samples(ArrayImages(np.zeros((480, 2, 2), np.uint8), "made"), {"label": Labels(values, ("a", "b", "c"))})
    few = evenly_by_class(samples, 48)
    assert Counter(few.labels) == {"a": 30, "b": 15, "c": 3}
    names = [int(name.split("/")[1]) for name in few.images.names()]
    assert names == sorted(set(names))
    assert len(evenly_by_class(samples, 1000)) == 480
