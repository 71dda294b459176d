"""timm's VisionTransformer: ViT, DeiT, DeiT-III, DINO, DINOv2, MAE, CLIP and SigLIP as timm publishes them.

Our names are timm's, so most rules rename nothing. Files of DINO, DINOv2 and MAE as their labs publish them have the
same names but for the last rows.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.nn.embedding import Size
from vitrail.weights.family import ELSE, USUAL, Facts, Family, NameRule, activation_of, rename_rules
from vitrail.weights.places import timm_architectures

ARGUMENTS: dict[str, tuple[str, ...]] = {  # of timm's networks, and the fields of `ViTConfig` that each gives
    "num_heads": ("heads",),
    "img_size": ("image_size",),
    "patch_size": ("patch_size",),
    "embed_dim": ("width",),
    "depth": ("depth",),
    "in_chans": ("channels",),
    "num_classes": ("classes",),
    "class_token": ("class_token",),
    "reg_tokens": ("registers",),
    "qkv_bias": ("qkv_bias",),
    "proj_bias": ("out_bias", "mlp_bias"),
}
CROP = 0.875  # crop_pct where none is stated
EPSILON = 1e-6  # of its LayerNorm where nothing else is stated
PLAIN = ("VisionTransformer", "VisionTransformerDistilled")
POOLS = {"token": "class", "avg": "mean", "map": "attention"}
NORMS = "layernorm", "layernormfp32"  # by name, without the underscores that timm ignores
ACTIVATIONS = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")} | {"swish": "silu"}
SEEN = {"mlp_ratio", "init_values", "no_embed_class", "final_norm", "fc_norm"}  # shown by the tensors
IDLE = {"weight_init", "fix_init", "dynamic_img_size", "dynamic_img_pad", "pretrained_strict", "cache_dir"}
IDLE |= {f"{place}_rate" for place in ("drop", "pos_drop", "patch_drop", "proj_drop", "attn_drop", "drop_path")}


def of_module(module: nn.Module) -> Facts | None:
    """What a live network states; None where it is not a plain ViT of timm."""
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
        problem = f"timm's {kind.__name__} has global_pool={net.global_pool!r}, which no plain ViT known here has"
        other = f"timm.create_model({name!r}, global_pool='avg')"
        raise UsageError(problem, f"{other}, which gives other logits; known are {', '.join(POOLS)}")
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


def at_size(module: nn.Module, size: Size) -> bool:
    """Its method resizes positions, too; early versions of timm have none."""
    net: Any = module
    with suppress(AttributeError):
        net.set_input_size(img_size=size)
        return True
    return False


def of_tensors(tensors: Mapping[str, Tensor]) -> Facts:
    """What the lab's own files of DINOv2 show: its rule of positions where there are no registers, and SwiGLU."""
    lasts = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()}
    gated = any(".mlp.w12." in name for name in tensors)
    masks, registers = lasts.get("mask_token"), "register_tokens" in lasts
    if not (registers or gated or (masks is not None and masks.ndim == 2)):  # a masked autoencoder's has three axes
        return {}
    rule = "timm" if registers else "dinov2"
    return {"norm_eps": EPSILON, "activation": "silu" if gated else "gelu", "position_resize": rule}


def of_config(config: Mapping[str, Any]) -> Facts | None:
    """What the `config.json` of timm's hub states: the table's row of its architecture, and arguments above it.

    Raises:
        DataError: If the architecture is none of the table, or an argument makes it another than a plain ViT.
    """
    architecture = str(config.get("architecture", "")).partition(".")[0]
    if not architecture:
        return None
    if architecture not in timm_architectures():
        raise DataError(f"config.json states {architecture}, which is no plain ViT of timm known here", ELSE)
    row = timm_architectures()[architecture]["facts"]
    arguments, published = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    facts = _with_arguments({**USUAL, **row}, arguments)
    stated = (places.get("global_pool") for places in (arguments, published, config))
    pooling = next((each for each in stated if each is not None), None)
    if pooling is not None:
        facts["pooling"] = _known("global_pool", pooling, POOLS)
    if facts["pooling"] != row["pooling"] or {"fc_norm", "final_norm"} & arguments.keys():
        del facts["last_norm"]
    if (size := published.get("input_size")) and arguments.get("img_size") is None:
        facts["image_size"] = tuple(size[1:])
    names = config.get("label_names") or published.get("label_names")
    count = config.get("num_classes", published.get("num_classes"))
    if type(count) is int and count > 0:
        facts |= {"classes": arguments.get("num_classes", count), "head_bias": True}
    return {**facts, "names": names} if names else {**facts, "projection": _projects(architecture, published, count)}


def _with_arguments(facts: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an architecture, with arguments above them; what these leave open is left out."""
    width, hidden = facts["width"], facts["mlp_dim"]
    for name, value in arguments.items():
        if value is None or name == "global_pool":
            continue
        if name in ARGUMENTS:
            facts |= dict.fromkeys(ARGUMENTS[name], value)
        elif name == "act_layer":
            facts["activation"] = _known(name, str(value).lower(), ACTIVATIONS)
        elif name == "norm_layer" and str(value).replace("_", "").lower() in NORMS:
            facts["norm_eps"] = EPSILON
        elif name == "pre_norm":
            facts |= {"embed_norm": bool(value), "embed_bias": not value}
        elif name == "pos_embed":
            facts["positions"] = "none" if value in ("", "none") else "learned"
        elif value and name not in SEEN | IDLE:  # what is off is as it is in a plain ViT
            raise DataError(f"config.json states {name}={value!r}, which makes timm's network no plain ViT", ELSE)
    if isinstance(arguments.get("reg_tokens"), int):  # beside the distillation token, which no argument states
        facts["other_tokens"] = arguments["reg_tokens"] + facts.get("distillation_token", False)
    if "init_values" in arguments:
        facts["layer_scale"] = bool(arguments["init_values"])
    if {"mlp_ratio", "embed_dim"} & arguments.keys():
        new, ratio = facts["width"], arguments.get("mlp_ratio") or hidden / width
        facts["mlp_dim"] = int(new * ratio) if isinstance(new, int) and isinstance(ratio, int | float) else ratio
        if facts["gated_mlp"]:  # which timm rounds
            del facts["mlp_dim"]
    return facts


def _known(argument: str, value: Any, known: Mapping[str, str]) -> str:
    if value not in known:
        problem = f"config.json states {argument}={value!r}, which no plain ViT has; known: {', '.join(known)}"
        raise DataError(problem, ELSE)
    return known[value]


def _projects(architecture: Any, published: Mapping[str, Any], classes: Any) -> bool:
    """Whether a head is the published projection into the space of texts, and gives no classes."""
    tags = timm_architectures().get(architecture, {}).get("tags", {})
    row = tags.get(published.get("tag") or "", {})
    return bool(row.get("projection")) and row["classes"] == classes


def preprocessing_of(config: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing in timm's `pretrained_cfg`.

    Raises:
        UsageError: If `Preprocessing` cannot do it.
        KeyError: If something is missing.
    """
    channels, height, width = config["input_size"]
    resize = {"center": "crop", "squash": "squash", "border": "pad"}[config.get("crop_mode") or "center"]
    found = Preprocessing(
        (height, width),
        resize=resize,  # pyrefly: ignore[bad-argument-type]
        crop_pct=float(config.get("crop_pct") or CROP),
        interpolation=config.get("interpolation") or "bicubic",
        channels=channels,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
    red, green, blue = (round(255 * value) for value in found.mean) if channels == 3 else (128, 128, 128)
    return replace(found, pad_value=(red, green, blue)) if resize == "pad" else found


def _queries_alone(ours: Tensor, count: int) -> Sequence[Tensor]:
    """Queries; keys and values."""
    return ours.tensor_split([len(ours) // 3])


ALIKE = "cls_token dist_token pos_embed patch_embed.proj.* norm_pre.* norm.* head.* head_dist.*"
OUTSIDE = {  # the blocks
    **{name: name for name in ALIKE.split()},
    "reg_token": "reg_token register_tokens",
    "pool.norm.*": "fc_norm.* attn_pool.norm.*",
    "pool.query": "attn_pool.latent",
    "pool.attn.proj.*": "attn_pool.proj.*",
    "pool.mlp.fc1.*": "attn_pool.mlp.fc1.*",
    "pool.mlp.fc2.*": "attn_pool.mlp.fc2.*",
}
INSIDE = {
    **{name: name for name in ("norm1.*", "attn.qkv.*", "attn.proj.*", "ls1.gamma", "norm2.*", "ls2.gamma")},
    "mlp.fc1.*": "mlp.fc1.* mlp.w12.*",
    "mlp.fc2.*": "mlp.fc2.* mlp.w3.*",
}
TIMM = Family(
    name="timm",
    marks=("blocks.0.attn.qkv.weight",),
    rules=(
        *rename_rules(OUTSIDE),
        *rename_rules(INSIDE, "blocks.#"),
        NameRule("pool.attn.qkv.*", ("attn_pool.q.*", "attn_pool.kv.*"), write=_queries_alone),
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
    at_size=at_size,
)
