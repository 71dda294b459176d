"""Two tasks that stand in the tests alone go through every verb: several labels an image, two numbers an image.

By the command line they are a row of a table, in Python an object; `src/` has no word of either. What comes out is held
against what is computed here from the network's outputs, by numpy and scikit-learn.
"""

import csv
import html
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from transformers import AutoModelForImageClassification

import vitrail
from tests.cli.command import USAGE, call, must_refuse
from tests.shared_runs import once, stored
from tests.tasks.label_sets import LEAST, NAMES, TellLabels, read_pets
from tests.tasks.patterns import OPTIONS, SMALL, images
from tests.tasks.two_numbers import EXPLAINED, TellAmounts, read_amounts
from tests.training.tiny import Killed, ended_at, rows, saved, what_was_learnt
from vitrail.data import sources
from vitrail.data.sources import FORMATS, Format
from vitrail.features.file import read_features
from vitrail.jobs import precision
from vitrail.model import Model
from vitrail.nn import in_bf16
from vitrail.tasks import TASKS, Task
from vitrail.training.events import Stopped

TYPED = ("--epochs", 16, "--batch-size", 16, "--lr", 4e-3, "--threads", 1, "--image-size", 24)
TUNED = replace(OPTIONS, epochs=4, image_size=None, lr=2e-3)
CLEAR = np.random.default_rng(5).choice([-1.0, 1.0], (12, 3))  # which patterns twelve clear images have


@dataclass(frozen=True)
class Case:
    """A task, and data of it."""

    task: Task
    reader: Callable[..., Any]
    word: str
    figure: str  # in JSON
    good: Callable[[float], bool]
    wrong: Callable[[np.ndarray, np.ndarray], np.ndarray]  # how wrong outputs (n, v) are, of truths (n, v)

    def truths(self, split: str) -> np.ndarray:
        column = self.reader(self.word).splits[split].column(self.task.column)
        if self.word == "amounts":
            return column.values
        return np.array([[name in value.split() for name in NAMES] for value in column.values], np.float64)

    def outputs(self, model: Model, split: str) -> np.ndarray:
        """What its network says of a split, before it is words; of numbers with the mean that was taken off."""
        inputs = self.reader(self.word).splits[split].inputs
        return self.of(model, [inputs.open(row) for row in range(len(inputs))])

    def of(self, model: Model, opened: list[Any]) -> np.ndarray:
        with torch.no_grad():
            found = model.network(model.tensor(opened)).double().numpy()
        return found + np.array(model.output.to_dict().get("means", 0.0))

    def train(self, folder: Path, options: vitrail.TrainOptions, *listen: Any) -> Any:
        return vitrail.train(self.word, folder, options, *listen, task=self.task, reader=self.reader)


def not_the_set(outputs: np.ndarray, truths: np.ndarray) -> np.ndarray:
    return ((outputs > 0) != (truths > 0.5)).any(axis=1).astype(float)


def how_far(outputs: np.ndarray, truths: np.ndarray) -> np.ndarray:
    return np.linalg.norm(outputs - truths, axis=1)


LABELS = Case(TellLabels(), read_pets, "pets", "exact_set", lambda value: value > 0.8, not_the_set)
NUMBERS = Case(TellAmounts(), read_amounts, "amounts", "distance", lambda value: value < 0.3, how_far)
CASES = [  # one is enough for `make test`, where test_regression.py learns numbers
    pytest.param(LABELS, id="labels"),
    pytest.param(NUMBERS, id="numbers", marks=pytest.mark.soak),
]
BOTH = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def table(as_a_user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tasks are rows of the tables, as tasks of the library are."""
    more = [Format(case.word, case.word, case.reader, is_set=True) for case in (LABELS, NUMBERS)]
    monkeypatch.setattr(sources, "FORMATS", (*FORMATS, *more))
    for case in (LABELS, NUMBERS):
        monkeypatch.setitem(TASKS, case.task.name, case.task)


def configuration() -> Path:
    return once("patterns", lambda folder: (folder / "small.yaml").write_text(SMALL)) / "small.yaml"


def typed(case: Case) -> Path:
    """Its run from scratch, by the command line; needs the table."""

    def make(folder: Path) -> None:
        words = ("train", case.word, "--out", folder / "run", "--config", configuration(), *TYPED)
        assert call(*words).code == 0

    return once(f"patterns-{case.word}", make) / "run"


def passed(case: Case) -> Path:
    """Its run by Python, which has learnt little; without the table."""
    little = replace(OPTIONS, epochs=3, config=configuration())
    return once(f"own-{case.word}", lambda folder: case.train(folder / "run", little)) / "run"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Twelve clear images, as files."""
    folder, clear = tmp_path / "clear", images(CLEAR, "clear", seed=7)
    folder.mkdir()
    for row in range(len(clear)):
        clear.open(row).save(folder / f"{row:02}.png")
    return folder


def opened_by(model: Model, case: Case, files: Path) -> np.ndarray:
    return case.of(model, sorted(files.glob("*.png")))


# ---- from the command line


@BOTH
def test_learnt_evaluated_and_predicted_into_a_table(case: Case, table: None, files: Path, tmp_path: Path) -> None:
    run, out = typed(case), tmp_path / "answers.csv"
    model = vitrail.load(run)
    errors = case.wrong(case.outputs(model, "test"), case.truths("test"))
    figure = errors.mean() if case is NUMBERS else (errors == 0).mean()
    assert case.good(float(figure))
    evaluated = json.loads(call("evaluate", run, "--json").out)
    assert evaluated[case.figure] == pytest.approx(float(figure), abs=1e-6)
    assert stored(run)[case.figure] == evaluated[case.figure]
    assert call("predict", run, files, "--out", out).code == 0
    with out.open(newline="") as handle:
        written = list(csv.DictReader(handle))
    answers = json.loads(call("predict", run, files, "--json").out)
    assert [each["file"] for each in written] == [str(each) for each in sorted(files.glob("*.png"))]
    outputs = opened_by(model, case, files)
    names = NAMES if case is LABELS else ("first", "second")
    expected = 1 / (1 + np.exp(-outputs)) if case is LABELS else outputs
    assert np.array([[float(each[name]) for name in names] for each in written]) == pytest.approx(expected, abs=1e-5)
    if case is NUMBERS:
        assert not {"architecture", "problem_type"} & json.loads((run / "model/config.json").read_text()).keys()
    else:
        sets = [" ".join(name for name, output in zip(NAMES, row, strict=True) if output > 0) for row in outputs]
        assert [each["labels"] for each in written] == [each["labels"] for each in answers] == sets
        assert len(set(sets)) > 3
        assert call("doctor", run).code == 0
    assert "chance" not in (run / "log.txt").read_text()


@BOTH
def test_neighbours_vote(case: Case, table: None, tmp_path: Path) -> None:
    """By the features that `embed` gives, scikit-learn's neighbours, and a mean of their targets."""
    run, out = typed(case), tmp_path / "features.npz"
    told = json.loads(call("evaluate", run, "--neighbours", 5, "--json").out)["neighbours"]
    assert call("embed", run, case.word, "--out", out).code == 0
    features = read_features(out)
    splits, values = np.array(features.splits), features.values["mean"]
    near = NearestNeighbors(n_neighbors=5, metric="cosine").fit(values[splits == "train"])
    voted = case.truths("train")[near.kneighbors(values[splits == "test"], return_distance=False)].mean(axis=1)
    errors = case.wrong(voted - 0.5 if case is LABELS else voted, case.truths("test"))
    if case is LABELS:
        assert told["poolings"]["mean"]["accuracy"] == pytest.approx((errors == 0).mean(), abs=0.04)  # of equals either
    else:
        assert told["poolings"]["mean"] == {"error": pytest.approx(errors.mean(), rel=1e-4)}


@BOTH
def test_each_output_gets_a_verdict(case: Case, table: None, files: Path, tmp_path: Path) -> None:
    """Of labels and of their absence, by the odds over the middle composite; of a number "weak" is the most."""
    run, verdicts = typed(case), dict[str, list[str]]()
    model = vitrail.load(run)
    outputs, (composites,) = opened_by(model, case, files), model.composites.values()
    for place in range(model.output.outputs):
        word = model.output.names[place] if case is LABELS else place
        words = ("explain", run, files, "--target", word, "--count", 12, "--json", "--out", tmp_path / f"{word}.html")
        answer = call(*words)
        assert answer.code == 0, answer.err
        for row, one in enumerate(json.loads(answer.out)["images"]):
            (view,) = one["attributions"]
            verdicts.setdefault(view["target"], []).append(view["trust"]["verdict"])
            if case is NUMBERS:
                assert view["target"] == f"number {word}"
                assert view["trust"]["effect"] is None
                continue
            sign = np.sign(outputs[row, place])
            assert view["target"] == ("" if sign > 0 else "no ") + word
            assert view["logit"] == pytest.approx(abs(outputs[row, place]), rel=1e-4)
            effect = abs(outputs[row, place]) - float(np.median(sign * composites[:, place].double().numpy()))
            assert view["trust"]["effect"] == pytest.approx(effect, abs=1e-3)
            assert view["trust"]["minimum_effect"] == LEAST
            if view["trust"]["verdict"] in ("supported", "weak"):
                assert effect >= LEAST
    found = {word: set(some) for word, some in verdicts.items()}
    if case is LABELS:
        assert found.keys() == {*NAMES, *(f"no {name}" for name in NAMES)}
        assert any("supported" in some for word, some in found.items() if not word.startswith("no "))
        refused = call("explain", run, files, "--contrast", "cat", "--out", tmp_path / "contrast.html")
        must_refuse(refused, USAGE, "contrast")
    else:
        page = tmp_path / "lower.html"
        lower = json.loads(call("explain", run, files, "--target", "-1", "--count", 12, "--json", "--out", page).out)
        raised = json.loads(answer.out)["images"]  # of the same number, the last
        for one, other in zip(lower["images"], raised, strict=True):
            (view,), (upper,) = one["attributions"], other["attributions"]
            assert view["logit"] == pytest.approx(-upper["logit"], rel=1e-4)
            assert view["target"] == f"-{upper['target']}"
            assert view["trust"]["verdict"] != "supported"
        must_refuse(call("explain", run, files, "--target", "-9", "--out", tmp_path / "none.html"), USAGE, "target")
        assert all("weak" in some for some in found.values())
        assert set().union(*found.values()) <= {"weak", "cannot tell", "no better than random"}
    told = call("explain", run, files, "--count", 12, "--out", tmp_path / "maps.html")
    assert told.code == 0
    said = [one.sentence() for one in model.predict(sorted(files.glob("*.png")))]
    lines, page = told.out.splitlines(), html.unescape((tmp_path / "maps.html").read_text())
    for image, answer in zip(sorted(files.glob("*.png")), said, strict=True):  # several labels, or none, and no other
        shown = [line for line in lines if line.startswith(str(image)) and answer in line]
        assert shown or case is NUMBERS  # whose table has the number that is explained
        assert answer in page
    (rates,) = [line for line in lines if line.startswith("Generic attention")]
    assert ("supported" in rates) == (case is LABELS)  # what cannot be is not counted


@BOTH
def test_the_usual_target_of_a_network_without_knowledge_is_no_evidence(case: Case, table: None, files: Path) -> None:
    model = vitrail.load(typed(case))
    torch.manual_seed(0)
    for parameter in model.network.parameters():
        parameter.data = parameter.data.flatten()[torch.randperm(parameter.numel())].reshape(parameter.shape)
    report = vitrail.explain.report(replace(model, composites={}), sorted(files.glob("*.png")))
    assert sum(one.verdicts[0].startswith("supported") for one in report) <= 1


@BOTH
def test_a_teacher_of_its_own_task(case: Case, table: None, tmp_path: Path) -> None:
    """A student that learns from the teacher alone comes near what the teacher says of images without labels."""
    student = tmp_path / "student"
    words = ("distill", case.word, "--teacher", typed(case), "--alpha", 1, "--config", configuration(), *TYPED)
    told = call(*words, "--out", student)
    assert told.code == 0, told.err
    teacher, learnt = (case.outputs(vitrail.load(each), "test") for each in (typed(case), student))
    near = np.abs(np.tanh(teacher / 2) - np.tanh(learnt / 2)).mean()
    untrained = np.abs(np.tanh(teacher / 2)).mean()
    assert near < 0.5 * untrained
    assert [row["training_loss"] for row in rows(student)][-1] < rows(student)[0]["training_loss"]


def test_hubs_read_several_labels_as_such(table: None, files: Path) -> None:
    """transformers opens the folder, takes its loss for several labels, and gives the same outputs."""
    folder = typed(LABELS) / "model"
    theirs, model = AutoModelForImageClassification.from_pretrained(folder).eval(), vitrail.load(folder)
    assert theirs.config.problem_type == "multi_label_classification"
    assert theirs.config.id2label == dict(enumerate(NAMES))
    pixels, truths = model.tensor(sorted(files.glob("*.png"))), torch.from_numpy((CLEAR > 0).astype(np.float32))
    with torch.no_grad():
        told = theirs(pixel_values=pixels, labels=truths)
        outputs = model.network(pixels)
    assert torch.allclose(told.logits, outputs, atol=1e-5)
    assert float(told.loss) == pytest.approx(float(nn.functional.binary_cross_entropy_with_logits(outputs, truths)))


@BOTH
def test_bf16_is_taken_where_it_says_the_same(
    case: Case, table: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seems fast here; whether its answers agree is what the codec says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {"BF16_LEAST_WIDTH": 1, "LEAST": 8, "multiplies_bf16": lambda device: True}.items():
        monkeypatch.setattr(precision, name, value)
    monkeypatch.setattr(precision, "time_pass", lambda forward: 1.0 + (forward().dtype == torch.float32))
    monkeypatch.setattr("vitrail.tasks.codec.FAR", 0.05)  # how far bf16 is off differs between processors
    model, some = replace(vitrail.load(typed(case)), loaded_from=""), case.reader(case.word).splits["test"].inputs

    def taken(change: Callable[[Tensor], Tensor]) -> precision.Choice:
        class Changed(nn.Module):
            def __init__(self, network: nn.Module) -> None:
                super().__init__()
                self.network = in_bf16(network)

            def forward(self, pixels: Tensor) -> Tensor:
                return change(self.network(pixels).float()).bfloat16()

        monkeypatch.setattr(precision, "in_bf16", Changed)
        for each in tmp_path.rglob("*.json"):
            each.unlink()
        return precision.choose_precision(model, [some])

    assert taken(lambda outputs: outputs).precision == "bf16"
    turned = torch.tensor([-1.0] + [1.0] * (model.output.outputs - 1))  # one of the outputs says the opposite
    refused = taken(lambda outputs: outputs * turned)
    assert (refused.precision, refused.changed > 16) == ("fp32", True)


# ---- from Python, the objects passed


@pytest.fixture(scope="module", params=CASES)
def tuned(request: pytest.FixtureRequest) -> tuple[Case, Path]:
    """A run from the weights of one that has learnt little, by the same task."""
    case = request.param
    options = replace(TUNED, init=str(passed(case)))
    return case, once(f"tuned-{case.word}", lambda folder: case.train(folder / "run", options)) / "run"


def head_of(folder: Path, case: Case) -> np.ndarray:
    head = vitrail.load(folder, task=case.task).network.head
    return torch.cat([head.weight, head.bias[:, None]], dim=1).detach().double().numpy()


def test_the_probe_is_the_best_head_and_the_better_network_is_kept(tuned: tuple[Case, Path]) -> None:
    """The head has a closed form, or is scikit-learn's; the choice is counted again on the half that chooses."""
    case, run = tuned
    found, probed = stored(run), json.loads((run / "probe.json").read_text())
    probe = vitrail.load(run / "probe", task=case.task)
    inputs = case.reader(case.word).splits["train"].inputs
    with torch.no_grad():
        pixels = probe.tensor([inputs.open(row) for row in range(len(inputs))])
        features = probe.network.pool(probe.network.norm(probe.network.encode(pixels)), probe.network.config.prefix)
    x = features.double().numpy()
    mean, std = x.mean(axis=0), x.std(axis=0)
    standard, truths = (x - mean) / std, case.truths("train")
    head, count = head_of(run / "probe", case), truths.size
    if case is LABELS:
        theirs = [
            LogisticRegression(C=1 / (probed["penalty"] * count), tol=1e-8, max_iter=9999).fit(standard, each)
            for each in truths.T
        ]
        best = np.array([[*each.coef_[0], each.intercept_[0]] for each in theirs])
    else:
        left = standard.T @ standard * 2 / count + probed["penalty"] * np.eye(len(mean))
        weights = np.linalg.solve(left, standard.T @ (truths - truths.mean(axis=0)) * 2 / count).T
        best = np.concatenate([weights, np.zeros((len(weights), 1))], axis=1)
        truths = truths - truths.mean(axis=0)  # which the codec takes off
    ours = np.concatenate([head[:, :-1] * std, head[:, -1:] + head[:, :-1] @ mean[:, None]], axis=1)

    def objective(found: np.ndarray) -> float:
        outputs = standard @ found[:, :-1].T + found[:, -1]
        losses = np.logaddexp(0, outputs) - outputs * truths if case is LABELS else (outputs - truths) ** 2
        return float(
            losses.mean() * losses.shape[1] / truths.shape[1] + probed["penalty"] / 2 * (found[:, :-1] ** 2).sum()
        )

    assert objective(ours) == pytest.approx(objective(best), rel=1e-4)
    assert ours == pytest.approx(best, rel=1e-2, abs=1e-2)

    held_out = case.truths("validation")
    errors = case.wrong(case.outputs(probe, "validation"), held_out)
    assert probed["accuracy"] == pytest.approx(errors.mean() if case is NUMBERS else (errors == 0).mean(), abs=1e-5)
    choice, model = found["choice"], vitrail.load(run, task=case.task)
    assert found["kept"] == ("tuned" if choice["difference"] > 0 else "probe") == "tuned"
    parts = json.loads((run / "data.json").read_text())["parts"]
    assert choice["images"] == parts["select"]
    better = errors - case.wrong(case.outputs(model, "validation"), held_out)
    images = {vitrail.evaluate(model, split=half, reader=case.reader).count for half in ("select", "report")}
    assert sum(parts.values()) == len(errors)
    assert images == {*parts.values()}
    assert better.mean() > 0  # on all of validation, too
    assert choice["interval"][0] < choice["difference"] < choice["interval"][1]
    assert f"{choice['won']} and lost {choice['lost']}" in (run / "log.txt").read_text()


@pytest.mark.soak
@BOTH
def test_patience_ends_what_gets_no_better_and_a_tie_keeps_the_probe(case: Case, tmp_path: Path) -> None:
    done = case.train(tmp_path / "run", replace(TUNED, init=str(passed(case)), lr=1e-12, patience=1))
    assert len(rows(done.folder)) == 2
    found = stored(done.folder)
    assert (found["kept"], found["choice"]["won"], found["choice"]["lost"]) == ("probe", 0, 0)
    kept, probe = (
        case.outputs(vitrail.load(each, task=case.task), "test") for each in (done.folder, done.folder / "probe")
    )
    assert np.array_equal(kept, probe)


@pytest.mark.parametrize("task", [TellAmounts(), TellAmounts(EXPLAINED)], ids=["lower", "higher"])
def test_the_best_epoch_is_that_of_the_best_figure(task: TellAmounts, tmp_path: Path) -> None:
    """Whichever way is better: the first epoch that is worse ends it, and the weights are those of the one before."""
    case, options = (
        replace(NUMBERS, task=task),
        replace(OPTIONS, epochs=20, patience=1, config=configuration(), lr=3e-2),
    )
    done = case.train(tmp_path / "run", options)
    figures = [row[f"validation_{task.metric.key}"] for row in rows(done.folder)]
    best = max(figures) if task.metric == EXPLAINED else min(figures)
    assert 2 < len(figures) < 20
    assert stored(done.folder)["best"]["epoch"] == 1 + figures.index(best) == len(figures) - 1
    select = vitrail.evaluate(done.model, split="select", reader=case.reader)
    assert select.value == pytest.approx(best, rel=1e-5)


@pytest.mark.soak
def test_a_run_from_weights_goes_on_to_the_same_bits(tuned: tuple[Case, Path], tmp_path: Path) -> None:
    case, whole = tuned
    stop = ended_at(13, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        case.train(tmp_path / "run", replace(TUNED, init=str(passed(case))), stop)
    again = case.train(tmp_path / "run", vitrail.TrainOptions(resume="auto"))
    assert again.weights == stored(whole)["weights"]
    assert what_was_learnt(again.folder) == what_was_learnt(whole)


@BOTH
def test_a_killed_run_goes_on_to_the_same_bits(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, little = passed(case), replace(OPTIONS, epochs=3, config=configuration())
    with monkeypatch.context() as patch:
        saved(patch, often=True)
        with pytest.raises(Killed):
            case.train(tmp_path / "run", little, ended_at(17))
    again = case.train(tmp_path / "run", vitrail.TrainOptions(resume="auto"))
    assert again.weights == stored(whole)["weights"]
    assert what_was_learnt(again.folder) == what_was_learnt(whole)
