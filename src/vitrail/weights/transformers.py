"""The vision models of transformers: ViT, DeiT and MAE; DINOv2 and DINOv3; CLIP, SigLIP and AIMv2.

Their tensors are named in `transformers_names.py`. `config.json` and a live module's `config` state the same.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import DataError
from vitrail.nn.embedding import Size, height_and_width
from vitrail.nn.rotary import Rotary
from vitrail.weights.family import SHOWN, USUAL, Facts, Family, Tensors
from vitrail.weights.rotations import PUBLISHED
from vitrail.weights.transformers_names import RULES

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
    "proj_bias": True,
    "mlp_bias": True,
}
VIT, SIGLIP = {"layer_norm_eps": 1e-12}, {"hidden_act": "gelu_pytorch_tanh"}
CLIP = {"patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
DINOV3: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
DINOV3 |= {"layer_norm_eps": 1e-5, "query_bias": True, "key_bias": False, "value_bias": True}
DINOV3 |= {"use_gated_mlp": False, "rope_theta": 100.0}
AIMV2: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 24, "patch_size": 14}
AIMV2 |= {"intermediate_size": 2816, "hidden_act": "silu", "rms_norm_eps": 1e-5, "qkv_bias": False, "mlp_bias": False}
AIMV2 |= {"is_native": False, "use_head": True}
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
    "dinov3_vit": DINOV3,
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), AIMV2),
}
STARTS = "dinov2", "dinov3", "clip", "siglip", "aimv2"
NO_CHOICE = "multi_label_classification", "regression"  # of whose logits none is chosen among the others
CLASSIFIER = "ForImageClassification"  # in the name of what was saved
PROJECTED = "CLIPModel", "CLIPVisionModelWithProjection", "Aimv2Model"
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
    dinov2, dinov3, clip, siglip, aimv2 = (model.startswith(each) for each in STARTS)
    if activation not in ACTIVATIONS:
        raise DataError(f"the activation {activation} of its configuration is not known", ", ".join(ACTIVATIONS))
    if config.get("quantization_config"):
        raise DataError("its configuration states quantised weights", "the weights before they were quantised")
    hidden = int(vision["hidden_size"] * vision["mlp_ratio"]) if dinov2 else vision["intermediate_size"]
    swiglu = bool(vision["use_swiglu_ffn"])
    facts = {
        **USUAL,
        **{ours: vision[theirs] for theirs, ours in FIELDS.items()},
        "image_size": height_and_width(vision["image_size"]),
        "patch_size": height_and_width(vision["patch_size"]),
        "position_resize": "timm" if model == "dinov2_with_registers" else "transformers",  # antialiased there
        "activation": "silu" if swiglu else ACTIVATIONS[activation],
        "mlp_dim": (int(hidden * 2 / 3) + 7) // 8 * 8 if swiglu else hidden,
        "class_token": not (siglip or aimv2),
        "other_tokens": vision["num_register_tokens"] + (model == "deit"),
        "qkv_bias": bool(vision["qkv_bias"]),
        "embed_bias": not clip,
        "embed_norm": clip,
        "out_bias": bool(vision["proj_bias"]),
        "mlp_bias": bool(vision["mlp_bias"]),
        "layer_scale": dinov2 or dinov3,
        "gated_mlp": swiglu or aimv2 or vision.get("use_gated_mlp", False),
        "names": _order_names(config.get("id2label") or {}),
    }
    if dinov3:
        queries, keys, values = (bool(vision[f"{name}_bias"]) for name in ("query", "key", "value"))
        if queries != values or keys > queries:
            problem = f"its configuration states biases of queries {queries}, keys {keys} and values {values}"
            raise DataError(problem, "biases of queries and values, with or without those of keys; or none")
        facts |= {"qkv_bias": queries, "key_bias": keys or not queries, "positions": "none"}
        facts["rotary"] = Rotary(base=float(vision["rope_theta"]))
    if aimv2:
        if vision["is_native"]:
            problem = "its configuration states is_native: positions that are made anew for every image size"
            raise DataError(problem, "an AIMv2 of a fixed image size, such as hf:apple/aimv2-large-patch14-224-lit")
        facts |= {"out_bias": facts["qkv_bias"], "norm_eps": vision["rms_norm_eps"]}
        facts |= {"pooling": "attention_alone"} if vision["use_head"] else {}
    if model == "deit":
        facts["distillation_token"] = TEACHER in saved
    if not (clip or siglip or aimv2):  # of which the tensors show it
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
    """What a CLIP or SigLIP pools: all patches where there are classes, else CLIP's class token; and a projection.

    Of DINOv3 that it is rotary, and whether its keys lack the bias of its queries; of AIMv2 its norms and its pooling.
    Of both the epsilon and the activation that all published have.
    """
    ends = {name.removesuffix(".weight").rpartition(".")[2] for name in tensors}
    if "patch_embeddings" in ends:
        queries, keys = (any(name.endswith(f".{each}_proj.bias") for name in tensors) for each in "qk")
        published, gated = PUBLISHED["dinov3"], any(".gate_proj." in name for name in tensors)
        made = {"norm_eps": published.norm_eps, "activation": "silu" if gated else "gelu"}
        made |= {"position_resize": "transformers"}
        parts = {"attention": "no_key_bias"} if queries and not keys else {}
        return {"rotary": published.rotary, "parts": parts, **made}
    if "rms_norm1" in ends:
        pooling = {"pooling": "attention_alone"} if "cls_token" in ends else {}
        made = {"norm_eps": AIMV2["rms_norm_eps"], "activation": AIMV2["hidden_act"]}
        parts = {"norm": "rms", "embedding": "rms", **pooling}
        return {"parts": parts, "projection": "visual_projection" in ends, **made}
    if not ends & {"class_embedding", "probe"}:
        return {}
    pooling = {"pooling": "mean"} if "classifier" in ends else {"pooling": "class"} if "class_embedding" in ends else {}
    return {**pooling, "projection": "visual_projection" in ends}


def unread_by_classes(names: Collection[str]) -> Mapping[str, str]:
    """What a classifier leaves out: CLIP's reads the mean of the patches without a norm, SigLIP's behind the norm."""
    if "classifier.weight" not in names or "rms_norm.weight" in names:  # AIMv2 has none of its own
        return {}
    why = "no part of the classifier, which reads the mean of the patches"
    return {"post_layernorm.*": why} if "embeddings.class_embedding" in names else {"head.*": why}


def own_size(module: nn.Module) -> Size:
    """(height, width) of the images that its configuration states."""
    config: Any = module.config
    return height_and_width(getattr(config, "vision_config", config).image_size)


def at_size(module: nn.Module, size: Size) -> bool:
    """Its positions are resized when it is called, as those of a square image; DINOv3 makes them, AIMv2 cannot.

    At its own size the periods of DINOv3 are made anew, in fp32.
    """
    (height, width), kind = own_size(module), module.config.model_type  # pyrefly: ignore
    if kind.startswith("dinov3") and (height, width) == tuple(size):
        rope: Any = module.rope_embeddings
        rope.inv_freq = type(rope)(rope.config).inv_freq.to(rope.inv_freq)
    return kind.startswith("dinov3") or (height == width and not kind.startswith("aimv2"))


def logits_of(module: nn.Module, images: Tensor) -> Tensor:
    """Its logits; else its projected, its pooled, or its class token's features."""
    net: Any = module
    kind = net.config.model_type
    asked = tuple(images.shape[2:]) != own_size(module) and not kind.startswith(("dinov3", "aimv2"))
    how = {"interpolate_pos_encoding": True} if asked else {}
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
    if "feature_maps" in found:  # DINOv3's backbone, whose maps leave out the class token
        return net.norm(net.model(net.embeddings(images), net.rope_embeddings(images)).last_hidden_state)[:, 0]
    if kind in ("vit", "deit"):  # whose pooler is no part of the network
        return found.last_hidden_state[:, 0]
    if kind == "aimv2_vision_model" and found.pooler_output is None:
        return found.last_hidden_state.mean(dim=1)
    return found.pooler_output


def completed(tensors: Tensors, facts: Facts) -> Tensors:
    """Without registers of no number; AIMv2's query needs no map: its map is the identity."""
    found = {name: tensor for name, tensor in tensors.items() if name != "reg_token" or tensor.numel()}
    if facts.get("parts", {}).get("pooling") == "attention_alone" and "pool.query" in found:
        width = found["pool.query"].shape[-1]
        for name, alone in (("weight", torch.eye(width)), ("bias", torch.zeros(width))):
            if (full := f"pool.attn.qkv.{name}") in found:
                found[full] = torch.cat([alone.to(found[full]), found[full]])
    return found


TRANSFORMERS = Family(
    name="transformers",
    marks=(
        "encoder.layer.#.layernorm_before.weight",
        "layers.#.layernorm_before.weight",
        "encoder.layer.#.layer_scale1.lambda1",
        "encoder.layers.#.self_attn.q_proj.weight",
        "encoder.layers.#.rms_norm1.weight",
        "layer.#.layer_scale1.lambda1",
        "model.layer.#.layer_scale1.lambda1",
    ),
    rules=RULES,
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
    completed=completed,
)
