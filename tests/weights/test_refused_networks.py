"""What is no plain ViT, or no network at all: why it is refused is said of the file, and nothing else is offered."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import vitrail
from tests.cli.command import DATA, call, must_refuse
from tests.errors import must_raise
from tests.weights.redraw import redrawn
from vitrail.errors import DataError, UsageError
from vitrail.weights.family import CONVOLUTIONS, GROUPS, LEARNT, NORMS, RELATIVE, SEQUENCES, WINDOWS, why_not
from vitrail.weights.places import timm_architectures

SMALL: Any = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32, "patch_size": 16}
WINDOWED: Any = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": 32, "patch_size": 4}
LAYERS: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
OF_EVA = {
    "vit_small_patch16_rope_mixed_224": LEARNT,
    "vit_small_patch16_rope_mixed_ape_224": LEARNT,
    "eva02_enormous_patch14_clip_224": NORMS,
}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{name: (lambda name=name: timm.create_model(name, **SMALL), why) for name, why in OF_EVA.items()},
    "vit_base_patch16_sapiens2": (
        lambda: timm.create_model("vit_base_patch16_sapiens2", **SMALL, num_kv_heads=1),
        GROUPS,
    ),
    "convnext_tiny": (
        lambda: timm.create_model("convnext_tiny", depths=[1] * 4, dims=[8] * 4),
        CONVOLUTIONS,
    ),
    "naflexvit_base_patch16_gap": (
        lambda: timm.create_model("naflexvit_base_patch16_gap", embed_dim=48, depth=2, num_heads=3),
        SEQUENCES,
    ),
    "swin": (lambda: transformers.SwinModel(transformers.SwinConfig(**WINDOWED, window_size=4)), WINDOWS),
    "data2vec-vision": (
        lambda: transformers.Data2VecVisionModel(
            transformers.Data2VecVisionConfig(**LAYERS, image_size=32, use_relative_position_bias=True)
        ),
        RELATIVE,
    ),
    "dinov3_convnext": (
        lambda: transformers.DINOv3ConvNextModel(
            transformers.DINOv3ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], image_size=32)
        ),
        CONVOLUTIONS,
    ),
    "siglip2_vision_model": (
        lambda: transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**LAYERS, num_patches=16)),
        SEQUENCES,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_why_a_network_is_refused(name: str, tmp_path: Path) -> None:
    make, why = REFUSED[name]
    module = make()
    key = "architecture" if name in timm.list_models() else "model_type"
    save_file(
        {name: tensor.contiguous() for name, tensor in module.state_dict().items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps({key: name}))
    with must_raise(DataError, name) as caught:
        vitrail.load(tmp_path)
    found = call("models", tmp_path)
    must_refuse(found, DATA, f"{tmp_path} {name} {why}")
    assert "convert" not in str(found.hint)
    assert str(found.hint) == str(caught.value.hint)
    with must_raise(UsageError, why) as live:
        vitrail.convert(module)
    assert str(live.value.hint) == str(found.hint)


def test_nothing_that_opens_is_refused_so() -> None:
    assert [name for name in timm_architectures() if why_not(name)] == []


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_live_network() -> None:
    given: list[Any] = ["timm:vit_tiny_patch16_224", Path("a.pth"), {}, 3, None]
    for value in given:
        with must_raise(UsageError) as caught:
            vitrail.convert(value)
        assert "vitrail.load(" in str(caught.value.hint)
        if isinstance(value, str | Path):
            assert repr(str(value)) in str(caught.value.hint)


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_name() -> None:
    """A live network is converted; nothing else of another kind is opened."""
    for value in (None, 3, nn.Linear(1, 1)):
        with must_raise(UsageError, type(value).__name__) as caught:
            vitrail.load(value)  # pyrefly: ignore[bad-argument-type]
        assert ("convert" in str(caught.value.hint)) == isinstance(value, nn.Module)


def test_a_live_network_that_cannot_answer() -> None:
    """One without numbers, one of other heads than its maps were made for, and a pooling that no plain ViT has."""
    with must_raise(UsageError, "meta"):
        vitrail.convert(timm.create_model("vit_tiny_patch16_224", **SMALL).to("meta"))
    for block in (0, 1):
        other: Any = timm.create_model("vit_tiny_patch16_224", **SMALL)
        other.blocks[block].attn.num_heads = 2
        with must_raise(DataError, "VisionTransformer") as caught:
            vitrail.convert(other)
        with pytest.raises(RuntimeError):
            eval(str(caught.value.hint).split("),")[0] + ")", {"module": other, "torch": torch})
    for pooling in ("avgmax", "max", ""):
        pooled = timm.create_model("vit_tiny_patch16_224", **SMALL, global_pool=pooling)
        for assume in (None, {"pooling": "mean"}):
            with must_raise(UsageError, f"'{pooling}'") as caught:
                vitrail.convert(pooled, assume=assume)
            assert "assume" not in str(caught.value.hint)
        offered = str(caught.value.hint).split("),")[0].removesuffix(")")
        made = eval(f"{offered}, **small)", {"timm": timm, "small": SMALL})
        assert vitrail.convert(made, assume=None).network.config.pooling == "mean"


@torch.no_grad()
def test_what_torch_puts_around_a_network_is_taken_off() -> None:
    """As it is of files; what its maker put around it is looked through where it changes no answer."""
    module = redrawn(timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=5))
    wanted = vitrail.convert(module)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    averaged = torch.optim.swa_utils.AveragedModel(nn.DataParallel(module))
    for wrapped in (nn.DataParallel(module), torch.compile(module), averaged):
        model = vitrail.convert(wrapped)  # pyrefly: ignore[bad-argument-type]
        assert torch.equal(model.network(images), wanted.network(images))
        assert model.facts == wanted.facts
        assert model.preprocessing == wanted.preprocessing
    assert torch.equal(vitrail.convert(nn.Sequential(module)).network(images), wanted.network(images))
    with must_raise(DataError, "Sequential"):
        vitrail.convert(nn.Sequential(module, nn.Softmax(1)))


@torch.no_grad()
def test_a_checkpoint_of_lightning(tmp_path: Path) -> None:
    """Whose module holds the network under `model`, with what else it keeps beside."""
    module = redrawn(timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=5))
    state = {f"model.{name}": tensor for name, tensor in module.state_dict().items()}
    torch.save({"epoch": 1, "state_dict": state, "callbacks": {}}, tmp_path / "last.ckpt")
    model = vitrail.load(tmp_path / "last.ckpt", assume={"heads": 3, "mean": 0.5, "std": 0.5})
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.network(images), module(images), rtol=1e-5, atol=1e-5)
