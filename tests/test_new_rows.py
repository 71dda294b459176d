"""A row in a table is all that a new task, format or part needs besides its own file: every verb knows it.

For a method of explanation see `cli/explain/test_outside.py`; for tasks that have all that a codec may have, or have no
column, `tasks/`.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch import nn

import vitrail
from tests.cli.command import USAGE, call, must_refuse
from tests.own_objects import SMALL, Gaussian, PredictNumber, read_bars
from tests.training.tiny import options
from vitrail.data import sources
from vitrail.data.columns import Labels, RawDataset, Samples
from vitrail.data.images import ArrayImages
from vitrail.data.sources import FORMATS, Format
from vitrail.nn.parts import TABLE, parts_of
from vitrail.tasks import TASKS


@pytest.mark.usefixtures("as_a_user")
def test_a_task_and_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, evaluated, asked and explained as any other, by the command line alone."""
    row = Format("bars", "one bright bar each", read_bars, is_set=True)
    monkeypatch.setattr(sources, "FORMATS", (*FORMATS, row))
    monkeypatch.setitem(TASKS, PredictNumber.name, PredictNumber())
    run, config, image = (tmp_path / name for name in ("run", "small.yaml", "bar.png"))
    config.write_text(SMALL)
    read_bars("bars").splits["test"].inputs.open(0).save(image)

    words = ("--config", config, "--epochs", 8, "--batch-size", 8, "--lr", 5e-3, "--image-size", 16, "--threads", 1)
    trained = call("train", "bars", "--out", run, *words)
    assert trained.code == 0, trained.err
    assert yaml.safe_load((run / "config.yaml").read_text())["task"] == "predict-height"
    evaluated = json.loads(call("evaluate", run, "--json").out)
    assert evaluated["mae"] == json.loads((run / "evaluation.json").read_text())["mae"]
    (answer,) = json.loads(call("predict", run, image, "--json").out)
    assert answer["value"] == pytest.approx(vitrail.load(run).predict([image])[0].value)
    assert f"{evaluated['mae']:.3g}" in (run / "run.html").read_text()
    must_refuse(call("doctor", run), USAGE, "a number for each image")
    explained = call("explain", run, image, "--json", "--out", tmp_path / "page.html")
    assert explained.code == 0, explained.err
    (one,) = json.loads(explained.out)["images"]
    assert one["value"] == pytest.approx(answer["value"])
    assert [each["trust"]["verdict"] for each in one["attributions"]] == ["cannot tell"]  # the task has no background


def read_bands(what: str, data_root: Path | None = None) -> RawDataset:
    """A file of arrays: images with one bright band, in the upper or the lower half, which is their class."""
    with np.load(what) as arrays:
        pixels, lower = arrays["pixels"], arrays["lower"]
    cuts = {"train": slice(0, 80), "validation": slice(80, 100), "test": slice(100, 120)}
    labels = Labels(lower, ("upper", "lower"))
    return RawDataset(
        str(Path(what).resolve()),
        {
            name: Samples(ArrayImages(pixels[cut], f"bands/{name}"), {"label": labels.select(np.arange(120)[cut])})
            for name, cut in cuts.items()
        },
    )


@pytest.mark.usefixtures("as_a_user")
def test_a_format_in_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row opens, by a suffix or by what a folder holds, is read by all, and means the same images to each."""
    row = Format("bands", "bright bands", read_bands, suffixes=(".bands",), marks=("index.bands",))
    monkeypatch.setattr(sources, "FORMATS", (row, *FORMATS))
    random, file, run = np.random.default_rng(0), tmp_path / "some.bands", tmp_path / "run"
    pixels, lower = random.integers(0, 40, (120, 16, 16), dtype=np.uint8), random.integers(0, 2, 120)
    for image, half in zip(pixels, lower.tolist(), strict=True):
        image[8 * half + 2 : 8 * half + 6] += 180
    with open(file, "wb") as handle:
        np.savez(handle, pixels=pixels, lower=lower)
    words = ("--recipe", "digits", "--image-size", 16, "--epochs", 4, "--batch-size", 16, "--threads", 1)
    trained = call("train", file, "--out", run, *words)
    assert trained.code == 0, trained.err
    counts = {"train": 80, "validation": 20, "test": 20}
    names = [f"bands/{split}/{number}" for split, count in counts.items() for number in range(count)]
    truths = [("upper", "lower")[half] for half in lower]

    with monkeypatch.context() as elsewhere:
        (other := tmp_path / "other").mkdir()  # which the run does not know
        (other / "index.bands").write_bytes(file.read_bytes())
        by_mark = replace(row, read=lambda what, root: read_bands(f"{what}/index.bands"))
        for data in (other, other / "index.bands"):
            elsewhere.setattr(sources, "FORMATS", (by_mark if data is other else row, *FORMATS))
            evaluated = json.loads(call("evaluate", run, data, "--json").out)
            assert evaluated["images"] == 20
            predicted = json.loads(call("predict", run, data, "--json").out)
            assert [each["file"] for each in predicted] == names
            right = [each["label"] == truth for each, truth in zip(predicted, truths, strict=True)][100:]
            assert sum(right) / 20 == evaluated["accuracy"]
            page = ("--no-trust", "--count", 4, "--out", tmp_path / "page.html", "--json")
            shown = json.loads(call("explain", run, data, *page).out)["images"]
            assert [(one["file"], one["true_label"]) for one in shown] == [
                (names[i], truths[i]) for i in (100, 105, 110, 115)
            ]
            lines = tmp_path / f"maps of {data.name}.jsonl"
            assert call("explain", run, data, "--no-trust", "--out", lines).code == 0
            told = [json.loads(line) for line in lines.read_text().splitlines()]
            assert [one["file"] for one in told] == names[100:]
            assert [one["true_label"] for one in told] == truths[100:]
            found = vitrail.embed(run, data)
            assert (found.ids, found.labels, found.splits.count("test")) == (tuple(names), tuple(truths), 20)
            near = json.loads(call("similar", run, data, data, "--out", tmp_path / "near.html", "--json").out)
            assert len(near["queries"]) == 8
            assert all(query["neighbours"][0]["file"] != query["file"] for query in near["queries"])
        assert [one.name for one in vitrail.load(run).predict(other / "index.bands")] == names
        report = vitrail.explain.report(vitrail.load(run), other / "index.bands", trust=False)
        assert [one.name for one in report] == names[100:]


def make_gaussian(config: object) -> nn.Module:
    return Gaussian()


def test_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has it is opened by its name, by every verb."""
    monkeypatch.setitem(TABLE, "activation", {"gaussian": make_gaussian})
    parts = parts_of({"activation": "gaussian"})
    run = vitrail.train("digits", tmp_path / "run", options("digits", epochs=1), parts=parts).folder
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["vitrail"]["parts"] == {"activation": "gaussian"}
    assert isinstance(vitrail.load(run).network.blocks[0].mlp.act, Gaussian)
    for words in (("evaluate", run), ("explain", run, "digits", "--count", "1", "--out", tmp_path / "page.html")):
        answer = call(*words)
        assert answer.code == 0, answer.err
