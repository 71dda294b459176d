"""A row in a table is all that a new task, format or part needs besides its own file: every verb knows it.

For a method of explanation see `cli/explain/test_outside.py`.
"""

import json
from pathlib import Path

import pytest
import yaml
from torch import nn

import vitrail
from tests.cli.command import USAGE, call, must_refuse
from tests.own_objects import SMALL, Gaussian, PredictNumber, read_bars
from tests.training.tiny import options
from vitrail.data import sources
from vitrail.data.sources import FORMATS, Format
from vitrail.nn.parts import TABLE, parts_of
from vitrail.tasks import TASKS


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
