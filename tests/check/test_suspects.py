"""Labels that features speak against are named first, strangers too, and accuracy by distance is counted right."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression, Ridge

import vitrail
from tests.deploy.small import small_model
from tests.real import real_data
from tests.shared_runs import photographs, run_of
from vitrail.check import neighbours
from vitrail.check.check import check_data
from vitrail.check.neighbours import kept_features
from vitrail.check.survey import survey
from vitrail.check.suspects import curve_of, suspected_cells, suspected_labels, suspected_numbers, unlike
from vitrail.data.layout import Layout
from vitrail.data.sources import read
from vitrail.features.poolings import read_by_head
from vitrail.model import load
from vitrail.tasks import Classes
from vitrail.tasks.linear import FOLDS, folds_of, held_out_outputs
from vitrail.tasks.regression import Standardized

NAMES = np.array(["ant", "bee", "fly", "wasp"])


def clusters(count: int, apart: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of four classes, and their numbers."""
    draw = np.random.default_rng(seed)
    classes = np.arange(count) % len(NAMES)
    return (draw.normal(size=(count, 16)) + apart * np.eye(16)[classes]).astype(np.float32), classes


def flipped(classes: np.ndarray, count: int, seed: int = 1) -> tuple[np.ndarray, set[int]]:
    """Another class for some."""
    rows, wrong = np.random.default_rng(seed).permutation(len(classes))[:count], classes.copy()
    wrong[rows] = (wrong[rows] + 1 + rows % 3) % len(NAMES)
    return wrong, {*rows.tolist()}


def test_planted_label_errors_are_named_first_and_of_right_labels_none() -> None:
    features, classes = clusters(600, 6)
    told = suspected_labels(NAMES[classes], features, np.arange(600))
    assert told is not None
    assert told[2] == {}
    assert told[0] > 0.99
    wrong, rows = flipped(classes, 12)
    told = suspected_labels(NAMES[wrong], features, np.arange(600))
    assert told is not None
    accuracy, skill, suspects = told
    assert {*suspects} == rows
    assert all(facts["suggested"] == NAMES[classes[row]] for row, facts in suspects.items())
    own = [facts["label_probability"] for facts in suspects.values()]
    assert own == sorted(own)
    assert accuracy == pytest.approx(1 - 12 / 600, abs=0.01)
    assert skill == pytest.approx(1 - (1 - accuracy) / (1 - np.bincount(wrong).max() / 600))


def test_who_is_named_is_who_is_more_probably_a_slip() -> None:
    """By the most probable power and rate, which an optimiser finds too."""
    features, classes = clusters(600, 3)
    wrong, rows = flipped(classes, 30)
    told = suspected_labels(NAMES[wrong], features, np.arange(600))
    assert told is not None
    targets = torch.from_numpy(wrong)
    outputs = held_out_outputs(Classes(tuple(NAMES)), torch.from_numpy(features), targets, np.arange(600)).numpy()

    def chances(power: float) -> np.ndarray:
        each = np.exp(power * (outputs - outputs.max(axis=1, keepdims=True)))
        return (each / each.sum(axis=1, keepdims=True))[np.arange(600), wrong]

    def unlikely(both: np.ndarray) -> float:
        power, rate = np.exp(both[0]), 1 / (1 + np.exp(-both[1]))
        return -float(np.log((1 - rate) * chances(power) + rate / 4).sum())

    power, rate = minimize(unlikely, [0.0, -3.0], method="Nelder-Mead").x
    power, rate = np.exp(power), 1 / (1 + np.exp(-rate))
    slips = (rate / 4) / ((1 - rate) * chances(power) + rate / 4)
    assert rate * 3 / 4 == pytest.approx(30 / 600, rel=0.5)
    ours = [told[2].get(row, {"slip": 0.0})["slip"] for row in range(600)]
    sure = np.abs(slips - 0.5) > 0.1  # a grid is not as fine
    assert [*(np.array(ours) > 0.5)[sure]] == [*(slips > 0.5)[sure]]
    assert all(abs(told[2][row]["slip"] - slips[row]) < 0.1 for row in told[2])
    assert len(rows & {*told[2]}) / len(told[2]) > 0.8
    assert len(told[2]) > 15


def test_held_out_outputs_are_scikit_learns_of_the_other_folds() -> None:
    features, classes = clusters(300, 2)
    codec, targets, units = Classes(tuple(NAMES)), torch.from_numpy(classes), np.arange(300) // 2
    outputs, folds = (
        held_out_outputs(codec, torch.from_numpy(features), targets, units),
        folds_of(codec, targets, units),
    )
    theirs, standard = np.zeros((300, 4)), (features - features.mean(axis=0)) / features.std(axis=0)
    best = None
    for penalty in 10.0 ** np.arange(1, -7, -1):
        for fold in range(FOLDS):
            held = folds.numpy() == fold
            fit = LogisticRegression(C=1 / (penalty * (~held).sum()), max_iter=2000).fit(
                standard[~held], classes[~held]
            )
            theirs[held] = fit.predict_proba(standard[held])
        gap = np.abs(outputs.softmax(dim=1).numpy() - theirs).max()
        best = gap if best is None else min(best, gap)
    assert best is not None
    assert best < 0.02


def test_a_copy_does_not_vouch_for_its_own_label() -> None:
    """Four copies of a bee in a place of its own are called ants: with copies in other folds the label passes."""
    features, classes = clusters(200, 6)
    classes[-4:], features[-4:] = 0, features[-4]
    features[-4:, :4], features[-4:, 8] = 6 * np.eye(4)[1], 12
    tied, alone = np.append(np.arange(196), [196] * 4), np.arange(200)
    told = [suspected_labels(NAMES[classes], features, units) for units in (tied, alone)]
    assert told[0] is not None
    assert told[1] is not None
    assert {*told[0][2]} == {196, 197, 198, 199}
    assert not told[1][2]
    folds = folds_of(Classes(tuple(NAMES)), torch.from_numpy(classes), tied)
    assert len({*folds[-4:].tolist()}) == 1
    assert np.ptp(np.bincount(folds[:-4].numpy() * 4 + classes[:-4])) <= 2


def test_features_that_know_nothing_and_classes_with_few_images_suspect_none() -> None:
    noise = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    told = suspected_labels(NAMES[np.arange(200) % 4], noise, np.arange(200))
    assert told is not None
    assert told[1] < 0.5
    assert suspected_labels(NAMES[np.arange(16) % 4], noise[:16], np.arange(16)) is None
    assert suspected_labels(NAMES[np.arange(200) % 4], noise, np.arange(200) // 50) is None
    few = np.append(NAMES[np.arange(196) % 3], ["wasp"] * 4)
    told = suspected_labels(few, noise, np.arange(200))
    assert told is not None
    assert told[0] < 0.6


def test_planted_cells_of_several_labels_are_named_and_of_right_ones_none() -> None:
    draw, names, units = np.random.default_rng(0), [*NAMES, "rare"], np.arange(500)
    there = draw.random((500, 5)) < [0.5, 0.2, 0.1, 0.3, 0]
    there[:9, 4] = True
    features = (draw.normal(size=(500, 16)) + 8 * there @ np.eye(5, 16)).astype(np.float32)
    values = there.astype(np.int8)
    told = suspected_cells(values, names, features, units)
    assert told is not None
    assert told[1] == {}
    cells = draw.choice(2000, 40, replace=False)
    values[cells // 4, cells % 4] ^= 1
    values[40:60, 1] = -1
    wrong = {(row, label) for row, label in np.argwhere((values != there) & (values >= 0)).tolist()}
    told = suspected_cells(values, names, features, units)
    assert told is not None
    skill, cells = told
    assert len(wrong) > 25
    assert {*cells} == wrong
    assert min(cells.values()) > 0.5
    judged = values[:, :4]
    usual = sum(min((column == 0).sum(), (column == 1).sum()) for column in judged.T)
    assert skill == pytest.approx(1 - len(wrong) / usual, abs=0.02)
    assert suspected_cells(values[:, 4:], ["rare"], features, units) is None


def test_planted_numbers_are_those_of_the_largest_residuals_by_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(300, 8)).astype(np.float32)
    noise = draw.uniform(-1, 1, (300, 2))
    values, wrong = np.stack([features @ np.arange(8), features[:, 0]], axis=1) + noise, [11, 222, 90]
    values[wrong, 0] += [90, 75, -60]
    values[7, 1] = np.nan
    told = suspected_numbers(values, ["count", "age"], features, np.arange(300))
    assert told is not None
    folds = folds_of(Standardized(("a", "b"), (0.0, 0.0), (1.0, 1.0)), torch.from_numpy(values)).numpy()
    assert [*told[1]][:3] == [(row, 0) for row in wrong]
    assert len(told[1]) <= 6  # they draw the map towards themselves
    best = min((np.inf, 0.0, np.zeros(300)), *(_ridge(features, values[:, 0], folds, 10.0**power)
                                                for power in range(1, -7, -1)), key=lambda each: each[0])  # fmt: skip
    gaps = np.abs(values[:, 0] - best[2])
    for row in wrong:
        far, by_features = told[1][row, 0]
        assert by_features == pytest.approx(best[2][row], abs=0.5)
        assert far == pytest.approx(gaps[row] / np.median(gaps) * norm.ppf(0.75), rel=0.05)
    assert suspected_numbers(np.ones((300, 1)), ["count"], features, np.arange(300)) is None


def _ridge(
    features: np.ndarray, values: np.ndarray, folds: np.ndarray, penalty: float
) -> tuple[float, float, np.ndarray]:
    """The squared error of other folds, the penalty, and what is predicted there."""
    found = np.zeros(len(values))
    for fold in range(FOLDS):
        held = folds == fold
        fit = Ridge(alpha=penalty * (~held).sum() * 2).fit(features[~held], values[~held])
        found[held] = fit.predict(features[held])
    return float(((found - values) ** 2).sum()), penalty, found


def test_a_number_and_a_label_that_the_model_does_not_see_are_on_the_page(tmp_path: Path) -> None:
    rows, draw = [], np.random.default_rng(0)
    for number in range(120):
        bright, red = int(draw.integers(0, 45)) + 75 * (number % 4 > 1), number % 2
        pixels = draw.integers(60 + bright, 75 + bright, (40, 40, 3), dtype=np.uint8)
        pixels[:, :, 2 - 2 * red] //= 4
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append((number, bright + 200 * (number == 9), ["blue", "red"][red], "day" if bright > 60 else "night"))
    rows[30] = (*rows[30][:2], "blue|red", rows[30][3])
    for name, kind, line in (
        ("number.csv", "suspect number", lambda one: f"{one[0]}.png,{one[1]}"),
        ("labels.csv", "suspect label", lambda one: f"{one[0]}.png,{one[2]}|{one[3]}"),
        ("columns.csv", "suspect label", lambda one: f"{one[0]}.png,{one[2].split('|')[-(one[0] == 30)]},{one[3]}"),
    ):
        head = {"number.csv": "path,count", "labels.csv": "path,labels"}.get(name, "path,colour,time")
        layout = Layout(label_column="colour,time" if name == "columns.csv" else "")
        (tmp_path / name).write_text("\n".join([head, *map(line, rows)]))
        report = check_data(tmp_path / name, model=small_model(), layout=layout)
        (found,) = [each for each in report.findings if each.kind == kind]
        first = found.sets[0][0].to_dict()
        if kind == "suspect number":
            assert (first["file"], abs(first["features_say"]["count"] - rows[9][1]) > 100) == ("9.png", True)
        else:
            assert (first["file"], len(found.sets)) == ("30.png", 1)
            seen = (["colour=red"], ["colour=blue"]) if name == "columns.csv" else (["red"], [])
            assert (first["unseen"], first["missing"]) == seen
        assert "red</b>" in report.page() or "standard deviations off" in report.page()


def test_strangers_are_found_and_others_are_not() -> None:
    draw = np.random.default_rng(0)
    among, own, strangers = draw.gamma(4, 0.05, 500), draw.gamma(4, 0.05, 200), draw.uniform(1, 2, 7)
    assert len(unlike(own, among)) <= 2
    found = unlike(np.concatenate([strangers, own]), among)
    assert {*found[:7].tolist()} == {*range(7)}
    assert len(found) <= 14
    everyone = np.concatenate([strangers, own])
    order = sorted(range(len(everyone)), key=lambda row: -everyone[row])
    p = [(1 + sum(each >= everyone[row] for each in among)) / 501 for row in order]
    assert len(found) == max(k for k in range(1, 208) if p[k - 1] <= 0.2 * k / 207)  # Benjamini and Hochberg


def test_the_curve_counts_bins_of_as_many_images() -> None:
    draw, count = np.random.default_rng(0), 250
    distances = draw.permutation(count) / count
    bins = curve_of(distances, draw.permutation(distances) < 2)
    assert [each["images"] for each in bins] == [50] * 5
    assert [each["accuracy"] for each in bins] == [1.0] * 5
    bins = curve_of(distances, (np.round(distances * count) % 10) >= np.floor(5 * distances) * 2)
    assert [each["accuracy"] for each in bins] == [1.0, 0.8, 0.6, 0.4, 0.2]
    assert [round(each["from"] * count) for each in bins] == [0, 50, 100, 150, 200]
    assert [round(each["to"] * count) for each in bins] == [49, 99, 149, 199, 249]
    for each in bins:  # Wilson's ends are where the score test is at its limit
        assert all(abs(each["accuracy"] - end) == pytest.approx(1.959964 * (end * (1 - end) / 50) ** 0.5, abs=1e-6)
                   for end in each["interval"] if 0 < end < 1)  # fmt: skip
    assert curve_of(distances[:39], np.ones(39, bool)) == []
    assert len(curve_of(distances[:41], np.ones(41, bool))) == 2


def test_features_are_those_of_embed_and_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, folder = load(run_of("photos")), tmp_path / "abc"
    for file in sorted((photographs() / "abc").rglob("*.*")):
        place = folder / file.relative_to(photographs() / "abc")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    computed = list[int]()
    ours = neighbours.answer_in_order

    def counted(see, loader, reads, device, wanted):
        computed.extend(row for ids in wanted for row in ids.tolist())
        return ours(see, loader, reads, device, wanted)

    monkeypatch.setattr(neighbours, "answer_in_order", counted)

    def look():
        raw = read(str(folder))
        return kept_features(model, raw, survey(raw, workers=0), lambda done, total: None)

    first = look()
    assert len(computed) == len(first.rows) == 48
    known = vitrail.embed(model, str(folder))
    np.testing.assert_allclose(first.read, known.values[read_by_head(model.network)], atol=1e-5)
    _, half = vitrail.run_with_record(model.network, model.tensor([Image.open(folder / "train" / "a" / "a_000.jpg")]))
    tokens = half["blocks.0.output"][:, model.network.config.prefix :]
    np.testing.assert_allclose(first.middle[0], tokens.mean(dim=1)[0].detach(), atol=1e-5)
    again = look()
    assert len(computed) == 48
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    (folder / "train" / "a" / "a_000.jpg").rename(folder / "train" / "b" / "moved.jpg")
    (folder / "train" / "c" / "c_003.png").unlink()
    Image.new("RGB", (50, 40), "red").save(folder / "val" / "c" / "new.png")
    third = look()
    assert len(computed) == 49
    place = [*read(str(folder)).splits["train"].images.names()].index("train/b/moved.jpg")
    np.testing.assert_array_equal(third.read[place], first.read[0])


def test_a_run_answers_for_itself_as_its_evaluation_has_it() -> None:
    run, data = run_of("photos"), str(photographs() / "abc")
    found = check_data(data, model=run).by_model
    assert found is not None
    assert found.answers_by == "model"
    assert any("36" in note for note in found.notes)  # images that it was trained on
    evaluated = vitrail.evaluate(run, data, split="validation")
    right = [pair[0].facts["right"] for pair in found.nearest]
    assert np.mean(right) == pytest.approx(evaluated.value)
    distances = [pair[0].facts["distance"] for pair in found.nearest]
    assert distances == sorted(distances)
    assert all((one.split, other.split) == ("validation", "train") for one, other in found.nearest)
    known = vitrail.embed(run, data)
    values = known.values[read_by_head(load(run).network)]
    values = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = values[36:] @ values[:36].T
    by_name = {pair[0].name: pair for pair in found.nearest}
    for row, name in enumerate(known.ids[36:]):
        assert by_name[name][1].name == known.ids[int(cosines[row].argmax())]
        assert by_name[name][0].facts["distance"] == pytest.approx(1 - cosines[row].max(), abs=1e-5)


def test_data_that_cannot_be_read_or_have_one_image_of_a_class_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "none" / "a").mkdir(parents=True)
    (tmp_path / "none" / "a" / "x.jpg").write_bytes(b"")
    assert check_data(tmp_path / "none", model=run_of("photos")).by_model is None
    for split, kind in (("train", "a"), ("train", "b"), ("val", "b")):
        (tmp_path / "few" / split / kind).mkdir(parents=True)
        Image.new("RGB", (40, 40), (200, 20 * len(kind + split), 0)).save(tmp_path / "few" / split / kind / "x.png")
    found = check_data(tmp_path / "few", model=run_of("photos")).by_model
    assert found is not None
    assert (found.findings, found.label_accuracy, found.answers_by, len(found.nearest)) == ([], None, None, 1)


def test_real_photographs_with_planted_errors_and_strangers(tmp_path: Path) -> None:
    root, lines, draw, wrong = real_data(), ["path,label,split"], np.random.default_rng(5), set[str]()
    for kind, other, folder in (("rose", "bee", "flowers128/rose"), ("bee", "rose", "photos/ants-bees/train/bees")):
        files = sorted((root / folder).glob("*.jpg"))
        for number, row in enumerate(draw.permutation(len(files))[:50].tolist()):
            wrong |= {files[row].name} if number < 2 else set()
            lines.append(f"{files[row]},{other if number < 2 else kind},{('val', 'train')[number % 5 > 1]}")
    strangers = sorted((root / "cells").rglob("*.png"))[:5]
    lines += [f"{file},rose,val" for file in strangers]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    report = check_data(tmp_path / "list.csv", model=root / "vit_ti16" / "model.safetensors")
    found, told = {each.kind: each for each in report.findings}, report.by_model
    assert not report.contradictions
    assert told is not None
    assert told.answers_by == "probe"
    suspects = [one for some in found["suspect label"].sets for one in some]
    assert wrong <= {Path(one.name).name for one in suspects[:6]}
    assert all(one.facts["suggested"] != one.label for one in suspects)
    far = [Path(pair[0].name).name for pair in found["unlike training"].sets]
    assert {*far[:5]} == {file.name for file in strangers}
    assert told.label_accuracy is not None
    assert told.label_accuracy > 0.85
    assert [each["images"] for each in told.curve] == [23, 22]
    right = [pair[0].facts["right"] for pair in told.nearest]
    assert [each["accuracy"] for each in told.curve] == [np.mean(right[:23]), np.mean(right[23:])]
    plain = report.to_dict()
    assert len(plain["by_model"]["nearest"]) == 45
    assert {"suggested", "slip"} <= plain["findings"][0]["images"][0][0].keys()
    page = report.page()
    assert all(file.name in page for file in strangers)
    assert page.count("<circle") == 6
    assert not any("nan" in str(value) for value in (plain["by_model"]["curve"], plain["by_model"]["label_accuracy"]))
