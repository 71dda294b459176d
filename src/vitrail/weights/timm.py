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
from vitrail.errors import DataError, UsageError
from vitrail.weights.activation import activation_of
from vitrail.weights.family import Facts, Family, Form, Rule, same
from vitrail.weights.kinds import ARGUMENTS
from vitrail.weights.others import ELSE
from vitrail.weights.published import timm_architectures
from vitrail.weights.structure import STRUCTURE, USUAL

TOGETHER = Form(  # queries; then keys and values
    lambda theirs: torch.cat(list(theirs)), lambda ours, heads: ours.split((len(ours) // 3, len(ours) - len(ours) // 3))
)
UNSAID = 0.875  # crop_pct
EPSILON = 1e-6  # of its LayerNorm where nothing else is said
PLAIN = ("VisionTransformer", "VisionTransformerDistilled")
POOLS = {"token": "class", "avg": "mean", "map": "attention"}
NORMS = "layernorm", "layernormfp32"  # by name, without the underscores that timm ignores
ACTIVATIONS = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")} | {"swish": "silu"}
MAKES = {  # which of `USUAL` an argument is
    "embed_dim": ("width",),
    "depth": ("depth",),
    "in_chans": ("channels",),
    "class_token": ("class_token",),
    "reg_tokens": ("other_tokens",),
    "qkv_bias": ("qkv_bias",),
    "proj_bias": ("out_bias", "mlp_bias"),
}
SEEN = {"mlp_ratio", "init_values", "no_embed_class", "pre_norm", "final_norm", "fc_norm", "proj_bias", "pos_embed"}
IDLE = {"weight_init", "fix_init", "dynamic_img_size", "dynamic_img_pad", "pretrained_strict", "cache_dir"}
IDLE |= {f"{place}_rate" for place in ("drop", "pos_drop", "patch_drop", "proj_drop", "attn_drop", "drop_path")}


def of_module(module: nn.Module) -> Facts | None:
    """What a live network says; None where it is no plain ViT of timm."""
    kind = type(module)
    if kind.__name__ not in PLAIN or not kind.__module__.startswith("timm."):
        return None
    net: Any = module
    block = net.blocks[0]
    if type(block).__name__ != "Block" or type(block.attn).__name__ != "Attention":
        return None
    published = getattr(net, "pretrained_cfg", None) or {}
    if net.global_pool not in POOLS:
        name = published.get("architecture") or "vit_tiny_patch16_224"
        problem = f"timm's {kind.__name__} with global_pool={net.global_pool!r} pools as no plain ViT known here"
        other = f"timm.create_model({name!r}, global_pool='avg')"
        raise UsageError(problem, f"{other}, whose answers are others; known are {', '.join(POOLS)}")
    return {
        "heads": block.attn.num_heads,
        "norm_eps": block.norm1.eps,
        "activation": activation_of(block.mlp.act),
        "image_size": tuple(net.patch_embed.img_size),
        "patch_size": tuple(net.patch_embed.proj.stride),
        "pooling": POOLS[net.global_pool],
        "position_resize": "timm",
        "distillation_token": hasattr(net, "dist_token"),
        "projection": _projects(published.get("architecture"), published, net.num_classes),
    }


def of_tensors(tensors: Mapping[str, Tensor]) -> Facts:
    """What files of DINOv2 as its lab publishes them show: its own rule of positions, without registers, and SwiGLU."""
    lasts = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()}
    gated = any(".mlp.w12." in name for name in tensors)
    masks, registers = lasts.get("mask_token"), "register_tokens" in lasts
    if not (registers or gated or (masks is not None and masks.ndim == 2)):  # a masked autoencoder's has three axes
        return {}
    rule = "timm" if registers else "dinov2"
    return {"norm_eps": EPSILON, "activation": "silu" if gated else "gelu", "position_resize": rule}


def of_config(config: Mapping[str, Any]) -> Facts | None:
    """What the `config.json` of timm's hub says: the table's row of its architecture, and arguments above it.

    Raises:
        DataError: If the architecture is none of the table, or an argument makes it another than a plain ViT.
    """
    architecture = str(config.get("architecture", "")).partition(".")[0]
    if not architecture:
        return None
    if architecture not in timm_architectures():
        raise DataError(f"config.json says {architecture}, which is no plain ViT of timm known here", ELSE)
    arguments = {name: value for name, value in (config.get("model_args") or {}).items() if value is not None}
    published = config.get("pretrained_cfg") or {}
    stated = (places.get("global_pool") for places in (arguments, published, config))
    pooling = next((each for each in stated if each is not None), None)
    arguments.pop("global_pool", None)
    size = published.get("input_size")
    facts = {
        **timm_architectures()[architecture]["facts"],
        **({"pooling": _known("global_pool", pooling, POOLS)} if pooling is not None else {}),
        **({"image_size": tuple(size[1:])} if size else {}),
    }
    for name, value in arguments.items():
        if name in ARGUMENTS:
            facts[ARGUMENTS[name]] = value
        elif name == "act_layer":
            facts["activation"] = _known(name, str(value).lower(), ACTIVATIONS)
        elif name == "norm_layer" and str(value).replace("_", "").lower() in NORMS:
            facts["norm_eps"] = EPSILON
        elif value and name not in SEEN | IDLE:  # what is off is as it is in a plain ViT
            raise DataError(f"config.json says {name}={value!r}, which makes timm's network no plain ViT", ELSE)
    names = config.get("label_names") or published.get("label_names")
    count = config.get("num_classes", published.get("num_classes"))
    pooled_otherwise = facts["pooling"] != timm_architectures()[architecture]["facts"]["pooling"]
    facts[STRUCTURE] = _structure(architecture, config.get("model_args") or {}, pooled_otherwise)
    if type(count) is int and count > 0:
        facts[STRUCTURE] |= {"classes": arguments.get("num_classes", count), "head_bias": True}
    return {**facts, "names": names} if names else {**facts, "projection": _projects(architecture, published, count)}


def _structure(architecture: str, arguments: Mapping[str, Any], pooled_otherwise: bool) -> dict[str, Any]:
    """What a network of this architecture is made of, with these arguments; what they leave open is left out."""
    found = {**USUAL, **timm_architectures()[architecture][STRUCTURE]}
    ratio = arguments.get("mlp_ratio") or found["mlp_dim"] / found["width"]
    for name, ours in MAKES.items():
        if arguments.get(name) is not None:
            found |= dict.fromkeys(ours, arguments[name])
    if isinstance(arguments.get("reg_tokens"), int):  # beside the distillation token, which no argument says
        found["other_tokens"] += timm_architectures()[architecture]["facts"].get("distillation_token", False)
    if "init_values" in arguments:
        found["layer_scale"] = bool(arguments["init_values"])
    if arguments.get("pre_norm") is not None:
        found |= {"embed_norm": bool(arguments["pre_norm"]), "embed_bias": not arguments["pre_norm"]}
    if arguments.get("pos_embed") is not None:
        found["positions"] = arguments["pos_embed"] not in ("", "none")
    if {"mlp_ratio", "embed_dim"} & arguments.keys():
        numbers = isinstance(found["width"], int) and isinstance(ratio, int | float)
        found["mlp_dim"] = int(found["width"] * ratio) if numbers else ratio
    unsure = ["last_norm"] if pooled_otherwise or {"fc_norm", "final_norm"} & arguments.keys() else []
    if found["gated_mlp"] and {"mlp_ratio", "embed_dim"} & arguments.keys():
        unsure.append("mlp_dim")
    return {name: value for name, value in found.items() if name not in unsure}


def _known(argument: str, value: Any, known: Mapping[str, str]) -> str:
    if value not in known:
        raise DataError(
            f"config.json says {argument}={value!r}, which no plain ViT has; known: {', '.join(known)}", ELSE
        )
    return known[value]


def _projects(architecture: Any, published: Mapping[str, Any], classes: Any) -> bool:
    """Whether a head is the map of published weights to where texts are compared, and gives no classes."""
    tags = timm_architectures().get(architecture, {}).get("tags", {})
    row = tags.get(published.get("tag") or "", {})
    return bool(row.get("projection")) and row["classes"] == classes


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
        "head.mlp*": "the head of self-distillation",
        "head.last_layer*": "the head of self-distillation",
    },
    prefixes=("backbone.", "visual.trunk."),
    assumed={"norm_eps": EPSILON, "activation": "gelu", "position_resize": "timm"},
    of_tensors=of_tensors,
    of_module=of_module,
    of_config=of_config,
    answer=answer,
)
