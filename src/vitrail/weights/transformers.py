"""The vision models of transformers: ViT, DeiT and MAE; DINOv2 with and without registers; CLIP and SigLIP.

Each has the names of its files, and those of live modules of transformers 5. Queries, keys and values
are three maps there. `config.json` and a live module's `config` state the same.
"""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from vitrail.errors import DataError
from vitrail.nn.embedding import Size, height_and_width
from vitrail.weights.family import SHOWN, USUAL, Facts, Family, NameRule, rename_rules

ACTIVATIONS = {  # theirs, ours
    **{name: name for name in ("gelu", "quick_gelu", "relu", "silu")},
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "gelu_python": "gelu",
    "swish": "silu",
}
FIELDS = {  # of a configuration, as fields of `ViTConfig`
    "num_attention_heads": "heads",
    "layer_norm_eps": "norm_eps",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_channels": "channels",
}
DEFAULTS: dict[str, Any] = {  # of the configurations of transformers, for what a config.json leaves out
    "num_attention_heads": 12,
    "layer_norm_eps": 1e-6,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu",
    "intermediate_size": 3072,
    "mlp_ratio": 4,  # of DINOv2, in place of the size above
    "use_swiglu_ffn": False,
    "qkv_bias": True,
    "num_register_tokens": 0,
}
VIT, SIGLIP = {"layer_norm_eps": 1e-12}, {"hidden_act": "gelu_pytorch_tanh"}
CLIP = {"patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
MODELS: dict[str, dict[str, Any]] = {  # model_type of a config.json: the defaults that differ from these
    "vit": VIT,
    "deit": VIT,
    "vit_mae": VIT,
    "dinov2": {"patch_size": 14},
    "dinov2_with_registers": {"num_register_tokens": 4},
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
}
NO_CHOICE = "multi_label_classification", "regression"  # of whose logits none is chosen among the others
CLASSIFIER = "ForImageClassification"  # in the name of what was saved
PROJECTED = "CLIPModel", "CLIPVisionModelWithProjection"
TEACHER = "DeiTForImageClassificationWithTeacher"


def of_config(config: Mapping[str, Any]) -> Facts | None:
    """What a configuration states; None where it is of another library.

    Raises:
        DataError: If it has an activation that is not known here, or its weights are quantised.
    """
    model = config.get("model_type", "")
    if model not in MODELS:
        return None
    vision = {**DEFAULTS, **MODELS[model], **(config.get("vision_config") or config)}
    activation, saved = vision["hidden_act"], "".join(config.get("architectures") or ())
    dinov2, clip, siglip = (model.startswith(name) for name in ("dinov2", "clip", "siglip"))
    if activation not in ACTIVATIONS:
        raise DataError(f"the activation {activation} of its configuration is not known", ", ".join(ACTIVATIONS))
    if config.get("quantization_config"):
        raise DataError("its configuration states quantised weights", "the weights before they were quantised")
    hidden = int(vision["hidden_size"] * vision["mlp_ratio"]) if dinov2 else vision["intermediate_size"]
    gated = bool(vision["use_swiglu_ffn"])
    facts = {
        **USUAL,
        **{ours: vision[theirs] for theirs, ours in FIELDS.items()},
        "image_size": height_and_width(vision["image_size"]),
        "patch_size": height_and_width(vision["patch_size"]),
        "position_resize": "timm" if model == "dinov2_with_registers" else "transformers",  # antialiased there
        "activation": "silu" if gated else ACTIVATIONS[activation],
        "mlp_dim": (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden,
        "class_token": not siglip,
        "other_tokens": vision["num_register_tokens"] + (model == "deit"),
        "qkv_bias": bool(vision["qkv_bias"]),
        "embed_bias": not clip,
        "embed_norm": clip,
        "layer_scale": dinov2,
        "gated_mlp": gated,
        "names": _order_names(config.get("id2label") or {}),
    }
    if model == "deit":
        facts["distillation_token"] = TEACHER in saved
    if not (clip or siglip):  # of which the tensors show it
        facts["pooling"] = "class"
    if (problem := config.get("problem_type")) in NO_CHOICE:
        facts["numbers"] = problem
    if saved in PROJECTED:
        facts |= {"classes": config.get("projection_dim", 512), "head_bias": False}
    if CLASSIFIER in saved:
        labels = config.get("id2label") or config.get("num_labels", 2)
        facts |= {"classes": len(labels) if isinstance(labels, Mapping) else labels, "head_bias": True}
        if clip or siglip:  # whose head reads what no last norm has seen
            del facts["last_norm"]
    return facts


def _order_names(names: Mapping[Any, str]) -> tuple[str, ...]:
    """The names by the number of their logit; none where a number has none, or the name that transformers makes up."""
    if sorted(map(int, names)) != list(range(len(names))):
        return ()
    ordered = tuple(names[key] for key in sorted(names, key=int))
    return () if ordered == tuple(f"LABEL_{number}" for number in range(len(ordered))) else ordered


def of_module(module: nn.Module) -> Facts | None:
    """What the configuration of a live network states and its tensors do not show; None where it is of another library.

    Its head may have been replaced since.
    """
    config: Any = getattr(module, "config", None)
    if not type(module).__module__.startswith("transformers.") or not hasattr(config, "to_dict"):
        return None
    facts = of_config({**config.to_dict(), "architectures": [type(module).__name__]})
    return facts and {name: value for name, value in facts.items() if name not in SHOWN}


def of_tensors(tensors: Mapping[str, Tensor]) -> Facts:
    """What a CLIP or SigLIP pools: all patches where there are classes, else CLIP's class token; and a projection."""
    ends = {name.removesuffix(".weight").rpartition(".")[2] for name in tensors}
    if not ends & {"class_embedding", "probe"}:
        return {}
    pooling = {"pooling": "mean"} if "classifier" in ends else {"pooling": "class"} if "class_embedding" in ends else {}
    return {**pooling, "projection": "visual_projection" in ends}


def unread_by_classes(names: Collection[str]) -> Mapping[str, str]:
    """What a classifier leaves out: CLIP's reads the mean of the patches without a norm, SigLIP's behind the norm."""
    if "classifier.weight" not in names:
        return {}
    why = "no part of the classifier, which reads the mean of the patches"
    return {"post_layernorm.*": why} if "embeddings.class_embedding" in names else {"head.*": why}


def own_size(module: nn.Module) -> Size:
    """(height, width) of the images that its configuration states."""
    config: Any = module.config
    return height_and_width(getattr(config, "vision_config", config).image_size)


def at_size(module: nn.Module, size: Size) -> bool:
    """Its positions are resized when it is called, as those of a square image."""
    height, width = own_size(module)
    return height == width


def logits_of(module: nn.Module, images: Tensor) -> Tensor:
    """Its logits; else its projected, its pooled, or its class token's features."""
    net: Any = module
    how = {} if tuple(images.shape[2:]) == own_size(module) else {"interpolate_pos_encoding": True}
    if hasattr(net.config, "mask_ratio"):  # a masked autoencoder hides patches, unless its ratio is 0
        ratio, net.config.mask_ratio = net.config.mask_ratio, 0.0
        try:
            return net(pixel_values=images, **how).last_hidden_state[:, 0]
        finally:
            net.config.mask_ratio = ratio
    found = net(pixel_values=images, **how)
    for name in ("logits", "image_embeds"):
        if getattr(found, name, None) is not None:
            return getattr(found, name)
    if net.config.model_type in ("vit", "deit"):  # whose pooler is no part of the network
        return found.last_hidden_state[:, 0]
    return found.pooler_output


def _qkv(theirs: str, *three: str) -> NameRule:
    return NameRule("blocks.#.attn.qkv.*", tuple(f"{theirs}.{name}.*" for name in three))


SPLIT, PROJECTIONS = ("query", "key", "value"), ("q_proj", "k_proj", "v_proj")  # before transformers 5, and since
HEADS = {"head.*": "classifier.* cls_classifier.* visual_projection.*", "head_dist.*": "distillation_classifier.*"}
OUTSIDE = {  # the blocks
    "cls_token": "embeddings.cls_token",
    "dist_token": "embeddings.distillation_token",
    "reg_token": "embeddings.register_tokens",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.*": "embeddings.patch_embeddings.projection.*",
    "norm.*": "layernorm.*",
}
OUTSIDE_CLIP = {
    "patch_embed.proj.*": "embeddings.patch_embedding.*",
    "norm_pre.*": "pre_layrnorm.*",  # so it is spelled
    "norm.*": "post_layernorm.*",
    "pool.query": "head.probe",
    "pool.attn.qkv.weight": "head.attention.in_proj_weight",
    "pool.attn.qkv.bias": "head.attention.in_proj_bias",
    "pool.attn.proj.*": "head.attention.out_proj.*",
    "pool.norm.*": "head.layernorm.*",
    "pool.mlp.fc1.*": "head.mlp.fc1.*",
    "pool.mlp.fc2.*": "head.mlp.fc2.*",
}
NORMS = {"norm1.*": "layernorm_before.*", "norm2.*": "layernorm_after.*"}
DENSE = {"attn.proj.*": "attention.output.dense.*", "mlp.fc1.*": "intermediate.dense.*", "mlp.fc2.*": "output.dense.*"}
SCALED = {
    "norm1.*": "norm1.*",
    "attn.proj.*": "attention.output.dense.* attention.o_proj.*",  # in files; live
    "ls1.gamma": "layer_scale1.lambda1",
    "norm2.*": "norm2.*",
    "mlp.fc1.*": "mlp.fc1.*",
    "mlp.fc2.*": "mlp.fc2.* mlp.down_proj.*",
    "ls2.gamma": "layer_scale2.lambda1",
}
GATED = {"mlp.fc1.*": "mlp.weights_in.*", "mlp.fc2.*": "mlp.weights_out.*"}
LIVE = {"attn.proj.*": "attention.o_proj.*", "mlp.fc1.*": "mlp.fc1.*", "mlp.fc2.*": "mlp.fc2.*"}
INSIDE_CLIP = {
    "norm1.*": "layer_norm1.*",
    "attn.proj.*": "self_attn.out_proj.*",
    "norm2.*": "layer_norm2.*",
    "mlp.fc1.*": "mlp.fc1.*",
    "mlp.fc2.*": "mlp.fc2.*",
}
FILE, FILE_CLIP = "encoder.layer.#", "encoder.layers.#"  # what a block is called
NAMED = {  # rules by the first words of `model_type`: of one tensor the first rule is that of files
    "vit": (
        *rename_rules(OUTSIDE),
        *rename_rules(NORMS | DENSE, FILE),
        _qkv(f"{FILE}.attention.attention", *SPLIT),
        *rename_rules(NORMS | LIVE, "layers.#"),
        _qkv("layers.#.attention", *PROJECTIONS),
    ),
    "dinov2": (
        *rename_rules(OUTSIDE),
        *rename_rules(SCALED, FILE),
        *rename_rules(GATED, FILE),
        _qkv(f"{FILE}.attention.attention", *SPLIT),
        _qkv(f"{FILE}.attention", *PROJECTIONS),
        NameRule("blocks.#.mlp.fc1.*", (f"{FILE}.mlp.gate_proj.*", f"{FILE}.mlp.up_proj.*")),
    ),
    "clip": (
        *rename_rules(OUTSIDE_CLIP),
        NameRule(
            "cls_token",
            ("embeddings.class_embedding",),
            lambda theirs: theirs[0].reshape(1, 1, -1),
            lambda ours, count: [ours.flatten()],
        ),
        NameRule(
            "pos_embed",
            ("embeddings.position_embedding.weight",),
            lambda theirs: theirs[0][None],
            lambda ours, count: [ours[0]],
        ),
        *rename_rules(INSIDE_CLIP, FILE_CLIP),
        _qkv(f"{FILE_CLIP}.self_attn", *PROJECTIONS),
    ),
}
NAMED |= {"deit": NAMED["vit"], "siglip": NAMED["clip"]}
TRANSFORMERS = Family(
    name="transformers",
    marks=(
        "*.layernorm_before.weight",
        "encoder.layer.#.layer_scale1.lambda1",
        "encoder.layers.#.self_attn.q_proj.weight",
    ),
    rules=tuple(dict.fromkeys((*rename_rules(HEADS), *(rule for rules in NAMED.values() for rule in rules)))),
    idle={
        "pooler.dense.*": "a dense layer and tanh behind the class token, which the logits do not depend on",
        "embeddings.mask_token": "stands for hidden patches in pre-training",
        "embeddings.position_ids": "the numbers from 0",
        "decoder*": "the decoder of a masked autoencoder",
        "text_model*": "reads texts",
        "text_projection*": "of texts",
        "logit_scale": "of the comparison with texts",
        "logit_bias": "of the comparison with texts",
    },
    prefixes=("vit.", "deit.", "dinov2.", "dinov2_with_registers.", "vision_model."),
    unread=unread_by_classes,
    of_tensors=of_tensors,
    of_module=of_module,
    of_config=of_config,
    logits=logits_of,
    at_size=at_size,
)
