"""timm and transformers open what vitrail saves, from the files alone, and give the same logits and the same pixels."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from transformers import AutoImageProcessor, AutoModel, AutoModelForImageClassification

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError
from vitrail.model import CONFIG, WEIGHTS, Model, load, save
from vitrail.nn import ViT, ViTConfig, parts_of
from vitrail.tasks import Classes
from vitrail.tasks.features import Features, Numbers
from vitrail.weights import timm_keys

BASE = ViTConfig(image_size=32, patch_size=8, classes=5, width=24, depth=2, heads=3)
CLIP = {"embed_bias": False, "norm_eps": 1e-5, "activation": "quick_gelu"}
MEAN = {"pooling": "mean_then_norm", "last_norm": "none"}
Form = tuple[dict[str, Any], dict[str, str]]
FORMS: dict[str, Form] = {  # fields, parts
    "the paper's": ({}, {}),
    "mean of patches": ({"pooling": "mean", "class_token": False}, {}),
    "registers, LayerScale, no bias": ({"registers": 2, "layer_scale": 0.1, "qkv_bias": False}, {}),
    "one channel, rectangular": ({"channels": 1, "image_size": (24, 40), "patch_size": (8, 4)}, {}),
    "ReLU, small MLP": ({"activation": "relu", "mlp_dim": 48}, {}),
    "sinusoidal": ({"positions": "sinusoidal"}, {}),
    "no positions": ({"positions": "none"}, {}),
    "no bias in attention's output and the MLP": ({"out_bias": False, "mlp_bias": False}, {}),
    "dropout in each place": ({"dropout": 0.1, "embedding_dropout": 0.2, "attention_dropout": 0.3}, {}),
    "DeiT": ({"distillation_token": True}, {}),
    "DeiT, no head": ({"distillation_token": True, "classes": 0}, {}),
    "CLIP": (CLIP, {"embed_norm": "layer"}),
    "CLIP, projected": ({**CLIP, "head_bias": False}, {"embed_norm": "layer"}),
    "SigLIP": ({"activation": "gelu_tanh", "class_token": False, "pooling": "mean"}, {"pooling": "attention"}),
    "SigLIP, no head": ({"class_token": False, "pooling": "mean", "classes": 0}, {"pooling": "attention"}),
    "attention pooling, no last norm": ({"registers": 1}, {"pooling": "attention", "last_norm": "none"}),
    "MAE, tuned": ({"pooling": "mean"}, MEAN),
    "no last norm": ({}, {"last_norm": "none"}),
    "DINO": ({"classes": 0}, {}),
    "DINOv2 with registers": ({"layer_scale": 1e-5, "registers": 4}, {}),
    "DINOv2's giant": ({"layer_scale": 1e-5, "activation": "silu", "mlp_dim": 56}, {"mlp": "swiglu"}),
    "its MLP, no LayerScale": ({"mlp_bias": False, "out_bias": False}, {"mlp": "swiglu", **MEAN}),
    "torch's epsilon": ({"norm_eps": 1e-5, "layer_scale": 0.1}, {}),
}
INEXPRESSIBLE: list[Form] = [
    ({"head_dim": 10}, {}),
    ({"distillation_token": True, "norm_eps": 1e-5}, {}),
    ({"distillation_token": True, "pooling": "mean"}, {}),
    ({"distillation_token": True, "registers": 1}, {}),
    ({"distillation_token": True, "positions": "none"}, {}),
    ({"norm_eps": 1e-12}, {}),
    ({"embed_bias": False}, {}),
    ({}, {"embed_norm": "layer"}),
    ({"out_bias": False}, {}),
    ({"mlp_bias": False}, {}),
    ({}, {"pooling": "mean_then_norm"}),
    ({}, {"mlp": "swiglu", "pooling": "attention"}),
    ({}, {"norm": "rms"}),
    ({}, {"pooling": "class_and_mean", "head": "of_two"}),
]


def model_of(config: ViTConfig, parts: dict[str, str]) -> Model:
    """Every parameter drawn, so that none can be left out or put elsewhere unseen."""
    torch.manual_seed(0)
    network = ViT(config, parts_of(parts)).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    statistics = (0.4,) * config.channels
    preprocessing = Preprocessing(config.image, channels=config.channels, mean=statistics, std=statistics)
    if not config.classes:
        return Model(network, preprocessing, Numbers(config.width), Features())
    return Model(network, preprocessing, Classes(tuple("abcde")))


@pytest.mark.parametrize("form", FORMS)
def test_others_open_it_and_say_the_same(form: str, tmp_path: Path) -> None:
    fields, parts = FORMS[form]
    model = model_of(replace(BASE, **fields), parts)
    config = model.network.config
    references = torch.zeros(3, config.channels, *config.image, dtype=torch.uint8)  # a second file of tensors
    save(replace(model, background=references), tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    images = torch.randn(4, config.channels, *config.image)
    kind = AutoModelForImageClassification if config.classes else AutoModel
    wrapped, loading = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading
    assert not wrapped.training
    by_timm = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    with torch.no_grad():
        ours, theirs, wraps = model.network(images), by_timm(images), wrapped(images)
        again = load(tmp_path).network(images)
    assert ours.std() > 0.1
    assert torch.equal(again, ours)
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=1e-6)
    assert torch.equal(wraps.logits if config.classes else wraps.pooler_output, theirs)
    if config.classes:
        assert list(wrapped.config.id2label.values()) == list(model.classes)


@pytest.mark.parametrize(
    ("size", "resize", "ratio"),
    [((32, 32), "crop", 1.0), ((48, 48), "crop", 0.9), ((48, 48), "squash", 0.9), ((32, 40), "squash", 1.0)],
    ids=str,
)
def test_others_prepare_images_alike(size: tuple[int, int], resize: Any, ratio: float, tmp_path: Path) -> None:
    """Noise over a gradient as JPEG: the same pixels, far within one level of 255."""
    preprocessing = Preprocessing(size, resize=resize, crop_pct=ratio, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    model = replace(model_of(replace(BASE, image_size=size), {}), input=preprocessing)
    save(model, tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    generator = np.random.default_rng(0)
    for high, wide in ((50, 71), (430, 288), (33, 33), (500, 375)):
        x, y = np.meshgrid(np.linspace(0, 255, wide), np.linspace(0, 255, high))
        noise = generator.normal(0, 30, (high, wide, 3))
        pixels = np.stack([x, y, (x + y) / 2], axis=2) + noise
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "image.jpg", quality=95)
        image = Image.open(tmp_path / "image.jpg")
        theirs = processor(image, return_tensors="pt")["pixel_values"][0]
        ours = model.preprocessing(tmp_path / "image.jpg")
        levels = (ours - theirs).abs() * torch.tensor(preprocessing.std)[:, None, None] * 255
        assert float(levels.max()) <= 1e-3, (high, wide)


@pytest.mark.parametrize(("fields", "parts"), INEXPRESSIBLE, ids=str)
def test_what_timm_cannot_express_gets_no_keys(fields: dict, parts: dict) -> None:
    preprocessing = model_of(BASE, {}).preprocessing
    assert timm_keys(BASE, {}, preprocessing, tuple("abcde"))
    assert timm_keys(replace(BASE, **fields), parts, preprocessing, tuple("abcde")) == {}


@pytest.mark.parametrize(
    ("fields", "parts"), [({}, {"mlp": "swiglu", "pooling": "attention"}), ({"norm_eps": 1e-12}, {})], ids=str
)
def test_what_timm_cannot_express_is_saved_all_the_same_and_said(fields: dict, parts: dict, tmp_path: Path) -> None:
    """An epsilon of 1e-12 is that of transformers' ViT and DeiT; timm takes a norm by its name, which says none."""
    model, images = model_of(replace(BASE, **fields), parts), torch.randn(2, 3, 32, 32)
    again = load(save(model, tmp_path / "first"))
    with torch.no_grad():
        assert torch.equal(again.network(images), model.network(images))
    assert not {"architecture", "model_args"} & json.loads((tmp_path / "first" / CONFIG).read_text()).keys()
    said = again.facts["timm_and_transformers"]
    assert said in (tmp_path / "first" / "README.md").read_text()
    assert not fields or "1e-12" in said
    other = replace(model_of(BASE, {}), facts=again.facts)  # what was said of one network is not said of another
    assert "timm_and_transformers" not in load(save(other, tmp_path / "second")).facts
    assert "architecture" in json.loads((tmp_path / "second" / CONFIG).read_text())


def test_timm_has_one_switch_for_the_biases_of_both() -> None:
    """Why `out_bias` and `mlp_bias` must agree, and why the other two cannot be said."""
    with torch.device("meta"):
        other = timm.create_model("vit_tiny_patch16_224", proj_bias=False)
    without = {name for name, module in other.named_modules() if isinstance(module, nn.Linear) and module.bias is None}
    assert without == {f"blocks.{i}.{part}" for i in range(12) for part in ("attn.proj", "mlp.fc1", "mlp.fc2")}
    switches = [name for name in inspect.signature(VisionTransformer).parameters if "bias" in name]
    assert switches == ["qkv_bias", "proj_bias"]


def test_a_wrong_key_would_be_noticed(tmp_path: Path) -> None:
    model = model_of(replace(BASE, pooling="mean", class_token=False), {})
    save(model, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"fc_norm": false', '"fc_norm": true'))
    with pytest.raises(RuntimeError, match="norm"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    _, loading = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert loading["missing_keys"]
    assert loading["unexpected_keys"]


def test_tensors_under_timms_names_that_do_not_fit(tmp_path: Path) -> None:
    """One that is missing, one of another width, and a bias of the head that is none."""
    from safetensors.torch import load_file, save_file

    fields, parts = FORMS["SigLIP"]
    whole = load_file(save(model_of(replace(BASE, **fields, head_bias=False), parts), tmp_path) / WEIGHTS)
    load(tmp_path)
    for name, tensor in (
        ("attn_pool.kv.weight", None),
        ("attn_pool.q.weight", torch.zeros(24, 23)),
        ("head.bias", torch.ones(5)),
        ("fc_norm.weight", torch.ones(24)),
    ):
        changed = {**whole, name: tensor}
        save_file({key: value for key, value in changed.items() if value is not None}, tmp_path / WEIGHTS)
        with pytest.raises(DataError):
            load(tmp_path)
