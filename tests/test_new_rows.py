"""A row in a table is all that a new task, format, method or part needs besides its own file: every verb knows it."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

import vitrail
from tests.cli.command import USAGE, call, must_refuse
from tests.own_objects import SMALL, Gaussian, PredictNumber, read_bars
from tests.runs import run_of
from tests.training.tiny import options
from vitrail.data.readers import FORMATS, table
from vitrail.data.readers.table import Format
from vitrail.explain.heat import Heat
from vitrail.explain.methods import METHODS, Method
from vitrail.explain.target import Target, choose_target
from vitrail.nn import Record, ViT
from vitrail.nn.parts import TABLE, parts_of
from vitrail.tasks import TASKS


def test_a_task_and_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, evaluated, asked and explained as any other, by the command line alone."""
    row = Format("bars", "one bright bar each", read_bars, is_set=True)
    monkeypatch.setattr(table, "FORMATS", (*FORMATS, row))
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
    assert "Mean absolute error" in (run / "run.html").read_text()
    must_refuse(call("doctor", "--model", run), USAGE, "a number for each image")
    must_refuse(call("explain", run, image), USAGE, "predict-height")  # its pages know classes and texts


def token_norm(network: ViT, images: Tensor, target: Target = None) -> Heat:
    """How long each patch token is behind the first block."""
    record = Record("blocks.0.output")
    with torch.no_grad():
        logits = network(images, record=record)
    aim, patches = choose_target(logits, target), record["blocks.0.output"][:, network.config.prefix :]
    values = patches.norm(dim=-1).unflatten(1, network.grid(images))
    return Heat(values, aim.target, aim.of(logits), "token_norm", False, False, ((),) * len(images))


@pytest.mark.soak
def test_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are made with it, and compared."""
    row = Method(token_norm, "token_norm", "Token norm", False, False, "how long each token is", "How long.", "none")
    monkeypatch.setitem(METHODS, row.name, row)
    page = tmp_path / "page.html"
    words = ("explain", run_of("digits"), "digits", "--count", 2, "--out", page)
    alone = call(*words, "--method", "token_norm", "--json")
    assert alone.code == 0, alone.err
    assert "token_norm" in alone.out
    assert "Token norm" in page.read_text()
    compared = call(*words[:-1], tmp_path / "all.html", "--compare", "--methods", "token_norm,rollout")
    assert compared.code == 0, compared.err
    assert "Token norm" in (tmp_path / "all.html").read_text()


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
