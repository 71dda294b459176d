"""What stands below an explanation: how often a model is right when it is as sure, and its nearest training images."""

import copy
import json
import os
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
from vitrail.data.loader import CONTENT
from vitrail.errors import DataError
from vitrail.features import embed
from vitrail.features.similar import EMBEDDED, evenly_by_class
from vitrail.model import Model
from vitrail.nn import features
from vitrail.pages.image_views import BesideView
from vitrail.runs.beside import LEAST, RunKnowledge, TrainingImages, sureness
from vitrail.runs.data import Run
from vitrail.statistics import wilson_interval
from vitrail.tasks import Result
from vitrail.tasks.by_class import of_pairs
from vitrail.tasks.calibration import Calibration
from vitrail.tasks.classify import ACCURACY
from vitrail.tasks.regression import Standardized
from vitrail.tasks.residuals import NumberMetrics
from vitrail.tasks.task import SURENESS


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


@pytest.mark.parametrize("of", ["label", "class"])
def test_of_several_each_counts_by_itself(of: str) -> None:
    """The rows are those that a plain count finds; what is not known is not made up."""
    draw = np.random.default_rng(0)
    sure = np.concatenate(
        [draw.uniform(0, 1 / 15, 80), draw.uniform(1 / 15, 2 / 15, 20), draw.uniform(2 / 15, 0.2, 12)]
    )
    right = draw.random(len(sure)) < 0.15
    pairs, known = (each.reshape(56, 2) for each in (sure, right)), np.ones((56, 2), dtype=bool)
    *_, rows = of_pairs(of, *pairs, known)
    labels = {"split": "report", "calibration": rows}
    found = sureness(labels, 0.1)  # 20 are too few: with those on both sides
    assert (found.low, found.high, found.right, found.images, found.of) == (0, 0.2, right.sum(), 112, of)
    assert found.interval == wilson_interval(int(right.sum()), 112)
    few = sureness(labels, 0.05)
    assert (few.images, few.right) == (80, right[:80].sum())
    assert of_pairs(of, np.ones((3, 2)), ~known[:3], ~known[:3])[2] == ()
    assert sureness({**labels, "calibration": ()}, 0.1) is None


def test_a_number_is_right_within_its_interval() -> None:
    """As `Result.calibration` of an evaluation has it, of numbers one of which has no interval."""
    outputs = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).double()
    limits = ((None,) * 199, (1.0,) * 199)
    codec = Standardized(("a", "b"), (0.0, 5.0), (1.0, 2.0), Calibration("calibrate", 60, limits=limits))
    answers = {"loss": 0.0, "ids": [*range(60)], "outputs": outputs.tolist(), "labels": torch.zeros(60, 2).tolist()}
    result = NumberMetrics(codec).result([answers], str)
    numbers = {"split": "test", "calibration": result.calibration, "trained_on": {"images": 60}}
    found, gaps = sureness(numbers, None, named="b"), 2 * outputs[:, 1].abs()
    assert (found.right, found.images, found.of, bool(found.note)) == (int((gaps <= 1).sum()), 60, "number", True)
    assert found.off == pytest.approx(float(gaps.mean()))
    assert sureness(numbers, None, named="c") is sureness(numbers, 0.5, named="b") is sureness(numbers, None) is None


@pytest.fixture(scope="module")
def model() -> Model:
    return vitrail.load(run_of("photos"))


@pytest.fixture(scope="module")
def seen() -> list[Path]:
    """A photograph that the run was trained on, and one that it was not."""
    folder = photographs() / "abc"
    (trained,) = [path for path in (folder / "train" / "b").iterdir() if path.stem == "b_001"]
    return [trained, folder / "val" / "a" / "a_000.jpg"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Which models are embedded with from now on, each time; no features are stored yet."""
    calls = list[Path]()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compute = embed.features_of
    monkeypatch.setattr(embed, "features_of", lambda *given, **how: calls.append(given[0]) or compute(*given, **how))
    return calls


def test_a_run_knows_its_evaluation_and_what_it_was_trained_on(model: Model, seen: list[Path], tmp_path: Path) -> None:
    run = run_of("photos")
    prints = [hash_of(file.read_bytes()).hex() for file in seen]
    for path in (run, run / "model"):
        known = RunKnowledge(replace(model, loaded_from=str(path)))
        assert [known.beside(each, [("a", 0.6)]).learnt for each in (*prints, "")] == [True, False, False]
        found = known.beside(prints[0], [("a", 0.6)], 2.0)
        assert found == BesideView(prints[0], 2.0, sureness(stored(run), 0.6, Run(run).facts.get("parts")), True)
        assert found.sureness is not None
        assert known.beside("", []) == BesideView()
    evaluation = stored(run)
    assert sum(row["images"] for row in evaluation["calibration"]) == evaluation["images"]
    assert sum(row["right"] for row in evaluation["calibration"]) == round(
        evaluation["accuracy"] * evaluation["images"]
    )
    changed = replace(model, network=copy.deepcopy(model.network))
    torch.nn.init.ones_(changed.network.head.bias)
    assert RunKnowledge(changed).beside("", [("a", 0.6)]).sureness is None
    for elsewhere in ("", "timm:vit_tiny_patch16_224"):
        known = RunKnowledge(replace(model, loaded_from=elsewhere))
        assert known.beside(prints[0], [("a", 0.6)]) == BesideView(prints[0])
    mine = copy_of("photos", tmp_path)
    (mine / "evaluation.json").write_text("{")
    with must_raise(DataError, "evaluation.json"):
        RunKnowledge(replace(model, loaded_from=str(mine)))


def test_an_image_that_the_figure_counts_is_said_to_be_one_of_them(model: Model, seen: list[Path]) -> None:
    run = run_of("photos")
    known, evaluated = RunKnowledge(model), set(map(bytes, Run(run).contents["evaluated"][:, CONTENT]))
    assert len(evaluated) == stored(run)["images"]
    none = known.beside("ab" * 16, [("a", 0.6)]).sureness
    files = [hash_of(file.read_bytes()) for file in (photographs() / "abc" / "val").rglob("*.*")]
    counted = [known.beside(each.hex(), [("a", 0.6)]).sureness != none for each in files]
    assert counted == [each in evaluated for each in files]
    assert sum(counted) == len(evaluated)
    assert known.beside(hash_of(seen[0].read_bytes()).hex(), [("a", 0.6)]).sureness == none, "it is not among them"


def test_the_nearest_training_images_are_those_of_a_plain_loop(model: Model, seen: list[Path], asked: list) -> None:
    files = sorted((photographs() / "abc" / "train").rglob("*.*"))
    shown = [model.preprocessing.to_array(open_image(file)) for file in seen]
    with torch.no_grad():
        vectors, own = (features(model.network, model.tensor(some)).pooled for some in (files, seen))
    for _ in range(2):
        training = TrainingImages(model, "auto")
        found = training.nearest(shown)
        assert training.known is not None
        assert len(training.known.features) == len(files) <= EMBEDDED
        assert str(len(files)) in training.words
        for image, one, near in zip(seen, own, found, strict=True):
            cosines = torch.nn.functional.cosine_similarity(one[None], vectors)
            order = [row for row in cosines.argsort(descending=True).tolist() if files[row] != image][:3]
            assert [each.name.split("/")[-1] for each in near] == [files[row].name for row in order]
            assert [each.label for each in near] == [files[row].parent.name for row in order]
            np.testing.assert_allclose([each.distance for each in near], (1 - cosines[order]).numpy(), atol=1e-5)
            assert all(max(each.image.shape[:2]) <= 224 for each in near if each.image is not None)
    assert len(asked) == 1  # the second time they are read
    for none in (replace(model, loaded_from=""), replace(model, loaded_from="timm:vit_tiny_patch16_224")):
        training = TrainingImages(none, "auto")
        assert (training.nearest(shown), training.words) == ([[], []], "")
    training = TrainingImages(model, "none")
    assert (training.nearest(shown), training.words) == ([[], []], "")
    (file,) = (Path(os.environ["XDG_CACHE_HOME"]) / "vitrail" / "nearest").iterdir()
    file.write_bytes(b"damaged")
    again = TrainingImages(model, "auto").nearest(shown)
    assert [each.name for each in again[0]] == [each.name for each in found[0]]
    changed = replace(model, network=copy.deepcopy(model.network))
    torch.nn.init.normal_(changed.network.pos_embed)
    TrainingImages(changed, "auto").nearest(shown)
    assert len(asked) == 3  # for the damaged file, and for other weights


def test_images_that_are_gone_are_no_error(model: Model, tmp_path: Path) -> None:
    mine = copy_of("photos", tmp_path)
    facts = json.loads((mine / "data.json").read_text())
    for change in ({"root": str(tmp_path / "gone")}, {"images": {"train": 10**6}}):
        (mine / "data.json").write_text(json.dumps({**facts, **change}))
        training = TrainingImages(replace(model, loaded_from=str(mine)), "auto")
        assert training.nearest([]) == []
        assert training.known is None
        assert training.words


def test_a_report_in_python_shows_what_the_run_knows(model: Model, seen: list[Path], asked: list) -> None:
    """As the command does; training images, which leave the house with the page, only where they are asked for."""
    found = model.explain([str(file) for file in seen], trust=False)
    assert [one.view.beside.learnt for one in found] == [True, False]
    for one in found:
        sure = one.to_dict()["beside"]["sureness"]
        assert sure["low"] <= one.prediction.probability <= sure["high"]
        assert one.to_dict()["beside"]["nearest"] == []
    assert not asked
    found = model.explain(seen[1], trust=False, nearest="auto")
    (near,) = [one.view.beside.nearest for one in found]
    assert [each.name for each in near] == [
        each.name for each in TrainingImages(model, "auto").nearest([found[0].image])[0]
    ]
    assert (len(near), len(asked)) == (3, 1)
    assert near[0].name in found.page()
    with must_raise(DataError, "gone.npz"):
        model.explain(seen[1], trust=False, nearest="gone.npz")


def test_what_ends_the_search_leaves_the_report(
    model: Model, seen: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainingImages, "nearest", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        model.explain(seen[0], trust=False, nearest="auto")
    assert [one.name for one in caught.value.report] == [str(seen[0])]  # pyrefly: ignore[missing-attribute]


def test_every_class_has_its_part_of_those_that_are_embedded() -> None:
    values = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [300, 150, 30]))
    samples = Samples(ArrayImages(np.zeros((480, 2, 2), np.uint8), "made"), {"label": Labels(values, ("a", "b", "c"))})
    few = evenly_by_class(samples, 48)
    assert Counter(few.labels) == {"a": 30, "b": 15, "c": 3}
    names = [int(name.split("/")[1]) for name in few.images.names()]
    assert names == sorted(set(names))
    assert len(evenly_by_class(samples, 1000)) == 480
