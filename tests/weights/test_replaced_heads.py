"""A head that a user put in the place of a network's own, as tutorials do it: it opens live and as a state dict."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import vitrail
from tests.errors import must_raise
from tests.weights.families import ROWS, answer
from tests.weights.redraw import redrawn
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, VitrailError
from vitrail.weights.family import Family, rename_heads
from vitrail.weights.timm import TIMM
from vitrail.weights.vit_pytorch import FIRST_FORM, VIT_PYTORCH

CLASSES = 3
PLACES = {  # rows, and what a tutorial assigns to
    "timm Ti/16": ("head",),
    "timm global_pool='avg'": ("head",),
    "timm DeiT, distilled": ("head", "head_dist"),
    "timm DINOv2": ("head",),
    "torchvision": ("heads",),
    "torchvision, its last layer": ("heads.head",),
    "transformers ViT": ("classifier",),
    "transformers DeiT": ("classifier",),
    "transformers DeiTForImageClassificationWithTeacher": ("cls_classifier", "distillation_classifier"),
    "transformers DINOv2 with registers": ("classifier",),
    "transformers CLIP classifier": ("classifier",),
    "transformers SigLIP classifier": ("classifier",),
}
FORMS: dict[str, Callable[[int], nn.Module]] = {
    "a linear map": lambda width: nn.Linear(width, CLASSES),
    "without a bias": lambda width: nn.Linear(width, CLASSES, bias=False),
    "behind dropout": lambda width: nn.Sequential(nn.Dropout(0.5), nn.Linear(width, CLASSES)),
    "with a name": lambda width: nn.Sequential().append(nn.Identity()).append(nn.Sequential(nn.Linear(width, CLASSES))),
}


def replaced(row: str, form: Callable[[int], nn.Module], folder: Path) -> tuple[Any, dict[str, Any]]:
    """The network of a row with other heads, redrawn; and what its file does not state."""
    module: Any = ROWS[row.partition(",")[0] if row.startswith("torchvision") else row].make(folder)[0]
    for place in PLACES[row]:
        old = functools.reduce(getattr, place.split("."), module)
        widths = [part.in_features for part in old.modules() if isinstance(part, nn.Linear)] or [module.embed_dim]
        module.set_submodule(place, form(widths[0]))
    return redrawn(module), {"heads": 3 if row.startswith("timm") else 2}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", PLACES)
@torch.no_grad()
def test_it_opens(row: str, form: str, tmp_path: Path) -> None:
    module, assume = replaced(row, FORMS[form], tmp_path)
    size = ROWS[row.partition(",")[0] if row.startswith("torchvision") else row].size
    reads = Preprocessing(size)
    live = vitrail.convert(module, preprocessing=reads)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(7))
    wanted = answer(module, images)
    assert wanted.shape == (2, CLASSES)
    assert wanted.std() > 0.1
    torch.testing.assert_close(live.network(images), wanted, rtol=1e-4, atol=1e-4)
    config = live.network.config
    assume |= {"pooling": config.pooling, "norm_eps": config.norm_eps, "activation": config.activation}
    assume |= {"distillation_token": True} if config.distillation_token else {}
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, tmp_path / "own.safetensors")
    opened = vitrail.load(tmp_path / "own.safetensors", assume=assume, preprocessing=reads)
    torch.testing.assert_close(opened.network(images), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("row", PLACES)
def test_a_head_of_several_layers_is_named(row: str, tmp_path: Path) -> None:
    module, _ = replaced(row, lambda width: nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 3)), tmp_path)
    with must_raise(VitrailError, PLACES[row][0].partition(".")[0]):
        vitrail.convert(module)


@pytest.mark.parametrize("channels", [2, 4])
def test_a_network_of_other_channels_is_refused_at_once(channels: int, tmp_path: Path) -> None:
    """What was tried first, a preprocessing of so many channels, is refused itself."""
    module = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3, in_chans=channels)
    save_file(module.state_dict(), tmp_path / "other.safetensors")
    reads = {"assume": {"heads": 3, "mean": 0.5, "std": 0.5}}
    for opened in (
        lambda: vitrail.convert(module),
        lambda: vitrail.load(tmp_path / "other.safetensors"),
        lambda: vitrail.load(tmp_path / "other.safetensors", **reads),
        lambda: vitrail.load(tmp_path / "other.safetensors", channels=1),
    ):
        with must_raise(DataError, f"{channels} channels") as caught:
            opened()
        assert "Preprocessing" not in str(caught.value.hint)


@pytest.mark.parametrize(
    ("family", "given", "wanted"),
    [
        (VIT_PYTORCH, ("mlp_head.weight", "mlp_head.bias"), "mlp_head.weight"),
        (VIT_PYTORCH, ("module.mlp_head.1.weight", "module.mlp_head.1.bias"), "mlp_head.weight"),
        (VIT_PYTORCH, ("linear_head.0.weight",), "linear_head.weight"),
        (FIRST_FORM, ("mlp_head.weight", "mlp_head.bias"), "mlp_head.1.weight"),  # without the norm that stood in it
        (FIRST_FORM, ("mlp_head.1.1.weight", "mlp_head.1.1.bias"), "mlp_head.1.weight"),
        (TIMM, ("head.mlp.0.weight", "head.fc.weight"), "head.weight"),  # self-distillation's is idle
    ],
)
def test_names_of_replaced_heads(family: Family, given: tuple[str, ...], wanted: str) -> None:
    tensors = {name: torch.randn(3, 8) if name.endswith("weight") else torch.randn(3) for name in given}
    found = rename_heads(family, tensors)
    assert torch.equal(found[wanted], tensors[next(name for name in given[::-1] if name.endswith("weight"))])
    assert len(found) == len(tensors)
