"""Probabilities mean what they say: temperatures, sets and figures are those of closed forms and of scikit-learn."""

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm
from sklearn.metrics import balanced_accuracy_score, f1_score, mean_absolute_error, r2_score, root_mean_squared_error
from torch import nn

import vitrail
from tests.cli.command import call, must_refuse
from tests.errors import must_raise
from tests.shared_runs import run_of
from vitrail.data.columns import Texts
from vitrail.data.dataset import label_inputs
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError
from vitrail.features.linear_probe import BY_FOLDS
from vitrail.pages import Table
from vitrail.runs.data import CALIBRATE, LEAST_CALIBRATE, PARTS, REPORT, SELECT, cut
from vitrail.tasks import TASKS, Classes, Result
from vitrail.tasks.attributes import Attributes
from vitrail.tasks.by_class import by_class, reliability_of, together
from vitrail.tasks.calibration import Calibration, calibration_from, reliability, stored
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.ranking import interval_of_mean
from vitrail.tasks.regression import Standardized
from vitrail.tasks.task import without_interval
from vitrail.text import percent_in_words

NAMES = tuple("abcdefg")


def drawn(count: int, seed: int, temperature: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and classes drawn by their softmax at a temperature."""
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, len(NAMES), generator=random, dtype=torch.float64)
    return logits, torch.multinomial((logits / temperature).softmax(dim=1), 1, generator=random)[:, 0]


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_is_that_by_which_labels_were_drawn(temperature: float) -> None:
    logits, classes = drawn(20_000, 0, temperature)
    found = Classes(NAMES).calibrate(logits, classes, "calibrate")
    assert found.temperature == pytest.approx(temperature, rel=0.03)
    assert calibration_from(stored(found.calibration)["calibration"]) == found.calibration
    said = [one.label for one in found.answer(logits[:50], [""] * 50)]
    assert said == [one.label for one in Classes(NAMES).answer(logits[:50], [""] * 50)], "top classes stay"
    odds = torch.cat([logits, -logits])[:, :3]
    there = (
        torch.rand(odds.shape, generator=torch.Generator().manual_seed(1)) < (odds / temperature).sigmoid()
    ).float()
    there[::7, 1] = torch.nan  # unknown labels count for nothing
    labels = MultiLabels(("a", "b", "c"), thresholds=(0.2, 0.5, 0.7))
    warm = labels.calibrate(odds, there, "calibrate")
    assert warm.temperature == pytest.approx(temperature, rel=0.03)
    assert torch.equal(warm.says(odds), labels.says(odds)), "what is predicted stays"
    again = warm.calibrate(odds, there, "calibrate")
    assert again.temperature == pytest.approx(warm.temperature, rel=1e-6)


@pytest.mark.parametrize("count", [10, 40, 300])
def test_a_few_right_answers_make_nobody_certain(count: int) -> None:
    """All right: as sure as Platt's targets are, n + 1 of n + 2."""
    classes = torch.arange(count) % 3
    found = Classes(("a", "b", "c")).calibrate(5 * torch.eye(3)[classes], classes, "calibrate")
    sure = found.probabilities(5 * torch.eye(3)).amax(dim=1)
    assert sure.tolist() == pytest.approx([1 - 1 / (count + 2)] * 3, abs=1e-5)
    weak, there = 0.1 * torch.eye(3)[classes], torch.eye(3)[classes]
    every: list[tuple[Any, torch.Tensor, torch.Tensor]] = [
        (Classes(("a", "b", "c")), weak, classes),
        (Attributes(("x",), (("a", "b", "c"),)), weak, there[:, None]),
        (MultiLabels(("a", "b", "c")), weak - 0.05, there),
    ]
    for codec, outputs, targets in every:
        fitted = codec.calibrate(outputs, targets, "calibrate")
        assert fitted.temperature == 1 if count < 50 else fitted.temperature < 0.2, "few make nobody surer"
        unknown = torch.full((60, *targets.shape[1:]), torch.nan)
        if targets.is_floating_point():
            more = codec.calibrate(torch.cat([outputs, outputs[:1].expand(60, 3)]), torch.cat([targets, unknown]), "c")
            assert more.calibration == replace(fitted.calibration, on="c"), "images that say nothing do not count"
    few = Classes(("a", "b", "c")).calibrate(torch.eye(3)[classes[:9]], classes[:9], "calibrate")
    assert few.calibration is None


@pytest.mark.parametrize("turns", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_sets_hold_the_true_class_as_often_as_promised(turns: int) -> None:
    """Of so many calibrations the mean is ceil(c (n + 1)) / (n + 1), and each lies in its band 95 times of 100."""
    count, coverages = 119, (0.8, 0.9, 0.95)
    held, inside = {each: list[float]() for each in coverages}, dict.fromkeys(coverages, 0)
    for seed in range(turns):
        logits, classes = drawn(count + 200, seed)
        fitted = Classes(NAMES).calibrate(logits[:count], classes[:count], "calibrate")
        for coverage in coverages:
            answers = fitted.promising(coverage).answer(logits[count:], [""] * 200)
            assert all(one.set[0] == one.label for one in answers)
            own = zip(answers, classes[count:].tolist(), strict=True)
            held[coverage].append(sum(NAMES[number] in one.set for one, number in own) / 200)
            low, high = fitted.calibration.band(coverage)
            wide = 1.96 * math.sqrt(coverage * (1 - coverage) / 200)
            inside[coverage] += low - wide <= held[coverage][-1] <= high + wide
    for coverage, found in held.items():
        wanted = math.ceil(coverage * (count + 1)) / (count + 1)
        assert np.mean(found) == pytest.approx(wanted, abs=3 * np.std(found) / math.sqrt(turns))
        assert inside[coverage] >= 0.95 * turns
    sizes = [len(fitted.promising(each).answer(logits[:1], ["a"])[0].set) for each in (0.5, 0.9, 0.99, 0.999)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(NAMES), "more than these images can promise"


def test_rounding_takes_no_calibration_image_out_of_its_set() -> None:
    """Where its score is the limit, another batch, processor or runtime moves its logits by some 3e-5, as of ViT-Ti."""
    logits, classes = drawn(119, 0)
    fitted = Classes(NAMES).calibrate(logits, classes, "calibrate")
    moved = logits + 3e-5 * torch.from_numpy(np.random.default_rng(0).choice((-1.0, 1.0), logits.shape)).float()
    for rank in range(60, 119):
        coverage = rank / 120
        least = math.ceil(math.ceil(coverage * 200 - 1e-9) / 200 * 120 - 1e-9)
        for outputs in (logits, moved):
            answers = zip(fitted.promising(coverage).answer(outputs, [""] * 119), classes.tolist(), strict=True)
            assert sum(NAMES[number] in one.set for one, number in answers) >= least


def test_what_cannot_be_promised() -> None:
    logits, classes = drawn(60, 0)
    few = Classes(NAMES).calibrate(logits[:49], classes[:49], "validation")
    with must_raise(DataError):
        few.promising(0.9)
    with must_raise(DataError):
        Classes(NAMES).promising(0.9)
    for coverage in (0.0, 1.0, -1.0, 90.0, math.nan):
        with must_raise(UsageError):
            Classes(NAMES).calibrate(logits, classes, "validation").promising(coverage)
    with must_raise(UsageError):
        MultiLabels(("a", "b")).promising(0.9)
    fitted = Classes(NAMES).calibrate(logits, classes, "validation")
    assert fitted.promise() == ""
    assert "60" in fitted.promising(0.9).promise()
    folds = Standardized(("n",), (9.0,), (2.0,), Calibration(BY_FOLDS, 60, limits=((1.0,) * 199,)), coverage=0.9)
    ends = [percent_in_words(end) for end in folds.calibration.band(0.9)]
    assert all(end in fitted.promising(0.9).promise() for end in ends)
    assert not any(end in folds.promise() for end in ends), "no theorem gives a range of cross-validated errors"
    often, rare = (
        replace(fitted, calibration=replace(fitted.calibration, right=right)).promising(0.9).promise()
        for right in (0.95, 0.85)
    )
    assert len(often) > len(rare), "the top class alone covers more, and that is said"


@pytest.mark.parametrize("seed", range(3))
def test_the_calibration_error_is_that_of_its_definition_and_chance_is_known(seed: int) -> None:
    random = np.random.default_rng(seed)
    sure = random.beta(4, 1, 500)
    right = random.random(500) < sure**3
    found = reliability(sure, right)
    assert found is not None
    wanted = 0.0
    for low in np.arange(15) / 15:
        of = (sure >= low) & (sure < low + 1 / 15)
        wanted += abs(sure[of].sum() - right[of].sum()) / 500
    assert found.error == pytest.approx(wanted, abs=1e-12)
    assert found.error > found.at_most, "it is too sure"
    assert sum(row[2] for row in found.rows) == 500
    points = together(found)
    assert min(count for count, *_ in points) >= 30
    begin, order = 0, np.argsort(sure, kind="stable")
    for count, *means in points:  # neighbours of the next so many answers
        own = order[begin : begin + count]
        assert means == pytest.approx([sure[own].mean(), right[own].mean()], abs=1e-9)
        begin += count
    assert begin == 500
    sure_of_all = reliability(np.full(500, 0.99), right)
    charts = [reliability_of(*given)[1] for given in ((found, 500), (found, 199), (sure_of_all, 500))]
    assert [len(each) for each in charts] == [1, 0, 0], "of few images and of a single point there is none"
    draws = [reliability(sure, random.random(500) < sure) for _ in range(60)]
    assert np.mean([each.error for each in draws]) == pytest.approx(found.by_chance, rel=0.15)
    assert sum(each.error <= each.at_most for each in draws) >= 52
    large = np.tile(sure, 50)
    both = reliability(large, random.random(25_000) < large), np.sqrt(50) * reliability(sure, right).by_chance
    assert both[0].by_chance * 50 == pytest.approx(both[1], rel=0.1), "the normal form is the drawn one"
    assert reliability(sure[:0], right[:0]) is None


def chance(*given: Any) -> tuple[float, float, float]:
    """The calibration error, and what chance makes of it."""
    found = reliability(*given)
    assert found is not None
    return found[:3]


def test_what_chance_makes_of_the_calibration_error_takes_the_answers_of_an_image_together() -> None:
    random, each = np.random.default_rng(0), np.arange(500)
    sure = random.beta(0.5, 5, 500)
    right = random.random(500) < sure
    alone, apart = chance(sure, right), chance(sure, right, each)
    assert apart[1:3] == pytest.approx(alone[1:3], rel=0.05), "one answer an image"
    many = chance(*(np.repeat(values, 8) for values in (sure, right, each)))
    assert many == pytest.approx(apart, rel=1e-9), "8 copies say no more than one"
    images, found = np.repeat(np.arange(60), 40), list[tuple[float, ...]]()
    for _ in range(60):  # calibrated, and 40 answers of an image share half of what decides them
        sure = random.beta(0.5, 5, (60, 40))
        right = norm.cdf((random.standard_normal((60, 1)) + random.standard_normal((60, 40))) / np.sqrt(2)) < sure
        found.append(chance(sure.ravel(), right.ravel(), images))
    errors, by_chance, at_most = np.array(found).T
    assert by_chance.mean() == pytest.approx(errors.mean(), rel=0.15)
    assert (errors > at_most).mean() <= 0.15
    assert (errors > chance(sure.ravel(), right.ravel())[2]).mean() > 0.3, "if all were independent"


@pytest.mark.parametrize(
    ("task", "codec", "truths"),
    [
        ("classify", Classes(("a", "b")), [0, 0]),
        ("multilabel", MultiLabels(("a", "b")), [[1.0, 0.0], [0.0, 1.0]]),
        ("regression", Standardized(("n",), (9.0,), (2.0,)), [[0.1], [0.4]]),
        ("attributes", Attributes(("x", "y"), (("a", "b"), ("c", "d"))), np.eye(4)[[[0, 2], [1, 2]]].tolist()),
    ],
)
def test_of_images_that_were_trained_on_no_interval_is_stated(task: str, codec: Any, truths: list[Any]) -> None:
    """Of every task: not in JSON, at any depth, in no sentence and in no table."""
    labels = torch.tensor(truths)
    inputs = torch.tensor([[2.0, -1.0, 0.5, 0.2], [-0.5, 1.0, 0.1, 0.4]])[:, : codec.outputs]
    metrics = TASKS[task].metrics(Preprocessing((8, 8)), codec)
    batch = SimpleNamespace(inputs=inputs, labels=labels, targets=labels, ids=torch.arange(2).numpy())
    whole = metrics.result([metrics.answers(nn.Identity(), batch)], str)  # pyrefly: ignore[bad-argument-type]

    def ends(value: Any) -> list[Any]:
        if isinstance(value, dict):
            own = [value[each] for each in ("interval", "intervals") if each in value]
            return own + [each for one in value.values() for each in ends(one)]
        return [each for one in value for each in ends(one)] if isinstance(value, (list, tuple)) else []

    def words(result: Result) -> str:
        cells = [cell for table in result.tables if isinstance(table, Table) for row in table.rows for cell in row]
        return " ".join([result.sentence, *result.about, *cells])

    bare = without_interval(whole)
    assert any(ends(whole.details))
    assert not any(ends(bare.details))
    assert (bare.interval, bare.value, bare.details.keys()) == (None, whole.value, whole.details.keys())
    span = re.compile(r"\d+(\.\d+)?( %)? (to|and) \d+(\.\d+)?")
    assert span.search(words(whole))
    assert not span.search(words(bare)), words(bare)


def test_intervals_of_numbers_and_of_f1_are_as_wide_as_figures_of_scikit_learn_move() -> None:
    random, count = np.random.default_rng(5), 300
    true = random.normal(50, 10, count)
    found = true + random.standard_t(5, count) * 6
    flags = (random.random((count, 4)) < [0.5, 0.3, 0.2, 0.05]).astype(np.float64)
    odds = 3 * (flags - 0.5) + random.normal(0, 2, flags.shape)
    numbers, labels = (
        TASKS[name]
        .metrics(Preprocessing((8, 8)), codec)
        .result([{"loss": 0.0, "ids": [*range(count)], "labels": rows.tolist(), "outputs": own.tolist()}], str)
        .details
        for name, codec, rows, own in (
            ("regression", Standardized(("n",), (0.0,), (1.0,)), true[:, None], found[:, None]),
            ("multilabel", MultiLabels(tuple("abcd")), flags, odds),
        )
    )
    (row,), said = numbers["numbers"], odds >= 0
    figures = {
        "mae": (row, lambda some: mean_absolute_error(true[some], found[some])),
        "rmse": (row, lambda some: root_mean_squared_error(true[some], found[some])),
        "r2": (row, lambda some: r2_score(true[some], found[some])),
        "micro_f1": (labels, lambda some: f1_score(flags[some], said[some], average="micro")),
        "macro_f1": (labels, lambda some: f1_score(flags[some], said[some], average="macro")),
    }
    for name, (of, figure) in figures.items():
        drawn = [figure(random.integers(0, count, count)) for _ in range(400)]
        low, high = of["intervals"][name]
        assert of[name] == pytest.approx(figure(np.arange(count)), abs=1e-6)
        assert low < of[name] < high
        assert high - low == pytest.approx(np.ptp(np.quantile(drawn, [0.025, 0.975])), rel=0.3), name


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")  # scikit-learn's
@pytest.mark.parametrize("seed", range(4))
def test_figures_of_classes_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    true, said = random.choice(6, 400, p=[0.5, 0.3, 0.1, 0.06, 0.04, 0]), random.integers(0, 6, 400)
    said = np.where(random.random(400) < 0.7, true, said)
    confusion = np.zeros((6, 6), np.int64)
    np.add.at(confusion, (true, said), 1)
    found = by_class(confusion)
    assert found is not None
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(true, said), abs=1e-12)
    assert found.macro_f1 == pytest.approx(f1_score(true, said, average="macro"), abs=1e-12)
    for value, (low, high) in (found[:2], found[2:]):
        assert 0 <= low < value < high <= 1
    many = by_class(100 * confusion)
    assert many.balanced_accuracy == pytest.approx(found.balanced_accuracy)
    ratio = np.ptp(many.balanced_interval) / np.ptp(found.balanced_interval)
    assert ratio == pytest.approx(0.1, rel=0.25), "a hundred times as many images, a tenth of the interval"
    assert by_class(np.zeros((3, 3), np.int64)) is None
    wilson = binomtest(64, 64).proportion_ci(method="wilson")
    sure, bare = by_class(np.diag([16] * 4)), pytest.approx([wilson.low, wilson.high])
    assert [*sure.balanced_interval] == [*sure.macro_interval] == bare, "all right is no certainty"
    assert [*interval_of_mean(np.eye(64), np.eye(64))] == bare


def test_validation_is_cut_in_three_where_each_is_large_enough() -> None:
    def samples(count: int):
        classes = np.array([0] * (count - 30) + [1] * 27 + [2] * 3, np.int64)
        return label_inputs(Texts(tuple(f"n{number}" for number in range(count))), classes, ("a", "b", "c"))

    codec = Classes(("a", "b", "c"))
    for count in (*range(120, 129), 180):  # however the hash falls
        wide = samples(count)
        found = cut(wide, "label", codec, PARTS)
        assert tuple(found.parts) == PARTS
        assert sorted(np.concatenate([*found.parts.values()]).tolist()) == list(range(count))
        assert min(map(len, found.parts.values())) >= LEAST_CALIBRATE
        labels = wide.column("label").values
        assert all(set(labels[ids].tolist()) == {0, 1, 2} for ids in found.parts.values())
        assert found.calibrates(tested=False) == CALIBRATE
        turned = cut(wide.select(np.arange(count)[::-1]), "label", codec, PARTS)
        assert all(set(count - 1 - turned.parts[name]) == set(ids) for name, ids in found.parts.items())
    two = cut(samples(110), "label", codec, PARTS)
    assert tuple(two.parts) == (SELECT, REPORT)
    assert (two.calibrates(tested=False), two.calibrates(tested=True)) == (SELECT, REPORT)
    assert cut(samples(70), "label", codec, (CALIBRATE, REPORT)).problem


def test_every_verb_has_the_same_probabilities(tmp_path: Path) -> None:
    """One temperature, of the validation images; a set with each prediction, the same in a table."""
    run = run_of("digits")
    model, evaluated = vitrail.load(run), json.loads((run / "evaluation.json").read_text())
    assert model.output.calibration.on == "validation"
    temperature = model.output.temperature
    assert temperature != 1.0
    plain = replace(model.output, calibration=None)
    split = read("digits").splits["test"]
    files = [str(tmp_path / f"{row}.png") for row in range(3)]
    for row, file in enumerate(files):
        split.images.open(row).save(file)
    with torch.no_grad():
        outputs = model.network(model.tensor([split.images.open(row) for row in range(3)]))
    wanted = (outputs / temperature).softmax(dim=1).amax(dim=1).tolist()
    told = json.loads(call("predict", run, *files, "--coverage", "0.9", "--json").out)
    assert [one["probability"] for one in told] == pytest.approx(wanted, abs=1e-6)
    assert all(one["label"] == one["set"][0] for one in told)
    assert call("predict", run, *files, "--coverage", "0.9", "--out", tmp_path / "p.csv").code == 0
    with (tmp_path / "p.csv").open() as file:
        assert [line["set"].split("|") for line in csv.DictReader(file)] == [one["set"] for one in told]
    explained = call(
        "explain", run, files[0], "--json", "--out", tmp_path / "e.html", "--method", "rollout", "--no-trust"
    )
    assert json.loads(explained.out)["images"][0]["probability"] == pytest.approx(wanted[0], abs=1e-6)
    assert plain.answer(outputs, files)[0].probability != pytest.approx(wanted[0], abs=1e-4)
    again = json.loads(call("evaluate", run, "--json").out)
    for key in ("calibration_error", "sets", "balanced_accuracy", "macro_f1", "top5_accuracy"):
        assert again[key] == evaluated[key]
    must_refuse(call("predict", run, *files, "--coverage", "90"), 2, "coverage 90")
