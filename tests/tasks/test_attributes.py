"""A class of each of several columns: figures are those of scikit-learn, unknown classes change nothing."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

import vitrail
from tests.cli.command import DATA, USAGE, call, must_refuse
from tests.errors import must_raise
from tests.pages.shown import charts_of
from tests.tasks.patterns import SMALL, SPLITS, images
from vitrail.data.columns import Texts
from vitrail.data.layout import Layout
from vitrail.data.multiple import ClassColumns
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError
from vitrail.tasks import Classes, choose_task
from vitrail.tasks.attributes import AttributeClassification, Attributes, columns_cross_entropy
from vitrail.tasks.linear import linear_map
from vitrail.tasks.losses import Weighing
from vitrail.tasks.target import ClassTarget

CODEC = Attributes(("colour", "shape"), (("blue", "red"), ("round", "square", "star")))
COLOURS, SHAPES = CODEC.parts
EXACT = 1e-12


def drawn(seed: int, count: int = 60) -> tuple[torch.Tensor, np.ndarray]:
    """Outputs, and classes of both columns, of which some are not known."""
    draw = np.random.default_rng(seed)
    values = np.stack([draw.integers(-1, 2, count), draw.integers(-1, 3, count)], axis=1)
    return torch.from_numpy(draw.normal(size=(count, 5))), values


def test_the_loss_is_the_sum_over_columns_and_unknown_classes_leave_it_and_the_gradient() -> None:
    outputs, values = drawn(0)
    targets, leaf = CODEC.targets(values), outputs.clone().requires_grad_()
    loss = columns_cross_entropy(leaf, targets, "sum")
    loss.backward()
    labels = torch.from_numpy(values)
    wanted = [
        F.cross_entropy(outputs[:, part], labels[:, n], ignore_index=-1, reduction="sum")
        for n, part in enumerate(CODEC.parts)
    ]
    assert loss.item() == pytest.approx(float(sum(wanted)), abs=EXACT)
    assert columns_cross_entropy(outputs, targets).item() == pytest.approx(loss.item() / 60, abs=EXACT)
    assert leaf.grad is not None
    for n, part in enumerate(CODEC.parts):
        unknown = labels[:, n] < 0
        assert (leaf.grad[unknown][:, part] == 0).all()
        assert (leaf.grad[~unknown][:, part] != 0).all()
    errors = CODEC.error(outputs, targets).tolist()
    for row, error in enumerate(errors):
        known = [n for n in range(2) if values[row, n] >= 0]
        wrong = [int(outputs[row, CODEC.parts[n]].argmax()) != values[row, n] for n in known]
        assert error == pytest.approx(sum(wrong) / len(wrong) if wrong else np.nan, nan_ok=True)


def test_mixed_targets_stay_within_their_columns() -> None:
    outputs, values = drawn(1)
    targets, weights = CODEC.targets(values), torch.rand(60, generator=torch.Generator().manual_seed(0))
    mixed = AttributeClassification().blend(targets, targets.flip(0), weights, 0.1, 5)
    loss, labels = columns_cross_entropy(outputs, mixed, "sum"), torch.from_numpy(values)
    wanted = 0.0
    for n, part in enumerate(CODEC.parts):
        known = (labels[:, n] >= 0) & (labels.flip(0)[:, n] >= 0)
        logits, mass = outputs[known][:, part], weights[known].double()
        for of, share in ((labels, mass), (labels.flip(0), 1 - mass)):
            each = F.cross_entropy(logits, of[known][:, n], label_smoothing=0.1, reduction="none")
            wanted += float((each * share).sum())
    assert loss.item() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("given", "tau"), [("auto", 0.0), (None, 1.0), ({"colour=red": 3.0, "shape=star": 0.5}, 0.0)])
def test_each_column_is_weighted_or_adjusted_by_itself(given: Any, tau: float) -> None:
    """As torch weighs classes; of each column the weights have a mean of 1 over the samples whose class is known."""
    outputs, values = drawn(6)
    column = ClassColumns(values, CODEC.columns, CODEC.classes)
    given = dict.fromkeys(CODEC.names, 1.0) | given if isinstance(given, dict) else given
    loss = CODEC.weighted(column.counts(), Weighing(given, tau=tau))
    leaf, wanted = outputs.clone().requires_grad_(), 0.0
    found = loss(leaf, CODEC.targets(values), "sum")
    found.backward()
    for n, part in enumerate(CODEC.parts):
        known = values[:, n] >= 0
        labels = torch.from_numpy(values[known, n])
        counts = torch.bincount(labels).double()
        each = 1 / counts if given == "auto" else torch.ones(len(counts)).double()
        if isinstance(given, dict):
            each = torch.tensor([given[name] for name in CODEC.names[part]]).double()
        weights, logits = each / each[labels].mean(), outputs[known, part] + tau * (counts / counts.sum()).log()
        wanted += float(F.cross_entropy(logits, labels, weights, reduction="sum"))
        assert leaf.grad is not None
        assert not leaf.grad[~known, part].any(), "of unknown classes there is no gradient"
    assert found.item() == pytest.approx(wanted, rel=EXACT)
    assert loss(outputs, CODEC.targets(values)).item() == pytest.approx(wanted / 60, rel=EXACT)
    none = CODEC.targets(np.full((2, 2), -1))
    assert loss(outputs[:2], none, "sum").item() == 0


def test_a_linear_head_is_logistic_regression_in_each_column() -> None:
    draw, (_, values) = np.random.default_rng(2), drawn(2, 120)
    features = draw.normal(size=(120, 4))
    found = linear_map(CODEC, torch.from_numpy(features), CODEC.targets(values), 0.01)
    for n, part in enumerate(CODEC.parts):
        known = values[:, n] >= 0
        fit = LogisticRegression(C=1 / (0.01 * 120), tol=1e-9, max_iter=2000).fit(features[known], values[known, n])
        if len(fit.coef_) > 1:  # of two classes scikit-learn penalises the difference
            weights = found[part, :-1].numpy()
            assert weights - weights.mean(axis=0) == pytest.approx(fit.coef_ - fit.coef_.mean(axis=0), abs=1e-4)
    one = Attributes(("shape",), (CODEC.classes[1],))
    outputs, labels = drawn(3)[0][:, SHAPES], values[:60, 1].clip(0)
    ours = one.calibrate(outputs, one.targets(labels[:, None]), "validation").temperature
    assert ours == pytest.approx(Classes(one.classes[0]).calibrate(outputs, torch.from_numpy(labels), "v").temperature)


def test_what_is_explained_is_a_class_among_those_of_its_column() -> None:
    outputs, without = drawn(4, 8)[0], drawn(5, 40)[0]
    wanted = torch.tensor([0, 2, 1, 4, 3, 0, 2, 1])
    chosen, codec = CODEC.choose(outputs, wanted), {0: COLOURS, 1: SHAPES}
    rows = {0: [0, 2, 5, 7], 1: [1, 3, 4, 6]}
    for number, part in codec.items():
        some, target = rows[number], wanted[rows[number]] - part.start
        alone = ClassTarget(target, classes=part.stop - part.start)
        assert torch.equal(chosen.effect(outputs, without)[some], alone.effect(outputs[some, part], without[:, part]))
        assert torch.equal(chosen.probability(outputs)[some], alone.probability(outputs[some, part]))
        assert torch.equal(chosen.counted(outputs)[some], alone.counted(outputs[some, part]))
        high = alone.as_high(outputs[some, part], without[:, part], None)
        assert torch.equal(chosen.as_high(outputs, without, None)[:, some], high)
        assert chosen.least[some].tolist() == pytest.approx([alone.least] * 4)
        selected = chosen.select(torch.tensor(some))
        assert torch.equal(selected.effect(outputs[some], without), chosen.effect(outputs, without)[some])
    assert torch.equal(CODEC.choose(outputs).target, outputs[:, COLOURS].argmax(dim=1))
    pair = CODEC.choose(outputs, (3, 4))
    assert torch.equal(pair(outputs), outputs[:, 3] - outputs[:, 4])
    with must_raise(UsageError, "colour=red.*shape=star"):
        CODEC.choose(outputs, (1, 4))
    named = CODEC.predicted(outputs, 5)
    assert [{*row} for row in named] == [{*row} for row in CODEC.best(outputs)[0].tolist()]
    assert all(len(row) == 1 for row in CODEC.predicted(outputs, 1))


def test_classes_of_other_data_are_matched_by_name_and_new_ones_counted() -> None:
    column = ClassColumns.of({"shape": ["star", "moon", "", "round"], "size": ["1", "2", "", "1"]})
    assert column.word(2) == ""
    found, ids, unknown = CODEC.match(column)
    assert ids is None
    assert unknown == {"shape=moon": 1}
    assert isinstance(found, ClassColumns)
    assert found.values.tolist() == [[-1, 2], [-1, -1], [-1, -1], [-1, 0]]
    assert AttributeClassification().codec_from_dict(CODEC.to_dict()) == CODEC
    for wrong in (Texts(("a",)), ClassColumns.of({"size": ["1"]})):
        with must_raise(UsageError if isinstance(wrong, Texts) else DataError):
            CODEC.match(wrong)
    for columns, classes in ((("a", "a"), (("x",), ("y",))), (("a",), (("x",), ("y",))), (("a",), (("x", "x"),))):
        with must_raise(UsageError):
            Attributes(columns, classes)


# ---- from a list to a page


@pytest.mark.parametrize(
    ("columns", "task", "others"),
    [
        ({"colour": ["red", "blue"], "shape": ["round", ""]}, "attributes", ()),
        ({"grade": [1, 2], "kind": [3, 4]}, "attributes", ("regression",)),  # whole, and each many times
        ({"age": [1, 2], "kind": [3, 4]}, "regression", ()),  # by its name
        ({"a": [1.5, 2], "b": [3, 4]}, "regression", ()),
        ({"a": [0, 1], "b": [1, 1]}, "multilabel", ()),
        ({"a": [0, 1], "b": [1, 0]}, "classify", ()),
    ],
)
def test_several_columns_are_classes_labels_or_numbers_by_a_rule(
    columns: dict[str, list[object]], task: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    photo = images(np.zeros((1, 3)), "one", 0).open(0)
    rows = [["path", *columns]]
    for number in range(40):
        photo.save(tmp_path / f"{number}.png")
        rows.append([f"{number}.png", *(str(values[number % 2]) for values in columns.values())])
    (tmp_path / "list.csv").write_text("\n".join(map(",".join, rows)))
    raw = read(str(tmp_path / "list.csv"), layout=Layout(label_column=",".join(columns)))
    assert choose_task("list", raw.columns()).name == task
    assert all(choose_task("list", raw.columns(), other).name == other for other in others)
    mixed = "\n".join([",".join([*rows[0], "age"]), *(",".join([*row, str(n)]) for n, row in enumerate(rows[1:]))])
    (tmp_path / "list.csv").write_text(mixed)
    if task == "attributes" and not others:
        with must_raise(UsageError, "age.*colour"):
            read(str(tmp_path / "list.csv"), layout=Layout(label_column="colour,age"))


def write_things(folder: Path) -> Path:
    """A colour that the first band shows and a shape that the second does; some colours are not known."""
    rows, colours, shapes = list[dict[str, str]](), *CODEC.classes
    for seed, (split, count) in enumerate(SPLITS.items()):
        draw = np.random.default_rng(seed)
        colour, shape = draw.integers(0, 2, count), draw.integers(0, 3, count)
        found = images(np.stack([2.0 * colour - 1, shape - 1.0, 0 * shape], axis=1), split, seed)
        for row in range(count):
            found.open(row).save(folder / f"{split}{row}.png")
            known = "" if row % 10 == 0 else colours[colour[row]]
            rows.append({"path": f"{split}{row}.png", "split": split, "colour": known, "shape": shapes[shape[row]]})
    with open(folder / "list.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "list.csv"


@pytest.mark.usefixtures("as_a_user")
def test_a_list_is_learnt_and_every_verb_answers(tmp_path: Path) -> None:
    listed, run, both = write_things(tmp_path), tmp_path / "run", ("--label-column", "colour,shape")
    (tmp_path / "small.yaml").write_text(f"{SMALL}augmentation: {{mixup: 0.1, label_smoothing: 0.05}}\n")
    words = ("--config", tmp_path / "small.yaml", "--epochs", 16, "--batch-size", 16, "--lr", 4e-3, "--threads", 1)
    trained = call("train", listed, *both, "--out", run, *words, "--image-size", 24)
    assert trained.code == 0, trained.err
    drawn = {title: len(lines) for title, lines in charts_of((run / "run.html").read_text("utf-8")).items()}
    assert drawn == {"Loss": 2, vitrail.tasks.TASKS["attributes"].metric.label.capitalize(): 2, "Learning rate": 1}
    answer, model = json.loads(call("evaluate", run, "--json").out), vitrail.load(run)
    codec, split = model.output, read(str(listed), layout=Layout(label_column="colour,shape")).splits["test"]
    assert isinstance(codec, Attributes)
    assert (codec.columns, codec.classes) == (CODEC.columns, CODEC.classes)
    column = split.column("attributes")
    assert isinstance(column, ClassColumns)
    with torch.no_grad():
        outputs = model.network(model.tensor([split.images.open(row) for row in range(len(split))]))
    for n, (row, part) in enumerate(zip(answer["columns"], codec.parts, strict=True)):
        known = column.values[:, n] >= 0
        pair = column.values[known, n], outputs[:, part].argmax(dim=1).numpy()[known]
        assert row["images"] == known.sum()
        assert row["accuracy"] == pytest.approx(accuracy_score(*pair), abs=EXACT)
        assert row["balanced_accuracy"]["value"] == pytest.approx(balanced_accuracy_score(*pair), abs=EXACT)
        assert row["macro_f1"]["value"] == pytest.approx(f1_score(*pair, average="macro"), abs=EXACT)
        low, high = row["interval"]
        assert low < row["accuracy"] <= high
    value = np.mean([row["accuracy"] for row in answer["columns"]])
    assert answer["mean_accuracy"] == pytest.approx(value, abs=EXACT)
    assert value > 0.8
    test = [tmp_path / f"test{number}.png" for number in range(5)]
    table = tmp_path / "table.csv"
    assert call("predict", run, *test, "--out", table).code == 0
    (one, *_) = json.loads(call("predict", run, *test, "--json").out)
    for (name, own), part in zip(one["columns"].items(), codec.parts, strict=True):
        sure, best = (outputs[0, part] / codec.temperature).softmax(dim=0).max(dim=0)
        assert own["class"] == codec.classes[codec.columns.index(name)][int(best)]
        assert own["probability"] == pytest.approx(float(sure), abs=1e-5)
    again = json.loads(call("evaluate", run, table, "--split", "all", *both, "--json").out)
    assert again["mean_accuracy"] == 1, "a table of predictions is a list"
    for words, shown in (((), one["attributes"]), (("--target", "colour=red"), ["colour=red"])):
        explained = call("explain", run, test[0], *words, "--json", "--out", tmp_path / "e.html")
        assert explained.code == 0, explained.err
        found = json.loads(explained.out)["images"][0]["attributions"]
        assert {each["target"] for each in found} == {*shown}
        for each in found:
            count = len(codec.classes[codec.columns.index(each["target"].partition("=")[0])])
            assert each["trust"]["minimum_effect"] == pytest.approx(np.log(count))
    assert call("data", "pack", listed, *both, "--out", tmp_path / "packed").code == 0
    fixed = ("data", "check", listed, *both, "--out", tmp_path / "d.html", "--fix-split", tmp_path / "fixed.csv")
    assert call(*fixed).code == 0
    for data in (tmp_path / "packed", tmp_path / "fixed.csv"):  # the run knows its columns
        same = json.loads(call("evaluate", run, data, "--json").out)
        assert same["columns"] == answer["columns"]
    again = ("train", listed, *both, "--init", run, "--epochs", 1, "--threads", 1, "--verdicts", 2)
    assert call(*again, "--out", tmp_path / "tuned").code == 0
    told = json.loads((tmp_path / "tuned" / "evaluation.json").read_text())
    assert told["mean_accuracy"] > 0.8
    assert told["probe"]["accuracy"] < 0.2, "the error of its probe, a distance, is no level of an accuracy"
    assert "linear probe (all of validation)" not in (tmp_path / "tuned" / "run.html").read_text()
    must_refuse(call("evaluate", run, listed, "--label-column", "shape"), DATA, "attributes")
    must_refuse(call("explain", run, test[0], "--target", "colour=rd"), USAGE, "colour=rd")
    must_refuse(call("train", listed, "--label-column", "shape,split", "--out", tmp_path / "x"), DATA, "split")
    for option in ("--balance", "--asymmetric"):
        more = (option, "4,0,0.05")[: 1 + (option == "--asymmetric")]
        refused = call("train", listed, *both, *more, "--out", tmp_path / "x")
        must_refuse(refused, USAGE, f"{option} attributes")
    weights = tmp_path / "weights.csv"
    weights.write_text("class,weight\nred,2\n")
    must_refuse(call("train", listed, *both, "--class-weights", weights, "--out", tmp_path / "x"), USAGE, "red")
    assert not (tmp_path / "x").exists()


def test_so_many_classes_of_each_column_are_named_and_no_column_is_dropped() -> None:
    codec = Attributes(("colour", "shape"), (("blue", "red", "green"), ("round", "square")), most=1)
    outputs = torch.tensor([[9.0, 8.9, 0.0, 0.1, 0.0], [0.0, 1.0, 2.0, 0.0, 9.0]])
    for most in (1, 2, 9):
        for one, row in zip(replace(codec, most=most).answer(outputs, ["x", "y"]), outputs, strict=True):
            parts = (row[:3].softmax(dim=0).tolist(), row[3:].softmax(dim=0).tolist())
            named = [sorted(zip(part, names, strict=True))[::-1][:most] for part, names in zip(
                parts, (codec.names[:3], codec.names[3:]), strict=True)]  # fmt: skip
            wanted = sorted([each for part in named for each in part])[::-1]
            assert [name for name, _ in one.top] == [name for _, name in wanted]
            assert [value for _, value in one.top] == pytest.approx([value for value, _ in wanted])
