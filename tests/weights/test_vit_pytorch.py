"""A ViT of vit-pytorch, of the version that the lab of D2 pins and of today's, is a vitrail network with equal logits.

The two versions are installed beside the environment, each into a folder of pytest's cache, and run in a process of
their own. Without a package index these tests are skipped; what needs no reference runs everywhere.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tests.nn.reference import redraw
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.model import Model, load, save
from vitrail.nn import STANDARD, ViT, ViTConfig
from vitrail.nn.cost import parameters
from vitrail.weights.vit_pytorch import PARTS, convert

VERSIONS = ("0.29.0", "1.26.11")
EINOPS = "einops==0.8.2"
LAB = {"image_size": 256, "patch_size": 32, "num_classes": 1000, "dim": 1024, "depth": 6, "heads": 16, "mlp_dim": 2048}
SMALL = {"image_size": 16, "patch_size": 8, "num_classes": 5, "dim": 24, "depth": 2, "heads": 3, "mlp_dim": 20}
FORMS = {
    "the lab's": LAB,
    "small": SMALL,
    "rectangular, two channels": {**SMALL, "image_size": [16, 24], "patch_size": [4, 8], "channels": 2},
    "narrow heads": {**SMALL, "dim_head": 5},
    "one head as wide as the tokens": {**SMALL, "heads": 1, "dim_head": 24},
    "dropout": {**SMALL, "dropout": 0.3, "emb_dropout": 0.2},
}
Reference = Callable[[str, dict], dict[str, Tensor]]


def installed(version: str, folder: Path) -> None:
    """Put one version into a folder, or skip."""
    if (folder / f"vit_pytorch-{version}.dist-info" / "RECORD").is_file() and (folder / "einops").is_dir():
        return
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check", "-q"]
    wanted = ["--upgrade", "--target", str(folder), f"vit-pytorch=={version}", EINOPS]
    run = subprocess.run([*pip, *wanted], capture_output=True, text=True, timeout=240)
    if run.returncode:
        why = (run.stderr.strip() or "pip failed").splitlines()[-1]
        pytest.skip(f"vit-pytorch {version}, the reference, cannot be installed here: {why}")


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Tensors, images and logits of a vit-pytorch network."""

    def run(version: str, arguments: dict) -> dict[str, Tensor]:
        folder = request.config.cache.mkdir(f"vit-pytorch-{version}")
        installed(version, folder)
        out = tmp_path_factory.mktemp("vit_pytorch") / "out.safetensors"
        worker = Path(__file__).with_name("vit_pytorch_worker.py")
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, str(worker), str(out), json.dumps(arguments)]
        subprocess.run(command, env=environment, check=True, timeout=200)
        tensors = load_file(out)
        with safe_open(out, "pt") as file:
            empty = json.loads(file.metadata()["empty"])
        out.unlink()
        return {**tensors, **{f"state.{name}": torch.empty(shape) for name, shape in empty.items()}}

    return run


def sizes(arguments: dict) -> dict:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
        if name in ("image_size", "patch_size", "heads")
    }


def state_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("state."): tensor for name, tensor in tensors.items() if name.startswith("state.")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_logits_are_equal(form: str, version: str, reference: Reference):
    tensors = reference(version, FORMS[form])
    state = state_of(tensors)
    before = {name: tensor.clone() for name, tensor in state.items()}
    converted = convert(state, **sizes(FORMS[form]))
    network = converted.network()
    with torch.no_grad():
        logits = network(tensors["images"])
    assert tensors["logits"].std() > 0.1
    torch.testing.assert_close(logits, tensors["logits"], rtol=0, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in state.items())
    assert converted.parts is (STANDARD if version == VERSIONS[0] else PARTS)
    if "one head" not in form:  # their network has no output map there, ours an identity
        count = sum(parameter.numel() for parameter in network.parameters())
        assert count == sum(tensor.numel() for tensor in state.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_planted_faults_are_seen(version: str, reference: Reference):
    """Another epsilon, another number of heads, another order of the pixels: each moves the logits."""
    tensors = reference(version, SMALL)
    converted = convert(state_of(tensors), **sizes(SMALL))
    images, logits = tensors["images"], tensors["logits"]

    def apart(config: ViTConfig, change: dict[str, Tensor]) -> float:
        network = ViT(config, converted.parts).eval()
        network.load_state_dict({**converted.tensors, **change})
        with torch.no_grad():
            return float((network(images) - logits).abs().max())

    assert apart(converted.config, {}) < 1e-5
    assert apart(replace(converted.config, norm_eps=1e-2), {}) > 1e-4
    assert apart(replace(converted.config, activation="relu"), {}) > 1e-3
    assert apart(replace(converted.config, heads=6, head_dim=32), {}) > 1e-3
    name = "patch_embed.proj.weight"
    assert apart(converted.config, {name: converted.tensors[name].flip(-1)}) > 1e-3


def test_todays_mean_of_patches(reference: Reference):
    form = {**SMALL, "pool": "mean"}
    tensors = reference(VERSIONS[1], form)
    converted = convert(state_of(tensors), **sizes(form))
    assert (converted.config.pooling, converted.config.class_token) == ("mean", False)
    with torch.no_grad():
        torch.testing.assert_close(converted.network()(tensors["images"]), tensors["logits"], rtol=0, atol=1e-5)


CONFIG = ViTConfig(
    image_size=256, patch_size=32, classes=1000, width=1024, depth=6, heads=16, mlp_dim=2048,
    qkv_bias=False, norm_eps=1e-5,
)  # fmt: skip


def test_the_labs_networks_have_the_published_numbers_of_parameters():
    with torch.device("meta"):
        for parts, count in ((STANDARD, 54_622_184), (PARTS, 54_630_376)):
            assert sum(parameter.numel() for parameter in ViT(CONFIG, parts).parameters()) == count
    assert parameters(CONFIG) == 54_622_184
    norms = 2 * (3 * 32 * 32) + 2 * 1024
    assert norms == 54_630_376 - 54_622_184


def first_form(config: ViTConfig) -> dict[str, Tensor]:
    """Tensors as version 0.29 names them, for tests that need no reference."""
    width, inner, hidden = config.width, config.heads * config.head_width, config.mlp_width
    numbers = config.channels * config.patch[0] * config.patch[1]
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embedding": (1, 1 + config.grid[0] * config.grid[1], width),
        "cls_token": (1, 1, width),
        "to_patch_embedding.1.weight": (width, numbers),
        "to_patch_embedding.1.bias": (width,),
        "mlp_head.0.weight": (width,),
        "mlp_head.0.bias": (width,),
        "mlp_head.1.weight": (config.classes, width),
        "mlp_head.1.bias": (config.classes,),
    }
    for index in range(config.depth):
        at = f"transformer.layers.{index}"
        shapes |= {f"{at}.{place}.norm.{kind}": (width,) for place in (0, 1) for kind in ("weight", "bias")}
        shapes |= {
            f"{at}.0.fn.to_qkv.weight": (3 * inner, width),
            f"{at}.0.fn.to_out.0.weight": (width, inner),
            f"{at}.0.fn.to_out.0.bias": (width,),
            f"{at}.1.fn.net.0.weight": (hidden, width),
            f"{at}.1.fn.net.0.bias": (hidden,),
            f"{at}.1.fn.net.3.weight": (width, hidden),
            f"{at}.1.fn.net.3.bias": (width,),
        }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


TINY = ViTConfig(
    image_size=(8, 12), patch_size=(4, 3), classes=3, width=8, depth=2, heads=2, head_dim=6, qkv_bias=False,
    norm_eps=1e-5,
)  # fmt: skip


def test_the_configuration_is_read_off_the_shapes():
    converted = convert(first_form(TINY), image_size=(8, 12), patch_size=(4, 3), heads=2)
    assert converted.config == replace(TINY, head_dim=TINY.head_width, mlp_dim=TINY.mlp_width)
    assert converted.network()(torch.randn(2, 3, 8, 12)).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cls_token": None}, "first 'cls_token'"),
        ({"extra": torch.zeros(1)}, "first 'extra'"),
        ({"transformer.layers.1.0.fn.to_out.0.weight": None}, "to_out"),
        ({"transformer.layers.0.0.fn.to_qkv.weight": None}, "tensors are missing or unknown"),
    ],
)
def test_other_tensors_are_an_error(change: dict, words: str):
    state = {name: tensor for name, tensor in {**first_form(TINY), **change}.items() if tensor is not None}
    with pytest.raises(DataError, match=words):
        convert(state, image_size=(8, 12), patch_size=(4, 3), heads=2)
    with pytest.raises(DataError, match="not a ViT of vit-pytorch"):
        convert({}, image_size=8, patch_size=4, heads=2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image_size": (8, 15)}, "9 positions and 36 numbers"),
        ({"patch_size": (4, 4)}, "do not fit"),
        ({"patch_size": (3, 4)}, "cannot be cut"),
        ({"heads": 5}, "12 numbers cannot be shared among 5 heads"),
        ({"heads": 0}, "among 0 heads"),
    ],
)
def test_sizes_that_do_not_fit_are_an_error(fields: dict, words: str):
    given = {"image_size": (8, 12), "patch_size": (4, 3), "heads": 2, **fields}
    with pytest.raises((DataError, UsageError), match=words):
        convert(first_form(TINY), **given)


def test_the_part_with_norms_is_saved_by_its_name(tmp_path: Path):
    network = ViT(TINY, PARTS).eval()
    redraw(network)
    statistics = (0.5,) * 3
    model = Model(network, Preprocessing((8, 12), mean=statistics, std=statistics), tuple("abc"))
    with pytest.raises(UsageError, match="parts of its own"):
        save(model, tmp_path)
    save(model, tmp_path, parts="vit-pytorch")
    again = load(tmp_path, parts=PARTS).network
    images = torch.randn(2, 3, 8, 12)
    assert torch.equal(again(images), network(images))
