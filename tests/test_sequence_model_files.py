"""A model that writes is a folder of plain files: the same bits back, the same texts, and damage said in two lines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from vitrail.sequence_model import SequenceModel

import vitrail
from tests.errors import must_raise
from tests.sequence_models import DIGITS, LETTERS, MODELS, picture_model, put_sources, text_model
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.model import CARD, CONFIG, PREPROCESSOR, WEIGHTS, Model, load, save
from vitrail.nn import PATCHIFIED, Transformer, ViTConfig
from vitrail.nn.decoder import StackParts


@pytest.mark.parametrize("name", MODELS)
def test_it_comes_back_and_writes_the_same(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    folder = save(model, tmp_path / "model")
    files = {CONFIG, WEIGHTS, CARD, *([PREPROCESSOR] if model.reads_pictures else [])}
    assert {path.name for path in folder.iterdir()} == files
    again = vitrail.load(folder)
    assert isinstance(again, SequenceModel)
    assert (again.vocabulary, again.source_vocabulary) == (model.vocabulary, model.source_vocabulary)
    assert again.preprocessing == model.preprocessing
    assert again.network.config == model.network.config
    assert not any(module.training for module in again.network.modules())
    for key, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[key])
    some = put_sources(tmp_path)[model.reads_pictures]
    assert again.generate(some) == model.generate(some)


def test_the_models_of_yesterday_know_nothing_of_their_training(tmp_path: Path) -> None:
    """No key, no note: neither on lengths nor on probabilities."""
    folder = save(replace(text_model(), longest_source=3, label_smoothing=0.1), tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    del config["longest_source"], config["label_smoothing"]
    (folder / CONFIG).write_text(json.dumps(config))
    old = vitrail.load(folder)
    assert isinstance(old, SequenceModel)
    assert old.generate("abcd")[0].notes == ()
    assert old.about_probabilities == ""


def test_parts_of_one_s_own_are_not_saved(tmp_path: Path) -> None:
    network = Transformer(text_model().network.config, StackParts(norm=lambda config: nn.Identity()))
    with pytest.raises(UsageError, match="parts of its own"):
        save(SequenceModel(network, DIGITS, LETTERS), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_parts_that_files_do_not_hold_are_not_dropped_silently(tmp_path: Path) -> None:
    model, folder = text_model(), tmp_path / "model"
    with pytest.raises(
        UsageError, match=r"hold no parts of its own, and parts='mine' names some\ntry: save\(model, fo"
    ):
        save(model, folder, parts="mine")
    assert not folder.exists()
    save(model, folder)
    with pytest.raises(UsageError, match=r"standard parts only\ntry: load\(path\) without parts"):
        load(folder, parts=PATCHIFIED)
    assert load(folder).vocabulary == model.vocabulary


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("vocabulary"),
        lambda config: config["vocabulary"].update(tokens=["1", "1"]),
        lambda config: config["vocabulary"].update(tokens=["1"]),
        lambda config: config["network"].update(widht=3),
        lambda config: config["network"].update(padding=1),
        lambda config: config["network"].update(kind="ViT"),
        lambda config: config["network"].update(kind="Perceiver"),
        lambda config: config.update(longest_source="many"),
        lambda config: config.update(label_smoothing=[]),
    ],
)
@pytest.mark.parametrize("name", ["texts", "pictures"])
def test_a_damaged_configuration_is_said(name: str, change, tmp_path: Path) -> None:
    folder = save(MODELS[name](), tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))
    with must_raise(DataError, "the configuration is damaged"):
        load(folder)


def test_damaged_weights_are_said(tmp_path: Path) -> None:
    folder = save(picture_model(), tmp_path / "model")
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        load(folder)
    (folder / PREPROCESSOR).unlink()
    with pytest.raises(DataError, match=f"{PREPROCESSOR} is missing"):
        load(folder)


def test_a_classifier_stays_one(tmp_path: Path) -> None:
    """The folder decides: the same words load both kinds."""
    vit = vitrail.ViT(ViTConfig(image_size=8, patch_size=4, channels=1, classes=2, width=16, depth=1, heads=2))
    classifier = Model(vit.eval(), Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,)), ("a", "b"))
    assert isinstance(vitrail.load(save(classifier, tmp_path / "one")), Model)
    assert isinstance(vitrail.load(save(text_model(), tmp_path / "two")), SequenceModel)
