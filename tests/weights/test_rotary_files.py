"""Files of rotary networks: in timm's folders, bare, and as labs publish them; none ever opens without its rotation."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models.eva import Eva
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.weights.redraw import redrawn
from tests.weights.test_families import gap
from tests.weights.test_timm_folders import folder_of
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.model.model import Model, resize_model
from vitrail.nn import Rotary
from vitrail.nn.rotary import RotaryPositions
from vitrail.weights.family import why_not_bare
from vitrail.weights.published import GAP
from vitrail.weights.rotations import PUBLISHED
from vitrail.weights.timm import of_config

SMALL: dict[str, Any] = {"embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 7}
BARE = {  # architecture: its rotation by name, and what else no tensor shows
    "vit_small_patch16_dinov3": ("dinov3", {"pooling": "mean"}),
    "vit_small_plus_patch16_dinov3_qkvb": ("dinov3", {"pooling": "mean"}),
    "eva02_tiny_patch14_224": ("eva02", {"norms": "before"}),
    "eva02_base_patch16_clip_224": ("eva02", {"pooling": "class", "norms": "before"}),
    "vit_pe_core_base_patch16_224": ("pe_14", {}),
    "vit_pe_spatial_base_patch16_512": ("pe_32", {"pooling": "mean"}),
    "vit_pe_lang_gigantic_patch14_448": ("pe_32", {}),
    "vit_small_patch16_rope_224": ("rope_vit", {"pooling": "class"}),
    "vit_betwixt_patch16_rope_reg4_gap_256": ("eva02", {}),
}


def small(name: str, **more: Any) -> nn.Module:
    return redrawn(timm.create_model(name, **{**SMALL, "img_size": 56 if "patch14" in name else 64, **more}))


def opened(file: Path, **assume: Any) -> Model:
    side = assume.pop("side", 64)
    positions = {"image_size": (side, side)} if "pos_embed" not in load_file(file) else {}
    return vitrail.load(file, assume={"heads": 4, **positions, **assume}, preprocessing=Preprocessing((side, side)))


@pytest.mark.parametrize("name", BARE)
@torch.no_grad()
def test_a_bare_file_wants_its_rotation_and_with_it_answers_as_its_peer(name: str, tmp_path: Path) -> None:
    """Under wrappers, too; and a rotation that is another gives other answers."""
    module, (rotary, more) = small(name), BARE[name]
    for front in ("", "model."):
        file = tmp_path / f"{front}safetensors"
        save_file({front + key: tensor for key, tensor in module.state_dict().items()}, file)
        side = 56 if "patch14" in name else 64
        with must_raise(UsageError) as caught:
            opened(file, side=side, **more)
        assert "'rotary': 'dinov3'" in str(caught.value.hint)
        images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
        theirs = module(images)
        network = opened(file, side=side, rotary=rotary, **more).network
        assert gap(network(images), theirs) < GAP
    other, *others = sorted(PUBLISHED.keys() - {rotary})
    opened_so = opened(file, side=side, rotary=other, norm_eps=PUBLISHED[rotary].norm_eps, **more).network
    assert gap(opened_so(images), theirs) > 100 * GAP, other
    for other in others:
        rotation, config = PUBLISHED[other].rotary, network.config
        network.rotary = rotation and RotaryPositions(rotation, config.head_width, config.prefix)
        assert gap(network(images), theirs) > 100 * GAP, other


def of_lab(module: nn.Module, base: float = 100.0) -> dict[str, Tensor]:
    """As DINOv3's lab stores a network of timm's: a bias of keys that a mask takes away, and periods in bf16."""
    found: dict[str, Tensor] = {"mask_token": torch.zeros(1, 64)}
    names = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", "reg_token": "storage_tokens"}
    names |= {"mlp.fc1_g": "mlp.w1", "mlp.fc1_x": "mlp.w2"} | ({"mlp.fc2": "mlp.w3"} if "fc1_g" in str(module) else {})
    for name, tensor in module.state_dict().items():
        for theirs, labs in names.items():
            name = name.replace(theirs, labs)
        found[name] = tensor
    for block in (0, 1):
        front = f"blocks.{block}.attn."
        queries, values = (found.pop(f"{front}{each}_bias") for each in "qv")
        found[f"{front}qkv.bias"] = torch.cat([queries, torch.randn(64), values])
        found[f"{front}qkv.bias_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(64)
    found["rope_embed.periods"] = (base ** (torch.arange(4) / 4)).bfloat16()
    return found


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3_qkvb"])
@torch.no_grad()
def test_a_file_of_dinov3s_lab_is_known_by_its_names(name: str, tmp_path: Path) -> None:
    """Its periods, rounded, are made anew and said so; or taken; of another base, or none, they are refused."""
    module, file = small(name, global_pool="token"), tmp_path / "dinov3_vits16.safetensors"
    tensors = of_lab(module)
    save_file(tensors, file)
    model, images = opened(file), torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert gap(model.network(images), module(images)) < GAP
    assert "periods" in model.facts["assumed"]
    wide: Any = torch.randn(2, 3, 48, 96, generator=torch.Generator().manual_seed(1))
    assert gap(resize_model(model, (48, 96)).network(wide), module(wide)) < GAP

    rounded = opened(file, periods="file")
    rope: Any = module.rope
    rope.periods.copy_(tensors["rope_embed.periods"])
    assert gap(rounded.network(images), module(images)) < GAP < gap(model.network(images), module(images))
    assert "periods" not in rounded.facts.get("assumed", "")

    save_file({**tensors, "rope_embed.periods": tensors["rope_embed.periods"].float()}, file)
    assert opened(file, periods="file").network.config == rounded.network.config
    save_file({**tensors, "rope_embed.periods": of_lab(module, base=105.0)["rope_embed.periods"]}, file)
    with must_raise(DataError) as caught:
        opened(file)
    assert "'periods': 'file'" in str(caught.value.hint)
    nothing = [torch.tensor([1.0, 2.0, 3.0, bad]) for bad in (torch.nan, torch.inf, 0.0, -1.0)]
    for wrong in (*nothing, torch.ones(3), torch.ones(8), torch.ones(4, 1), torch.tensor(1.0)):
        save_file({**tensors, "rope_embed.periods": wrong}, file)
        for stated in ({}, {"periods": "file"}):  # nothing that can be stated makes them periods
            with must_raise(DataError, r"\b4\b") as caught:
                opened(file, **stated)
            assert "sha256sum" in str(caught.value.hint)
    save_file({name: tensor for name, tensor in tensors.items() if "periods" not in name}, file)
    assert opened(file).network.config.rotary == Rotary()
    with must_raise(DataError):
        opened(file, periods="file")
    save_file({**tensors, "blocks.1.attn.qkv.bias_mask": torch.ones(192)}, file)
    with must_raise(DataError, "bias_mask"):
        opened(file)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_pe_spatial_base_patch16_512"])
@torch.no_grad()
def test_a_bare_file_wants_its_pooling_where_nothing_shows_it(name: str, tmp_path: Path) -> None:
    """timm's mean of patches and the labs' class token have the same tensors; asked for at once with the rotation."""
    rotary, file = BARE[name][0], tmp_path / "model.safetensors"
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    theirs = {}
    for pooling, pool in (("mean", "avg"), ("class", "token")):
        module = small(name, global_pool=pool)
        save_file(module.state_dict(), file)
        theirs[pooling] = module(images)
        for stated in ({}, {"rotary": rotary}):
            with must_raise(UsageError) as caught:
                opened(file, **stated)
            assert ("rotary" in str(caught.value.hint)) == (not stated)
            assert "'pooling': 'mean'" in str(caught.value.hint)
        assert gap(opened(file, rotary=rotary, pooling=pooling).network(images), theirs[pooling]) < GAP
    assert gap(theirs["mean"], theirs["class"]) > 0.1
    shown = small(name, global_pool="avg", use_fc_norm=True)
    save_file(shown.state_dict(), file)
    with must_raise(UsageError) as caught:
        opened(file)
    assert "pooling" not in str(caught.value.hint)
    assert gap(opened(file, rotary=rotary).network(images), shown(images)) < GAP


@torch.no_grad()
def test_a_file_of_the_lab_pools_its_class_token_and_says_so(tmp_path: Path) -> None:
    """Also where its rotation is stated, and with a head that was put behind it; unless a mean is stated."""
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for pool, stated in (("token", {}), ("token", {"rotary": "dinov3"}), ("avg", {"pooling": "mean"})):
        module = small("vit_small_patch16_dinov3_qkvb", global_pool=pool)
        save_file(of_lab(module), tmp_path / "lab.safetensors")
        model = opened(tmp_path / "lab.safetensors", **stated)
        assert gap(model.network(images), module(images)) < GAP
        assert ("pooling class" in model.facts["assumed"]) == (not stated)


def test_norms_that_may_be_behind_the_branches_are_refused_where_nothing_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the published networks with these names the giant one opens, by its size; beside a configuration, all do."""
    for name, pooling, published in (
        ("eva02_enormous_patch14_clip_224", "avg", False),
        ("eva_giant_patch14_224", "avg", True),
        ("eva02_enormous_patch14_clip_224", "token", False),
        ("eva_giant_patch14_clip_224", "token", True),
    ):
        with torch.device("meta"), monkeypatch.context() as patch:
            patch.setattr(Eva, "init_weights", lambda *given, **named: None)  # which takes seconds for no numbers
            tensors = timm.create_model(name, global_pool=pooling).state_dict()
        for front in ("", "module.visual."):
            assert bool(why_not_bare({front + key: tensor for key, tensor in tensors.items()})) != published
        module, file = small(name), tmp_path / "model.safetensors"
        save_file(module.state_dict(), file)
        for stated in ({}, {"rotary": "none", "pooling": "class"}, {"rotary": "eva02", "pooling": "class"}):
            with must_raise(DataError):
                opened(file, side=56, **stated)
    assert vitrail.convert(module).network.config.rotary is None
    save_file(small("eva02_tiny_patch14_224", global_pool="token").state_dict(), file)  # a gate shows EVA-02
    shown = opened(file, side=56, rotary="eva02", pooling="class", norms="before")
    assert shown.network.config.rotary == PUBLISHED["eva02"].rotary


@torch.no_grad()
def test_a_live_network_for_grey_images_wants_their_mean_and_std() -> None:
    """Where those of three colours differ, which nothing can make one; of any family."""
    for name in ("vit_small_patch16_dinov3", "vit_base_patch16_clip_224"):
        module = timm.create_model(name, **SMALL, img_size=64, in_chans=1)
        with must_raise(UsageError) as caught:
            vitrail.convert(module)
        assert {"mean", "std"} <= set(caught.value.hint.flags)
        model = vitrail.convert(module, assume={"mean": 0.4, "std": 0.25})
        assert (model.preprocessing.channels, model.preprocessing.mean, model.preprocessing.std) == (1, (0.4,), (0.25,))
        images = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
        assert gap(model.network(images), module(images)) < GAP


def test_periods_are_finite_numbers_above_zero_and_words_hold_what_is_read() -> None:
    for bad in (0, -1.0, float("nan"), float("inf"), "1", [1.0]):
        with must_raise(UsageError):
            Rotary(periods=(1.0, bad))
    assert {word.partition("=")[0] for word in str(Rotary()).split()} == {"coordinates", "base", "axes", "layout"}
    words = {word.partition("=")[0] for word in str(Rotary(offset=0.5, periods=(1.0, 2.0))).split()}
    assert "offset" in words
    assert "base" not in words
    with must_raise(UsageError, "8.*4"):
        RotaryPositions(Rotary(periods=(1.0, 2.0, 3.0, 4.0)), 32, 1)
    with must_raise(UsageError) as caught:
        RotaryPositions(Rotary(), 30, 1)
    assert "head_dim" in str(caught.value.hint)


def test_a_bias_of_keys_is_told_by_names_and_never_by_zeros(tmp_path: Path) -> None:
    """A plain file whose keys have a bias of zeros keeps it; one of EVA's, under a name without, is refused."""
    plain = timm.create_model("vit_tiny_patch16_224", **SMALL, img_size=64).state_dict()
    save_file(plain, tmp_path / "plain.safetensors")
    assert not plain["blocks.0.attn.qkv.bias"].any()
    assert type(opened(tmp_path / "plain.safetensors").network.blocks[0].attn.qkv) is nn.Linear
    folder_of("vit_small_patch16_dinov3_qkvb", tmp_path, num_classes=7)
    tensors = load_file(tmp_path / "model.safetensors")
    for block in (0, 1):
        queries, values = (tensors.pop(f"blocks.{block}.attn.{each}_bias") for each in "qv")
        tensors[f"blocks.{block}.attn.qkv.bias"] = torch.cat([queries, torch.ones_like(queries), values])
    save_file(tensors, tmp_path / "model.safetensors")
    with must_raise(DataError, "key_bias"):
        vitrail.load(tmp_path)


READ: dict[str, tuple[str, dict[str, Any]]] = {
    "another base and offset": ("vit_small_patch16_dinov3", {"rope_temperature": 50, "rope_grid_offset": 0.25}),
    "axes and layout": ("vit_small_patch16_dinov3", {"rope_grid_indexing": "xy", "rope_rotate_half": False}),
    "of another kind": ("vit_small_patch16_dinov3", {"rope_type": "cat", "ref_feat_shape": (12, 10)}),
    "and back": ("eva02_tiny_patch14_224", {"rope_type": "dinov3", "qkv_fused": False}),
    "another reference": ("eva02_base_patch14_224", {"ref_feat_shape": 14, "scale_mlp": False}),
    "no reference": ("eva02_tiny_patch14_224", {"ref_feat_shape": None, "swiglu_mlp": False}),
    "no rotation": ("eva02_tiny_patch14_224", {"use_rot_pos_emb": False}),
    "a rotation": ("eva_giant_patch14_224", {"use_rot_pos_emb": True, "rope_grid_indexing": "xy"}),
    "pooling and norms": ("vit_small_patch16_dinov3", {"global_pool": "avg", "use_fc_norm": True}),
    "no positions": ("vit_small_patch16_rope_ape_224", {"use_abs_pos_emb": False, "num_reg_tokens": 3}),
    "a norm before the blocks": ("vit_small_patch16_rope_224", {"use_pre_transformer_norm": True}),
    "norms inside": ("eva02_tiny_patch14_224", {"scale_attn_inner": True, "scale_mlp": True, "attn_type": "eva"}),
    "no rotation in training alone": ("vit_small_patch16_dinov3", {"rope_rescale_coords": 2.0}),
    "keys with a bias": ("vit_betwixt_patch16_rope_reg4_gap_256", {"attn_type": "rope"}),
    "a pooling as it is": ("vit_pe_core_base_patch16_224", {"attn_pool_num_heads": 8, "num_classes": 5}),
}


@pytest.mark.parametrize("case", READ)
@torch.no_grad()
def test_an_argument_of_the_rotation_is_read(case: str, tmp_path: Path) -> None:
    name, arguments = READ[case]
    module = folder_of(name, tmp_path, **{"num_heads": 4, "embed_dim": 64, "num_classes": 7, **arguments})
    model = vitrail.load(tmp_path)
    images = torch.randn(2, 3, *model.network.config.image, generator=torch.Generator().manual_seed(3))
    assert gap(model.network(images), module(images)) < GAP
    assert gap(vitrail.convert(module).network(images), module(images)) < GAP


REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vit_small_patch16_dinov3", {"rope_type": "mixed"}),
    ("vit_small_patch16_dinov3", {"rope_type": "mrope"}),
    ("vit_small_patch16_rope_224", {"use_post_norm": True}),
    ("vit_small_patch16_dinov3", {"rope_temperature": 0.5}),
    ("vit_small_patch16_dinov3", {"rope_grid_indexing": "yx"}),
    ("vit_small_patch16_dinov3", {"num_kv_heads": 2}),
    ("vit_small_patch16_dinov3", {"attn_only_layer_scale": True}),
    ("vit_small_patch16_dinov3", {"global_pool": "map"}),
    ("vit_pe_core_base_patch16_224", {"attn_pool_num_heads": 4}),
    ("vit_pe_core_base_patch16_224", {"attn_pool_mlp_ratio": 2.0}),
    ("eva02_tiny_patch14_224", {"global_pool": "max"}),
)


@pytest.mark.parametrize(("name", "arguments"), REFUSED, ids=str)
def test_an_argument_that_makes_another_network_is_refused_by_its_name(name: str, arguments: dict[str, Any]) -> None:
    with must_raise(DataError, *arguments):
        of_config({"architecture": name, "model_args": arguments})


def test_no_argument_of_eva_is_ignored() -> None:
    """Each, of a kind that nobody has: read (and so in what is shown), refused, or of those that change nothing."""
    nothing = {"dynamic_img_size", "dynamic_img_pad", "device", "dtype", "head_init_scale"}
    training = {f"rope_{each}_coords" for each in ("shift", "jitter", "rescale")}
    in_tensors = {"no_embed_class", "scale_mlp", "scale_attn_inner", "qk_norm", "qkv_fused", "swiglu_align_to"}
    on = {"use_rot_pos_emb", "use_abs_pos_emb", "use_pre_transformer_norm"}
    for architecture in ("eva02_base_patch14_224", "vit_pe_core_base_patch16_224"):
        plain = of_config({"architecture": architecture})
        for name in list(inspect.signature(Eva).parameters):
            if not (name in nothing | training | in_tensors | on or name.endswith("_rate")):
                try:
                    found: Any = of_config({"architecture": architecture, "model_args": {name: "another"}})
                except DataError as error:
                    found = name if name in error.problem else plain
                assert found != plain, name


LIVE: dict[str, dict[str, Any]] = {
    "norms behind": {"use_post_norm": True},
    "pooling": {"global_pool": "map"},
    "three axes": {"rope_type": "mrope", "rope_grid_indexing": "ij", "dynamic_img_size": True},
    "learnt": {"rope_type": "mixed"},
    "fewer keys": {"num_kv_heads": 2, "qkv_fused": False},
    "a scale of attention": {"attn_only_layer_scale": True},
    "unknown pooling": {"global_pool": "max"},
}


@pytest.mark.parametrize("case", LIVE)
def test_a_live_eva_of_another_kind_is_refused(case: str) -> None:
    module = small("vit_small_patch16_rope_224", **LIVE[case])
    with must_raise(UsageError):
        vitrail.convert(module)


@torch.no_grad()
def test_a_live_network_of_another_precision_is_proved_in_fp32() -> None:
    """timm rounds the angles that it keeps: they are made anew."""
    for name in ("eva02_tiny_patch14_224", "vit_small_patch16_dinov3"):
        module = small(name).bfloat16()
        model = vitrail.convert(module)
        fresh = small(name)
        fresh.load_state_dict({key: tensor.float() for key, tensor in module.state_dict().items()})
        images = torch.randn(2, 3, *model.network.config.image, generator=torch.Generator().manual_seed(3))
        assert gap(model.network(images), fresh(images)) < GAP


def test_a_size_without_whole_patches_is_two_lines(tmp_path: Path) -> None:
    model = vitrail.convert(small("vit_small_patch16_dinov3"))
    with must_raise(UsageError, r"64x80"):
        resize_model(model, (63, 70))
    folder_of("vit_small_patch16_dinov3", tmp_path, num_classes=7)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"]["img_size"] = [63, 70]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with must_raise(UsageError):
        vitrail.load(tmp_path)
