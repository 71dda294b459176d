"""What timm and transformers read in a saved model, so that they open it without vitrail.

    timm.create_model("local-dir:runs/latest/model", pretrained=True)
    transformers.AutoModelForImageClassification.from_pretrained("runs/latest/model")       by its TimmWrapper

`config.json` names an architecture of timm's that has what no argument can say (the kind of MLP, the epsilon, a
distillation token), and arguments for all the rest. Tensors bear timm's names. A network that timm cannot express gets
no keys, and its tensors keep our names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViTConfig
from vitrail.weights.family import Tensors, renamed, written
from vitrail.weights.timm import TIMM

EPSILON, CLIPS = 1e-6, 1e-5  # of timm's LayerNorm: by itself, and in the networks of CLIP
EXPRESSIBLE = {  # parts by slot
    ("embed_norm", "layer"),
    ("mlp", "swiglu"),
    ("last_norm", "none"),
    ("pooling", "attention"),
    ("pooling", "mean_then_norm"),
}
HEAD_BIAS = "head.bias"  # which timm's heads always have: zeros where ours has none


def misfit(config: ViTConfig, parts: Mapping[str, str]) -> str:
    """What a network has that no ViT of timm's has, in words; empty where timm can express it.

    Args:
        config: Of the network.
        parts: Names of those that are none of the paper's, by slot.
    """
    pooling, swiglu, distilled = parts.get("pooling", ""), "mlp" in parts, config.distillation_token
    others = [f"{slot} {name}" for slot, name in parts.items() if (slot, name) not in EXPRESSIBLE]
    plain = not pooling and config.pooling == "class" and not config.registers and config.head_bias
    reasons = {
        f"parts of its own ({', '.join(others)})": others,
        "heads that do not make up its width": config.heads * config.head_width != config.width,
        f"an MLP of {config.mlp_width}": int(config.width * _ratio(config, swiglu)) != config.mlp_width * (1 + swiglu),
        f"an epsilon of {config.norm_eps:g}": config.norm_eps not in (EPSILON, CLIPS),
        "a norm before the blocks and a bias of the patches, or neither": config.embed_bias == ("embed_norm" in parts),
        "a bias in only one of attention's output and the MLP": config.out_bias != config.mlp_bias,
        "a norm before the mean and one behind it": pooling == "mean_then_norm" and "last_norm" not in parts,
        "SwiGLU and pooling by attention": pooling == "attention" and swiglu,
        "a distillation token and another pooling, registers, no positions or no bias of the head": distilled
        and not (plain and config.positions != "none"),
        "SwiGLU, a distillation token or the epsilon of CLIP together": len(_special(config, parts)) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _special(config: ViTConfig, parts: Mapping[str, str]) -> list[str]:
    """The architectures of timm's that have what no argument can say."""
    special = {
        "deit_tiny_distilled_patch16_224": config.distillation_token,
        "vit_giant_patch14_dinov2": "mlp" in parts,
        "vit_base_patch32_clip_224": config.norm_eps == CLIPS,
    }
    return [name for name, needed in special.items() if needed]


def _ratio(config: ViTConfig, swiglu: bool) -> float:
    """What timm calls the ratio of the MLP; with SwiGLU both halves of its first map count."""
    return config.mlp_width * (2 if swiglu else 1) / config.width


def timm_keys(
    config: ViTConfig, parts: Mapping[str, str], preprocessing: Preprocessing, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The keys of timm's model hub for this model; empty when timm cannot express it.

    Its transforms give our pixels where an image is squashed, or cropped to a square. A crop to a rectangle is scaled
    to sides that are rounded otherwise, a middle that begins one `down` begins at the even pixel, and a padded image
    lies on the mean's colour.

    Args:
        config: Of the network.
        parts: Names of those that are none of the paper's, by slot.
        preprocessing: Of the model.
        classes: Its class names; none for a network whose numbers have no names.
    """
    if misfit(config, parts):
        return {}
    architecture = next(iter(_special(config, parts)), "vit_base_patch16_224")
    height, width = config.image
    named = {"attention": "map", "mean_then_norm": "avg", "class": "token", "mean": "avg"}
    pooling = named[parts.get("pooling", config.pooling)]
    after = parts.get("pooling") == "mean_then_norm"
    return {
        "architecture": architecture,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": pooling,
        "label_names": list(classes) or list(map(str, range(config.classes))),
        "model_args": {
            "img_size": [height, width],
            "patch_size": list(config.patch),
            "in_chans": config.channels,
            "embed_dim": config.width,
            "depth": config.depth,
            "num_heads": config.heads,
            "mlp_ratio": _ratio(config, "mlp" in parts),
            "qkv_bias": config.qkv_bias,
            "proj_bias": config.out_bias,
            "init_values": config.layer_scale,  # 0 is none; null would leave the architecture's
            "class_token": config.class_token,
            "global_pool": pooling,
            "reg_tokens": config.registers,
            "pos_embed": "none" if config.positions == "none" else "learn",
            "no_embed_class": False,
            "act_layer": config.activation,
            "pre_norm": "embed_norm" in parts,
            "final_norm": after or "last_norm" not in parts,
            "fc_norm": after,
        },
        "pretrained_cfg": {
            "input_size": [config.channels, height, width],
            "fixed_input_size": True,
            "interpolation": preprocessing.interpolation,
            "crop_pct": preprocessing.crop_ratio,
            "crop_mode": {"crop": "center", "squash": "squash", "pad": "border"}[preprocessing.resize],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "num_classes": config.classes,
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_token else "head",
        },
    }


def to_timm(tensors: Tensors, config: ViTConfig) -> Tensors:
    """Tensors under timm's names, of a network that it can express."""
    other = "fc_norm." if "pool.query" in tensors else "attn_pool."  # one name of ours stands for either
    rules = [rule for rule in TIMM.rules if rule.ours != "pool.norm.*" or not rule.theirs[0].startswith(other)]
    found = written(replace(TIMM, rules=tuple(rules)), tensors, config.heads)
    if config.classes and not config.head_bias:
        found[HEAD_BIAS] = torch.zeros(config.classes)
    return found


def of_timm(tensors: Tensors, config: ViTConfig, where: str) -> Tensors:
    """The way back from `to_timm`.

    Args:
        tensors: Of a file.
        config: Of the network.
        where: The file, for messages.

    Raises:
        DataError: If a tensor is not known, or one that belongs to another is missing.
        RuntimeError: If those that belong together do not fit each other.
    """
    found = renamed(TIMM, tensors, where).tensors
    if not config.head_bias and HEAD_BIAS in found and not found[HEAD_BIAS].any():
        del found[HEAD_BIAS]
    return found
