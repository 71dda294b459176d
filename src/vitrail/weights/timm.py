"""timm's VisionTransformer: ViT, DeiT, DeiT-III, DINO, DINOv2, MAE, CLIP and SigLIP as timm publishes them.

Our names are timm's, so the rules say little. Files of DINO, DINOv2 and MAE as their labs publish them bear the same
names but for the last rows.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.weights.activation import activation_of
from vitrail.weights.family import Facts, Family, Form, Rule, same

TOGETHER = Form(torch.cat, lambda ours, heads: ours.split((len(ours) // 3, len(ours) - len(ours) // 3)))
EPSILON = 1e-6  # of its LayerNorm where nothing else is said
KINDS = ("VisionTransformer", "VisionTransformerDistilled")
POOLS = {"token": "class", "avg": "mean", "map": "attention"}


def of_module(module: nn.Module) -> Facts | None:
    """What a live network says; None where it is no plain ViT of timm."""
    kind = type(module)
    if kind.__name__ not in KINDS or not kind.__module__.startswith("timm."):
        return None
    net: Any = module
    block = net.blocks[0]
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
    """What the `config.json` of timm's hub says by itself; None where it is of another family."""
    if "architecture" not in config:
        return None
    return {}


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
