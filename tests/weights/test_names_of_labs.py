"""EVA-02, Perception Encoder and CLIP under their labs' names, against timm's own filters; own files of EVA-02."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models import eva, vision_transformer
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.weights.test_families import gap
from tests.weights.test_rotary_files import opened, small
from vitrail.errors import DataError, UsageError
from vitrail.nn import Rotary
from vitrail.weights import convert as conversion, perception
from vitrail.weights.published import GAP
from vitrail.weights.rotations import PUBLISHED

OF_EVA = {
    "attn.norm.": "attn.inner_attn_ln.",
    "mlp.norm.": "mlp.ffn_ln.",
    "mlp.fc1_g.": "mlp.w1.",
    "mlp.fc1_x.": "mlp.w2.",
}
OF_EVA |= {"mlp.fc1.": "mlp.w12.", "mlp.fc2.": "mlp.w3.", "q_proj.bias": "q_bias", "v_proj.bias": "v_bias"}
OF_CLIP = {"patch_embed.proj.": "conv1.", "pos_embed": "positional_embedding", "cls_token": "class_embedding"}
OF_CLIP |= {"norm_pre.": "ln_pre.", "blocks.": "transformer.resblocks.", "attn.qkv.": "attn.in_proj_", "fc1.": "c_fc."}
OF_CLIP |= {
    "attn.proj.": "attn.out_proj.",
    ".norm1.": ".ln_1.",
    ".norm2.": ".ln_2.",
    "gamma_": "ls_",
    "fc2.": "c_proj.",
}
OF_CLIP |= {"attn_pool.norm.": "attn_pool.layernorm.", "attn_pool.proj.": "attn_pool.attn.out_proj."}
OF_CLIP |= {"attn_pool.latent": "attn_pool.probe"}


def renamed(name: str, names: dict[str, str]) -> str:
    for theirs, labs in names.items():
        name = name.replace(theirs, labs)
    return name


def exchanged(name: str, one: str, other: str) -> str:
    return name.replace(one, "\0").replace(other, one).replace("\0", other)


def angles(side: int, head_dim: int, base: float = 10_000.0, pretrained: int = 16) -> Tensor:
    """In closed form: half of the numbers turn with the row, half with the column; neighbours are a pair."""
    place = torch.arange(side, dtype=torch.float64) / side * pretrained
    speed = base ** -(torch.arange(head_dim // 4, dtype=torch.float64) / (head_dim // 4))
    one = (place[:, None] * speed).repeat_interleave(2, dim=1)
    return torch.cat([one[:, None].expand(-1, side, -1), one.expand(side, -1, -1)], dim=-1).flatten(0, 1).float()


def of_evas_lab(module: nn.Module, side: int, **table: Any) -> dict[str, Tensor]:
    """As EVA-02's lab stores a network of timm's: with tables of cosines and sines, and a head of pre-training."""
    found = {renamed(name, OF_EVA): tensor for name, tensor in module.state_dict().items()}
    turned = angles(side, 16, **table)
    found |= {"rope.freqs_cos": turned.cos(), "rope.freqs_sin": turned.sin(), "lm_head.weight": torch.randn(5, 64)}
    return {**found, "blocks.0.attn.rope.freqs_cos": turned.cos(), "lm_head.bias": torch.zeros(5)}


def of_clips_code(module: nn.Module, head: bool) -> dict[str, Tensor]:
    """As OpenAI and Perception Encoder's lab store a network of timm's, beside a half that reads texts."""
    found = dict[str, Tensor]()
    theirs = module.state_dict()
    if "attn_pool.q.weight" in theirs:
        for kind in ("weight", "bias"):
            both = [theirs.pop(f"attn_pool.{name}.{kind}") for name in ("q", "kv")]
            theirs[f"attn_pool.attn.in_proj_{kind}"] = torch.cat(both)
    for name, tensor in theirs.items():
        new = (
            re.sub(r"^norm\.", "ln_post.", renamed(name, OF_CLIP))
            .replace("ls_1", "ls_1.gamma")
            .replace("ls_2", "ls_2.gamma")
        )
        if new.startswith(("positional", "class_")):
            tensor = tensor.squeeze(0).squeeze(0) if new.startswith("class_") else tensor[0]
        if not new.startswith("head."):
            found[f"visual.{new}"] = tensor
    if head:
        found["visual.proj"] = theirs["head.weight"].T.contiguous()
    texts = {"token_embedding.weight": (9, 64), "text_projection": (64, 7), "positional_embedding": (5, 64)}
    texts |= {"transformer.resblocks.0.attn.in_proj_weight": (192, 64), "transformer.resblocks.0.ln_1.weight": (64,)}
    return {**found, **{name: torch.randn(shape) for name, shape in texts.items()}, "logit_scale": torch.tensor(1.0)}


def proved(file: Path, peer: nn.Module, filtered: dict[str, Tensor], side: int, **stated: Any) -> dict[str, Any]:
    """The file opens and answers as timm's network of what timm's own filter makes of it; gives its facts."""
    left = peer.load_state_dict(filtered, strict=False)
    assert not left.missing_keys
    model, images = opened(file, side=side, **stated), torch.randn(2, 3, side, side)
    with torch.no_grad():
        assert gap(model.network(images), peer(images)) < GAP
        for parameter in peer.parameters():  # nothing of it was there before
            parameter.zero_()
        assert gap(model.network(images), peer(images)) > 0.1
    return dict(model.facts)


@pytest.mark.parametrize(
    "name", ["eva02_tiny_patch14_224", "eva02_base_patch14_224", "eva02_base_patch16_clip_224", "fused, no bias"]
)
def test_a_file_of_eva02s_lab_shows_its_rotation_and_heads(name: str, tmp_path: Path) -> None:
    """By its table of angles, which is refused where the network's are others."""
    more = {"qkv_bias": False} if name == "fused, no bias" else {}
    name = name if not more else "eva02_tiny_patch14_224"
    module, peer, file = small(name, **more), small(name, **more), tmp_path / "eva02.safetensors"
    side = 56 if "patch14" in name else 64
    grid = side // (14 if "patch14" in name else 16)
    tensors = of_evas_lab(module, grid)
    for front in ("", "module."):
        save_file({front + key: tensor for key, tensor in tensors.items()}, file)
        filtered = eva.checkpoint_filter_fn(tensors, peer)
        filtered = {key: each for key, each in filtered.items() if not key.startswith("lm_head.")}
        proved(file, peer, filtered, side, heads=None)
    model = opened(file, side=side, heads=None)
    assert (model.network.config.rotary, model.network.config.heads) == (PUBLISHED["eva02"].rotary, 4)
    save_file({key: each.half() if "freqs" in key else each for key, each in tensors.items()}, file)
    assert opened(file, side=side).network.config == model.network.config
    wrong = [of_evas_lab(module, grid, base=9_000.0), of_evas_lab(module, grid, pretrained=grid)]
    wrong += [{**tensors, "rope.freqs_sin": -tensors["rope.freqs_sin"]}, of_evas_lab(module, grid + 1)]
    for each in wrong:
        save_file(each, file)
        with must_raise(DataError, "rotation"):
            opened(file, side=side)
    save_file(tensors, file)
    for other in ("none", "pe_14", "dinov3"):
        with must_raise(UsageError, "rotation"):
            opened(file, side=side, rotary=other, norms="before", pooling="class" if "clip" in name else "mean")


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("vit_pe_core_base_patch16_224", {"rotary": "pe_14"}),
        ("vit_pe_spatial_base_patch16_512", {"rotary": "pe_32", "pooling": "mean"}),
        ("vit_pe_spatial_large_patch14_448", {"rotary": "pe_32", "pooling": "mean"}),
        ("vit_pe_lang_large_patch14_448", {"rotary": "pe_32", "pooling": "mean"}),
    ],
)
def test_a_file_of_perception_encoders_lab_opens_under_its_own_names(
    name: str, stated: dict[str, Any], tmp_path: Path
) -> None:
    module, peer, file, side = small(name), small(name), tmp_path / "pe.safetensors", 56 if "patch14" in name else 64
    core = "core" in name
    tensors = of_clips_code(module, head=core)
    save_file(tensors, file)
    with must_raise(UsageError) as caught:
        opened(file, side=side)
    assert "'rotary'" in str(caught.value.hint)
    peer.reset_classifier(7 if core else 0)
    facts = proved(file, peer, eva._convert_pe(tensors, peer), side, **stated)
    assert "token_embedding" in str(facts.get("left out", facts))
    assert opened(file, side=side, **stated).network.config.rotary == PUBLISHED[stated["rotary"]].rotary
    alone = {key.removeprefix("visual."): each for key, each in tensors.items() if key.startswith("visual.")}
    save_file(alone, file)
    proved(file, peer, eva._convert_pe(alone, peer, prefix=""), side, **stated)
    save_file({key: each for key, each in alone.items() if "resblocks.1.attn.out_proj" not in key}, file)
    with must_raise(DataError, "blocks.1.attn.proj"):
        opened(file, side=side, **stated)


@pytest.mark.parametrize("name", ["eva02_base_patch16_clip_224", "vit_pe_core_base_patch16_224"])
@torch.no_grad()
def test_names_that_are_exchanged_would_be_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault of our tables opens the file and moves its answer far; a name that is missing refuses it."""
    module, file, of_eva = small(name), tmp_path / "lab.safetensors", name.startswith("eva02")
    save_file(of_evas_lab(module, 4) if of_eva else of_clips_code(module, head=True), file)
    stated = {"pooling": "class"} if of_eva else {"rotary": "pe_14"}
    images = torch.randn(2, 3, 64, 64)
    theirs = opened(file, **stated).network(images)
    split = [("mlp.w1.", "mlp.w2."), ("q_proj.weight", "k_proj.weight"), ("q_bias", "v_bias")]
    for one, other in (("norm1.", "norm2."), *split * of_eva):
        rules = [
            rule._replace(theirs=tuple(exchanged(each, one, other) for each in rule.theirs))
            for rule in conversion.TIMM.rules
        ]
        with monkeypatch.context() as patch:
            patch.setattr(conversion, "FAMILIES", (replace(conversion.TIMM, rules=tuple(rules)),))
            moved = gap(opened(file, **stated).network(images), theirs)
        assert moved > 10 * GAP, one
    if of_eva:
        return
    for piece in [piece for piece in perception.PIECES if "ls_" not in piece]:  # which the core lacks
        with monkeypatch.context() as patch:
            patch.delitem(perception.PIECES, piece)
            with must_raise((DataError, UsageError)):
                opened(file, **stated)
    swapped = {r"\.ln_1\.": ".norm2.", r"\.ln_2\.": ".norm1.", **perception.PIECES}
    monkeypatch.setattr(perception, "PIECES", swapped)
    assert gap(opened(file, **stated).network(images), theirs) > 10 * GAP


def test_a_file_of_clip_under_its_own_names_has_no_rotation(tmp_path: Path) -> None:
    made = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 7}
    name = "vit_base_patch32_clip_quickgelu_224"
    module, peer, file = small(name, **made), small(name, **made), tmp_path / "clip.safetensors"
    tensors = of_clips_code(module, head=True)
    save_file(tensors, file)
    stated = {"activation": "quick_gelu", "norm_eps": 1e-5}
    with must_raise(UsageError, "activation"):
        opened(file)
    proved(file, peer, vision_transformer.checkpoint_filter_fn(tensors, peer), 64, **stated)
    assert opened(file, **stated).network.config.rotary is None


@pytest.mark.parametrize("arguments", [{}, {"qkv_bias": False}, {"qkv_fused": False}, {"scale_attn_inner": True}])
@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "eva02_base_patch16_clip_224"])
@torch.no_grad()
def test_an_own_eva02_opens_where_its_norms_are_stated(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """Norms behind the branches leave the same tensors, so a file of no published size never opens unasked."""
    file, side = tmp_path / "own.safetensors", 56 if "patch14" in name else 64
    for behind in (False, True):
        module = small(name, global_pool="token", use_post_norm=behind, **arguments)
        save_file(module.state_dict(), file)
        for stated in ({}, {"rotary": "eva02"}, {"rotary": "eva02", "pooling": "class"}):
            with must_raise(UsageError):
                opened(file, side=side, **stated)
        if behind:
            with must_raise(UsageError, "norms"):
                vitrail.convert(module)
            continue
        images = torch.randn(2, 3, side, side)
        model = opened(file, side=side, rotary="eva02", pooling="class", norms="before")
        assert gap(model.network(images), module(images)) < GAP
        assert isinstance(model.network.config.rotary, Rotary)
