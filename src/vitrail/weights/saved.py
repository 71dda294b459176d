"""Model folders that vitrail writes: the keys of timm beside ours, and what others wrote over them.

What is ours in `model/config.json` lies under `vitrail`, beside the keys by which timm and transformers open it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViTConfig
from vitrail.weights.family import Tensors, names_back, rename, side_of
from vitrail.weights.places import CONFIG, KEY, author_of, contents_of, timm_architectures
from vitrail.weights.timm import ARGUMENTS, EPSILON, TIMM


def find_rewriter(folder: Path) -> str:
    """Who wrote over the `config.json` of a folder that vitrail saved, in words; empty where nobody did.

    transformers carries our key and class names along, also where a model got others; timm drops the key.
    """
    config, preprocessor = contents_of(folder)
    author, names = author_of(config), _value(config, KEY, "output", "classes")
    if not author or not (KEY in config or KEY in preprocessor):
        return ""
    words = f"{author} wrote {CONFIG} after vitrail saved the folder, and what vitrail stated there no longer counts"
    same = isinstance(names, list) and names == config.get("label_names") and len(names) == config.get("num_classes")
    return words + ("; the class names are still the old ones" if same else "")


def find_contradiction(folder: Path) -> str:
    """Where `config.json` states one thing to vitrail and another to other libraries, in words; empty where nowhere.

    Both are written together, so one of them was changed later, and nothing shows which is meant.
    """
    config = contents_of(folder)[0]
    network, arguments = _value(config, KEY, "network"), _value(config, "model_args")
    if not isinstance(network, Mapping) or author_of(config):
        return ""
    beside = {**arguments} if isinstance(arguments, Mapping) else {}
    beside |= {name: config[name] for name in ("num_classes", "num_labels") if name in config}
    for name, value in beside.items():
        for field in {**ARGUMENTS, "num_labels": ("classes",)}.get(name, ()):
            if field in network and side_of(network[field]) != side_of(value):
                return f"{name} is {value!r}, but under {KEY} {field} is {network[field]!r}"
    names = _value(config, KEY, "output", "classes")
    differ = isinstance(names, list) and names and names != config.get("label_names", names)
    return f"label_names are not the classes under {KEY}" if differ else ""


def _value(config: Any, *keys: str) -> Any:
    """What lies under these keys, one inside the other; None where there is nothing."""
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


# ---- as timm has it


CLIPS = 1e-5  # epsilon of LayerNorm in timm's networks of CLIP
EXPRESSIBLE = {  # parts by slot
    ("embed_norm", "layer"),
    ("mlp", "swiglu"),
    ("last_norm", "none"),
    ("pooling", "attention"),
    ("pooling", "mean_then_norm"),
}
HEAD_BIAS = "head.bias"  # which a head of timm always has: zeros where ours has none


def timm_misfit(config: ViTConfig, parts: Mapping[str, str]) -> str:
    """What a network has that no ViT of timm has, in words; empty where timm can express it.

    Args:
        config: Of the network.
        parts: Names of those that are not the paper's, by slot.
    """
    pooling, swiglu, distilled = parts.get("pooling", ""), "mlp" in parts, config.distillation_token
    others = [f"{slot} {name}" for slot, name in parts.items() if (slot, name) not in EXPRESSIBLE]
    plain = not pooling and config.pooling == "class" and not config.registers and config.head_bias
    reasons = {
        f"parts of its own ({', '.join(others)})": others,
        "rotary positions": config.rotary is not None,
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
    """The architectures of timm that have what no argument can state."""
    special = {
        "deit_tiny_distilled_patch16_224": config.distillation_token,
        "vit_giant_patch14_dinov2": "mlp" in parts,
        "vit_base_patch32_clip_224": config.norm_eps == CLIPS,
    }
    return [name for name, needed in special.items() if needed]


def _named_by_size(config: ViTConfig) -> str:
    """timm's architecture without anything special that has the size of a network; B/16 where there is none."""
    size: dict[str, Any] = {"heads": config.heads, "norm_eps": EPSILON, "activation": "gelu", "pooling": "class"}
    size |= {"image_size": [*config.image], "patch_size": [*config.patch]}
    size |= {"width": config.width, "depth": config.depth, "mlp_dim": config.mlp_width}
    same = (name for name, row in timm_architectures().items() if name.startswith("vit_") and row["facts"] == size)
    return next(same, "vit_base_patch16_224")


def _ratio(config: ViTConfig, swiglu: bool) -> float:
    """timm's `mlp_ratio`; with SwiGLU both halves of the first map count."""
    return config.mlp_width * (2 if swiglu else 1) / config.width


def timm_keys(
    config: ViTConfig, parts: Mapping[str, str], preprocessing: Preprocessing, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The keys of timm's model hub for this model; empty when timm cannot express it.

    timm's transforms give our pixels where an image is squashed, or cropped to a square. For a crop to a rectangle it
    rounds the scaled sides differently, it crops a middle of rounding `down` at the even pixel, and pads with the mean.

    Args:
        config: Of the network.
        parts: Names of those that are not the paper's, by slot.
        preprocessing: Of the model.
        classes: Its class names; none for a network that returns features.
    """
    if timm_misfit(config, parts):
        return {}
    architecture = next(iter(_special(config, parts)), _named_by_size(config))
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
            **{name: getattr(config, field) for name, (field, *_) in ARGUMENTS.items() if name != "num_classes"},
            "mlp_ratio": _ratio(config, "mlp" in parts),
            "init_values": config.layer_scale,  # 0 is none; null would leave the architecture's
            "global_pool": pooling,
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
            "crop_pct": preprocessing.crop_pct,
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
    found = names_back(rules, tensors)
    if config.classes and not config.head_bias:
        found[HEAD_BIAS] = torch.zeros(config.classes)
    return found


def of_timm(tensors: Tensors, config: ViTConfig) -> Tensors:
    """The way back from `to_timm`.

    Args:
        tensors: Of a file.
        config: Of the network.

    Raises:
        DataError: If a tensor is unknown, or one of those that make one of ours is missing.
        RuntimeError: If those that make one of ours do not fit each other.
    """
    found = rename(TIMM, tensors).tensors
    if not config.head_bias and HEAD_BIAS in found and not found[HEAD_BIAS].any():
        del found[HEAD_BIAS]
    return found
