"""A model is a folder of plain files, whatever its task: the same bits back, the same answers, damage in two lines."""

import json
import os
import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

import vitrail
from tests.damage import damage
from tests.errors import must_raise
from tests.sequence_models import MODELS, image_model, put_sources
from vitrail.data.background import NAMES, PLACE, photographs
from vitrail.data.images import open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.explain.evidence import n_distinct
from vitrail.model import CARD, CONFIG, PREPROCESSOR, WEIGHTS, Model, load, save
from vitrail.nn import Parts, ViT, ViTConfig, names_of, parts_of
from vitrail.tasks import Classes, Classification
from vitrail.weights.published import imagenet_names

CONFIG_TINY = ViTConfig(image_size=(16, 24), patch_size=8, classes=3, width=16, depth=2, heads=2, dropout=0.3)
FORMS = {
    "plain": CONFIG_TINY,
    "one channel": replace(CONFIG_TINY, channels=1),
    "distilled": replace(CONFIG_TINY, distillation_token=True, registers=2, layer_scale=0.1),
    "mean, no bias": replace(CONFIG_TINY, pooling="mean", class_token=False, qkv_bias=False, positions="sinusoidal-2d"),
    "free": replace(CONFIG_TINY, head_dim=5, mlp_dim=7, positions="none", activation="relu"),
    "no bias, dropouts": replace(
        CONFIG_TINY, embed_bias=False, out_bias=False, mlp_bias=False, head_bias=False, embedding_dropout=0.0
    ),
}
CLASSES = Classes(("ape", "bär", "猫"))


def model_of(config: ViTConfig = CONFIG_TINY, parts: Parts | None = None) -> Model:
    torch.manual_seed(0)
    network = ViT(config) if parts is None else ViT(config, parts)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    numbers = (0.4, 0.5, 0.6)[: config.channels]
    preprocessing = Preprocessing((16, 24), "crop", 0.9, channels=config.channels, mean=numbers, std=numbers)
    return Model(network.eval(), preprocessing, CLASSES)


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    one, other = ours.state_dict(), theirs.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(model_of(), tmp_path / "model")


@pytest.fixture(scope="module")
def files(photo_folder: Path) -> list[Path]:
    return sorted((photo_folder / "val").rglob("*.*"))


@pytest.mark.parametrize("form", FORMS)
def test_all_bits_come_back(form: str, tmp_path: Path) -> None:
    model = model_of(FORMS[form])
    place = save(model, tmp_path / "deep" / "model")
    assert sorted(path.name for path in place.iterdir()) == sorted([WEIGHTS, CONFIG, PREPROCESSOR, CARD])
    again = load(place)
    assert same(model.network, again.network)
    assert again.network.config == model.network.config
    assert (again.input, again.output, again.task) == (model.input, CLASSES, model.task)
    assert not again.network.training
    images = torch.randn(2, model.network.config.channels, 16, 24)
    with torch.no_grad():
        assert torch.equal(model.network(images), again.network(images))
    shutil.copytree(place, tmp_path / "run" / "model")
    assert same(load(tmp_path / "run").network, model.network), "a run folder is opened by its model"


@pytest.mark.parametrize("name", MODELS)
def test_what_writes_comes_back_and_writes_the_same(name: str, tmp_path: Path) -> None:
    model = replace(MODELS[name](), facts={"data": "letters", "seed": 3})
    folder = save(model, tmp_path / "model")
    files = {CONFIG, WEIGHTS, CARD, *([] if model.reads_text else [PREPROCESSOR])}
    assert {path.name for path in folder.iterdir()} == files
    again = load(folder)
    assert (again.input, again.output, again.task, again.facts) == (model.input, model.output, model.task, model.facts)
    assert again.network.config == model.network.config
    assert not any(module.training for module in again.network.modules())
    assert same(model.network, again.network)
    some = put_sources(tmp_path)[not model.reads_text]
    assert again.predict(some) == model.predict(some)


def test_training_mode_is_saved_as_eval_and_left(tmp_path: Path) -> None:
    model = model_of()
    model.network.train()
    again = load(save(model, tmp_path))
    assert model.network.training
    assert not again.network.training


def test_predictions_are_softmax_of_the_network(files: list[Path]) -> None:
    model = model_of()
    images = torch.stack([model.preprocessing(path) for path in files])
    assert torch.equal(model.tensor(files), images)
    with torch.no_grad():
        shares = model.network(images).softmax(1)
    for batch_size in (0, -1, True):
        with must_raise(UsageError, "batch_size"):
            model.predict(files, batch_size=batch_size)
    for batch_size in (1, 4, 100):
        predictions = model.predict(files, batch_size=batch_size)
        for path, prediction, row in zip(files, predictions, shares, strict=True):
            assert prediction.name == str(path)
            assert prediction.label == CLASSES.names[int(row.argmax())]
            assert prediction.probability == pytest.approx(float(row.max()), abs=1e-6)
            assert [name for name, _ in prediction.top] == [
                CLASSES.names[index] for index in row.argsort(descending=True)
            ]
            assert sum(share for _, share in prediction.top) == pytest.approx(1, abs=1e-5)
    with Image.open(files[0]) as image:
        assert model.predict([image])[0].top == model.predict([str(files[0])], batch_size=1)[0].top
    assert model.predict(files[0]) == model.predict([files[0]], batch_size=1)
    assert model.predict([]) == []


def test_pixels_become_the_same_bits_whatever_the_device(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images that are explained they decide what is drawn, and a GPU divides otherwise."""
    model, seen, normalise = model_of(), list[str](), Preprocessing.normalise
    model.network.to("meta")
    monkeypatch.setattr(
        Preprocessing, "normalise", lambda self, given: seen.append(given.device.type) or normalise(self, given)
    )
    assert model.tensor(files[:2]).device.type == "meta"
    assert seen == ["cpu"]


def test_predicting_leaves_every_mode(files: list[Path]) -> None:
    model = model_of()
    model.network.train()
    model.network.blocks[1].eval()
    before = [module.training for module in model.network.modules()]
    first, second = model.predict(files[:2]), model.predict(files[:2])
    assert first == second, "no dropout"
    assert before == [module.training for module in model.network.modules()]
    with pytest.raises(DataError):
        model.predict([*files[:2], "no.png"])
    assert before == [module.training for module in model.network.modules()]


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    with must_raise(DataError, r"text\.png"):
        model_of().predict([tmp_path / "text.png"])
    with must_raise(DataError):
        model_of().predict(b"image")  # bytes are those of a file
    for wrong, named in ((torch.zeros(1, 8, 8), "float32"), (7, "int"), (bytearray(b"image"), "bytearray")):
        with must_raise(UsageError, named):
            model_of().tensor([wrong])


def test_parts_that_do_not_belong_together_are_refused() -> None:
    model = model_of()
    for change, named in (
        ({"output": Classes(("a", "b"))}, "2.*3"),
        ({"input": Preprocessing((16, 24), channels=1, mean=(0.0,), std=(1.0,))}, "1.*3"),
        ({"input": Preprocessing((16, 25))}, "16x25"),
    ):
        with must_raise(UsageError, named):
            replace(model, **change)
    with must_raise(UsageError, "a"):
        Classes(("a", "b", "a"))
    other = replace(model, input=Preprocessing((24, 24)))  # another grid than it was trained on is allowed
    assert other.preprocessing.size == (24, 24)


# damage


def change(file: Path, **changes: object) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    for path, value in changes.items():
        inner = content
        *sections, key = path.split("__")
        for section in sections:
            inner = inner[section]
        inner[key] = value
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, PREPROCESSOR])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "folder"])
def test_a_file_that_is_gone_or_cut(folder: Path, name: str, how: str) -> None:
    damage(folder / name, how)
    with must_raise(DataError, name):
        load(folder)


def test_nothing_there(tmp_path: Path, folder: Path) -> None:
    with must_raise(DataError, "mode") as caught:
        load(tmp_path / "mode")
    assert str(folder) in str(caught.value.hint), "the nearest name"
    (tmp_path / "empty").mkdir()
    with must_raise(DataError, "empty"):
        load(tmp_path / "empty")
    with must_raise(DataError, "where"):
        load(tmp_path / "no" / "where")
    variant = tmp_path / "empty" / "model.fp16.safetensors"  # which no folder is opened by
    variant.touch()
    with must_raise(DataError, CONFIG) as caught:
        load(tmp_path / "empty")
    assert str(variant) in str(caught.value.hint)


@pytest.mark.usefixtures("as_a_user")
def test_a_configuration_that_does_not_fit(folder: Path) -> None:
    whole = (folder / CONFIG).read_bytes()
    for changes, named in (
        ({"format": 99}, CONFIG),
        ({"task": "dance"}, "dance"),
        ({"output": {"classes": ["a", "b"]}}, "2.*3"),
        ({"output": 3}, None),
        ({"output": {"classes": None}}, None),
        ({"network": []}, None),
        ({"network__kind": "CNN"}, "CNN"),
        ({"network__width": -4}, "width"),
        ({"network__heads": 0}, "heads"),
        ({"network__patch_size": [5, 5]}, "5"),
        ({"network__wide": 3}, "wide"),
        ({"network__width": 2**44}, None),
        ({"network__channels": 1}, "channels"),
        ({"network__width": 32}, WEIGHTS),
        ({"network__depth": 1}, WEIGHTS),
        ({"network__registers": 1}, WEIGHTS),
    ):
        (folder / CONFIG).write_bytes(whole)
        change(folder / CONFIG, **{f"vitrail__{path}": value for path, value in changes.items()})
        with must_raise(UsageError if "task" in changes else DataError, named):
            load(folder)


def test_an_exception_of_many_lines_is_told_in_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wordy(*_: object) -> None:
        raise ValueError("these are no classes\nbut many lines\nof something else")

    monkeypatch.setattr(Classification, "codec_from_dict", wordy)
    with must_raise(DataError, str(folder)):
        load(folder)


def test_json_of_another_kind(folder: Path) -> None:
    old, new = '{"vitrail": {"format": 2}}', '{"vitrail": {"format": 3}}'
    for content in ("[]", "3", "null", old, new, '{"vitrail": [3]}', "[" * 100_000, "\x00"):
        (folder / CONFIG).write_text(content)
        with must_raise(VitrailError):
            load(folder)
        if "vitrail" not in content:
            save(model_of(), folder)
            (folder / PREPROCESSOR).write_text(content)
            with must_raise(DataError, PREPROCESSOR):
                load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(folder: Path, value: float) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    tensors["blocks.1.norm2.bias"][3] = value
    safetensors.torch.save_file(tensors, folder / WEIGHTS)
    with must_raise(DataError, r"blocks\.1\.norm2\.bias"):
        load(folder)


def test_weights_that_are_missing_or_too_many(folder: Path) -> None:
    whole = safetensors.torch.load_file(folder / WEIGHTS)
    safetensors.torch.save_file(
        {name: tensor for name, tensor in whole.items() if name != "norm.bias"}, folder / WEIGHTS
    )
    with must_raise(DataError, r"norm\.bias"):
        load(folder)
    safetensors.torch.save_file({**whole, "more": torch.zeros(1)}, folder / WEIGHTS)
    with must_raise(DataError, "more"):
        load(folder)


def test_any_flipped_byte_of_the_header_loads_or_is_refused(folder: Path) -> None:
    """A changed weight cannot be told from another one; a changed header must not end in a traceback."""
    whole = (folder / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    chance, outcomes = random.Random(0), {True: 0, False: 0}
    for position in [*range(16), *(chance.randrange(16, header) for _ in range(120))]:
        content = bytearray(whole)
        content[position] ^= 1 << chance.randrange(8)
        (folder / WEIGHTS).write_bytes(content)
        try:
            load(folder)
        except DataError as error:
            outcomes[False] += str(error).count("\n") == 1
        else:
            outcomes[True] += 1
    assert outcomes[False] > 100


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("output"),
        lambda config: config["output"].update(tokens=["1", "1"]),
        lambda config: config["output"].update(tokens=["1"]),
        lambda config: config["network"].update(widht=3),
        lambda config: config["network"].update(pad_id=1),
        lambda config: config["network"].update(kind="ViT"),
        lambda config: config["network"].update(kind="Perceiver"),
        lambda config: config.update(input=3),
        lambda config: config.update(facts="many"),
    ],
)
@pytest.mark.parametrize("name", ["texts", "images"])
@pytest.mark.usefixtures("as_a_user")
def test_a_damaged_configuration_of_what_writes(name: str, change, tmp_path: Path) -> None:
    folder = save(MODELS[name](), tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    change(config["vitrail"])
    (folder / CONFIG).write_text(json.dumps(config))
    with must_raise(DataError, str(folder)):
        load(folder)


def test_damaged_weights_of_what_writes(tmp_path: Path) -> None:
    folder = save(image_model(), tmp_path / "model")
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    with must_raise(DataError, WEIGHTS):
        load(folder)
    (folder / PREPROCESSOR).unlink()
    with must_raise(DataError, PREPROCESSOR):
        load(folder)


class Evil:
    """What would happen if anything were unpickled."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("unpickled",)


def test_nothing_is_unpickled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (WEIGHTS, CONFIG, PREPROCESSOR):
        save(model_of(), folder)
        (folder / name).write_bytes(pickle.dumps(Evil()))
        with must_raise(DataError, name):
            load(folder)
        assert not (tmp_path / "unpickled").exists()
    pickle.loads(pickle.dumps(Evil()))
    assert (tmp_path / "unpickled").exists(), "the planted fault works"
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    monkeypatch.setattr(torch, "load", None)
    load(save(model_of(), folder))


# background: what explanations are tested with


def with_background() -> Model:
    pixels = torch.randint(0, 256, (7, 3, 16, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return replace(model_of(), background=pixels)


def background_file(folder: Path) -> Path:
    """The one file that a model with a background has and another has not."""
    (file,) = {path.name for path in folder.iterdir()} - {WEIGHTS, CONFIG, PREPROCESSOR, CARD}
    return folder / file


def test_a_model_for_images_of_another_size_lies_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device without memory, which every machine has."""
    monkeypatch.setattr("vitrail.model.loading.pick_device", torch.device)
    network = load(save(model_of(), tmp_path), image_size=(32, 40), channels=1, device="meta").network
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"meta"}


def test_the_background_comes_back_to_the_bit(tmp_path: Path) -> None:
    model = with_background()
    place = save(model, tmp_path / "model")
    again = load(place)
    assert torch.equal(again.background, model.background)
    assert torch.equal(again.background_images, model.preprocessing.normalise(model.background))
    twice = save(again, tmp_path / "again")
    assert background_file(twice).read_bytes() == background_file(place).read_bytes()
    assert (place / CARD).read_text(encoding="utf-8") != (save(model_of(), tmp_path / "bare") / CARD).read_text()


def test_the_file_of_tensors_stands_for_its_folder(tmp_path: Path) -> None:
    model = replace(with_background(), facts={"seed": 3})
    again = load(save(model, tmp_path) / WEIGHTS)
    assert torch.equal(again.background, model.background)
    assert (again.facts, again.output) == (model.facts, model.output)


def test_the_background_of_a_former_model_does_not_stay(tmp_path: Path) -> None:
    save(with_background(), tmp_path)
    save(model_of(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {WEIGHTS, CONFIG, PREPROCESSOR, CARD}
    assert load(tmp_path).background is None
    assert load(tmp_path).background_images is None


def test_a_model_of_imagenets_classes_borrows_photographs() -> None:
    """They are many, all different, and every part of one; a model of other classes gets none of them."""
    config = ViTConfig(image_size=32, patch_size=8, channels=3, classes=1000, width=16, depth=1, heads=2)
    reads = Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = Model(ViT(config).eval(), reads, Classes(imagenet_names()))
    assert model.background is None
    lent = model.background_images
    assert lent is not None
    assert lent.shape == (50, 3, 32, 32)
    assert n_distinct(lent) == 50
    for number, name in enumerate(NAMES):
        torch.testing.assert_close(lent[number], reads(open_image(PLACE / f"{name}.jpg")), rtol=0, atol=1e-6)
    others = Model(model.network, reads, Classes(tuple(map(str, range(1000)))))
    assert others.background_images is None
    grey = Preprocessing((32, 32), mean=(0.5,), std=(0.5,), channels=1)
    assert photographs(grey).shape == (50, 1, 32, 32)
    large = Preprocessing((1024, 1024), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert len(photographs(large)) == len(NAMES)


def test_a_model_without_background_predicts_the_same(tmp_path: Path, files: list[Path]) -> None:
    place = save(with_background(), tmp_path)
    predictions = load(place).predict(files)
    background_file(place).unlink()
    assert load(place).background is None
    assert load(place).predict(files) == predictions == model_of().predict(files)


def test_a_background_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pixels = with_background().background
    for wrong in (pixels[..., :16], pixels[:, :1], pixels[:0]):
        with must_raise(UsageError):
            replace(model_of(), background=wrong)
    other = Model(ViT(replace(CONFIG_TINY, image_size=8)).eval(), Preprocessing((8, 8)), CLASSES)
    place = save(other, tmp_path / "other")
    shutil.copy(background_file(save(with_background(), tmp_path / "model")), place)
    with must_raise(DataError, "7 x 3 x 16 x 24.*8 x 8"):
        load(place)


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "folder"])
def test_a_damaged_background_is_refused(tmp_path: Path, how: str) -> None:
    file = background_file(save(with_background(), tmp_path))
    damage(file, how)
    with must_raise(DataError, file.name):
        load(tmp_path)


# parts of one's own


def test_parts_of_the_table_are_opened_by_name_and_own_parts_are_asked_for(tmp_path: Path) -> None:
    named = model_of(parts=parts_of({"norm": "rms", "embed_norm": "layer"}))
    again = load(save(named, tmp_path / "named")).network
    assert same(again, named.network)
    assert names_of(again.parts) == {"norm": "rms", "embed_norm": "layer"}
    assert "architecture" not in json.loads((tmp_path / "named" / CONFIG).read_text())  # timm knows no such network

    def own_norm(config: ViTConfig) -> nn.Module:
        return nn.RMSNorm(config.width)

    model = model_of(parts=Parts(norm=own_norm))
    place = save(model, tmp_path / "own")
    with must_raise(UsageError, "own_norm"):
        load(place)
    assert same(load(place, parts=Parts(norm=own_norm)).network, model.network)
    for parts in (Parts(head=own_norm), Parts(norm=own_norm, head=own_norm)):
        with pytest.raises(UsageError):
            load(place, parts=parts)
    with pytest.raises(UsageError):
        load(save(model_of(), tmp_path / "plain"), parts=Parts(norm=own_norm))
    change(place / CONFIG, vitrail__parts="rms")
    with must_raise(DataError, "parts"):
        load(place)


# saving


def test_an_interrupted_save_leaves_the_former_files_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def crash(*args: object) -> None:
        raise OSError("planted")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, crash)
            with pytest.raises(OSError, match="planted"):
                save(model_of(FORMS["one channel"]), folder)
        assert {name: (folder / name).read_bytes() for name in before} == before
        load(folder)


def test_the_card_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    text = (folder / CARD).read_text(encoding="utf-8")
    assert "16 x 24" in text
    assert "猫" in text
    assert "vitrail.load" in text
    save(model_of(), tmp_path / "own", card="# mine")
    assert (tmp_path / "own" / CARD).read_text() == "# mine"


@pytest.mark.parametrize("rule", ["squash", "crop"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_opens_the_preprocessing(tmp_path: Path, rule: str) -> None:
    """The file that `save` wrote gives the same pixels there, to less than 1/255, where images have the size."""
    from transformers import ViTImageProcessor

    shape = Preprocessing((16, 16), rule, mean=(0.4, 0.5, 0.6), std=(1.0, 1.0, 1.0))
    model = Model(ViT(replace(CONFIG_TINY, image_size=16)), shape, CLASSES)
    processor = ViTImageProcessor.from_pretrained(save(model, tmp_path / rule))
    values = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    theirs = processor(Image.fromarray(values), return_tensors="pt")["pixel_values"]
    ours = model.tensor([Image.fromarray(values)])
    assert (theirs - ours).abs().max() <= 1e-6
    down, across = np.mgrid[0:64, 0:64]
    slope = Image.fromarray(np.stack([down * 3, across * 3, (down + across) * 2], 2).astype(np.uint8))
    theirs = processor(slope, return_tensors="pt")["pixel_values"]
    assert (theirs - model.tensor([slope])).abs().max() <= 1.01 / 255


def test_the_public_names_are_these() -> None:
    assert vitrail.load is load
    assert vitrail.save is save
    assert vitrail.Model is Model


def test_a_folder_of_models_names_them(tmp_path: Path) -> None:
    """As transformers' Trainer leaves its checkpoints, and a folder of runs."""
    for name in ("checkpoint-500", "checkpoint-1000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "optimizer.pt").write_bytes(b"")
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    (tmp_path / "training_args.bin").write_bytes(b"")
    (tmp_path / "logs").mkdir()
    with must_raise(DataError, "checkpoint-500") as caught:
        load(tmp_path)
    assert str(caught.value.hint) == str(tmp_path / "checkpoint-1000")
    save(model_of(), tmp_path / "runs" / "a" / "model")
    save(model_of(), tmp_path / "runs" / "b")
    with must_raise(DataError, "a, b|b, a") as caught:
        load(tmp_path / "runs")
    assert load(str(caught.value.hint)).classes == CLASSES.names
