"""Numbers for an image: figures are those of scikit-learn, unknown numbers change nothing, intervals hold 90 %."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import nn
from transformers import AutoModelForImageClassification

import vitrail
from tests.cli.command import DATA, USAGE, call, must_refuse, retyped
from tests.errors import must_raise
from tests.tasks.patterns import SMALL, SPLITS, images
from vitrail.data.columns import LABEL, NUMBER, Samples
from vitrail.data.dataset import Counts
from vitrail.data.images import ArrayImages
from vitrail.data.layout import Layout
from vitrail.data.multiple import Quantities
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError
from vitrail.explain.evidence import composites_of
from vitrail.explain.target import choose_target
from vitrail.features.linear_probe import MeanGrey
from vitrail.runs.evaluate import batches_of
from vitrail.tasks import choose_task
from vitrail.tasks.calibration import Calibration
from vitrail.tasks.linear import linear_map, map_features
from vitrail.tasks.regression import NumberTarget, Regression, Standardized, squared_error
from vitrail.text import number
from vitrail.training.prepared import open_data

TWO = Standardized(("age", "score"), (40.0, -1.0), (10.0, 0.5))


def test_unknown_numbers_leave_loss_and_gradient() -> None:
    draw = np.random.default_rng(0)
    outputs, targets = (torch.from_numpy(draw.normal(size=(12, 2))) for _ in range(2))
    targets[::3, 1] = torch.nan
    leaf = outputs.clone().requires_grad_()
    loss = squared_error(leaf, targets, "sum")
    loss.backward()
    assert leaf.grad is not None
    assert (leaf.grad[::3, 1] == 0).all()
    known = ~targets.isnan()
    assert loss.item() == pytest.approx(0.25 * float((outputs - targets)[known].square().sum()), abs=1e-12)
    assert squared_error(outputs, targets).item() == pytest.approx(loss.item() / 12, abs=1e-12)
    errors = TWO.error(outputs, targets)
    assert errors[0] == pytest.approx(abs(outputs[0, 0] - targets[0, 0]).item(), abs=1e-12)
    assert errors[1] == pytest.approx((outputs - targets)[1].abs().mean().item(), abs=1e-12)


def test_true_numbers_are_shown_as_the_data_have_them() -> None:
    draw = np.random.default_rng(3)
    values = np.stack([draw.normal(50, 20, 500).round(2), draw.integers(-9, 3, 500), draw.uniform(0, 1, 500)], axis=1)
    values[:3, 0] = 0.0, np.nan, 3.3
    of = (tuple(each(values, axis=0).tolist()) for each in (np.nanmean, np.nanstd))
    codec = Standardized(("a", "b", "c"), *of)
    found = codec.as_given(codec.targets(values)).numpy()
    np.testing.assert_array_equal(found[:, :2], values[:, :2])
    np.testing.assert_allclose(found[:, 2], values[:, 2], rtol=0, atol=1e-6)
    assert not np.signbit(found[0, 0])
    assert (codec.in_unit(codec.targets(values)).numpy()[:, :2] != values[:, :2]).mean() > 0.5, "the planted fault"


def test_a_linear_head_is_ridge_regression() -> None:
    draw = np.random.default_rng(1)
    values, targets = draw.normal(size=(80, 6)), draw.normal(size=(80, 2))
    for penalty in (1.0, 1e-3):
        found = linear_map(TWO, torch.from_numpy(values), torch.from_numpy(targets), penalty)
        wanted = Ridge(alpha=penalty * 80 * 2).fit(values, targets)  # a mean over samples and over two numbers
        assert found[:, :-1].numpy() == pytest.approx(wanted.coef_, abs=1e-5)
        assert found[:, -1].numpy() == pytest.approx(wanted.intercept_, abs=1e-5)


def test_intervals_are_those_of_split_conformal_prediction() -> None:
    """Of images like these they hold 90 %: in a thousand drawings the mean is that of a beta distribution."""
    codec, draw = Standardized(("count",), (100.0,), (20.0,)), np.random.default_rng(2)
    inside = list[float]()
    for _ in range(1000):
        gaps = draw.standard_t(3, size=(60, 1))
        fitted = codec.calibrate(torch.zeros(39, 1), torch.from_numpy(gaps[:39]), "calibrate")
        assert fitted.widths == (pytest.approx(20 * np.sort(np.abs(gaps[:39, 0]))[math.ceil(0.9 * 40) - 1]),)
        inside.append(float((np.abs(20 * gaps[39:, 0]) <= fitted.widths[0]).mean()))
    assert np.mean(inside) == pytest.approx(0.9, abs=3 * np.std(inside) / math.sqrt(1000))
    assert codec.calibrate(torch.zeros(9, 1), torch.zeros(9, 1), "calibrate") == codec, "too few"
    holes = torch.full((30, 1), torch.nan)
    assert codec.calibrate(torch.zeros(30, 1), holes, "calibrate") == codec
    (answer,) = fitted.answer(torch.tensor([[1.5]]), ["a.png"])
    assert answer.values == {"count": 130.0}
    assert answer.intervals["count"] == pytest.approx((130 - fitted.widths[0], 130 + fitted.widths[0]))


def test_intervals_by_folds_hold_nine_of_ten_new_numbers_and_those_of_the_head_itself_do_not() -> None:
    codec, draw = Standardized(("count",), (100.0,), (20.0,)), np.random.default_rng(3)
    inside, flattered = list[float](), list[float]()
    for _ in range(2):
        features = torch.from_numpy(draw.normal(size=(660, 30)))
        targets = features @ torch.from_numpy(draw.normal(size=(30, 1))) + torch.from_numpy(draw.normal(size=(660, 1)))
        fitted = codec.fit(features[:60], targets[:60])
        answers = map_features(features, fitted.weights)
        gaps = 20 * (answers - targets)[60:].abs()
        for found, outputs in ((inside, fitted.outputs), (flattered, answers[:60])):
            (width,) = codec.calibrate(outputs, targets[:60], "train").widths
            found.append(float((gaps <= width).double().mean()))
    assert 0.83 <= np.mean(inside) <= 0.99
    assert np.mean(flattered) < 0.75, "the planted fault: errors on what was fitted"


def test_what_is_explained_is_why_a_number_is_high_or_low() -> None:
    codec = Standardized(
        ("age", "score"), (40.0, -1.0), (10.0, 0.5), Calibration("calibrate", 20, limits=((5.0,) * 199, (0.4,) * 199))
    )
    outputs, without = torch.tensor([[2.0, 0.0], [-1.5, 1.0]]), torch.tensor([[0.5, 0.0], [0.0, 0.0], [-0.5, 3.0]])
    chosen = codec.choose(outputs)
    assert isinstance(chosen, NumberTarget)
    assert chosen(outputs).tolist() == [20.0, 15.0], "years from the mean of training"
    assert [chosen.in_data(row, value) for row, value in enumerate((20.0, 15.0))] == [60.0, 25.0]
    assert chosen.effect(outputs, without).tolist() == [20.0, 15.0]
    assert chosen.least.tolist() == [5.0, 5.0]
    assert codec.choose(outputs, 1).least.tolist() == [0.4, 0.4]
    assert torch.equal(chosen.select(slice(1, 2))(outputs[1:]), torch.tensor([15.0]))
    assert TWO.choose(outputs).least.isnan().all(), "without an interval nobody knows"
    with must_raise(UsageError, "contrast"):
        codec.choose(outputs, (0, 1))
    others = torch.tensor([[3.0, 0.0], [2.5, 0.0], [1.0, 0.0], [2.6, 0.0], [4.1, 0.0]])
    sided = chosen.on_side(outputs, others)
    assert sided(outputs).tolist() == [-20.0, 15.0], "above the mean of training, and below the middle of others: 2.6"
    assert sided.effect(outputs, others).tolist() == pytest.approx([10 * 0.6, 10 * 4.1])
    far = (others[:, :1] - 2.6).abs() >= torch.tensor([0.6, 4.1])
    assert torch.equal(sided.as_high_itself(outputs, others, None), far), "as far on either side"
    lower = choose_target(outputs, "-age", codec)
    assert isinstance(lower, NumberTarget)
    assert lower.on_side(outputs, others)(outputs).tolist() == [-20.0, 15.0], "the side that was named, for both"
    assert lower.effect(outputs, others).tolist() == pytest.approx([10 * 0.6, 10 * 4.1])
    assert torch.equal(lower.as_high(outputs, others, None), -others[:, :1] >= -outputs[:, 0]), "on that side alone"
    assert [lower.named(row, codec.name) for row in range(2)] == ["-age", "-age"]
    assert lower.least.tolist() == [5.0, 5.0]


def test_numbers_are_matched_by_name() -> None:
    column = Quantities(np.array([[0.0, 50.0], [-0.5, np.nan]]), ("score", "age"))
    assert [column.word(row) for row in range(2)] == ["0, 50", "-0.5, "]
    found = TWO.targets(TWO.match(column).column.values).numpy()
    assert found[0].tolist() == [1.0, 2.0]
    assert np.isnan(found[1, 0])
    assert found[1, 1] == 1.0
    with must_raise(DataError, "weight"):
        TWO.match(Quantities(np.zeros((2, 1)), ("weight",)))
    with must_raise(DataError, "score"):  # also in a split that is not learnt from
        TWO.match(Quantities(np.array([[1.0], [-np.inf]]), ("score",)))
    for wrong in ({"means": (0.0,)}, {"deviations": (1.0, 0.0)}, {"widths": (1.0,)}, {"names": ("a", "a")}):
        with must_raise(UsageError):
            Standardized(**{"names": TWO.names, "means": TWO.means, "deviations": TWO.deviations} | wrong)


# ---- from a list to a page


@pytest.mark.parametrize(
    ("column", "values", "task"),
    [
        ("count", [3, 4, 5, 6], "regression"),  # by its name
        ("label", [0, 1, 2, 3], "classify"),  # whole, and each many times
        ("label", [0.5, 1, 2, 3], "regression"),
        ("y", [-1, 1, 2, 3], "regression"),
        ("label", list(range(40)), "regression"),  # whole, and each once
        ("grade", [1, 2, 3, 4], "classify"),
    ],
)
def test_numbers_are_amounts_or_classes_by_a_rule(column: str, values: list[float], task: str, tmp_path: Path) -> None:
    photo = images(np.zeros((1, 3)), "one", 0).open(0)
    rows = [["path", column]]
    for row in range(40):
        photo.save(tmp_path / f"{row}.png")
        rows.append([f"{row}.png", str(values[row % len(values)])])
    (tmp_path / "list.csv").write_text("\n".join(map(",".join, rows)))
    listed = str(tmp_path / "list.csv")
    raw = read(listed)
    assert choose_task("list", raw.columns()).name == task
    assert {LABEL, NUMBER} <= {*raw.columns()}, "the other is there for who asks for it"
    for other in ("regression", "classify"):
        assert choose_task("list", raw.columns(), other).name == other
    assert not any("--task" in note for note in open_data(listed, task, None, 0, Counts())[0].notes)
    dataset, learnt = open_data(listed, "auto", None, 0, Counts())
    (told,) = [note for note in dataset.notes if "--task" in note]
    assert ({"regression", "classify"} - {learnt.name}).pop() in told


def write_bars(folder: Path) -> Path:
    """How strong two patterns are, from -1 to 1, times 10 and 3; some of the first are not known."""
    rows = list[dict[str, object]]()
    for seed, (split, count) in enumerate(SPLITS.items()):
        strengths = np.random.default_rng(seed).uniform(-1, 1, (count, 3))
        drawn = images(strengths, split, seed)
        for row in range(count):
            drawn.open(row).save(folder / f"{split}{row}.png")
            first = "" if row % 10 == 0 else f"{10 * strengths[row, 0]:.6f}"
            rows.append(
                {"path": f"{split}{row}.png", "split": split, "left": first, "up": f"{3 * strengths[row, 1]:.6f}"}
            )
    with open(folder / "list.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "list.csv"


@pytest.mark.usefixtures("as_a_user")
def test_a_list_is_learnt_and_every_verb_answers(tmp_path: Path) -> None:
    listed, run = write_bars(tmp_path), tmp_path / "run"
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("--config", tmp_path / "small.yaml", "--epochs", 16, "--batch-size", 16, "--lr", 4e-3, "--threads", 1)
    trained = call("train", listed, "--label-column", "left,up", "--out", run, *words, "--image-size", 24)
    assert trained.code == 0, trained.err
    model, answer = vitrail.load(run), json.loads(call("evaluate", run, "--json").out)
    codec = model.output
    assert isinstance(codec, Standardized)
    assert codec.widths, "intervals were fitted"
    assert model.familiar is not None
    assert model.familiar.shape == (SPLITS["train"], 32)
    assert model.preprocessing.resize == "squash", "the whole image is read"
    split = read(str(listed), layout=Layout(label_column="left,up")).splits["test"]
    with torch.no_grad():
        pixels = model.tensor([split.images.open(row) for row in range(len(split))])
        outputs, folder = model.network(pixels), run / "model"
        by_transformers = AutoModelForImageClassification.from_pretrained(folder).eval()
        told = by_transformers(pixel_values=pixels, labels=torch.zeros(len(pixels), 2))
        by_timm = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(pixels)
    assert by_transformers.config.problem_type == "regression"
    assert by_transformers.config.id2label == {0: "left", 1: "up"}
    assert float(told.loss) == pytest.approx(float(outputs.square().mean()), rel=1e-5)
    own = json.loads((folder / "config.json").read_text())["vitrail"]["output"]
    for logits in (told.logits, by_timm):  # standard deviations from the mean of training
        in_unit = logits.double().numpy() * own["deviations"] + own["means"]
        assert np.allclose(in_unit, codec.in_unit(outputs).numpy(), atol=1e-4)
    found, true = codec.in_unit(outputs).numpy(), split.column(NUMBER).values
    for place, row in enumerate(answer["numbers"]):
        known = ~np.isnan(true[:, place])
        pair = true[known, place], found[known, place]
        assert row["images"] == len(pair[0]) == len(true) - 4 * (row["name"] == "left")
        assert row["mae"] == pytest.approx(mean_absolute_error(*pair), rel=1e-5)
        assert row["rmse"] == pytest.approx(root_mean_squared_error(*pair), rel=1e-5)
        assert row["r2"] == pytest.approx(r2_score(*pair), abs=1e-5)
        assert row["r2"] > 0.5
    by_grey = json.loads((run / "evaluation.json").read_text())["by_mean_grey"]
    assert by_grey["images"] == len(true)
    assert all(row["r2"] < 0.1 for row in by_grey["numbers"]), "patterns are as bright as each other"
    page, better = (run / "run.html").read_text(), by_grey["mean_absolute_error"] < answer["mean_absolute_error"]
    assert f"{by_grey['mean_absolute_error']:.4g}" in page
    head = page.partition('class="facts"')[0]
    assert f"{by_grey['mean_absolute_error']:.4g}" in head, "beside the figure of the model"
    assert ("which is better" in head) == better
    card = (folder / "README.md").read_text()
    assert all(repr(value) in card for value in (*codec.means, *codec.deviations)), "what users of timm need"
    assert all(number(width) in card for width in codec.widths)
    assert f"{by_grey['mean_absolute_error']:.4g}" in card
    (one,) = json.loads(call("predict", run, tmp_path / "test0.png", "--json").out)
    assert [one["values"][name] for name in codec.names] == pytest.approx(found[0].tolist(), rel=1e-4)
    assert call("predict", run, tmp_path / "test0.png", "--out", tmp_path / "table.csv").code == 0
    words = ("--target", "up", "--precision", "fp32", "--json", "--full", "--out", tmp_path / "e.html")
    explained = call("explain", run, tmp_path / "test0.png", *words)
    assert explained.code == 0, explained.err
    shown = json.loads(explained.out)["images"][0]
    (view,), up = shown["attributions"], shown["values"]["up"]
    with listed.open() as file:
        numbers = {row["path"]: [row["left"] and float(row["left"]), float(row["up"])] for row in csv.DictReader(file)}
    near = shown["beside"]["nearest"]
    assert near
    said = [[value and float(value) for value in one["label"].split(", ")] for one in near]
    assert said == [numbers[Path(one["file"]).name] for one in near]
    trust, background = view["trust"], model.background_images
    assert background is not None
    without = codec.in_unit(composites_of(model.network, background, 0))[:, 1].numpy()
    middle = np.sort(without)[(len(without) - 1) // 2]
    sign = -1 if up < middle else 1
    assert view["target"] == ("-up" if sign < 0 else "up")
    assert view["logit"] == pytest.approx(sign * (up - codec.means[1]), rel=1e-4)
    assert (trust["minimum_effect"], trust["effect_unit"]) == (pytest.approx(codec.widths[1]), "data")
    assert trust["effect"] == pytest.approx(abs(up - middle), rel=1e-4)
    spread = ((len(background) + 1) / (len(background) - 1)) ** 0.5  # the background images all differ
    spread_out = without.mean() + (without - without.mean()) * spread
    p = (1 + (np.abs(spread_out - middle) >= abs(up - middle)).sum()) / (1 + len(without))
    assert trust["evidence_p"] == pytest.approx(p) if not trust["surrogates"] else trust["evidence_p"] >= p - 1e-9
    words = ("--target=-up", "--precision", "fp32", "--json", "--out", tmp_path / "lower.html")
    lower = json.loads(call("explain", run, tmp_path / "test0.png", *words).out)["images"][0]["attributions"][0]
    assert lower["target"] == "-up"
    assert lower["logit"] == pytest.approx(codec.means[1] - up, rel=1e-4)
    assert lower["trust"]["effect"] == pytest.approx(middle - up, rel=1e-4)
    taught = ("distill", listed, "--label-column", "left,up", "--teacher", run, "--out", tmp_path / "student")
    must_refuse(call(*taught, "--temperature", 2), USAGE, "--temperature 2")
    assert call("similar", run, listed, tmp_path / "test1.png", "--json", "--out", tmp_path / "near.html").code == 0
    words = ("--label-column", "left", "--init", run, "--probe", "--threads", 1)
    assert call("train", listed, *words, "--out", tmp_path / "probe").code == 0
    of = vitrail.load(tmp_path / "probe").output.calibration
    assert (of.on[:5], of.images) == ("train", SPLITS["train"] * 9 // 10), "validation has fewer than 50"
    result, counted_of = vitrail.evaluate(tmp_path / "probe"), len(true) - 4
    assert (result.count, len(result.ids), result.details["numbers"][0]["images"]) == (counted_of,) * 3
    assert result.value == pytest.approx(result.details["numbers"][0]["mae"], rel=1e-6), "an unknown number is no error"
    shown = {one.name: one.truth.replace("\u2212", "-") for one in result.examples}
    assert shown == {name: f"{float(numbers[name][0]):.4g}" for name in shown}
    words = ("--label-column", "left", "--init", run, "--epochs", 1, "--threads", 1, "--verdicts", 2)
    assert call("train", listed, *words, "--out", tmp_path / "tuned").code == 0
    page = (
        (tmp_path / "tuned" / "run.html")
        .read_text()
        .replace("\u2212", "-")
        .partition("fine-tuned network</h2>")[2]
        .partition("</section>")[0]
    )
    assert not {"example right", "example wrong"} & {*re.findall(r'class="(example \w+)"', page)}
    by_list = [
        re.findall(r">true: (.*?)<.*?>probe: (.*?)<.*?>tuned: (.*?)<", part) for part in page.split("<h3>Images")[1:]
    ]
    assert by_list
    for rows in by_list:  # less wrong after fine-tuning, or more wrong
        truths, probed, tuned = np.array(rows, float).T
        gains = np.abs(probed - truths) - np.abs(tuned - truths)
        assert abs(gains.sum()) == pytest.approx(np.abs(gains).sum())
        assert np.diff(np.abs(gains)).max(initial=0) < 0.01, "by most; the page rounds"


def test_a_line_through_the_mean_grey_value_is_least_squares() -> None:
    draw = np.random.default_rng(0)
    greys = draw.uniform(20, 200, 60)
    pixels = np.rint(greys[:, None, None] + draw.uniform(-20, 20, (60, 8, 8))).astype(np.uint8)
    counts = 3 * greys[:, None] + draw.normal(0, 20, (60, 1))
    column = {NUMBER: Quantities(counts, ("count",))}
    codec, reads = (
        Standardized(("count",), (300.0,), (150.0,)),
        vitrail.Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,)),
    )
    model = vitrail.Model(nn.Linear(1, 1), reads, codec, Regression())
    line = MeanGrey(codec, batches_of(model, Samples(ArrayImages(pixels, "all"), column)))
    seen = model.tensor([Image.fromarray(each) for each in pixels])
    wanted = LinearRegression().fit(pixels.mean(axis=(1, 2))[:, None], counts[:, 0])
    found = codec.in_unit(line(seen)).numpy()[:, 0]
    assert found == pytest.approx(wanted.predict(pixels.mean(axis=(1, 2))[:, None]), abs=0.5)


def test_what_cannot_be_learnt(tmp_path: Path) -> None:
    listed = write_bars(tmp_path)
    head, *lines = listed.read_text().splitlines()
    for value in ("5", "inf", "nan"):
        rows = [",".join([*line.split(",")[:3], value]) for line in lines]
        (tmp_path / "other.csv").write_text("\n".join([head, *rows]))
        words = ("--label-column", "up", "--task", "regression", "--out", tmp_path / "x")
        must_refuse(
            call("train", tmp_path / "other.csv", *words),
            DATA,
            {"inf": "line 2", "5": "up"}.get(value, "other.csv regression"),
        )
        assert not (tmp_path / "x").exists()
    (tmp_path / "two.csv").write_text("\n".join([f"{head},flat", *(f"{line},{7}" for line in lines)]))
    words = ("--label-column", "up,flat", "--task", "regression", "--out", str(tmp_path / "x"))
    refused = call("train", tmp_path / "two.csv", *words)
    must_refuse(refused, DATA, "flat")
    again = retyped(["train", str(tmp_path / "two.csv"), *words], refused)
    assert again is not None
    (tmp_path / "small.yaml").write_text(SMALL)
    small = ("--config", tmp_path / "small.yaml", "--image-size", 24, "--batch-size", 16, "--epochs", 1)
    assert call(*again, "--dry-run", *small).code == 0, "the other column can be learnt"
    words = ("--label-column", "split", "--task", "regression", "--out", tmp_path / "x")
    must_refuse(call("train", listed, *words), DATA, "list.csv regression")
    words = ("--label-column", "up", "--task", "classify", "--out", tmp_path / "x")
    must_refuse(call("train", listed, *words), DATA, "160")  # numbers, each at one image
    (tmp_path / "one.csv").write_text("\n".join(["path,flag", *(f"{line.split(',')[0]},0" for line in lines)]))
    must_refuse(call("train", tmp_path / "one.csv", "--out", tmp_path / "x"), DATA, "0")
    assert not (tmp_path / "x").exists()
    assert Regression().codec_from_dict(TWO.to_dict()) == TWO


def test_an_explanation_without_a_target_names_the_numbers_that_it_leaves_out() -> None:
    codec = Standardized(("area", "length", "age"), (0.0,) * 3, (1.0,) * 3)
    assert "area" in codec.besides
    assert "--target length" in codec.besides
    assert Standardized(("area",), (0.0,), (1.0,)).besides == ""
