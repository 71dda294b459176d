"""Several labels an image: figures are those of scikit-learn, unknown labels change nothing, thresholds are fitted."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score, label_ranking_average_precision_score
from torch import nn

import vitrail
from tests.cli.command import DATA, USAGE, call, must_refuse
from tests.errors import must_raise
from tests.pages.shown import charts_of
from tests.tasks.patterns import SMALL, SPLITS, images
from vitrail.cli.predict import _cells
from vitrail.data.columns import RawDataset, Samples, Texts
from vitrail.data.dataset import Counts, match_split
from vitrail.data.multiple import LabelSets
from vitrail.data.sources import read_images
from vitrail.errors import DataError, UsageError
from vitrail.explain.reporting.job import explain_all
from vitrail.explain.reporting.plan import ReportOptions
from vitrail.explain.reporting.summary import BELOW
from vitrail.explain.sanity_check import scramble
from vitrail.pages import Confusion
from vitrail.tasks.multilabel import MultiLabel, MultiLabels, binary_cross_entropy
from vitrail.tasks.ranking import MultiLabelMetrics, average_precisions, best_threshold
from vitrail.tasks.target import beside_doubt
from vitrail.training.prepared import open_data

NAMES = ("bird", "cat", "dog")
EXACT = 1e-12


def drawn(seed: int, count: int = 60, labels: int = 5, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Outputs, of which many are equal where there are few steps, and targets."""
    draw = np.random.default_rng(seed)
    targets = (draw.random((count, labels)) < draw.uniform(0.05, 0.6, labels)).astype(np.float64)
    targets[0] = 1
    outputs = draw.normal(size=(count, labels)) + targets
    return outputs if steps is None else np.round(outputs * steps) / steps, targets


@pytest.mark.parametrize("steps", [None, 1])
@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_scikit_learn(seed: int, steps: int | None) -> None:
    outputs, targets = drawn(seed, steps=steps)
    wanted = [average_precision_score(targets[:, n], outputs[:, n]) for n in range(targets.shape[1])]
    assert average_precisions(outputs, targets) == pytest.approx(wanted, abs=EXACT)
    weights = np.random.default_rng(seed).integers(0, 3, len(outputs))
    weights[0] = 1
    weighed = [average_precision_score(t, o, sample_weight=weights) for t, o in zip(targets.T, outputs.T, strict=True)]
    assert average_precisions(outputs, targets, weights) == pytest.approx(weighed, abs=EXACT)
    unknown = np.random.default_rng(seed + 9).random(targets.shape) < 0.3
    unknown[0] = False
    holes = np.where(unknown, np.nan, targets)
    left = [average_precision_score(t[~u], o[~u]) for t, o, u in zip(targets.T, outputs.T, unknown.T, strict=True)]
    assert average_precisions(outputs, holes) == pytest.approx(left, abs=EXACT)
    assert np.isnan(average_precisions(outputs, np.zeros_like(targets))).all()
    codec = MultiLabels(tuple("abcde"))
    errors = codec.error(torch.from_numpy(outputs), torch.from_numpy(targets)).numpy()
    for row, error in enumerate(errors):
        one = label_ranking_average_precision_score(targets[row : row + 1], outputs[row : row + 1])
        assert 1 - error == pytest.approx(one, abs=EXACT)


def test_a_mistake_is_a_label_that_is_predicted_where_it_is_absent_and_examples_stand_in_the_order_shown() -> None:
    outputs, targets = drawn(1)
    targets[5:9, 1] = np.nan
    codec = MultiLabels(tuple("abcde"), thresholds=(0.3,) * 5)
    rows = {"loss": 1.0, "ids": [*range(60)], "outputs": outputs, "labels": targets}
    found = MultiLabelMetrics(codec).result([rows], str)
    (table,) = [each for each in found.tables if isinstance(each, Confusion)]
    said, absent = outputs > np.log(0.3 / 0.7), targets == 0
    for row in range(5):
        there = targets[:, row] == 1
        assert table.images[row] == there.sum()
        for label in range(5):
            wanted = there & said[:, label] & (absent[:, label] if label != row else True)
            assert table.counts[row, label] == wanted.sum()
        lacking = absent[:, row]
        assert table.labels[row].tolist() == [there.sum(), lacking.sum(), (lacking & said[:, row]).sum()]
    counts = (absent & said).sum(axis=0)
    assert [counts[label] for label in table.wrongly(3)] == sorted(counts.tolist())[::-1][:3]
    wrong, right = ([one.probability for one in found.examples if one.right == side] for side in (False, True))
    sure = 1 / (1 + np.exp(-np.abs(outputs).min(axis=1)))
    assert len(wrong) == 12
    assert [wrong, right] == [sorted(wrong)[::-1], sorted(right)]
    assert wrong[0] == pytest.approx(max(sure[one] for one in range(60) if found.truths[one] != found.answers[one]))


@pytest.mark.parametrize("seed", range(5))
def test_a_threshold_has_the_highest_f1(seed: int) -> None:
    outputs, targets = drawn(seed, steps=2)
    odds, there = torch.from_numpy(outputs).flatten(), torch.from_numpy(targets).flatten() > 0.5
    limit = best_threshold(odds, there)
    tried = [f1_score(there, odds >= value) for value in odds.unique().tolist()]
    assert f1_score(there, odds >= limit) == max(tried)


def test_what_is_predicted_is_among_those_that_are_named_however_few() -> None:
    codec = MultiLabels(tuple("abcd"), thresholds=(0.9, 0.2, 0.3, 0.1), most=1)
    (one,) = codec.answer(torch.tensor([[0.8, 0.3, 0.25, 0.05]]).logit(), ["x"])
    assert [name for name, _ in one.top] == ["a", "b"]  # the most probable one is not predicted, the second is
    assert [name for name, _ in one.labels] == ["b"]
    _, line = _cells(one, 1)
    assert [each.endswith("*") for each in line.split() if each[0].isalpha()] == [False, True]


def test_labels_with_many_images_have_a_threshold_of_their_own_near_the_common_one() -> None:
    outputs, targets = drawn(3, count=400, labels=3)
    targets[:, 2] = 0
    targets[:19, 2] = 1
    outputs[:, 0] += 3  # a label that is said too surely
    codec = MultiLabels(NAMES).settle(torch.from_numpy(outputs), torch.from_numpy(targets))
    odds = torch.tensor(codec.thresholds, dtype=torch.float64).logit()
    known = torch.from_numpy(outputs), torch.from_numpy(targets) > 0.5
    common = best_threshold(*(each.flatten() for each in known))
    assert odds[2] == pytest.approx(common, abs=1e-9)
    for number in (0, 1):
        own, count = best_threshold(*(each[:, number] for each in known)), int(targets[:, number].sum())
        assert odds[number] == pytest.approx((count * own + 20 * common) / (count + 20), abs=1e-9)
    assert codec.says(known[0]).equal(known[0] >= odds)
    unknown = torch.full_like(known[0], torch.nan)
    assert MultiLabels(NAMES).settle(known[0], unknown) == MultiLabels(NAMES)


def test_unknown_labels_leave_loss_and_gradient() -> None:
    outputs, targets = (torch.from_numpy(each) for each in drawn(1))
    targets[::3, 1] = torch.nan
    leaf = outputs.clone().requires_grad_()
    loss = binary_cross_entropy(leaf, targets, "sum")
    loss.backward()
    assert leaf.grad is not None
    assert (leaf.grad[::3, 1] == 0).all()
    wanted = nn.BCEWithLogitsLoss(reduction="none")(outputs, targets.nan_to_num(0.0))
    assert loss.item() == pytest.approx(float(wanted[~targets.isnan()].sum()) / 5, abs=EXACT)
    other = targets.clone()
    assert torch.equal(other.isnan(), targets.isnan())
    mixed = MultiLabel().blend(targets, targets.flip(0), torch.full((60,), 0.25), 0.1, 5)
    unknown = targets.isnan() | targets.flip(0).isnan()
    assert torch.equal(mixed.isnan(), unknown)
    exact = 0.9 * (0.25 * targets + 0.75 * targets.flip(0)) + 0.05
    assert mixed[~unknown].tolist() == pytest.approx(exact[~unknown].tolist(), abs=EXACT)


def test_labels_of_other_data_are_matched_by_name_and_new_ones_counted() -> None:
    column = LabelSets.of([["dog"], ["cat", "zebra"], [], ["zebra"]])
    codec = MultiLabels(NAMES)
    found, ids, unknown = codec.match(column)
    assert ids is None
    assert unknown == {"zebra": 2}
    assert isinstance(found, LabelSets)
    assert found.values.tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert codec.targets(np.array([[1, 0, -1]], np.int8)).nan_to_num(9).tolist() == [[1, 0, 9]]
    with must_raise(UsageError):
        codec.match(Texts(("a",)))
    for wrong in ({"names": ("a", "a")}, {"names": NAMES, "rates": (0.1,)}, {"names": NAMES, "thresholds": (2.0,) * 3}):
        with must_raise(UsageError):
            MultiLabels(**wrong)


def test_evidence_for_a_label_takes_it_from_its_base_rate_to_even_odds() -> None:
    codec = MultiLabels(NAMES, rates=(0.5, 0.1, 0.01))
    outputs = torch.tensor([[0.0, 2.0, -3.0], [1.0, -1.0, 0.5]])
    chosen = codec.choose(outputs)
    assert chosen.target.tolist() == [1, 0]
    assert chosen.least.tolist() == pytest.approx([np.log(9), 0.0])
    assert codec.choose(outputs, 2).least.tolist() == pytest.approx([np.log(99)] * 2)
    without = torch.tensor([[0.0, -2.0, 0.0], [0.0, -1.0, 0.0], [0.0, 5.0, 0.0]])
    assert chosen.effect(outputs, without).tolist() == [3.0, 1.0]
    assert chosen.probability(outputs).tolist() == pytest.approx(
        [float(torch.sigmoid(torch.tensor(v))) for v in (2, 1)]
    )
    with must_raise(UsageError, "contrast"):
        codec.choose(outputs, (0, 1))


def test_a_label_that_is_not_predicted_and_was_chosen_for_being_the_highest_is_held_against_the_highest() -> None:
    """Of ten labels that nobody predicts one is the highest of every image: that alone is no evidence."""
    codec, faint = MultiLabels(NAMES), torch.tensor([[-3.0, -1.0, -2.0]])
    without = torch.tensor([[0.0, -2.0, -9.0], [-4.0, -3.0, -3.5], [-4.0, -1.0, -9.0]])
    # beside the doubt about the others faint is -1.80, 0.90, -0.58
    # and the others are 2.25, -0.61, -7.96; -1.39, 0.08, -0.73; -2.37, 3.03, -7.46

    def as_high(outputs: torch.Tensor, wanted: int | None = None) -> list[bool]:
        return codec.choose(outputs, wanted).as_high(outputs, without, None)[:, 0].tolist()

    assert as_high(faint) == as_high(faint, 1) == [True, False, True]
    assert codec.choose(faint).as_high_itself(faint, without, None)[:, 0].tolist() == [False, False, True]
    assert as_high(faint, 2) == [False, False, False], "asked for, and not the highest: by itself"
    sure = faint + torch.tensor([0.0, 1.5, 0.0])  # 2.40
    assert as_high(sure) == [False, False, True], "predicted: by itself"
    low = MultiLabels(NAMES, thresholds=(0.1, 0.1, 0.1))
    assert low.choose(faint).as_high(faint, without, None)[:, 0].tolist() == [False, False, True]
    assert codec.choose(faint).select(slice(0, 1)).among.tolist() == [True]


def test_odds_stand_beside_the_doubt_about_the_other_labels() -> None:
    """Of what is hardly there they are the odds of a class; what is surely there leaves no doubt; of one label odds."""
    faint = torch.tensor([[-9.0, -12.0, -14.0, -11.0]], dtype=torch.float64)
    wanted = torch.stack([faint[0, k] - faint[0, torch.arange(4) != k].logsumexp(dim=0) for k in range(4)])
    assert torch.allclose(beside_doubt(faint)[0], wanted, atol=1e-3)
    sure = torch.cat([faint, torch.tensor([[40.0]], dtype=torch.float64)], dim=1)
    assert torch.allclose(beside_doubt(sure)[0, :4], beside_doubt(faint)[0], atol=1e-6)
    rows = torch.tensor([[3.0, 0.5, -2.0, 1.5]], dtype=torch.float64)
    odds, p = rows[0].numpy(), 1 / (1 + np.exp(-rows[0].numpy()))
    others = [np.log(sum(p[j] * (1 - p[j]) for j in range(4) if j != k)) for k in range(4)]
    assert beside_doubt(rows)[0].tolist() == pytest.approx(odds - others)
    alone = torch.tensor([[-1.0], [50.0], [2.0]])
    assert beside_doubt(alone)[:, 0].argsort().tolist() == [0, 2, 1]
    assert beside_doubt(torch.full((1, 3), 900.0)).isfinite().all()


# ---- from a list to a page


def write_pets(folder: Path, form: str) -> Path:
    """Which of three patterns an image has: as words with bars, as lists in JSON, or as columns, of which some are
    empty in training."""
    listed = folder / ("list.jsonl" if form == "json" else "list.csv")
    rows = list[dict[str, object]]()
    for seed, (split, count) in enumerate(SPLITS.items()):
        there = np.random.default_rng(seed).integers(0, 2, (count, len(NAMES)))
        drawn_images = images(2.0 * there - 1, split, seed, purity=0.8)
        for row in range(count):
            name = f"{split}{row}.png"
            drawn_images.open(row).save(folder / name)
            labels = [label for label, has in zip(NAMES, there[row], strict=True) if has]
            cells: dict[str, object] = {"path": name, "split": split}
            if form == "columns":
                unknown = split == "train" and row % 10 == 0
                cells |= {label: "" if unknown else int(label in labels) for label in NAMES}
            else:
                cells["labels"] = labels if form == "json" else "|".join(labels)
            rows.append(cells)
    if form == "json":
        listed.write_text("\n".join(map(json.dumps, rows)))
    else:
        with open(listed, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return listed


def test_lists_and_columns_are_read_as_words_are(tmp_path: Path) -> None:
    found = {}
    for form in ("words", "json", "columns"):
        (tmp_path / form).mkdir()
        found[form] = vitrail.data.read(str(write_pets(tmp_path / form, form))).splits
    for split in SPLITS:
        words, lists, columns = (found[form][split].column("labels") for form in found)
        assert words.names == lists.names == columns.names == NAMES
        assert np.array_equal(lists.values, words.values)
        unknown = (np.arange(len(words)) % 10 == 0) & (split == "train")
        assert (columns.values[unknown] == -1).all()
        assert np.array_equal(columns.values[~unknown], words.values[~unknown])


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "form", ["words", *(pytest.param(form, marks=pytest.mark.soak) for form in ("json", "columns"))]
)
def test_a_list_is_learnt_and_every_verb_answers(form: str, tmp_path: Path) -> None:
    listed, run = write_pets(tmp_path, form), tmp_path / "run"
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("--config", tmp_path / "small.yaml", "--epochs", 16, "--batch-size", 16, "--lr", 4e-3, "--threads", 1)
    trained = call("train", listed, "--out", run, *words, "--image-size", 24)
    assert trained.code == 0, trained.err
    stored = json.loads((run / "evaluation.json").read_text())
    assert stored["mean_average_precision"] > 0.8
    drawn = {title: len(lines) for title, lines in charts_of((run / "run.html").read_text("utf-8")).items()}
    assert [*drawn.values()] == [2, 1, 1, 1], "no figure of training but the loss is that of validation"
    assert drawn[vitrail.tasks.TASKS["multilabel"].metric.label.capitalize()] == 1
    model = vitrail.load(run)
    codec = model.output
    assert isinstance(codec, MultiLabels)
    assert codec.names == NAMES
    assert len({*codec.thresholds} - {0.5}) > 0, "thresholds were fitted"
    answer = json.loads(call("evaluate", run, "--json").out)
    assert answer["mean_average_precision"] == pytest.approx(stored["mean_average_precision"], abs=1e-6)
    split = vitrail.data.read(str(listed)).splits["test"]
    opened = [split.images.open(row) for row in range(len(split))]
    with torch.no_grad():
        outputs = model.network(model.tensor(opened)).double()
    truths = codec.match(split.column("labels")).column.values > 0
    precisions = [average_precision_score(truths[:, n], outputs[:, n].numpy()) for n in range(3)]
    assert answer["mean_average_precision"] == pytest.approx(np.mean(precisions), abs=1e-6)
    said = codec.says(outputs).numpy()
    assert answer["micro_f1"] == pytest.approx(f1_score(truths, said, average="micro"), abs=1e-9)
    assert answer["macro_f1"] == pytest.approx(f1_score(truths, said, average="macro"), abs=1e-9)
    (one,) = json.loads(call("predict", run, tmp_path / "test0.png", "--json").out)
    assert {*one["labels"]} == {name for name, has in zip(NAMES, said[0], strict=True) if has}
    if form != "words":
        return
    table = tmp_path / "table.csv"
    assert call("predict", run, *sorted(tmp_path.glob("test*.png"))[:20], "--out", table).code == 0
    again = call("evaluate", run, table, "--split", "all", "--json")  # a table of predictions is a list
    assert again.code == 0, again.err
    explained = call("explain", run, tmp_path / "test0.png", "--target", "dog", "--json", "--out", tmp_path / "e.html")
    assert explained.code == 0, explained.err
    (shown,) = json.loads(explained.out)["images"]
    trust = shown["attributions"][0]["trust"]
    assert trust["minimum_effect"] == pytest.approx(codec.least(2))
    check_maps_of_labels(model, run, tmp_path)
    assert call("doctor", run).code in (0, 1)
    near = call("similar", run, listed, tmp_path / "test1.png", "--json", "--out", tmp_path / "near.html")
    assert near.code == 0, near.err


def check_maps_of_labels(model: vitrail.Model, run: Path, folder: Path) -> None:
    """A map for each label above its threshold, that of `--target`; of none the most probable; as pages, JSON, jobs."""
    codec, every = model.output, sorted(folder.glob("test*.png"))[:40]
    with torch.no_grad():
        outputs = model.network(model.tensor([Image.open(file) for file in every])).double()
    odds = (outputs / codec.temperature).sigmoid().numpy()
    thresholds = np.where([True, True, False], np.array(codec.thresholds), 1.0)  # the last label is never predicted
    settled = replace(model, output=replace(codec, thresholds=tuple(thresholds.tolist())))
    said = [sorted(np.flatnonzero(row >= thresholds), key=lambda n: -row[n]) for row in odds]
    some = [place for count in (2, 0, 1) for place in [n for n, each in enumerate(said) if len(each) == count][:3]]
    files, wanted, odds = [every[n] for n in some], [said[n] for n in some], odds[some]
    assert {len(each) for each in wanted} == {0, 1, 2}, "the images show all cases"
    asked, alone = {"full": True, "precision": "fp32", "trust": True}, dict[str, vitrail.explain.Report]()
    found = vitrail.explain.report(settled, files, **asked)
    for name in NAMES:
        alone[name] = vitrail.explain.report(settled, files, target=name, **asked)
    for place, (one, labels) in enumerate(zip(found, wanted, strict=True)):
        answer = one.to_dict()
        assert answer["labels"] == [NAMES[n] for n in labels]
        shown = [NAMES[n] for n in labels or [odds[place].argmax()]]
        assert [each["target"] for each in answer["attributions"]] == shown
        assert all((BELOW in each["notes"]) == (not labels) for each in answer["attributions"])
        assert len(one.view.labels) == (len(shown) if len(shown) > 1 else 0)
        for number, name in enumerate(shown):
            same, view = alone[name][place], one.view.by_label[number]
            assert torch.allclose(one.attributions[number].values, same.attributions[0].values, rtol=1e-4, atol=1e-7)
            ours, theirs = (each.attributions[0].trust for each in (view, same.view))
            assert (ours.verdict, ours.evidence, ours.surrogates) == (
                theirs.verdict,
                theirs.evidence,
                theirs.surrogates,
            )
            assert ours.before == pytest.approx(odds[place, NAMES.index(name)], abs=1e-4)
            assert ours.score == pytest.approx(theirs.score, abs=1e-3)
            assert same.view.summary[1:] == view.summary[1:] or not labels
    assert found.rates[0].images == sum(max(1, len(each)) for each in wanted)
    page = found.page()
    assert all(
        page.count(f"<h3>{name}</h3>") == sum(n in w for w in wanted if len(w) > 1) for n, name in enumerate(NAMES)
    )
    first = vitrail.explain.report(settled, files, top_labels=1, trust=False)
    assert [[view.target for view in one.view.attributions] for one in first] == [
        [NAMES[(labels or [row.argmax()])[0]]] for labels, row in zip(wanted, odds, strict=True)
    ]
    saved, out = vitrail.load(settled.save(folder / "settled")), folder / "maps.jsonl"
    samples, how = read_images([str(file) for file in every], flat=True).held_out, ReportOptions(trust=False)

    def dying(done: int, total: int) -> None:
        if 0 < done < total:
            raise KeyboardInterrupt

    explain_all(samples, saved, folder / "whole.jsonl", how)
    with pytest.raises(KeyboardInterrupt):
        explain_all(samples, saved, out, how, progress=dying)
    assert not out.exists()
    explain_all(samples, saved, out, how)
    lines = out.read_text()
    assert lines.replace('"maps/', '"whole/') == (folder / "whole.jsonl").read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [[one["target"] for one in rows[n]["attributions"]] for n in some] == [
        [view.target for view in one.view.attributions] for one in found
    ]
    must_refuse(call("explain", run, files[0], "--target", "dog", "--top-labels", 2), USAGE, "--top-labels")
    must_refuse(call("explain", run, files[0], "--top-labels", 0), USAGE, "top")
    with must_raise(UsageError, "top_labels"):
        vitrail.explain.report(settled, files[0], target="dog", top_labels=2)


def test_at_most_five_labels_are_explained() -> None:
    config = vitrail.ViTConfig(image_size=16, patch_size=4, classes=8, width=16, depth=1, heads=2)
    network = scramble(vitrail.ViT(config), 0)
    names = tuple("abcdefgh")
    labels = MultiLabels(names, thresholds=(1e-9,) * 8)
    model = vitrail.Model(network.eval(), vitrail.Preprocessing((16, 16)), labels, vitrail.tasks.TASKS["multilabel"])
    image = Image.new("RGB", (16, 16), (90, 10, 200))
    for top, count in ((None, 5), (2, 2), (7, 7), ("all", 8)):
        (one,) = vitrail.explain.report(model, image, top_labels=top, trust=False)
        shown = [view.target for view in one.view.attributions]
        assert len(shown) == count
        assert shown == [name for name, _ in one.prediction.labels][:count]
    for wrong, given in ((0, "0"), (-1, "-1")):
        with must_raise(UsageError, given):
            vitrail.explain.report(model, image, top_labels=wrong)
    classes = vitrail.Model(network, vitrail.Preprocessing((16, 16)), vitrail.tasks.Classes(names))
    with must_raise(UsageError, "top_labels"):
        vitrail.explain.report(classes, image, top_labels=2)


def test_what_cannot_be_learnt(tmp_path: Path) -> None:
    listed = write_pets(tmp_path, "words")
    none = tmp_path / "none.csv"
    none.write_text(listed.read_text().replace("bird", "").replace("cat", "").replace("dog", "").replace("|", ""))
    must_refuse(call("train", none, "--task", "multilabel", "--out", tmp_path / "x"), DATA, "none.csv multilabel")
    must_refuse(call("train", listed, "--task", "classify", "--out", tmp_path / "x"), DATA, "list.csv labels classify")
    assert not (tmp_path / "x").exists()
    head, *lines = write_pets(tmp_path, "columns").read_text().splitlines()
    listed.write_text("\n".join([f"{head},never", *(f"{line},0" for line in lines)]))
    dataset, _ = open_data(str(listed), "auto", None, 0, Counts())
    assert dataset.codec.names == NAMES
    assert [NAMES[0] in note for note in dataset.notes if "no training image" in note and "never" in note] == [False]
    names = [("airplane", "keyboard"), ("apple",), ("umbrela",)]
    raw = RawDataset("here", {"all": Samples(images(np.zeros((3, 3)), "all", 0), {"labels": LabelSets.of(names)})})
    notes = match_split("here", raw, "labels", MultiLabels(("airplane", "skateboard", "umbrella"))).notes
    meant = " ".join(notes).partition("Did")[2]
    assert "'umbrella'" in meant
    assert "'umbrela'" in meant
    assert "airplane" not in meant
    assert "skateboard" not in meant
    many = MultiLabels(tuple(f"label {number:03}" for number in range(100)))
    with must_raise(UsageError, "sheep.*label 000.*90 more"):
        many.index("sheep")
    with must_raise(DataError):
        MultiLabels(NAMES).fit(torch.zeros(4, 2), torch.ones(4, 3))
