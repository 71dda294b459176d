"""A real ViT-Ti, trained on ImageNet, in three layouts of the same tensors: the class that timm's own pipeline gives.

The weights and photographs lie in `../shared/data` beside the checkout, or in $VITRAIL_DATA; without them this skips.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.real import real_data, real_photographs
from tests.weights.families import under_names_of
from tests.weights.planting import plant
from tests.weights.test_planted_faults import FAULTS
from vitrail.errors import DataError, UsageError
from vitrail.model import Model
from vitrail.weights import convert as conversion
from vitrail.weights.published import GAP, find_known
from vitrail.weights.torchvision import TORCHVISION
from vitrail.weights.transformers import TRANSFORMERS

NAME = "vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def data() -> Path:
    return real_data()


@pytest.fixture(scope="module")
def photographs(data: Path) -> list[Path]:
    return real_photographs(data)


@pytest.fixture(scope="module")
def peer(data: Path) -> nn.Module:
    module: Any = timm.create_model(NAME)
    module.load_state_dict(load_file(data / "vit_ti16" / "model.safetensors"))
    return module.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where transformers' layout is written, and torchvision's file beside it."""
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def layouts(data: Path, folder: Path) -> dict[str, Model]:
    """The same tensors under three libraries' names; two of them open in those libraries themselves, too."""
    first = vitrail.load(data / "vit_ti16" / "model.safetensors")
    ours = first.network.state_dict()
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    labels: Any = {"id2label": {number: f"LABEL_{number}" for number in range(1000)}}
    second: Any = transformers.ViTForImageClassification(transformers.ViTConfig(layer_norm_eps=1e-6, **sizes, **labels))
    second.load_state_dict(under_names_of(TRANSFORMERS, ours, second.state_dict()))
    second.save_pretrained(folder)
    preprocessor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))  # the table knows better
    network = torchvision.models.VisionTransformer(224, 16, 12, 3, 192, 768)
    network.load_state_dict(under_names_of(TORCHVISION, ours, network.state_dict()))
    save_file(network.state_dict(), folder / "vit_ti_16.safetensors")
    third = vitrail.load(folder / "vit_ti_16.safetensors", assume={"heads": 3})
    return {"timm": first, "transformers": vitrail.load(folder), "torchvision": third}


def tensors(peer: nn.Module, photographs: list[Path]) -> Tensor:
    """Photographs as timm's own pipeline prepares them for these weights."""
    module: Any = peer
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(module))
    return torch.stack([transform(Image.open(path).convert("RGB")) for path in photographs])


@torch.no_grad()
def hold(layouts: dict[str, Model], peer: nn.Module, photographs: list[Path]) -> tuple[int, int]:
    """All layouts give the same bits, and timm's class of every photograph; how many are right, in 1 and in 5."""
    theirs = peer(tensors(peer, photographs))
    found = [model.network(model.tensor(photographs)) for model in layouts.values()]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0].argmax(1), theirs.argmax(1))
    top = found[0].topk(5).indices
    truth = torch.tensor([int(path.name.partition("_")[0]) for path in photographs])[:, None]
    return int((top[:, :1] == truth).sum()), int((top == truth).any(1).sum())


def test_ten_photographs_in_three_layouts(layouts: dict[str, Model], peer: nn.Module, photographs: list[Path]) -> None:
    assert len({model.facts["verified"] for model in layouts.values()}) == 1
    for model in layouts.values():
        assert f"timm:{NAME}" in model.facts["verified"]
        assert model.preprocessing == layouts["timm"].preprocessing
        assert model.classes == layouts["timm"].classes
    hold(layouts, peer, photographs[::10])


@pytest.mark.soak
def test_a_hundred_photographs(layouts: dict[str, Model], peer: nn.Module, photographs: list[Path]) -> None:
    rights = [hold(layouts, peer, photographs[first : first + 20]) for first in range(0, 100, 20)]
    one, five = (sum(right) for right in zip(*rights, strict=True))
    assert one >= 84
    assert five >= 98


@pytest.mark.usefixtures("layouts")
def test_transformers_opens_its_layout(folder: Path) -> None:
    module, loading = transformers.ViTForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert conversion.convert_network(module.eval()).gap < conversion.GAP


ON_REAL = [  # what shows at the size that it was trained for
    name
    for name, fault in FAULTS.items()
    if fault.name == NAME and not fault.arguments and "position_resize" not in fault.facts
]


@pytest.mark.soak
@pytest.mark.parametrize("name", ON_REAL)
def test_planted_faults_are_seen_on_it(name: str, peer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the proof, since nothing before it refuses them; and what they make is not verified."""
    right = conversion.convert_network(peer)
    assert find_known(right.network, right.digest) is not None
    plant(FAULTS[name], monkeypatch)
    monkeypatch.setattr(conversion, "GAP", float("inf"))
    wrong = conversion.convert_network(peer)
    assert (wrong.gap or 0) > GAP
    assert find_known(wrong.network, wrong.digest) is None
    monkeypatch.setattr(conversion, "GAP", GAP)
    with must_raise(DataError):
        conversion.convert_network(peer)


@pytest.mark.parametrize("epsilon", [1e-12, 3e-6, 1e-5])  # they show on a faint image
def test_a_told_epsilon_that_is_not_theirs_is_refused(epsilon: float, data: Path) -> None:
    with must_raise(UsageError, "gap"):
        vitrail.load(data / "vit_ti16" / "model.safetensors", assume={"norm_eps": epsilon})
