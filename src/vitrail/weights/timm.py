"""timm's VisionTransformer and its Eva.

The first is ViT, DeiT, DeiT-III, DINO, DINOv2, MAE, CLIP and SigLIP as timm publishes them; the second EVA, EVA-02,
DINOv3, EUPE, LingBot, Perception Encoder and RoPE-ViT. Our names are timm's, so most rules rename nothing. Files of
DINO, DINOv2, DINOv3, MAE and EVA-02 as their labs publish them have the same names but for the last rows.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.nn import SIZES
from vitrail.nn.embedding import Size
from vitrail.nn.rotary import Rotary
from vitrail.weights.family import ELSE, USUAL, Facts, Family, NameRule, activation_of, rename_rules
from vitrail.weights.places import timm_architectures
from vitrail.weights.rotations import ARGUMENTS as ROTATION, PUBLISHED, UNSTATED, may_rotate, rotary_of, with_arguments

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
CHUNK = re.compile(r"(^|\.)blocks\.(\d+)\.(\d+)\.")
CROP = 0.875  # crop_pct where none is stated
EPSILON = 1e-6  # of its LayerNorm where nothing else is stated
MOCO = "base_encoder.", "momentum_encoder."  # of MoCo v3
PLAIN, EVA = ("VisionTransformer", "VisionTransformerDistilled"), "Eva"
FLAT = {"token": "class", "avg": "mean"}
POOLS = {**FLAT, "map": "attention"}
EVA_POOLS = {**POOLS, "map": "attention_to_all"}
NORMS = "layernorm", "layernormfp32"  # by name, without the underscores that timm ignores
ACTIVATIONS = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")} | {"swish": "silu"}
SEEN = {"mlp_ratio", "init_values", "no_embed_class", "final_norm", "fc_norm", "qk_norm"}  # shown by the tensors
SEEN |= {"scale_mlp", "scale_attn_inner", "qkv_fused", "swiglu_align_to"}
RENAMED = {"num_reg_tokens": "reg_tokens", "use_fc_norm": "fc_norm", "use_pre_transformer_norm": "pre_norm"}
RENAMED |= {"use_post_transformer_norm": "final_norm"}  # arguments of its Eva
POOLED = ("attn_pool_num_heads", 8), ("attn_pool_mlp_ratio", 4)
IDLE = {"weight_init", "fix_init", "dynamic_img_size", "dynamic_img_pad", "pretrained_strict", "cache_dir"}
IDLE |= {"head_init_scale", "use_rot_pos_emb", *(f"rope_{how}_coords" for how in ("shift", "jitter", "rescale"))}
IDLE |= {f"{place}_rate" for place in ("drop", "pos_drop", "patch_drop", "proj_drop", "attn_drop", "drop_path")}
READ_ELSEWHERE = SEEN | IDLE | ROTATION.keys()  # or without effect


def of_module(module: nn.Module) -> Facts | None:
    """What a live network states; None where it is not a plain ViT of timm."""
    kind = type(module)
    if kind.__name__ not in (*PLAIN, EVA) or not kind.__module__.startswith("timm."):
        return None
    net: Any = module
    block, eva = net.blocks[0], kind.__name__ == EVA
    if not eva and (type(block).__name__ != "Block" or type(block.attn).__name__ != "Attention"):
        return None
    if eva and (why := _eva_misfit(net)):
        raise UsageError(f"timm's {EVA} has {why}, which no part here has", ELSE)
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
        "pooling": (EVA_POOLS if eva else POOLS)[net.global_pool],
        "position_resize": "timm",
        "distillation_token": hasattr(net, "dist_token"),
        "rotary": rotary_of(net.rope) if eva else None,
        "projection": _projects(published.get("architecture"), published, net.num_classes),
    }


def _eva_misfit(net: Any) -> str:
    """What an `Eva` has that no network here has, in words; empty where there is nothing. The proof tells the rest."""
    block, pool = net.blocks[0], net.attn_pool
    reasons = {
        "norms behind its branches": type(block).__name__ != "EvaBlock",
        "a gate behind its attention": block.attn.gate is not None,
        "fewer keys than queries": any(getattr(each.attn, "num_kv_groups", 1) > 1 for each in net.blocks),
        "LayerScale of attention alone": len({getattr(block, f"gamma_{n}", None) is None for n in (1, 2)}) > 1,
        "a pooling by attention that is not of 8 heads and an MLP of 4 x width": pool is not None
        and (pool.num_heads, pool.mlp.fc1.out_features) != (8, 4 * net.embed_dim),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def at_size(module: nn.Module, size: Size) -> bool:
    """Its method resizes positions, too; early versions of timm have none. Angles are made anew, in fp32."""
    net: Any = module
    with suppress(AttributeError):
        net.set_input_size(img_size=size)
        if getattr(net, "rope", None) is not None:
            net.rope.init_non_persistent_buffers()
        return True
    return False


def of_tensors(tensors: Mapping[str, Tensor]) -> Facts:
    """What the labs' own files of DINOv2, DINOv3 and MoCo v3 show, and that a network may have rotary positions."""
    fixed = [tensors[name] for each in MOCO if (name := f"{each}pos_embed") in tensors]
    if fixed and fixed[0].ndim == 3 and fixed[0].shape[2] == SIZES["S"][0] and not fixed[0][:, :1].any():
        return {"heads": 12}  # in MoCo's ViT-S, of sines and cosines; all others have 6
    lasts = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()}
    if "storage_tokens" in lasts:
        rotary, norm_eps = PUBLISHED["dinov3"]
        activation = "silu" if any(".mlp.w1." in name for name in tensors) else "gelu"
        facts = {"rotary": rotary, "norm_eps": norm_eps, "activation": activation, "position_resize": "timm"}
        return {**facts, "pooling": "class"}  # which a head that is put behind it reads, too
    if "freqs_cos" in lasts:  # of EVA-02; `infer.py` sees whether its angles are these
        return {"rotary": PUBLISHED["eva02"].rotary, "norm_eps": EPSILON, "activation": "silu"}
    if may_rotate(tensors) or _may_be_eva(tensors):
        pooled = {"pooling": "attention_to_all"} if any(name.endswith("attn_pool.latent") for name in tensors) else {}
        return {"rotary": UNSTATED, **pooled}
    gated = any(".mlp.w12." in name for name in tensors)
    masks, registers = lasts.get("mask_token"), "register_tokens" in lasts
    if not (registers or gated or (masks is not None and masks.ndim == 2)):  # a masked autoencoder's has three axes
        return {}
    rule = "timm" if registers else "dinov2"
    return {"norm_eps": EPSILON, "activation": "silu" if gated else "gelu", "position_resize": rule}


def _may_be_eva(tensors: Mapping[str, Tensor]) -> bool:
    """Whether they may be of an EVA-02 without biases of queries and values: a packed gate shows it, no name does."""
    first, second = (tensors.get(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    others = "blocks.0.attn.qkv.bias", "blocks.0.ls1.gamma"
    lacking = "blocks.0.norm1.bias" in tensors and tensors.keys().isdisjoint(others)
    return lacking and first is not None and second is not None and first.shape[0] == 2 * second.shape[-1]


def without_masks(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Biases of queries, keys and values of which a mask takes those of keys away, as DINOv3's lab stores them.

    Raises:
        DataError: A mask takes others away.
    """
    found = dict(tensors)
    for name in tensors:
        if name.endswith(".qkv.bias_mask") and (bias := name.removesuffix("_mask")) in tensors:
            queries, keys, values = found.pop(name).float().chunk(3)
            if not (bool((torch.cat([queries, values]) == 1).all()) and not keys.any()):
                raise DataError(f"{name} masks other numbers than the bias of keys", "the file as its lab published it")
            front, each = name.removesuffix("qkv.bias_mask"), found.pop(bias).chunk(3)
            found |= {f"{front}q_bias": each[0], f"{front}v_bias": each[2]}
    return found


def join_chunks(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Without masks, and without chunks of blocks: in DINOv2's training `blocks.1.6` is block 6.

    Where the numbers of every chunk begin with 0, they go on from one chunk to the next.

    Raises:
        DataError: Two would be one block.
    """
    plain = without_masks(tensors)
    inside, starts = dict[int, set[int]](), dict[int, int]()
    for match in filter(None, map(CHUNK.search, plain)):
        inside.setdefault(int(match[2]), set()).add(int(match[3]))
    anew = all(numbers == {*range(len(numbers))} for numbers in inside.values())
    for chunk in sorted(inside):
        starts[chunk] = sum(len(inside[before]) for before in starts) * anew
    found = {
        CHUNK.sub(lambda match: f"{match[1]}blocks.{starts[int(match[2])] + int(match[3])}.", name): each
        for name, each in plain.items()
    }
    if len(found) < len(plain):
        raise DataError("two chunks have a block of the same number", "a file of one network")
    return found


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
    arguments = {RENAMED.get(name, name): value for name, value in arguments.items()}
    facts = _with_arguments({**USUAL, **row}, arguments)
    facts["rotary"] = with_arguments(Rotary.from_dict(row["rotary"]) if "rotary" in row else None, arguments)
    stated = (places.get("global_pool") for places in (arguments, published, config))
    pooling = next((each for each in stated if each is not None), None)
    if pooling is not None:
        eva = {"rotary", "key_bias"} & row.keys()
        mapped = {} if eva and row["pooling"] in POOLS.values() else {"map": row["pooling"]} if eva else POOLS
        facts["pooling"] = _known("global_pool", pooling, {**FLAT, **mapped})
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
        elif name in ("pos_embed", "use_abs_pos_emb"):
            facts["positions"] = "none" if value in ("", "none", False) else "learned"
        elif name == "attn_type":  # which also decides whether keys have a bias
            facts.pop("key_bias", None)
        elif name == "swiglu_mlp":
            facts |= {"gated_mlp": bool(value), "activation": "silu" if value else "gelu"}
        elif value and not (name in READ_ELSEWHERE or (name, value) in POOLED):  # what is off is so in a plain ViT, too
            raise DataError(f"config.json states {name}={value!r}, which makes timm's network no plain ViT", ELSE)
    if isinstance(arguments.get("reg_tokens"), int):  # beside the distillation token, which no argument states
        facts["other_tokens"] = arguments["reg_tokens"] + facts.get("distillation_token", False)
    if "init_values" in arguments:
        facts["layer_scale"] = bool(arguments["init_values"])
    if {"mlp_ratio", "embed_dim", "swiglu_mlp", "swiglu_align_to"} & arguments.keys():
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
    "reg_token": "reg_token register_tokens storage_tokens",
    "rotary.periods": "rope_embed.periods",
    "rotary.cos": "rope.freqs_cos",
    "rotary.sin": "rope.freqs_sin",
    "pool.norm.*": "fc_norm.* attn_pool.norm.*",
    "pool.query": "attn_pool.latent",
    "pool.attn.proj.*": "attn_pool.proj.*",
    "pool.mlp.fc1.*": "attn_pool.mlp.fc1.*",
    "pool.mlp.fc2.*": "attn_pool.mlp.fc2.*",
}
INSIDE = {
    **{name: name for name in ("norm1.*", "attn.qkv.*", "attn.proj.*", "norm2.*")},
    **{name: name for name in ("attn.q_norm.*", "attn.k_norm.*")},
    "attn.norm.*": "attn.norm.* attn.inner_attn_ln.*",
    "mlp.norm.*": "mlp.norm.* mlp.ffn_ln.*",
    "ls1.gamma": "ls1.gamma gamma_1",
    "ls2.gamma": "ls2.gamma gamma_2",
    "mlp.fc1.*": "mlp.fc1.* mlp.w12.*",
    "mlp.fc2.*": "mlp.fc2.* mlp.w3.*",
}
PACKED = {  # of which theirs are several; a bias of queries and values has none of keys between, see `infer.py`
    "attn.qkv.weight": ("attn.q_proj.weight attn.k_proj.weight attn.v_proj.weight",),
    "attn.qkv.bias": ("attn.q_proj.bias attn.v_proj.bias", "attn.q_bias attn.v_bias"),
    "mlp.fc1.*": ("mlp.fc1_g.* mlp.fc1_x.*", "mlp.w1.* mlp.w2.*"),
}
TIMM = Family(
    name="timm",
    marks=("blocks.0.attn.qkv.weight", "blocks.0.0.attn.qkv.weight", "blocks.0.attn.q_proj.weight"),
    rules=(
        *rename_rules(OUTSIDE),
        *rename_rules(INSIDE, "blocks.#"),
        *(
            NameRule(f"blocks.#.{ours}", tuple(f"blocks.#.{name}" for name in theirs.split()))
            for ours, each in PACKED.items()
            for theirs in each
        ),
        NameRule("pool.attn.qkv.*", ("attn_pool.q.*", "attn_pool.kv.*"), write=_queries_alone),
        NameRule("pool.attn.qkv.*", ("attn_pool.qkv.*",)),
    ),
    idle={
        **dict.fromkeys(("mask_token", "masked_embed"), "stands for hidden patches in pre-training"),
        "decoder*": "the decoder of a masked autoencoder",
        "lm_head*": "predicts hidden patches in pre-training",
        "token_embedding*": "reads texts",
        "blocks.#.attn.rope.freqs*": "the table of angles once more",
        "head.mlp*": "the head of self-distillation",
        "head.last_layer*": "the head of self-distillation",
        "local_cls_norm*": "of small crops in pre-training",
        **dict.fromkeys((f"{each}head.#.*" for each in MOCO), "the projection of contrastive learning"),
    },
    prefixes=MOCO,
    unstacked=join_chunks,
    assumed={"norm_eps": EPSILON, "activation": "gelu", "position_resize": "timm"},
    of_tensors=of_tensors,
    of_module=of_module,
    of_config=of_config,
    at_size=at_size,
)
