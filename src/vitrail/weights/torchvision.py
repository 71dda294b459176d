"""torchvision's VisionTransformer."""

from typing import Any

from torch import nn

from vitrail.data.preprocessing import Preprocessing, crop_ratio
from vitrail.weights.family import Facts, Family, Rule, activation_of


def of_module(module: nn.Module) -> Facts | None:
    """What a live network says; None where it is none of torchvision."""
    kind = type(module)
    if kind.__name__ != "VisionTransformer" or not kind.__module__.startswith("torchvision."):
        return None
    net: Any = module
    block = net.encoder.layers[0]
    return {
        "heads": block.num_heads,
        "norm_eps": block.ln_1.eps,
        "activation": activation_of(block.mlp[1]),
        "image_size": (net.image_size, net.image_size),
        "patch_size": (net.patch_size, net.patch_size),
    }


def preprocessing_of(preset: Any) -> Preprocessing:
    """What the transforms of published weights do to an image."""
    (side,), (scaled,) = preset.crop_size, preset.resize_size
    return Preprocessing(
        (side, side),
        crop_ratio=crop_ratio(side, scaled),
        interpolation=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )


BLOCK = "encoder.layers.encoder_layer_#"
TORCHVISION = Family(
    name="torchvision",
    mark="encoder.layers.encoder_layer_#.self_attention.in_proj_weight",
    rules=(
        Rule("cls_token", ("class_token",)),
        Rule("pos_embed", ("encoder.pos_embedding",)),
        Rule("patch_embed.proj.*", ("conv_proj.*",)),
        Rule("blocks.#.norm1.*", (f"{BLOCK}.ln_1.*",)),
        Rule("blocks.#.attn.qkv.weight", (f"{BLOCK}.self_attention.in_proj_weight",)),
        Rule("blocks.#.attn.qkv.bias", (f"{BLOCK}.self_attention.in_proj_bias",)),
        Rule("blocks.#.attn.proj.*", (f"{BLOCK}.self_attention.out_proj.*",)),
        Rule("blocks.#.norm2.*", (f"{BLOCK}.ln_2.*",)),
        Rule("blocks.#.mlp.fc1.*", (f"{BLOCK}.mlp.0.*",)),
        Rule("blocks.#.mlp.fc2.*", (f"{BLOCK}.mlp.3.*",)),
        Rule("blocks.#.mlp.fc1.*", (f"{BLOCK}.mlp.linear_1.*",)),  # as the first published files have it
        Rule("blocks.#.mlp.fc2.*", (f"{BLOCK}.mlp.linear_2.*",)),
        Rule("norm.*", ("encoder.ln.*",)),
        Rule("head.*", ("heads.head.*",)),
    ),
    assumed={"norm_eps": 1e-6, "activation": "gelu", "position_resize": "torchvision", "pooling": "class"},
    of_module=of_module,
)
