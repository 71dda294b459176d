"""Folders that vitrail saved from pretrained weights: what is said of them holds for what is in them now."""

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf
from transformers import AutoModel, AutoModelForImageClassification

import vitrail
from tests.cli.command import DATA, call, must_refuse
from tests.errors import must_raise
from tests.weights.small import READS
from tests.weights.test_timm_keys import BASE, FORMS, model_of
from vitrail.data.tensor_files import tensors_to_bytes
from vitrail.errors import DataError, VitrailError
from vitrail.model import CONFIG, PREPROCESSOR, WEIGHTS, Model
from vitrail.model.facts import UNVERIFIED, origin_words
from vitrail.model.loading import SEAL
from vitrail.model.saving import card_of
from vitrail.nn import ViTConfig
from vitrail.weights.places import KEY

NAMES = tuple("abcdefg")


@pytest.fixture
def saved(verified: Path) -> Path:
    """A folder of weights that a row of the table knows, with class names."""
    return vitrail.save(vitrail.load(verified, assume={"heads": 3}, classes=NAMES), verified.parent / "saved")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.linear_gradient("L").convert("RGB").save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def change(folder: Path, checksum: bool, by: float = 0.01) -> None:
    """One number of one tensor is another."""
    tensors = load_file(folder / WEIGHTS)
    tensors["blocks.1.mlp.fc1.bias"][3] += by
    if checksum:
        (folder / WEIGHTS).write_bytes(tensors_to_bytes(tensors))
    else:
        save_file(tensors, folder / WEIGHTS)


# ---- what is verified


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("checksum", [True, False])
def test_verified_are_the_numbers_in_the_folder(saved: Path, photo: Path, checksum: bool) -> None:
    """Wherever it is said: the facts, stderr of each verb, `models`, the page of an explanation, and a new card."""
    before = vitrail.load(saved).facts["verified"]
    assert "a row" in before
    change(saved, checksum, by=0)  # written anew, as it was
    for now in (before, UNVERIFIED):
        model = vitrail.load(saved)
        assert model.facts["verified"] == now
        assert ("weights" in model.facts) == (now == UNVERIFIED)
        page = photo.with_name("page.html")
        predict, models = call("predict", saved, photo, "--json"), call("models", saved, "--json")
        explain = call("explain", saved, photo, "--method", "rollout", "--out", page)
        again = vitrail.save(model, saved.with_name("again"))
        assert [one.code for one in (predict, models, explain)] == [0, 0, 0], explain.err
        assert {"verified": now, "licence": "mit"}.items() <= json.loads(models.out).items()
        places = (predict.err, explain.err, page.read_text(), (again / "README.md").read_text())
        assert [now in text for text in places] == [True] * 4
        assert [model.facts.get("weights", now) in text for text in places] == [True] * 4
        if now == UNVERIFIED:
            assert not [text for text in (*places, predict.out, models.out) if "a row" in text]
            assert vitrail.load(again).facts == model.facts
        change(saved, checksum)


def test_what_is_verified_is_kept_where_tensors_bear_other_names_in_the_file(tmp_path: Path) -> None:
    """Those of attention pooling, which is what SigLIP has."""
    siglip = timm.create_model("vit_base_patch16_siglip_224", embed_dim=48, depth=1, num_heads=3, img_size=32)
    model = vitrail.convert(siglip)
    again = vitrail.load(vitrail.save(model, tmp_path))
    assert again.facts == model.facts
    assert "live" in again.facts["verified"]


def test_what_was_verified_by_an_older_folder_cannot_be_held(saved: Path) -> None:
    rewrite(saved, lambda config: (config[KEY].pop(SEAL), config[KEY]["facts"].pop("verified_weights")))
    facts = vitrail.load(saved).facts
    assert facts["verified"] == UNVERIFIED
    assert "weights" not in facts, "nothing shows a change"


def test_a_training_that_starts_from_it_says_what_is_verified(saved: Path, photo_folder: Path) -> None:
    words = ("train", photo_folder, "--init", saved, "--dry-run", "--out", saved.with_name("run"))
    for now in (vitrail.load(saved).facts["verified"], UNVERIFIED):
        found = call(*words)
        assert found.code == 0, found.err
        assert now in found.out + found.err
        change(saved, checksum=True)


# ---- written by others since


def rewrite(folder: Path, edit: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    edit(config)
    (folder / CONFIG).write_text(json.dumps(config))


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_through_transformers_and_back(form: str, tmp_path: Path) -> None:
    fields, parts = FORMS[form]
    model = model_of(ViTConfig(**{**BASE.__dict__, **fields}), parts)
    config = model.network.config
    folder = vitrail.save(model, tmp_path / "saved")
    kind = AutoModelForImageClassification if config.classes else AutoModel
    wrapped = kind.from_pretrained(folder)
    for place in (tmp_path / "other", folder):
        wrapped.save_pretrained(place)
        again = vitrail.load(place)
        images = torch.randn(2, config.channels, *config.image)
        torch.testing.assert_close(again.network(images), model.network(images), atol=1e-6, rtol=1e-6)
        assert again.output == model.output
        assert again.preprocessing.mean == model.preprocessing.mean
        assert "transformers" in again.facts["configuration"]
        assert again.facts["verified"] == UNVERIFIED


def test_a_head_of_another_size_by_transformers(saved: Path, photo: Path) -> None:
    names = {0: "cat", 1: "dog"}
    wrapped = AutoModelForImageClassification.from_pretrained(
        saved, num_labels=2, id2label=names, label2id={"cat": 0, "dog": 1}, ignore_mismatched_sizes=True
    )
    torch.nn.init.normal_(wrapped.timm_model.head.weight)
    for place in (saved.with_name("tuned"), saved):
        wrapped.save_pretrained(place)
        model = vitrail.load(place)
        images = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            assert torch.equal(model.network(images), wrapped.eval()(images).logits)
        assert model.classes == ("0", "1"), "transformers keeps the seven names of before"
        assert {"class_names", "configuration"} < model.facts.keys()
        assert model.facts["verified"] == UNVERIFIED
        assert model.preprocessing == READS
        found = call("predict", place, photo, "--json")
        assert found.code == 0
        assert {word for word, _ in json.loads(found.out)[0]["top"]} == {"0", "1"}
        assert found.err.count("transformers") == 1
        assert vitrail.load(place, classes=["cat", "dog"]).classes == ("cat", "dog")


def test_written_by_timm_into_the_same_folder(saved: Path) -> None:
    """The preprocessing is timm's of now, and not what vitrail wrote beside it."""
    tuned = timm.create_model(f"local-dir:{saved}", pretrained=True, num_classes=3)
    tuned.pretrained_cfg |= {"mean": (0.4, 0.5, 0.6)}
    save_for_hf(tuned, str(saved), {"label_names": ["x", "y", "z"]}, safe_serialization=True)
    model = vitrail.load(saved)
    assert (saved / PREPROCESSOR).exists()
    assert model.classes == ("x", "y", "z")
    assert model.preprocessing.mean == (0.4, 0.5, 0.6)
    assert model.facts["verified"] == UNVERIFIED
    assert "timm" in model.facts["configuration"]


def test_a_run_whose_model_others_wrote_names_what_opens(saved: Path, tmp_path: Path) -> None:
    AutoModelForImageClassification.from_pretrained(saved).save_pretrained(tmp_path / "run" / "model")
    with must_raise(DataError, "timm_wrapper") as caught:
        vitrail.load(tmp_path / "run")
    assert vitrail.load(str(caught.value.hint)).classes == NAMES


@pytest.mark.parametrize(
    "edit",
    [
        lambda config: config.update(label_names=[*reversed(NAMES)]),
        lambda config: config.update(num_labels=6),
        lambda config: config.update(num_classes=6),
        lambda config: config["model_args"].update(depth=1),
        lambda config: config["model_args"].update(num_heads=6),
        lambda config: config[KEY]["output"].update(classes=[*reversed(NAMES)]),
        lambda config: config[KEY]["network"].update(heads=6),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(edit: Any, saved: Path, photo: Path) -> None:
    rewrite(saved, edit)
    with must_raise(DataError, CONFIG) as caught:
        vitrail.load(saved)
    must_refuse(call("predict", saved, photo), DATA, CONFIG)
    file = str(caught.value.hint).partition(", ")[0]
    config = json.loads((saved / CONFIG).read_text())
    if config["model_args"]["depth"] == 1 or config["num_classes"] == 6:  # which the tensors contradict
        with must_raise(DataError, "depth|classes"):
            vitrail.load(file)
        return
    model = vitrail.load(file)  # by what others read
    assert list(model.classes) == config["label_names"]
    assert model.network.config.heads == config["model_args"]["num_heads"]
    assert "configuration" in model.facts


# ---- a configuration of any kind


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside a value, itself left out; of a list the first alone."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def put(values: Any, path: tuple[Any, ...], value: Any) -> None:
    """Another value at a path, as far as the path still leads anywhere."""
    with contextlib.suppress(TypeError, LookupError):
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("beside", "edited"),
    [
        (True, "pairs"),
        (False, "pairs"),
        *(pytest.param(beside, "each", marks=pytest.mark.soak) for beside in (True, False)),
    ],
)
def test_values_of_another_kind_are_refused_in_a_line(beside: bool, edited: str, saved: Path, photo: Path) -> None:
    """Each value under our key by each other kind, or 100 pairs: it opens and is used, or is an error in two lines.

    With the keys of others beside it, which it may contradict, and without.
    """
    whole = json.loads((saved / CONFIG).read_text())
    whole = whole if beside else {KEY: whole[KEY]}
    whole[KEY]["facts"] |= {"resized": "from 1 to 2", "grey": "a stem", "weights": "an average", "seed": 3}
    whole[KEY]["parts"] = {"pooling": "attention"}
    paths, values = list(leaves(whole[KEY])), [["x"], [], {"height": 32}, {}, 3, -1, 0.5, 1e400, "x", "", None, True]
    whole[KEY]["parts"] = {}
    chance = random.Random(0)
    pairs = [[(chance.choice(paths), chance.choice(values)) for _ in range(2)] for _ in range(100)]
    cases = [[(path, value)] for path in paths for value in values] if edited == "each" else pairs
    opened = 0
    for edits in cases:
        config = json.loads(json.dumps(whole))
        for path, value in edits:
            put(config[KEY], path, value)
        (saved / CONFIG).write_text(json.dumps(config))
        model: Model | None = None
        with contextlib.suppress(VitrailError):
            model = vitrail.load(saved)
        if model is not None:
            opened += 1
            labels = {word for word, _ in model.predict([photo])[0].top}
            assert labels < set(NAMES) if beside else len(labels) == 5, edits
            assert card_of(model)
            assert all(isinstance(words, str) for words in origin_words(model.facts))
    assert 0 < opened < len(cases)


@pytest.mark.parametrize(
    "edit", [{"task": ["x"]}, {"parts": {"height": 32}}, {"facts": {"verified": 3}}, {"network": 3}]
)
def test_a_wrong_kind_at_the_command_line(edit: dict[str, Any], saved: Path, photo: Path) -> None:
    rewrite(saved, lambda config: config[KEY].update(edit))
    for words in (("predict", saved, photo), ("models", saved), ("explain", saved, photo)):
        must_refuse(call(*words), DATA, str(saved))
