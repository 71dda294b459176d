"""Rare classes: weighted and adjusted losses are torch's, and every class is drawn equally often.

References: torch in float64, scikit-learn's logistic regression with class weights, a plain walk through the draws.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from PIL import Image
from sklearn.linear_model import LogisticRegression

import vitrail
from tests.cli.command import call
from tests.data.lab import LIVELY, PLAIN, labelled_set, noise
from tests.training.tiny import AGAIN, options, stopped, what_was_learnt
from vitrail.data.augmentation import Augmentation
from vitrail.data.columns import TRAIN, Labels
from vitrail.data.dataset import Counts
from vitrail.data.loader import ResidentLoader
from vitrail.data.plan import Share, balanced
from vitrail.errors import UsageError
from vitrail.options import DistillOptions, TrainOptions
from vitrail.runs.settings import read_yaml
from vitrail.tasks import TASKS, Classes
from vitrail.tasks.classify import cross_entropy
from vitrail.tasks.linear import linear_map
from vitrail.tasks.losses import Weighing
from vitrail.tasks.multilabel import MultiLabels
from vitrail.training.configuration.rare import loss_of, read_class_weights, units_of
from vitrail.training.configuration.request import Own, Request
from vitrail.training.configuration.resolve import resolve
from vitrail.training.prepared import open_data

THREE = Classes(("a", "b", "c"))
COUNTS = {"a": 90, "b": 7, "c": 3}
SMOOTH = 0.2
GIVEN = {"a": 1.0, "b": 5.0, "c": 0.5}


def labelled() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and classes of 100 samples, of COUNTS."""
    labels = torch.tensor([0] * 90 + [1] * 7 + [2] * 3)
    return torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), labels


@pytest.mark.parametrize(("given", "wanted"), [("auto", [1 / 90, 1 / 7, 1 / 3]), (GIVEN, [1, 5, 0.5]), (None, [1] * 3)])
def test_the_weighted_loss_is_torchs_with_weights_of_mean_one(given: Any, wanted: list[float]) -> None:
    logits, labels = labelled()
    weights = torch.tensor(wanted, dtype=torch.float64)
    weights *= 100 / weights[labels].sum()
    loss = THREE.weighted(COUNTS, Weighing(given))
    flat = torch.zeros(100, 3, dtype=torch.float64)
    assert float(loss(flat, labels, reduction="sum")) == pytest.approx(100 * np.log(3), rel=1e-12), "mean 1"
    own = F.cross_entropy(logits, labels, weights, reduction="sum")
    torch.testing.assert_close(loss(logits, labels, reduction="sum"), own, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss(logits, labels), own / 100, rtol=1e-12, atol=0)
    partners = labels.flip(0)
    mixed = 0.7 * F.one_hot(labels, 3).double() + 0.3 * F.one_hot(partners, 3).double()
    expected = F.cross_entropy(logits, mixed, weights, reduction="sum")
    torch.testing.assert_close(loss(logits, mixed, reduction="sum"), expected, rtol=1e-12, atol=0)
    smoothed = (1 - SMOOTH) * mixed + SMOOTH / 3
    each = [F.cross_entropy(logits, side, reduction="none", label_smoothing=SMOOTH) for side in (labels, partners)]
    by_hand = (0.7 * weights[labels] * each[0] + 0.3 * weights[partners] * each[1]).sum()
    found = THREE.weighted(COUNTS, Weighing(given, smoothing=SMOOTH))(logits, smoothed, reduction="sum")
    torch.testing.assert_close(found, by_hand, rtol=1e-12, atol=0)
    planted = F.cross_entropy(logits, smoothed, weights, reduction="sum")  # what smoothing adds, weighted by its class
    assert given is None or abs(float(planted - by_hand)) > 0.1
    other = THREE.weighted({**COUNTS, "a": 80}, Weighing(given))(flat, labels, reduction="sum")  # of another split
    assert given is None or abs(float(other) - 100 * np.log(3)) > 1e-3, "the planted fault is seen"


def test_logits_are_adjusted_in_the_loss_alone() -> None:
    logits, labels = labelled()
    prior = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    loss = THREE.weighted(COUNTS, Weighing(tau=1.5))
    expected = F.cross_entropy(logits + 1.5 * prior.log(), labels)
    torch.testing.assert_close(loss(logits, labels), expected, rtol=1e-12, atol=0)
    (batch,) = labelled_set(ResidentLoader(noise(30)[0]), noise(30)[1], augmentation=Augmentation()).batches(0, 30)
    plain = torch.randn(30, 3, generator=torch.Generator().manual_seed(1)) / 10
    _, count, measures = cross_entropy(lambda inputs: plain, batch, loss)
    assert (count, int(measures["correct"])) == (30, int((plain.argmax(1) == batch.labels).sum())), "of plain logits"
    assert bool(THREE.weighted({"a": 9}, Weighing(tau=1.0))(plain, batch.targets).isfinite()), (
        "of classes without a sample"
    )


def test_labels_are_weighted_as_by_pos_weight() -> None:
    draw = torch.Generator().manual_seed(2)
    targets = (torch.rand(400, 3, generator=draw) < torch.tensor([0.5, 0.1, 0.02])).double()
    targets[::9, 1] = torch.nan
    known = ~targets.isnan()
    rates = tuple(float(targets[known[:, n], n].mean()) for n in range(3))
    codec, r = MultiLabels(("a", "b", "c"), rates), torch.tensor(rates, dtype=torch.float64)
    outputs = torch.randn(400, 3, dtype=torch.float64, generator=draw, requires_grad=True)
    for chosen, positive in (("auto", (1 - r) / r), (GIVEN, torch.tensor([1, 5, 0.5], dtype=torch.float64))):
        scale = 1 / (r * positive + 1 - r)
        pairs = torch.where(targets > 0.5, scale * positive, scale)
        for number in range(3):
            assert float(pairs[known[:, number], number].mean()) == pytest.approx(1, rel=1e-12)
        each = F.binary_cross_entropy_with_logits(outputs, targets.nan_to_num(), scale, None, None, "none", positive)
        expected = (each * known).sum() / 3
        found = codec.weighted({}, Weighing(chosen))(outputs, targets, "sum")
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        gradients = [torch.autograd.grad(value, outputs)[0] for value in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-15)
        assert not gradients[0][~known].any(), "of unknown labels there is no gradient"
        soft = (1 - SMOOTH) * targets + SMOOTH / 2
        one = F.binary_cross_entropy_with_logits(outputs, soft.nan_to_num(), reduction="none")
        smoothed = codec.weighted({}, Weighing(chosen, smoothing=SMOOTH))(outputs, soft, "sum")
        torch.testing.assert_close(smoothed, (one * pairs * known).sum() / 3, rtol=1e-12, atol=0)


@pytest.mark.parametrize("focus", [(4.0, 0.0, 0.05), (2.0, 1.0, 0.0), (0.5, 0.5, 0.2), (0.0, 0.0, 0.0)])
def test_the_asymmetric_loss_is_that_of_its_equations(focus: tuple[float, float, float]) -> None:
    negative, positive, clip = focus
    draw = torch.Generator().manual_seed(4)
    outputs = (3 * torch.randn(50, 3, dtype=torch.float64, generator=draw)).requires_grad_()
    targets = torch.rand(50, 3, dtype=torch.float64, generator=draw).round(decimals=1)
    targets[:30] = targets[:30].round()
    targets[::7, 1] = torch.nan
    known, codec = ~targets.isnan(), MultiLabels(("a", "b", "c"), (0.5, 0.5, 0.5))
    found = codec.weighted({}, Weighing(focus=focus))(outputs, targets, "sum")
    p = outputs[known].sigmoid()
    q, there = (p - clip).clamp(min=1e-30), targets[known]
    pairs = there * (1 - p) ** positive * p.log() + (1 - there) * q**negative * (1 - (p - clip).clamp(min=0)).log()
    expected = -pairs.sum() / 3
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(value, outputs)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-15)
    assert not gradients[0][~known].any(), "of unknown labels there is no gradient"
    if not any(focus):
        plain = codec.loss(outputs, targets, "sum")
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=0)
    weighted, even = (
        codec.weighted({}, Weighing(GIVEN, focus=each))(outputs, targets, "sum") for each in (focus, (0.0, 0.0, 0.0))
    )
    torch.testing.assert_close(even, codec.weighted({}, Weighing(GIVEN))(outputs, targets, "sum"), rtol=1e-12, atol=0)
    assert (weighted == even) == (not any(focus))
    far = torch.tensor([[-300.0, 300.0, 0.0]], requires_grad=True)
    for there in (0.0, 1.0):
        loss = codec.weighted({}, Weighing(focus=focus))(far, torch.full((1, 3), there))
        assert bool(torch.autograd.grad(loss, far)[0].isfinite().all())


def test_the_probe_is_scikit_learns_with_class_weights() -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [90, 7, 3])
    values = draw.normal(size=(100, 4)) + labels[:, None]
    theirs = LogisticRegression(C=1 / (0.03 * 100), class_weight="balanced", tol=1e-10, max_iter=5000)
    theirs.fit(values, labels)
    tensors = torch.from_numpy(values), torch.from_numpy(labels)
    ours = linear_map(THREE, *tensors, 0.03, loss=THREE.weighted(COUNTS, Weighing("auto")))
    gaps = ours - ours.mean(dim=0)
    np.testing.assert_allclose(gaps[:, :-1], theirs.coef_, atol=2e-4)
    plain = linear_map(THREE, *tensors, 0.03)
    assert np.abs((plain - plain.mean(dim=0))[:, :-1].numpy() - theirs.coef_).max() > 0.1


# ---- balance


def walked(draws: Iterator[int], classes: np.ndarray, units: np.ndarray) -> bool:
    """Whether draws are as they must be: in a class all units before one comes again, in a unit all samples."""
    turns: dict[Any, set[Any]] = {}
    for id in draws:
        name, unit = int(classes[id]), int(units[id])
        mine = classes == name
        for key, one, all_of in (
            (name, unit, set(units[mine].tolist())),
            ((name, unit), id, set(np.flatnonzero(mine & (units == unit)).tolist())),
        ):
            seen = turns.setdefault(key, set())
            if one in seen:
                return False
            seen.add(one)
            if seen == all_of:
                seen.clear()
    return True


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_balance_is_exact(data: st.DataObject) -> None:
    count, wide, groups = (data.draw(st.integers(low, high)) for low, high in ((1, 40), (1, 5), (0, 6)))
    numbers = st.lists(st.integers(0, wide - 1), min_size=count, max_size=count)
    classes, seed = np.array(data.draw(numbers)), data.draw(st.integers(-(2**63), 2**63 - 1))
    owners = st.lists(st.integers(0, groups), min_size=count, max_size=count)
    units = np.array(data.draw(owners)) if groups else np.arange(count)
    epochs = [balanced(seed, epoch, classes, units) for epoch in range(4)]
    for drawn in (*epochs, np.concatenate(epochs)):
        counts = np.bincount(classes[drawn])[np.unique(classes)]
        assert counts.sum() == len(drawn)
        assert counts.max() - counts.min() <= 1
    assert walked(iter(np.concatenate(epochs).tolist()), classes, units)


def test_an_epoch_that_did_not_go_on_would_be_seen() -> None:
    classes, units = np.repeat([0, 1], [30, 3]), np.arange(33)
    anew = [balanced(seed, 0, classes, units) for seed in range(4)]
    assert not walked(iter(np.concatenate(anew).tolist()), classes, units)
    first = balanced(0, 0, classes, units)
    assert not walked(iter(first[::-1].tolist() + first.tolist()), classes, units)
    assert not np.array_equal(anew[0], anew[1]), "a seed has its own order"


def test_a_recording_of_many_frames_weighs_no_more() -> None:
    classes, units = np.repeat([0, 1], [200, 50]), np.repeat([0, 1, 2], [190, 10, 50])
    ids = np.concatenate([balanced(0, epoch, classes, units) for epoch in range(2)])
    assert np.bincount(units[ids]).tolist() == [125, 125, 250]


@pytest.mark.parametrize("augmentation", [Augmentation(), replace(LIVELY, label_smoothing=0.0)])
def test_who_computes_changes_no_draw(augmentation: Augmentation) -> None:
    """Parts of batches, starts within an epoch and two processes see what one sees; a second time is augmented anew."""
    labels = np.repeat([0, 1], [19, 3])
    data = labelled_set(ResidentLoader(noise(22)[0]), labels, PLAIN, augmentation, 4)
    data = replace(data, units=np.arange(22))
    (whole,) = data.batches(2, 22)
    assert np.bincount(whole.labels).tolist() == [11, 11]
    torch.testing.assert_close(whole.labels, torch.from_numpy(labels[whole.ids]))
    again = [*[*data.batches(2, 8, 0, 3)][:2], *data.batches(2, 8, 2, 3)]
    assert torch.equal(torch.cat([each.inputs for each in again]), whole.inputs)
    both = [[*data.batches(2, 8, share=Share(rank, 2))] for rank in range(2)]
    pairs = [torch.cat([one.inputs, two.inputs]) for one, two in zip(*both, strict=True)]
    assert torch.equal(torch.cat(pairs), whole.inputs)
    for id in set(whole.ids[labels[whole.ids] == 1].tolist()):
        first, second, *more = np.flatnonzero(whole.ids == id)
        assert more
        assert torch.equal(whole.inputs[first], whole.inputs[second]) == (augmentation == Augmentation())
    (few,) = data.subset(np.flatnonzero(labels == 1)).batches(0, 22)
    assert sorted(few.ids.tolist()) == [0, 1, 2]


# ---- runs

HEAVY = "class,weight\n" + "".join(f"{digit},{1 + digit}\n" for digit in range(10))


def test_a_run_that_was_stopped_goes_on_with_the_same_draws_and_weights(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "one.png")
    (tmp_path / "weights.csv").write_text(HEAVY)
    asked = {"balance": True, "class_weights": str(tmp_path / "weights.csv")}
    unbroken = vitrail.train("digits", tmp_path / "whole", options("digits", **asked))
    broken = stopped("digits", tmp_path / "broken", 9, **asked)
    (tmp_path / "weights.csv").write_text(HEAVY.replace("9,10", "9,11"))
    with pytest.raises(UsageError):
        vitrail.train("digits", broken, replace(options("digits", **asked), resume="auto"))
    finished = vitrail.train("digits", broken, AGAIN)
    assert finished.weights == unbroken.weights
    assert what_was_learnt(broken) == what_was_learnt(tmp_path / "whole")
    stored = read_yaml(broken / "config.yaml")["rare"]
    assert stored["class_weights"] == {str(digit): 1.0 + digit for digit in range(10)}
    words = unbroken.model.facts["rare_classes"]
    assert words in unbroken.model.about
    (answer,) = json.loads(call("predict", broken, str(tmp_path / "one.png"), "--json").out)
    assert words in answer["about_probabilities"]
    assert f"with {words};" in (tmp_path / "whole" / "run.html").read_text(), "of the curve of its loss"


def settle(data: str, own: Own | None = None, config: Mapping[str, Any] | None = None, teacher: str = "", **asked: Any):
    """The settings of a new run, with its data."""
    kind = DistillOptions if teacher else TrainOptions
    dataset, task = open_data(data, "auto", None, 0, Counts(40, 10, 10))
    chosen = kind(threads=1, device="cpu", **asked)
    request = Request(data=data, options=chosen, own=own or Own(), config=config or {}, teacher=teacher)
    return resolve(request, dataset, task)[0], dataset


def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    files = {
        "zero.csv": HEAVY.replace("9,10", "9,0"),
        "nan.yaml": "{'0': .nan}",
        "word.json": '{"0": "much"}',
        "switch.json": '{"0": true}',
        "twice.csv": HEAVY + "9,10\n",
        "list.yaml": "[1, 2]",
        "wide.csv": "a,b,c\n",
        "binary.csv": "\0\0",
        "empty.yaml": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError):
            read_class_weights(str(tmp_path / name))
    with pytest.raises(UsageError):
        read_class_weights(str(tmp_path / "nothing.csv"))
    assert read_class_weights("auto") == "auto"
    even = dict.fromkeys(map(str, range(10)), 1.0)
    own = Own(objective=TASKS["classify"].objective(Augmentation()))
    wrong: list[dict[str, Any]] = [
        {"class_weights": "auto", "balance": True},
        {"class_weights": "auto", "logit_adjustment": 1.0},
        {"balance": True, "logit_adjustment": 1.0},
        {"config": {"rare": {"class_weights": {**even, "10": 1.0}}}},
        {"config": {"rare": {"class_weights": {"0": 1.0}}}},
        {"config": {"rare": {"class_weights": {**even, "9": -1.0}}}},
        {"config": {"rare": {"logit_adjustment": -1.0}}},
        {"config": {"rare": {"class_weights": "car"}}},
        {"logit_adjustment": 1.0, "teacher": "runs/big"},
        {"class_weights": "auto", "own": own},
        {"logit_adjustment": 1.0, "own": own},
        {"asymmetric": "4,0,0.05"},
        *({"asymmetric": word} for word in ("4", "4,0", "-1,0,0", "4,0,1", "a,b,c", "nan,0,0")),
    ]
    for asked in wrong:
        with pytest.raises(UsageError):
            settle("digits", **asked)
    for asked in ({"class_weights": "auto"}, {"balance": True}, {"logit_adjustment": 1.0}):
        with pytest.raises(UsageError):
            settle("sort-digits", **asked)
    for asked in ({"balance": True, "own": own}, {"balance": True, "teacher": "runs/big"}, {"class_weights": "auto"}):
        assert settle("digits", **asked)[0].rare.words


def test_a_probe_of_balanced_classes_weighs_them() -> None:
    chosen, dataset = settle("digits", balance=True)
    assert loss_of(chosen, dataset) is None
    assert len(units_of(dataset.train)) == len(dataset.train)
    column = dataset.splits[TRAIN].column("label")
    assert isinstance(column, Labels)
    labels = torch.from_numpy(column.values)
    logits = torch.randn(len(labels), 10, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weights = len(labels) / (10 * torch.bincount(labels).double())
    expected = F.cross_entropy(logits, labels, weights)
    torch.testing.assert_close(loss_of(chosen, dataset, probe=True)(logits, labels), expected, rtol=1e-12, atol=0)
