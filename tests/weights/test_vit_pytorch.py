"""A ViT of vit-pytorch, of the version that the lab of D2 pins and of today's, is a vitrail network with equal logits.

It is converted as it lives, in the process where it does, and from its tensors.

A version is installed beside the environment, into a folder of pytest's cache, and runs once, in a process of its own.
So the tests that ask it are long ones, of today's and of the pinned one, and are skipped without a package index; what
needs no reference runs everywhere.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import must_raise
from tests.nn.reference import redraw
from tests.weights import vit_pytorch_reference
from tests.weights.vit_pytorch_reference import PINNED, SIMPLE, SMALL, TODAY, Answered, sizes
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.model import Model, load, save
from vitrail.nn import STANDARD, ViT, ViTConfig
from vitrail.nn.cost import parameters
from vitrail.tasks import Classes
from vitrail.weights.convert import Converted, from_tensors
from vitrail.weights.published import GAP
from vitrail.weights.vit_pytorch import PARTS

VERSIONS = (TODAY, PINNED)
LAB = {"image_size": 256, "patch_size": 32, "num_classes": 1000, "dim": 1024, "depth": 6, "heads": 16, "mlp_dim": 2048}
FORMS = {
    "small": SMALL,
    "rectangular, grey": {**SMALL, "image_size": [16, 24], "patch_size": [4, 8], "channels": 1},
    "narrow heads": {**SMALL, "dim_head": 5},
    "one head as wide as the tokens": {**SMALL, "heads": 1, "dim_head": 24},
    "dropout": {**SMALL, "dropout": 0.3, "emb_dropout": 0.2},
}
OTHERS = {  # which the pinned version does not have
    "mean of patches": {**SMALL, "pool": "mean"},
    "SimpleViT": SIMPLE,
}
Reference = Callable[..., dict[str, Answered]]


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What vit-pytorch's networks answer, by name; each version and set of forms runs once."""

    @cache
    def run(version: str, forms: str) -> dict[str, Answered]:
        folder = request.config.cache.mkdir(f"vit-pytorch-{version}")
        try:
            found = vit_pytorch_reference.ask(version, json.loads(forms), folder, tmp_path_factory.mktemp("out"))
        except vit_pytorch_reference.NotInstallable as why:
            pytest.skip(f"vit-pytorch {version}, the reference, cannot be installed here: {why}")
        assert all(each.gap < GAP / 10 for each in found.values())
        return found

    def ask(version: str, forms: dict[str, dict] | None = None) -> dict[str, Answered]:
        return run(version, json.dumps(forms or (FORMS if version == PINNED else FORMS | OTHERS)))

    return ask


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def opened(state: dict[str, Tensor], **assume: Any) -> Converted:
    return from_tensors(state, assume, "a file")


def check_logits(arguments: dict, theirs: Answered, version: str) -> None:
    """The converted network gives the same logits and has as many numbers; the tensors stay as they are."""
    state = theirs.state
    before = {name: tensor.clone() for name, tensor in state.items()}
    network = opened(state, **sizes(arguments)).network
    with torch.no_grad():
        logits = network(theirs.images)
    assert theirs.logits.std() > 0.1
    assert apart(logits, theirs.logits) <= 1e-5
    assert all(torch.equal(before[name], tensor) for name, tensor in state.items())
    assert network.parts == (STANDARD if version == PINNED else PARTS)
    if arguments["heads"] != 1:  # their network has no output map there, ours an identity
        count = sum(parameter.numel() for parameter in network.parameters())
        assert count == sum(tensor.numel() for tensor in state.values())


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_logits_are_equal(version: str, reference: Reference):
    found = reference(version)
    for name, arguments in FORMS.items():
        check_logits(arguments, found[name], version)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_logits_of_the_labs_size_are_equal(version: str, reference: Reference):
    check_logits(LAB, reference(version, {"lab": LAB})["lab"], version)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_planted_faults_are_seen(version: str, reference: Reference):
    """Another epsilon, another number of heads, another order of the pixels: each moves the logits."""
    theirs = reference(version)["small"]
    right = opened(theirs.state, **sizes(SMALL)).network

    def wrong(config: ViTConfig, change: dict[str, Tensor]) -> float:
        network = ViT(config, right.parts).eval()
        network.load_state_dict({**right.state_dict(), **change})
        with torch.no_grad():
            return apart(network(theirs.images), theirs.logits)

    assert wrong(right.config, {}) < 1e-5
    assert wrong(replace(right.config, norm_eps=1e-2), {}) > 1e-4
    assert wrong(replace(right.config, activation="relu"), {}) > 1e-3
    assert wrong(replace(right.config, heads=6, head_dim=32), {}) > 1e-3
    name = "patch_embed.proj.weight"
    assert wrong(right.config, {name: right.state_dict()[name].flip(-1)}) > 1e-3


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_todays_mean_of_patches(name: str, reference: Reference):
    theirs = reference(TODAY)[name]
    network = opened(theirs.state, **sizes(OTHERS[name])).network
    assert (network.config.pooling, network.config.class_token) == ("mean", False)
    with torch.no_grad():
        assert apart(network(theirs.images), theirs.logits) <= 1e-5


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


OF_TINY = {"image_size": (8, 12), "patch_size": (4, 3), "heads": 2}


def test_the_configuration_is_read_off_the_shapes():
    network = opened(first_form(TINY), **OF_TINY).network
    assert network.config == replace(TINY, head_dim=TINY.head_width, mlp_dim=TINY.mlp_width)
    assert network(torch.randn(2, 3, 8, 12)).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cls_token": None}, None),
        ({"extra": torch.zeros(1)}, "extra"),
        ({"transformer.layers.1.0.fn.to_out.0.weight": None}, "proj"),
        ({"transformer.layers.0.0.fn.to_qkv.weight": None}, None),
        ({"transformer.layers.1.1.fn.net.3.weight": torch.full((8, 32), float("nan"))}, "fc2"),
    ],
)
def test_other_tensors_are_an_error(change: dict, named: str | None):
    state = {name: tensor for name, tensor in {**first_form(TINY), **change}.items() if tensor is not None}
    with must_raise(DataError, named):
        opened(state, **OF_TINY)
    with must_raise(DataError):
        opened({}, **OF_TINY)


def test_only_one_head_as_wide_as_the_tokens_has_no_output_map():
    square = replace(TINY, head_dim=None)
    for heads, fits in ((1, True), (2, False)):
        state = {name: tensor for name, tensor in first_form(square).items() if "to_out" not in name}
        if fits:
            opened(state, **{**OF_TINY, "heads": heads})
        else:
            with must_raise(DataError, "proj"):
                opened(state, **{**OF_TINY, "heads": heads})


@pytest.mark.parametrize(
    "fields",
    [{"image_size": (8, 15)}, {"patch_size": (4, 4)}, {"patch_size": (3, 4)}, {"heads": 5}, {"heads": 0}],
)
def test_sizes_that_do_not_fit_are_an_error(fields: dict):
    with must_raise(VitrailError):
        opened(first_form(TINY), **{**OF_TINY, **fields})


def test_what_no_tensor_says_is_asked_for():
    for name in ("patch_size", "heads"):
        with must_raise(UsageError, name):
            opened(first_form(TINY), **{key: value for key, value in OF_TINY.items() if key != name})


def test_the_part_with_norms_is_saved_by_its_name(tmp_path: Path):
    network = ViT(TINY, PARTS).eval()
    redraw(network)
    statistics = (0.5,) * 3
    model = Model(network, Preprocessing((8, 12), mean=statistics, std=statistics), Classes(tuple("abc")))
    save(model, tmp_path)
    again = load(tmp_path).network
    images = torch.randn(2, 3, 8, 12)
    assert torch.equal(again(images), network(images))
