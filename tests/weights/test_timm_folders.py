"""Folders that timm's own `save_for_hf` writes: every argument is read, changes nothing, or is refused by its name."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import save_for_hf
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import vitrail
from tests.errors import must_raise
from tests.weights.redraw import redrawn
from vitrail.errors import DataError
from vitrail.tasks import Classes
from vitrail.tasks.features import Numbers
from vitrail.weights.places import timm_architectures
from vitrail.weights.timm import of_config

PLAIN, CLIP = "vit_base_patch16_224", "vit_base_patch32_clip_224"
FAINT = torch.tensor([1.0, 0.01])[:, None, None, None]  # a wrong epsilon shows on the second image


def folder_of(name: str, folder: Path, **arguments: Any) -> Any:
    """A small network of this architecture, saved by timm; heads and all else are the architecture's."""
    row = timm_architectures().get(name.partition(".")[0], {"facts": {"heads": 3, "patch_size": (16, 16)}})
    heads, patch = row["facts"]["heads"], row["facts"]["patch_size"]
    small = {"depth": 2, "embed_dim": 16 * heads, "img_size": tuple(4 * side for side in patch), **arguments}
    module = redrawn(timm.create_model(name, **small))
    save_for_hf(module, str(folder), safe_serialization=True)
    return module


@torch.no_grad()
def gap(folder: Path, module: nn.Module) -> float:
    """Between timm's answers and ours, the larger of a loud and a faint image; of the whole batch for the scale."""
    model = vitrail.load(folder)
    size = model.network.config.image
    images = FAINT * torch.randn(2, model.preprocessing.channels, *size, generator=torch.Generator().manual_seed(3))
    theirs = module(images)
    return float(((model.network(images) - theirs).abs().amax(1) / theirs.abs().amax(1)).max())


SOME = "eva_large_patch14_196", "deit_small_distilled_patch16_224", "vit_so400m_patch14_siglip_gap_224"


@pytest.mark.parametrize("name", SOME)
def test_an_architecture_opens(name: str, tmp_path: Path) -> None:
    assert gap(tmp_path, folder_of(name, tmp_path)) < 1e-4


@pytest.mark.soak
@pytest.mark.parametrize("name", timm_architectures())
def test_every_architecture_opens(name: str, tmp_path: Path) -> None:
    assert gap(tmp_path, folder_of(name, tmp_path)) < 1e-4
    config = json.loads((tmp_path / "config.json").read_text())
    sizes = {name: config["model_args"][name] for name in ("depth", "embed_dim")}  # all else is the architecture's
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_args": sizes}))
    if config["pretrained_cfg"]["fixed_input_size"]:  # else nothing says the size of this one
        assert vitrail.load(tmp_path).network.config.depth == 2
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_args": {}}))  # as older exports are
    with must_raise(DataError, "depth 2"):
        vitrail.load(tmp_path)


@pytest.mark.parametrize("name", ["test_vit3", "beit3_base_patch16_224", "test_vit2x"])
def test_an_architecture_that_is_no_plain_vit_is_refused(name: str, tmp_path: Path) -> None:
    folder_of("vit_tiny_patch16_224", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architecture": name}))
    with must_raise(DataError, name):
        vitrail.load(tmp_path)


READ: dict[str, dict[str, Any]] = {
    "an epsilon by the name of the norm": {"name": CLIP, "norm_layer": "layer_norm", "num_classes": 7},
    "an activation": {"act_layer": "swish"},
    "drop rates": {"drop_rate": 0.2, "pos_drop_rate": 0.2, "attn_drop_rate": 0.2, "patch_drop_rate": 0.2},
    "the mean, and a norm of its own": {"global_pool": "avg"},
    "the mean behind the last norm": {"global_pool": "avg", "fc_norm": False, "class_token": False},
    "no norm at the end": {"final_norm": False, "proj_bias": False, "init_values": 0.1, "dynamic_img_size": True},
    "norms of queries and keys": {"qk_norm": True},
    "no positions of the prefix": {"no_embed_class": True, "reg_tokens": 3, "weight_init": "jax"},
    "no positions at all": {"pos_embed": "none", "qkv_bias": False, "mlp_ratio": 3.0, "in_chans": 1},
    "two tokens averaged, no head": {"name": "deit_tiny_distilled_patch16_224", "num_classes": 0},
}


@pytest.mark.parametrize("case", READ)
def test_an_argument_is_read(case: str, tmp_path: Path) -> None:
    arguments = {"name": PLAIN, **READ[case]}
    assert gap(tmp_path, folder_of(folder=tmp_path, **arguments)) < 1e-4


REFUSED: tuple[dict[str, Any], ...] = (
    {"pool_include_prefix": True, "global_pool": "avg"},
    {"global_pool": "max"},
    {"global_pool": "prr"},
    {"fc_norm": True},
    {"act_layer": "mish"},
    {"norm_layer": "rmsnorm"},
    {"embed_norm_layer": "layernorm"},
    {"scale_attn_norm": True},
    {"attn_layer": "diff"},
)


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_an_argument_that_makes_another_network_is_refused(arguments: dict[str, Any], tmp_path: Path) -> None:
    folder_of(PLAIN, tmp_path, **arguments)
    with must_raise(DataError):
        vitrail.load(tmp_path)


def test_no_argument_of_timm_is_ignored() -> None:
    """Each, of a kind that nobody has: read (and so in what is shown), refused, or of those that change nothing."""
    nothing = {"weight_init", "fix_init", "dynamic_img_size", "dynamic_img_pad", "device", "dtype"}
    in_tensors = {"no_embed_class", "final_norm", "fc_norm", "pos_embed", "qk_norm"}
    plain = of_config({"architecture": PLAIN})
    for name in list(inspect.signature(VisionTransformer).parameters):
        if not (name in nothing | in_tensors or name.endswith("_rate")):
            try:
                found: Any = of_config({"architecture": PLAIN, "model_args": {name: "another"}})
            except DataError as error:
                found = name if name in error.problem else plain
            assert found != plain, name


def labelled(folder: Path, **more: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **more}))


def test_what_a_head_of_clip_gives(tmp_path: Path) -> None:
    """Numbers where it is the published map to where texts are compared; classes where a person tuned it."""
    kinds = {}
    for name, classes in ((f"{CLIP}.openai", 512), (f"{CLIP}.openai", 5), (f"{CLIP}.laion2b_ft_in12k_in1k", 512)):
        module = folder_of(name, tmp_path, num_classes=classes)
        live = vitrail.convert(module)
        kinds[name, classes] = type(vitrail.load(tmp_path).output)
        assert type(live.output) is kinds[name, classes]
    assert list(kinds.values()) == [Numbers, Classes, Classes]
    folder_of(f"{CLIP}.openai", tmp_path, num_classes=512)
    labelled(tmp_path, label_names=[f"kind {number}" for number in range(512)])
    assert vitrail.load(tmp_path).classes[-1] == "kind 511"
    assert vitrail.load(tmp_path).task.name == "classify"
