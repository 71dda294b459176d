"""torchvision's VisionTransformer."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitrail.data.preprocessing import Preprocessing, crop_pct
from vitrail.errors import DataError
from vitrail.nn.embedding import Size
from vitrail.weights.family import USUAL, Facts, Family, activation_of, rename_rules

POSITIONS = "encoder.pos_embedding"
LEVELS = 1.01  # of grey, by which the same preprocessing may differ in rounding


def of_module(module: nn.Module) -> Facts | None:
    """What a live network states; None where it is none of torchvision."""
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


def at_size(module: nn.Module, size: Size) -> bool:
    """Its own function resizes positions, for squares alone."""
    from torchvision.models.vision_transformer import interpolate_embeddings

    net, side = cast(Any, module), size[0]
    if size == (side, side):
        positions = OrderedDict({POSITIONS: net.encoder.pos_embedding.detach()})
        net.encoder.pos_embedding = nn.Parameter(interpolate_embeddings(side, net.patch_size, positions)[POSITIONS])
        net.image_size = side
    return size == (side, side)


ARGUMENTS = {  # of its class, as fields of `ViTConfig`; and the epsilon of its `norm_layer`
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_layers": "depth",
    "num_heads": "heads",
    "hidden_dim": "width",
    "mlp_dim": "mlp_dim",
    "num_classes": "classes",
    "norm_eps": "norm_eps",
}


def of_config(config: Mapping[str, Any]) -> Facts | None:
    """What the `config.json` of an export states, since torchvision has none; None where it is of another."""
    arguments = config.get("torchvision")
    if not isinstance(arguments, Mapping):
        return None
    facts = {**USUAL, "head_bias": True, **{ours: arguments[theirs] for theirs, ours in ARGUMENTS.items()}}
    sides = {name: (facts[name], facts[name]) for name in ("image_size", "patch_size")}
    return {**facts, **sides, "names": tuple(config.get("categories") or ())}


def preprocessing_of(preset: Any) -> Preprocessing:
    """What the transforms of published weights do to an image, proved on a drawn one.

    Raises:
        DataError: They give other pixels.
    """
    (side,), (scaled,) = preset.crop_size, preset.resize_size
    found = Preprocessing(
        (side, side),
        crop_pct=crop_pct(side, scaled),
        interpolation=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )
    drawn = np.random.default_rng(0).integers(0, 256, (scaled + 41, scaled + 90, 3), dtype=np.uint8)
    apart = (found(Image.fromarray(drawn)) - preset(Image.fromarray(drawn))) * torch.tensor(found.std)[:, None, None]
    if not (levels := 255 * float(apart.abs().max())) < LEVELS:
        problem = f"torchvision's transforms of these weights differ from ours by {levels:.3g} of 255 levels of grey"
        raise DataError(problem, "another version of torchvision, or preprocessing= of your own")
    return found


OUTSIDE = {  # the blocks
    "cls_token": "class_token",
    "pos_embed": POSITIONS,
    "patch_embed.proj.*": "conv_proj.*",
    "norm.*": "encoder.ln.*",
    "head.*": "heads.head.*",
}
INSIDE = {
    "norm1.*": "ln_1.*",
    "attn.qkv.weight": "self_attention.in_proj_weight",
    "attn.qkv.bias": "self_attention.in_proj_bias",
    "attn.proj.*": "self_attention.out_proj.*",
    "norm2.*": "ln_2.*",
    "mlp.fc1.*": "mlp.0.* mlp.linear_1.*",  # as the first published files have it
    "mlp.fc2.*": "mlp.3.* mlp.linear_2.*",
}
TORCHVISION = Family(
    name="torchvision",
    marks=("encoder.layers.encoder_layer_#.self_attention.in_proj_weight",),
    rules=(
        *rename_rules(OUTSIDE),
        *rename_rules(INSIDE, "encoder.layers.encoder_layer_#"),
    ),
    assumed={"norm_eps": 1e-6, "activation": "gelu", "position_resize": "torchvision", "pooling": "class"},
    of_module=of_module,
    of_config=of_config,
    at_size=at_size,
)
