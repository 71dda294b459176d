"""timm's VisionTransformer: ViT, DeiT, DeiT-III, DINO, DINOv2, MAE, CLIP and SigLIP as timm publishes them.

Our names are timm's, so the rules say little. Files of DINO, DINOv2 and MAE as their labs publish them bear the same
names but for the last rows.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.weights.activation import activation_of
from vitrail.weights.family import Facts, Family, Form, Rule, same
from vitrail.weights.published import timm_table

TOGETHER = Form(  # queries; then keys and values
    lambda theirs: torch.cat(list(theirs)), lambda ours, heads: ours.split((len(ours) // 3, len(ours) - len(ours) // 3))
)
UNSAID = 0.875  # crop_pct
EPSILON = 1e-6  # of its LayerNorm where nothing else is said
KINDS = ("VisionTransformer", "VisionTransformerDistilled")
ARGUMENTS = {"num_heads": "heads", "img_size": "image_size", "patch_size": "patch_size", "act_layer": "activation"}
POOLS = {"token": "class", "avg": "mean", "map": "attention"}


def of_module(module: nn.Module) -> Facts | None:
    """What a live network says; None where it is no plain ViT of timm."""
    kind = type(module)
    if kind.__name__ not in KINDS or not kind.__module__.startswith("timm."):
        return None
    net: Any = module
    block = net.blocks[0]
    if type(block).__name__ != "Block" or type(block.attn).__name__ != "Attention":
        return None
    pooling = POOLS.get(net.global_pool, net.global_pool)
    return {
        "heads": block.attn.num_heads,
        "norm_eps": block.norm1.eps,
        "activation": activation_of(block.mlp.act),
        "image_size": tuple(net.patch_embed.img_size),
        "patch_size": tuple(net.patch_embed.proj.stride),
        "pooling": "mean_then_norm" if pooling == "mean" and not isinstance(net.fc_norm, nn.Identity) else pooling,
        "position_resize": "timm",
    }


def of_config(config: Mapping[str, Any]) -> Facts | None:
    """What the `config.json` of timm's hub says: the table's row of its architecture, and arguments above it."""
    architecture = str(config.get("architecture", "")).partition(".")[0]
    if not architecture:
        return None
    arguments = config.get("model_args") or {}
    facts = dict(timm_table().get(architecture, {}).get("facts", {}))
    facts |= {ours: arguments[theirs] for theirs, ours in ARGUMENTS.items() if theirs in arguments}
    pooling = arguments.get("global_pool") or config.get("global_pool")
    if pooling:
        told = POOLS.get(pooling, pooling)
        facts["pooling"] = "mean_then_norm" if told == "mean" and arguments.get("fc_norm", True) else told
    size = (config.get("pretrained_cfg") or {}).get("input_size")
    if size and "img_size" not in arguments:
        facts["image_size"] = tuple(size[1:])
    if "clip" in architecture and "ft_in" not in str((config.get("pretrained_cfg") or {}).get("tag", "")):
        facts["projection"] = True  # the head is a map to where texts are compared, and gives no classes
    return facts


def preprocessing_of(config: Mapping[str, Any]) -> Preprocessing:
    """What timm's `pretrained_cfg` says of how images go in.

    Raises:
        UsageError: If it asks for what a `Preprocessing` cannot do.
        KeyError: If it does not say enough.
    """
    channels, height, width = config["input_size"]
    resize = {"center": "crop", "squash": "squash", "border": "pad"}[config.get("crop_mode") or "center"]
    found = Preprocessing(
        (height, width),
        resize=resize,  # pyrefly: ignore[bad-argument-type]
        crop_ratio=float(config.get("crop_pct") or UNSAID),
        interpolation=config.get("interpolation") or "bicubic",
        channels=channels,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
    red, green, blue = (round(255 * value) for value in found.mean) if channels == 3 else (128, 128, 128)
    return replace(found, background=(red, green, blue)) if resize == "pad" else found


def answer(module: nn.Module, images: Tensor) -> Tensor:
    """Its logits, or what its head would read."""
    return module(images)


TIMM = Family(
    name="timm",
    mark="blocks.0.attn.qkv.weight",
    rules=(
        *same("cls_token", "dist_token", "reg_token", "pos_embed", "patch_embed.proj.*", "norm_pre.*"),
        *same("blocks.#.norm1.*", "blocks.#.attn.qkv.*", "blocks.#.attn.proj.*", "blocks.#.ls1.gamma"),
        *same("blocks.#.norm2.*", "blocks.#.mlp.fc1.*", "blocks.#.mlp.fc2.*", "blocks.#.ls2.gamma"),
        *same("norm.*", "head.*", "head_dist.*"),
        Rule("pool.norm.*", ("fc_norm.*",)),
        Rule("pool.query", ("attn_pool.latent",)),
        Rule("pool.attn.qkv.*", ("attn_pool.q.*", "attn_pool.kv.*"), TOGETHER),
        Rule("pool.attn.proj.*", ("attn_pool.proj.*",)),
        Rule("pool.norm.*", ("attn_pool.norm.*",)),
        Rule("pool.mlp.fc1.*", ("attn_pool.mlp.fc1.*",)),
        Rule("pool.mlp.fc2.*", ("attn_pool.mlp.fc2.*",)),
        Rule("reg_token", ("register_tokens",)),
        Rule("blocks.#.mlp.fc1.*", ("blocks.#.mlp.w12.*",)),
        Rule("blocks.#.mlp.fc2.*", ("blocks.#.mlp.w3.*",)),
    ),
    idle={
        "mask_token": "stands for hidden patches in pre-training",
        "decoder*": "the decoder of a masked autoencoder",
    },
    prefixes=("module.", "backbone.", "visual.trunk."),
    assumed={"norm_eps": EPSILON, "activation": "gelu", "position_resize": "timm"},
    of_module=of_module,
    of_config=of_config,
    answer=answer,
)
