"""timm opens what vitrail saves, from the files alone, and gives the same logits and the same preprocessing."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitrail.data.columns import Classes
from vitrail.data.preprocessing import Preprocessing
from vitrail.model import Model, save
from vitrail.nn import ViT, ViTConfig
from vitrail.weights import timm_keys

BASE = ViTConfig(image_size=32, patch_size=8, classes=5, width=24, depth=2, heads=3)
FORMS = {
    "the paper's": BASE,
    "mean of patches": replace(BASE, pooling="mean", class_token=False),
    "registers, LayerScale, no bias": replace(BASE, registers=2, layer_scale=0.1, qkv_bias=False),
    "one channel, rectangular": replace(BASE, channels=1, image_size=(24, 40), patch_size=(8, 4)),
    "ReLU, small MLP": replace(BASE, activation="relu", mlp_dim=48),
    "sinusoidal": replace(BASE, positions="sinusoidal"),
    "no positions": replace(BASE, positions="none"),
    "no bias in attention's output and the MLP": replace(BASE, out_bias=False, mlp_bias=False),
    "dropout in each place": replace(BASE, dropout=0.1, embedding_dropout=0.2, attention_dropout=0.3),
}


def model_of(config: ViTConfig) -> Model:
    torch.manual_seed(0)
    network = ViT(config).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    statistics = (0.4,) * config.channels
    preprocessing = Preprocessing(config.image, channels=config.channels, mean=statistics, std=statistics)
    return Model(network, preprocessing, Classes(tuple("abcde")))


@pytest.mark.parametrize("form", FORMS)
def test_timm_opens_it_and_says_the_same(form: str, tmp_path: Path) -> None:
    model = model_of(FORMS[form])
    config = model.network.config
    references = torch.zeros(3, config.channels, *config.image, dtype=torch.uint8)  # a second file of tensors
    save(replace(model, background=references), tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(4, model.network.config.channels, *model.network.config.image)
    with torch.no_grad():
        ours, theirs = model.network(images), other(images)
    assert ours.std() > 0.1
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)


def test_timm_prepares_pictures_alike(tmp_path: Path) -> None:
    model = model_of(BASE)
    save(model, tmp_path)
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(other), is_training=False)
    x, y = np.meshgrid(np.linspace(0, 255, 70), np.linspace(0, 255, 50))
    picture = Image.fromarray(np.stack([x, y, (x + y) / 2], axis=2).astype(np.uint8))
    torch.testing.assert_close(model.preprocessing(picture), transform(picture), atol=3 / 255 / 0.4, rtol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 10},
        {"distillation_token": True},
        {"norm_eps": 1e-5},
        {"embed_bias": False},
        {"head_bias": False},
        {"out_bias": False},
        {"mlp_bias": False},
    ],
)
def test_what_timm_cannot_express_gets_no_keys(change: dict) -> None:
    config = replace(BASE, **change)
    assert timm_keys(config, model_of(BASE).preprocessing, tuple("abcde")) == {}


def test_timm_has_one_switch_for_the_biases_of_both() -> None:
    """Why `out_bias` and `mlp_bias` must agree, and why the other two cannot be said."""
    with torch.device("meta"):
        other = timm.create_model("vit_tiny_patch16_224", proj_bias=False)
    without = {name for name, module in other.named_modules() if isinstance(module, nn.Linear) and module.bias is None}
    assert without == {f"blocks.{i}.{part}" for i in range(12) for part in ("attn.proj", "mlp.fc1", "mlp.fc2")}
    switches = [name for name in inspect.signature(VisionTransformer).parameters if "bias" in name]
    assert switches == ["qkv_bias", "proj_bias"]


def test_a_wrong_key_would_be_noticed(tmp_path: Path) -> None:
    model = model_of(FORMS["mean of patches"])
    save(model, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"fc_norm": false', '"fc_norm": true'))
    with pytest.raises(RuntimeError, match="norm"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
