"""Whose weights a model has, and under which licence, is carried over: into its folder, and to its students."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_hub import ModelCard

import vitrail
from tests.training.tiny import student_options
from vitrail.model import CARD
from vitrail.nn import ViT, ViTConfig
from vitrail.weights import names
from vitrail.weights.names import FoundWeights

DIGITS = tuple("0123456789")
ARCHITECTURE = "vit_tiny_patch16_224"
SMALL = ViTConfig(image_size=16, patch_size=8, classes=10, width=24, depth=1, heads=3)
SIZES = {"embed_dim": 24, "depth": 1, "num_heads": 3}
STATISTICS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
REVISION = "0123456789abcdef"
FACTS = ("origin", "licence", "verified")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network as timm lays it out on a hub; its files are made without timm."""
    torch.manual_seed(0)
    network = ViT(SMALL)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    place = tmp_path / "hub"
    place.mkdir()
    safetensors.torch.save_file(network.state_dict(), place / "model.safetensors")
    config = {
        "architecture": ARCHITECTURE,
        "label_names": DIGITS,
        "model_args": {**SIZES, "img_size": [16, 16], "patch_size": [8, 8]},
        "pretrained_cfg": {"input_size": [3, 16, 16], "crop_pct": 0.9, "interpolation": "bicubic", **STATISTICS},
    }
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as what the hub's cache holds under any name."""

    def found(name: str, *_: str) -> FoundWeights:
        return names._of_folder(folder, f"hf:{name} at revision {REVISION}")

    monkeypatch.setattr(names, "_of_hub", found)
    return folder


def card_of(folder: Path) -> Any:
    """As the hub's own code reads it."""
    card = ModelCard.load(folder / CARD)
    assert card.data.to_dict() == ModelCard(str(card)).data.to_dict()
    return card


def test_a_name_of_timm(hub: Path, tmp_path: Path) -> None:
    model = vitrail.load(f"timm:{ARCHITECTURE}")
    assert all(model.facts[name] for name in FACTS)
    again = vitrail.load(vitrail.save(model, tmp_path / "saved"))
    assert again.facts == model.facts
    twice = vitrail.save(again, tmp_path / "twice")
    assert (twice / CARD).read_text() == (tmp_path / "saved" / CARD).read_text()
    card = card_of(twice)
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "vitrail"
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.base_model.startswith(f"timm/{ARCHITECTURE}")
    assert all(f"| {name} | {model.facts[name]} |" in card.text for name in FACTS)


@pytest.mark.parametrize(
    ("stated", "licence", "name"),
    [
        ("license: mit", "mit", None),
        ("license: CC-BY-NC-4.0", "cc-by-nc-4.0", None),
        ("license: other\nlicense_name: the-labs-own", "other", "the-labs-own"),
        ("license: [mit]", None, None),
        ("license: &a [*a]", None, None),
        ("- license", None, None),
        ("", None, None),
    ],
)
def test_a_licence_that_a_card_states(stated: str, licence: str | None, name: str | None, hub: Path) -> None:
    """Where it states none, none is made up, and no top of a card is written."""
    (hub / CARD).write_text(f"---\n{stated}\n---\n# A model | of others\n")
    model = vitrail.load("hf:owner/small")
    saved = vitrail.save(model, hub.parent / "saved")
    assert (saved / CARD).read_text().startswith("---\n") == bool(licence)
    if licence:
        card = card_of(saved)
        assert (card.data.license, card.data.get("license_name")) == (licence, name)
        assert card.data.base_model == "owner/small"


def test_a_file_without_a_card(folder: Path, tmp_path: Path) -> None:
    model = vitrail.load(folder)
    saved = vitrail.save(model, tmp_path / "saved")
    assert vitrail.load(saved).facts == model.facts
    assert "---\n#" not in (saved / CARD).read_text()


def test_a_card_tells_nothing_of_the_disk_that_weights_lay_on(folder: Path, tmp_path: Path) -> None:
    """But the name of the file and its SHA-256, whether a folder, a file or a pickle was opened."""
    pickle = tmp_path / "jane doe" / "lab" / "small.pth"
    pickle.parent.mkdir(parents=True)
    torch.save(safetensors.torch.load_file(folder / "model.safetensors"), pickle)
    assume = {"heads": 3, "mean": 0.5, "std": 0.5}
    for place, said in ((folder, None), (folder / "model.safetensors", None), (pickle, assume)):
        saved = vitrail.save(vitrail.load(place, assume=said), tmp_path / f"saved-{place.name}")
        written = [(saved / name).read_text() for name in (CARD, "config.json")]
        file = place / "model.safetensors" if place.is_dir() else place
        assert all(file.name in text and hashlib.sha256(file.read_bytes()).hexdigest() in text for text in written)
        assert not any(part in text for text in written for part in (str(tmp_path), "jane", "hub/"))


def test_what_strangers_wrote_stays_in_its_row(folder: Path, tmp_path: Path) -> None:
    model = vitrail.load(folder)
    facts = {**model.facts, "origin": "a\n---\n| b | c |\n# d", "licence": "mine: |\n  yes\n---\n"}
    card = card_of(vitrail.save(replace(model, facts=facts), tmp_path / "saved"))
    assert card.data.to_dict()["license_name"] == "mine-yes"
    assert "\n| origin | a --- \\| b \\| c \\| # d |\n" in card.text


def test_a_student_says_whose_weights_taught_it(hub: Path, tmp_path: Path) -> None:
    (hub / CARD).write_text("---\nlicense: mit\n---\n")
    finished = vitrail.distill("digits", "hf:owner/small", tmp_path / "run", student_options(epochs=1))
    taught = vitrail.load("hf:owner/small").facts
    facts = vitrail.load(finished.folder).facts
    assert {name: facts[f"teacher_{name}"] for name in FACTS} == {name: taught[name] for name in FACTS}
    assert "licence" not in facts
    assert f"| teacher licence | {taught['licence']} |" in (finished.folder / "model" / CARD).read_text()
