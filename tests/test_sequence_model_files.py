"""A model that writes is a folder of plain files: the same bits back, the same texts, and damage said in two lines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitrail
from tests.errors import must_raise
from tests.sequence_models import MODELS, picture_model, put_sources
from vitrail.errors import DataError
from vitrail.model import CARD, CONFIG, PREPROCESSOR, WEIGHTS, save


@pytest.mark.parametrize("name", MODELS)
def test_it_comes_back_and_writes_the_same(name: str, tmp_path: Path) -> None:
    model = replace(MODELS[name](), facts={"data": "letters", "seed": 3})
    folder = save(model, tmp_path / "model")
    files = {CONFIG, WEIGHTS, CARD, *([] if model.reads_text else [PREPROCESSOR])}
    assert {path.name for path in folder.iterdir()} == files
    again = vitrail.load(folder)
    assert (again.input, again.output, again.task, again.facts) == (model.input, model.output, model.task, model.facts)
    assert again.network.config == model.network.config
    assert not any(module.training for module in again.network.modules())
    for key, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[key])
    some = put_sources(tmp_path)[not model.reads_text]
    assert again.predict(some) == model.predict(some)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("output"),
        lambda config: config["output"].update(tokens=["1", "1"]),
        lambda config: config["output"].update(tokens=["1"]),
        lambda config: config["network"].update(widht=3),
        lambda config: config["network"].update(padding=1),
        lambda config: config["network"].update(kind="ViT"),
        lambda config: config["network"].update(kind="Perceiver"),
        lambda config: config.update(input=3),
        lambda config: config.update(facts="many"),
    ],
)
@pytest.mark.parametrize("name", ["texts", "pictures"])
@pytest.mark.usefixtures("as_a_user")
def test_a_damaged_configuration_is_refused(name: str, change, tmp_path: Path) -> None:
    folder = save(MODELS[name](), tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))
    with must_raise(DataError, str(folder)):
        vitrail.load(folder)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = save(picture_model(), tmp_path / "model")
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    with must_raise(DataError, WEIGHTS):
        vitrail.load(folder)
    (folder / PREPROCESSOR).unlink()
    with must_raise(DataError, PREPROCESSOR):
        vitrail.load(folder)
