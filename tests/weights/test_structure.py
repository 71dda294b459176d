"""A file that lacks a part of the network of its config.json, or is of another one, is refused and does not answer."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.errors import must_raise
from tests.weights.families import ROWS
from tests.weights.redraw import redrawn
from vitrail.errors import DataError, UsageError
from vitrail.model import Model

SMALL: Any = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 56, "num_classes": 5}
OFTEN = ("timm Ti/16", "timm DINOv2 with registers", "timm CLIP", "transformers ViT", "transformers DINOv2 classifier")
OF_NEW = ("transformers DINOv3", "transformers AIMv2")
NUMBERS = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_channels", "num_register_tokens", "mlp_ratio")


def opened(folder: Path, size: tuple[int, int]) -> Model:
    reads = vitrail.Preprocessing(size, mean=(0.5,) * 3, std=(0.5,) * 3)
    return vitrail.load(folder, preprocessing=reads)


def answered(model: Model) -> torch.Tensor:
    images = torch.randn(2, 3, *model.preprocessing.size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.network(images)


def groups(names: list[str]) -> dict[str, list[str]]:
    """The last block; and each part of a network, in all blocks that have it."""
    number = re.compile(r"(?<=\.)\d+(?=\.)")
    blocks = sorted({int(match[0]) for name in names if (match := number.search(name))})
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(number.sub("#", name, count=1), []).append(name)
        if (match := number.search(name)) and int(match[0]) == blocks[-1]:
            found.setdefault("the last block", []).append(name)
    return found


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(name, marks=() if name in OFTEN + OF_NEW else pytest.mark.soak)
        for name in ROWS
        if name.startswith(("timm", "transformers"))
    ],
)
def test_a_part_that_is_missing_is_noticed_or_answers_nothing(row: str, tmp_path: Path) -> None:
    """Whatever is taken out of the file: it does not open, or its answers are what they were."""
    ROWS[row].make(tmp_path)
    file, size = tmp_path / "model.safetensors", ROWS[row].size
    state, whole = load_file(file), answered(opened(tmp_path, size))
    refused = 0
    for part, names in groups(list(state)).items():
        save_file({name: tensor for name, tensor in state.items() if name not in names}, file, {"format": "pt"})
        try:
            model = opened(tmp_path, size)
        except (DataError, UsageError):
            refused += 1
        else:
            assert torch.equal(answered(model), whole), f"without {part} it opens and answers otherwise"
    assert refused > 10


@pytest.mark.parametrize("row", [name for name in OFTEN if name.startswith("transformers")])
def test_a_configuration_of_another_network_is_refused(row: str, tmp_path: Path) -> None:
    ROWS[row].make(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    held = [name for name in NUMBERS if name in config]
    assert len(held) >= 4
    changes: list[dict[str, Any]] = [{name: 2 * config[name]} for name in held]
    changes += [{"qkv_bias": False}, {"id2label": {str(number): str(number) for number in range(7)}}]
    for change in changes:
        file.write_text(json.dumps({**config, **change}))
        with must_raise(DataError):
            opened(tmp_path, ROWS[row].size)


def test_tensors_of_another_model_type_are_refused(tmp_path: Path) -> None:
    """Of those that transformers names alike or otherwise: each configuration beside the tensors of each other."""
    names = [f"transformers {name}" for name in ("ViT", "DINOv2", "CLIP", "SigLIP")]
    for name in names:
        (tmp_path / name).mkdir()
        ROWS[name].make(tmp_path / name)
    configs = {name: (tmp_path / name / "config.json").read_text() for name in names}
    for name in names:
        for other in {*names} - {name}:
            (tmp_path / name / "config.json").write_text(configs[other])
            with must_raise(DataError):
                opened(tmp_path / name, (32, 32))


def test_a_head_that_is_not_there_can_be_left_out_when_told(tmp_path: Path) -> None:
    row = ROWS["timm Ti/16"]
    row.make(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    save_file({name: tensor for name, tensor in state.items() if not name.startswith("head.")}, file)
    with must_raise(DataError):
        vitrail.load(tmp_path)
    assert vitrail.load(tmp_path, assume={"classes": 0}).network.config.classes == 0
    assert vitrail.load(tmp_path, assume={"classes": 3}).network.config.classes == 3


QUIET: dict[str, Callable[[Any], None]] = {
    "a head of zeros": lambda net: net.head.weight.zero_(),
    "a small head beside its bias": lambda net: (net.head.weight.mul_(1e-6), net.head.bias.normal_()),
    "blocks that are scaled to nothing": lambda net: [block.ls1.gamma.zero_() for block in net.blocks],
}


@pytest.mark.parametrize("case", QUIET)
def test_a_network_whose_answers_show_nothing_is_proved_by_other_numbers(case: str) -> None:
    """It is taken over as it is; one that answers otherwise behind that is refused all the same."""
    module = redrawn(timm.create_model("vit_small_patch14_dinov2", **SMALL))
    with torch.no_grad():
        module.head.bias.zero_()
        QUIET[case](module)
        for block in module.blocks:
            block.ls2.gamma.mul_(1e-7)
    reads = vitrail.Preprocessing((56, 56), mean=(0.5,) * 3, std=(0.5,) * 3)
    ours = vitrail.convert(module, preprocessing=reads).network
    for name, tensor in module.state_dict().items():
        assert torch.equal(ours.state_dict().get(name, tensor), tensor), name
    module.blocks[1].mlp.register_forward_hook(lambda _, given, answer: 1.5 * answer)
    with must_raise(DataError):
        vitrail.convert(module, preprocessing=reads)
