"""The rows of the conformance suite of weights: small members of each family, made, saved and resized by its own code.

Every parameter is redrawn (`redraw.py`). vit-pytorch's rows stand in `vit_pytorch_reference.py`: they run elsewhere.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import Tensor, nn
from torchvision.models.vision_transformer import interpolate_embeddings

from tests.weights.redraw import redrawn
from vitrail.nn.embedding import Size
from vitrail.weights.family import Family, rename

WIDTH, DEPTH, HEADS = 48, 2, 3
NETWORK = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}


@dataclass(frozen=True)
class Row:
    """A network of a family.

    Attributes:
        make: Makes the peer's module, redrawn, and puts its files into a folder as the peer does; gives the module and
            what `vitrail.load` opens.
        at: The peer's answer to images of another size, with positions resized by its own code.
        size: (height, width) of its images.
        other: The other size: one side shorter, where antialiasing shows, and one longer.
        assume: What the files do not say.
    """

    make: Callable[[Path], tuple[nn.Module, Path]]
    at: Callable[[nn.Module, Tensor], Tensor]
    size: Size = (64, 64)
    other: Size = (48, 96)
    assume: Mapping[str, Any] = field(default_factory=dict)


def under_names_of(family: Family, ours: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors under a family's names: `renamed` itself shows, of the numbers from 0, which of theirs is where.

    Args:
        family: Whose names are wanted.
        ours: By our names.
        like: All tensors of a member, for names and shapes; of those that are not read the result has NaN.
    """
    ends = np.cumsum([tensor.numel() for tensor in like.values()]).tolist()
    counted = torch.arange(ends[-1] if ends else 0, dtype=torch.float64)
    numbers = {
        name: counted[end - tensor.numel() : end].reshape(tensor.shape)
        for (name, tensor), end in zip(like.items(), ends, strict=True)
    }
    flat = torch.full(counted.shape, torch.nan)
    for name, places in rename(family, numbers).tensors.items():
        flat[places.long().flatten()] = ours[name].flatten()
    return {name: flat[places.long()] for name, places in numbers.items()}


def answer(module: nn.Module, images: Tensor, **how: Any) -> Tensor:
    """What a peer's module says of images; of one without a head, what a head would read."""
    if not type(module).__module__.startswith("transformers."):
        return module(images)
    net: Any = module
    found = net(pixel_values=images, **how)
    for name in ("logits", "image_embeds"):
        if getattr(found, name, None) is not None:
            return getattr(found, name)
    if getattr(net.config, "use_head", None) is False:  # AIMv2 without its pooling
        return found.last_hidden_state.mean(dim=1)
    bare = net.config.model_type in ("vit", "deit", "vit_mae")
    return found.last_hidden_state[:, 0] if bare else found.pooler_output


def _timm(name: str, other: Size = (48, 96), **given: Any) -> Row:
    side = 56 if "patch14" in name else 64
    arguments: Any = {**NETWORK, "img_size": (side, side), **given}

    def make(folder: Path) -> tuple[nn.Module, Path]:
        module = redrawn(timm.create_model(name, **arguments))
        save_for_hf(module, str(folder), model_args=arguments, safe_serialization=True)
        return module, folder

    return Row(make, _timm_at, arguments["img_size"], (42, 84) if side == 56 else other)


def _timm_at(module: nn.Module, images: Tensor) -> Tensor:
    other: Any = copy.deepcopy(module)
    other.set_input_size(img_size=tuple(images.shape[2:]))
    return other(images)


def _transformers(kind: str, config: Any, part: str = "") -> Row:
    def make(folder: Path) -> tuple[nn.Module, Path]:
        module: Any = redrawn(getattr(transformers, kind)(config))
        module.save_pretrained(folder)
        if part:  # the files hold more than what answers
            whole, module = module, getattr(transformers, part)(config.vision_config).eval()
            module.vision_model.load_state_dict(whole.vision_model.state_dict())
            module.visual_projection.load_state_dict(whole.visual_projection.state_dict())
        return module, folder

    return Row(make, lambda module, images: answer(module, images, interpolate_pos_encoding=True), (32, 32), (24, 48))


def _dinov3(size: Size = (32, 32), other: Size = (24, 48), **given: Any) -> Row:
    config = transformers.DINOv3ViTConfig(**{**SMALL, "image_size": size, **given})
    return replace(_transformers("DINOv3ViTModel", config), at=answer, size=size, other=other)


def _aimv2(**given: Any) -> Row:
    return replace(_transformers("Aimv2VisionModel", transformers.Aimv2VisionConfig(**SMALL, **given)), at=_aimv2_at)


def _aimv2_at(module: nn.Module, images: Tensor) -> Tensor:
    """Its own code takes one size, so its positions are resized by that of SigLIP, which has the same table of them."""
    other: Any = copy.deepcopy(module)
    peer: Any = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SMALL)).embeddings
    peer.position_embedding = other.embeddings.position_embedding
    positions = peer.interpolate_pos_encoding(torch.empty(1, 16, 32), *images.shape[2:])[0]
    other.embeddings.position_embedding = nn.Embedding.from_pretrained(positions)
    other.embeddings.position_ids = torch.arange(len(positions))[None]
    return answer(other, images)


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
DINOV2 = {key: value for key, value in SMALL.items() if key != "intermediate_size"} | {"mlp_ratio": 2}
TEXT = {**SMALL, "vocab_size": 20, "eos_token_id": 2}


def _torchvision() -> Row:
    def make(folder: Path) -> tuple[nn.Module, Path]:
        module = redrawn(torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10))
        save_file(module.state_dict(), folder / "vit.safetensors")
        return module, folder / "vit.safetensors"

    def at(module: nn.Module, images: Tensor) -> Tensor:
        side = images.shape[2]
        other = torchvision.models.VisionTransformer(side, 8, 2, 2, 32, 64, num_classes=10).eval()
        other.load_state_dict(interpolate_embeddings(side, 8, module.state_dict()))
        return other(images)

    return Row(make, at, (32, 32), (24, 24), {"heads": 2})


def flax(modern: bool, classes: int = 10) -> dict[str, np.ndarray]:
    """Arrays of a ViT under Google's names, with their shapes: of the first files, or of big_vision with a MAP head."""
    rng, mlp, head = np.random.default_rng(0), 4 * WIDTH, (HEADS, WIDTH // HEADS)
    attention, norm, dense = (0, 1, 0) if modern else (1, 2, 3)
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (16, 16, 3, WIDTH),
        "embedding/bias": (WIDTH,),
        "pos_embedding" if modern else "Transformer/posembed_input/pos_embedding": (1, 16 + (not modern), WIDTH),
        "Transformer/encoder_norm/scale": (WIDTH,),
        "Transformer/encoder_norm/bias": (WIDTH,),
    }
    shapes |= {} if modern else {"cls": (1, 1, WIDTH), "head/kernel": (WIDTH, classes), "head/bias": (classes,)}

    def part(at: str, attention: int, norms: tuple[int, ...], dense: int) -> dict[str, tuple[int, ...]]:
        asks = f"{at}/MultiHeadDotProductAttention_{attention}"
        found = {f"{asks}/{name}/kernel": (WIDTH, *head) for name in ("query", "key", "value")}
        found |= {f"{asks}/{name}/bias": head for name in ("query", "key", "value")}
        found |= {f"{asks}/out/kernel": (*head, WIDTH), f"{asks}/out/bias": (WIDTH,)}
        found |= {f"{at}/LayerNorm_{number}/{name}": (WIDTH,) for number in norms for name in ("scale", "bias")}
        maps = {"Dense_0/kernel": (WIDTH, mlp), "Dense_0/bias": (mlp,)}
        maps |= {"Dense_1/kernel": (mlp, WIDTH), "Dense_1/bias": (WIDTH,)}
        return found | {f"{at}/MlpBlock_{dense}/{name}": shape for name, shape in maps.items()}

    for index in range(DEPTH):
        shapes |= part(f"Transformer/encoderblock_{index}", attention, (0, norm), dense)
    if modern:
        shapes |= {"MAPHead_0/probe": (1, 1, WIDTH), **part("MAPHead_0", 0, (0,), 0)}
    scales = {name: 0.3 if len(shape) < 2 else 1.2 * WIDTH**-0.5 for name, shape in shapes.items()}
    scales["embedding/kernel"] = 1.2 * (3 * 16 * 16) ** -0.5
    front = "params/" if modern else ""
    return {front + name: (scales[name] * rng.standard_normal(shapes[name])).astype(np.float32) for name in shapes}


def _google(modern: bool) -> Row:
    def make(folder: Path) -> tuple[nn.Module, Path]:
        np.savez(folder / "vit.npz", **flax(modern))
        name = "vit_base_patch16_siglip_224" if modern else "vit_base_patch16_224"
        module: Any = timm.create_model(name, **NETWORK, img_size=64, num_classes=0 if modern else 10)
        module.load_pretrained(str(folder / "vit.npz"))
        return module.eval(), folder / "vit.npz"

    return Row(make, _timm_at)


def _rows() -> dict[str, Row]:
    t: Any = transformers
    clip = t.CLIPConfig(text_config=TEXT, vision_config={**SMALL, "projection_dim": 16}, projection_dim=16)
    named: Any = {"id2label": {0: "ant", 1: "bee", 2: "cat"}, "label2id": {"ant": 0, "bee": 1, "cat": 2}}
    halves: Any = {"text_config": TEXT, "vision_config": SMALL}
    return {
        "timm Ti/16": _timm("vit_tiny_patch16_224"),
        "timm S/8, non-square image": _timm("vit_small_patch8_224", (48, 128), img_size=(64, 96)),
        "timm B/32": _timm("vit_base_patch32_224", (96, 160), img_size=(128, 128)),
        "timm L/14": _timm("vit_large_patch14_224"),
        "timm global_pool='avg'": _timm("vit_base_patch16_224", global_pool="avg"),
        "timm global_pool='avg', fc_norm=False": _timm("vit_base_patch16_224", global_pool="avg", fc_norm=False),
        "timm DeiT": _timm("deit_tiny_patch16_224"),
        "timm DeiT, distilled": _timm("deit_tiny_distilled_patch16_224"),
        "timm DeiT-III": _timm("deit3_small_patch16_224"),
        "timm SigLIP": _timm("vit_base_patch16_siglip_224"),
        "timm CLIP": _timm("vit_base_patch32_clip_quickgelu_224", (96, 160), img_size=(128, 128), num_classes=16),
        "timm DINO": _timm("vit_small_patch16_224", num_classes=0),
        "timm DINOv2": _timm("vit_small_patch14_dinov2"),
        "timm DINOv2 with registers": _timm("vit_small_patch14_reg4_dinov2"),
        "timm DINOv2 giant": _timm("vit_giant_patch14_dinov2"),
        "timm DINOv3": _timm("vit_small_patch16_dinov3"),
        "timm DINOv3 or EUPE with biases, class token": _timm("vit_tiny_patch16_dinov3_qkvb", global_pool="token"),
        "timm DINOv3 S+, non-square image": _timm("vit_small_plus_patch16_dinov3", (48, 128), img_size=(64, 96)),
        "timm EVA": _timm("eva_giant_patch14_224"),
        "timm EVA-02 Ti": _timm("eva02_tiny_patch14_224"),
        "timm EVA-02 B": _timm("eva02_base_patch14_224"),
        "timm EVA-02 CLIP": _timm("eva02_base_patch16_clip_224", num_classes=16),
        "timm Perception Encoder, core": _timm("vit_pe_core_base_patch16_224", num_classes=16),
        "timm Perception Encoder, spatial": _timm("vit_pe_spatial_gigantic_patch14_448"),
        "timm Perception Encoder, lang": _timm("vit_pe_lang_large_patch14_448", num_classes=0),
        "timm RoPE-ViT, axial": _timm("vit_small_patch16_rope_224", (48, 128), img_size=(64, 96)),
        "timm RoPE-ViT, axial with positions": _timm("vit_small_patch16_rope_ape_224"),
        "timm ViT with rotary positions and registers": _timm("vit_betwixt_patch16_rope_reg4_gap_256"),
        "timm qk_norm=True": _timm("vit_tiny_patch16_224", qk_norm=True),
        "timm MAE": _timm("vit_base_patch16_224", num_classes=0, global_pool="token"),
        "transformers ViT": _transformers("ViTForImageClassification", t.ViTConfig(**SMALL, **named)),
        "transformers ViT without head": _transformers("ViTModel", t.ViTConfig(**SMALL, hidden_act="gelu_new")),
        "transformers DeiT": _transformers("DeiTForImageClassification", t.DeiTConfig(**SMALL)),
        "transformers DeiTForImageClassificationWithTeacher": _transformers(
            "DeiTForImageClassificationWithTeacher", t.DeiTConfig(**SMALL)
        ),
        "transformers DINOv2": _transformers("Dinov2Model", t.Dinov2Config(**DINOV2)),
        "transformers DINOv2 classifier": _transformers(
            "Dinov2ForImageClassification", t.Dinov2Config(**DINOV2, use_swiglu_ffn=True)
        ),
        "transformers DINOv2 with registers": _transformers(
            "Dinov2WithRegistersForImageClassification", t.Dinov2WithRegistersConfig(**DINOV2)
        ),
        "transformers CLIP": _transformers("CLIPVisionModel", t.CLIPVisionConfig(**SMALL)),
        "transformers CLIPVisionModelWithProjection": _transformers(
            "CLIPVisionModelWithProjection", t.CLIPVisionConfig(**SMALL, projection_dim=16)
        ),
        "transformers CLIPModel": _transformers("CLIPModel", clip, part="CLIPVisionModelWithProjection"),
        "transformers CLIP classifier": _transformers("CLIPForImageClassification", t.CLIPConfig(**halves, **named)),
        "transformers SigLIP": _transformers("SiglipVisionModel", t.SiglipVisionConfig(**SMALL)),
        "transformers SigLIP classifier": _transformers(
            "SiglipForImageClassification", t.SiglipConfig(**halves, **named)
        ),
        "transformers DINOv3": _dinov3(num_register_tokens=4),
        "transformers DINOv3 without registers, non-square image": _dinov3((32, 48), (48, 24), rope_theta=50.0),
        "transformers DINOv3 giant": _dinov3(use_gated_mlp=True, hidden_act="silu", key_bias=True),
        "transformers DINOv3 without biases": _dinov3(
            query_bias=False, value_bias=False, proj_bias=False, mlp_bias=False, num_register_tokens=1
        ),
        "transformers AIMv2": _aimv2(),
        "transformers AIMv2 with biases": _aimv2(qkv_bias=True, mlp_bias=True),
        "transformers AIMv2 without head": _aimv2(use_head=False),
        "transformers MAE": _transformers("ViTMAEModel", t.ViTMAEConfig(**SMALL, mask_ratio=0.0)),
        "torchvision": _torchvision(),
        "Google google-research/vision_transformer": _google(modern=False),
        "Google big_vision": _google(modern=True),
    }


ROWS = _rows()
