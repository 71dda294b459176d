"""The vision models of transformers: ViT, DeiT and MAE; DINOv2 with and without registers; CLIP and SigLIP.

Each has the names of its files, and the newer ones that live modules of transformers 5 bear. Queries, keys and values
are three maps there. `config.json` and a live module's `config` say the same.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import DataError
from vitrail.nn.embedding import sides_of
from vitrail.weights.family import STACKED, STRUCTURE, TABLE, TOKEN, USUAL, Facts, Family, Form, Rule

ACTIVATIONS = {  # theirs, ours
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
MODEL_TYPES = {  # model_type of a config.json
    **dict.fromkeys(("vit", "deit", "vit_mae"), "ViT"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "DINOv2"),
    **dict.fromkeys(("clip", "clip_vision_model", "siglip", "siglip_vision_model"), "CLIP"),
}
NO_CHOICE = "multi_label_classification", "regression"  # of whose logits none is chosen among the others
CLASSIFIER = "ForImageClassification"  # in the name of what was saved
PROJECTED = "CLIPModel", "CLIPVisionModelWithProjection"
UNSAID: dict[str, tuple[int, float, str]] = {  # patch, epsilon and activation where a configuration leaves them out
    **dict.fromkeys(("vit", "deit", "vit_mae"), (16, 1e-12, "gelu")),
    "dinov2": (14, 1e-6, "gelu"),
    "dinov2_with_registers": (16, 1e-6, "gelu"),
    **dict.fromkeys(("clip", "clip_vision_model"), (32, 1e-5, "quick_gelu")),
    **dict.fromkeys(("siglip", "siglip_vision_model"), (16, 1e-6, "gelu_pytorch_tanh")),
}


def facts_of(config: Mapping[str, Any], kind: str) -> Facts | None:
    """What a configuration says; None where it is of another family.

    Raises:
        DataError: If it has an activation that is not known here.
    """
    model = config.get("model_type", "")
    if MODEL_TYPES.get(model) != kind:
        return None
    vision = config.get("vision_config") or config
    patch, eps, act = UNSAID[model]
    act = vision.get("hidden_act", act)
    if act not in ACTIVATIONS:
        raise DataError(f"the activation {act} of its configuration is not known", ", ".join(ACTIVATIONS))
    facts = {
        "heads": vision.get("num_attention_heads", 12),
        "norm_eps": vision.get("layer_norm_eps", eps),
        "activation": "silu" if vision.get("use_swiglu_ffn") else ACTIVATIONS[act],
        "image_size": sides_of(vision.get("image_size", 224)),
        "patch_size": sides_of(vision.get("patch_size", patch)),
        "position_resize": "timm" if model == "dinov2_with_registers" else "transformers",  # antialiased there
    }
    if model == "deit":
        facts["distillation_token"] = "DeiTForImageClassificationWithTeacher" in (config.get("architectures") or ())
    if kind != "CLIP":  # whose tensors say it
        facts["pooling"] = "class"
    if config.get("quantization_config"):
        raise DataError("its configuration says that its numbers are quantised", "the weights as they were before that")
    if (problem := config.get("problem_type")) in NO_CHOICE:
        facts["numbers"] = problem
    facts[STRUCTURE] = _structure(config, vision, kind)
    return {**facts, "names": _ordered(config.get("id2label") or {})}


def _structure(config: Mapping[str, Any], vision: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What a network of this configuration is made of; what it leaves out is as in a ViT-B."""
    model, made = config["model_type"], "".join(config.get("architectures") or ())
    width, gated = vision.get("hidden_size", 768), bool(vision.get("use_swiglu_ffn"))
    inner = int(width * vision.get("mlp_ratio", 4)) if kind == "DINOv2" else vision.get("intermediate_size", 3072)
    labels, siglip = config.get("id2label") or config.get("num_labels", 2), model.startswith("siglip")
    classifies = CLASSIFIER in made
    found = {
        **USUAL,
        "width": width,
        "depth": vision.get("num_hidden_layers", 12),
        "mlp_dim": (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner,
        "channels": vision.get("num_channels", 3),
        "class_token": not siglip,
        "other_tokens": {"deit": 1, "dinov2_with_registers": vision.get("num_register_tokens", 4)}.get(model, 0),
        "qkv_bias": bool(vision.get("qkv_bias", True)),
        "embed_bias": kind != "CLIP" or siglip,
        "layer_scale": kind == "DINOv2",
        "embed_norm": kind == "CLIP" and not siglip,
        "gated_mlp": gated,
    }
    if classifies:
        found |= {"classes": len(labels) if isinstance(labels, Mapping) else labels, "head_bias": True}
    if made in PROJECTED:
        found |= {"classes": config.get("projection_dim", 512), "head_bias": False}
    if classifies and kind == "CLIP":  # its head reads what no last norm has seen
        del found["last_norm"]
    return found


def _ordered(names: Mapping[Any, str]) -> tuple[str, ...]:
    """The names by the number of their logit; none where a number has none, or the name that transformers makes up."""
    if sorted(map(int, names)) != list(range(len(names))):
        return ()
    ordered = tuple(names[key] for key in sorted(names, key=int))
    return () if ordered == tuple(f"LABEL_{number}" for number in range(len(ordered))) else ordered


def of_module(module: nn.Module, kind: str) -> Facts | None:
    """What the configuration of a live network says; None where it is of another family."""
    config: Any = getattr(module, "config", None)
    if not type(module).__module__.startswith("transformers.") or not hasattr(config, "to_dict"):
        return None
    facts = facts_of({**config.to_dict(), "architectures": [type(module).__name__]}, kind)
    return facts and {name: value for name, value in facts.items() if name != STRUCTURE}


def answer(module: nn.Module, images: Tensor) -> Tensor:
    """Its logits; else its projected, its pooled, or its class token's numbers."""
    net: Any = module
    if hasattr(net.config, "mask_ratio"):  # a masked autoencoder hides patches, unless its ratio is 0
        ratio, net.config.mask_ratio = net.config.mask_ratio, 0.0
        try:
            return net(pixel_values=images).last_hidden_state[:, 0]
        finally:
            net.config.mask_ratio = ratio
    found = net(pixel_values=images)
    for name in ("logits", "image_embeds"):
        if getattr(found, name, None) is not None:
            return getattr(found, name)
    if net.config.model_type in ("vit", "deit"):  # whose pooler is no part of the network
        return found.last_hidden_state[:, 0]
    return found.pooler_output


def _block(theirs: str, *pairs: tuple[str, str]) -> list[Rule]:
    """Rules for the tensors of a block: ours, theirs."""
    return [Rule(f"blocks.#.{one}", (f"{theirs}.{other}",)) for one, other in pairs]


def _qkv(ours: str, theirs: str, *names: str) -> Rule:
    return Rule(f"{ours}.qkv.*", tuple(f"{theirs}.{name}.*" for name in names), STACKED)


GATED = Form(lambda theirs: torch.cat(list(theirs)), lambda ours, heads: ours.chunk(2))  # the gate, then the values
SPLIT, DENSE = ("query", "key", "value"), ("intermediate.dense", "output.dense")  # of before transformers 5
PROJECTIONS = "q_proj", "k_proj", "v_proj"
EMBEDDINGS = (
    Rule("cls_token", ("embeddings.cls_token",)),
    Rule("dist_token", ("embeddings.distillation_token",)),
    Rule("reg_token", ("embeddings.register_tokens",)),
    Rule("pos_embed", ("embeddings.position_embeddings",)),
    Rule("patch_embed.proj.*", ("embeddings.patch_embeddings.projection.*",)),
    Rule("norm.*", ("layernorm.*",)),
    Rule("head.*", ("classifier.*",)),
)
IDLE = {
    "pooler.dense.*": "a dense layer and tanh behind the class token, which is no part of the network's answer",
    "embeddings.mask_token": "stands for hidden patches in pre-training",
    "decoder*": "the decoder of a masked autoencoder",
}


def _vit(block: str, attention: str, three: Sequence[str], *maps: str) -> list[Rule]:
    """Rules for a block of ViT, DeiT and MAE; `maps` are attention's last and the MLP's two."""
    pairs = zip(("attn.proj.*", "mlp.fc1.*", "mlp.fc2.*"), (f"{name}.*" for name in maps), strict=True)
    norms = ("norm1.*", "layernorm_before.*"), ("norm2.*", "layernorm_after.*")
    return [_qkv("blocks.#.attn", f"{block}.{attention}", *three), *_block(block, *norms, *pairs)]


VIT = Family(
    name="transformers (ViT)",
    mark="*.layernorm_before.weight",
    rules=(
        *EMBEDDINGS,
        Rule("head.*", ("cls_classifier.*",)),
        Rule("head_dist.*", ("distillation_classifier.*",)),
        *_vit("encoder.layer.#", "attention.attention", SPLIT, "attention.output.dense", *DENSE),
        *_vit("layers.#", "attention", PROJECTIONS, "attention.o_proj", "mlp.fc1", "mlp.fc2"),
    ),
    idle=IDLE,
    prefixes=("vit.", "deit."),
    of_module=partial(of_module, kind="ViT"),
    of_config=partial(facts_of, kind="ViT"),
    answer=answer,
)

DINOV2 = Family(
    name="transformers (DINOv2)",
    mark="encoder.layer.#.layer_scale1.lambda1",
    rules=(
        *EMBEDDINGS,
        _qkv("blocks.#.attn", "encoder.layer.#.attention.attention", *SPLIT),
        _qkv("blocks.#.attn", "encoder.layer.#.attention", *PROJECTIONS),
        *_block(
            "encoder.layer.#",
            ("norm1.*", "norm1.*"),
            ("attn.proj.*", "attention.output.dense.*"),
            ("attn.proj.*", "attention.o_proj.*"),
            ("ls1.gamma", "layer_scale1.lambda1"),
            ("norm2.*", "norm2.*"),
            ("mlp.fc1.*", "mlp.fc1.*"),
            ("mlp.fc2.*", "mlp.fc2.*"),
            ("mlp.fc1.*", "mlp.weights_in.*"),
            ("mlp.fc2.*", "mlp.weights_out.*"),
            ("mlp.fc2.*", "mlp.down_proj.*"),
            ("ls2.gamma", "layer_scale2.lambda1"),
        ),
        Rule("blocks.#.mlp.fc1.*", ("encoder.layer.#.mlp.gate_proj.*", "encoder.layer.#.mlp.up_proj.*"), GATED),
    ),
    idle=IDLE,
    prefixes=("dinov2.", "dinov2_with_registers."),
    of_module=partial(of_module, kind="DINOv2"),
    of_config=partial(facts_of, kind="DINOv2"),
    answer=answer,
)


def of_clip(tensors: Mapping[str, Tensor]) -> Facts:
    """What is read: all patches where there are classes, else CLIP's class token; and whether it is projected."""
    ends = {name.removesuffix(".weight").rpartition(".")[2] for name in tensors}
    pooling = {"pooling": "mean"} if "classifier" in ends else {"pooling": "class"} if "class_embedding" in ends else {}
    return {**pooling, "projection": "visual_projection" in ends}


def unread_by_classes(names: Collection[str]) -> Mapping[str, str]:
    """What a classifier leaves out: CLIP's reads the mean of the patches without a norm, SigLIP's behind the norm."""
    if "classifier.weight" not in names:
        return {}
    why = "no part of the classifier, which reads the mean of the patches"
    return {"post_layernorm.*": why} if "embeddings.class_embedding" in names else {"head.*": why}


CLIP = Family(
    name="transformers (CLIP)",
    mark="encoder.layers.#.self_attn.q_proj.weight",
    rules=(
        Rule("cls_token", ("embeddings.class_embedding",), TOKEN),
        Rule("pos_embed", ("embeddings.position_embedding.weight",), TABLE),
        Rule("patch_embed.proj.*", ("embeddings.patch_embedding.*",)),
        Rule("norm_pre.*", ("pre_layrnorm.*",)),  # so it is spelled
        _qkv("blocks.#.attn", "encoder.layers.#.self_attn", *PROJECTIONS),
        *_block(
            "encoder.layers.#",
            ("norm1.*", "layer_norm1.*"),
            ("attn.proj.*", "self_attn.out_proj.*"),
            ("norm2.*", "layer_norm2.*"),
            ("mlp.fc1.*", "mlp.fc1.*"),
            ("mlp.fc2.*", "mlp.fc2.*"),
        ),
        Rule("norm.*", ("post_layernorm.*",)),
        Rule("head.*", ("visual_projection.*",)),
        Rule("head.*", ("classifier.*",)),
        Rule("pool.query", ("head.probe",)),
        Rule("pool.attn.qkv.weight", ("head.attention.in_proj_weight",)),
        Rule("pool.attn.qkv.bias", ("head.attention.in_proj_bias",)),
        Rule("pool.attn.proj.*", ("head.attention.out_proj.*",)),
        Rule("pool.norm.*", ("head.layernorm.*",)),
        Rule("pool.mlp.fc1.*", ("head.mlp.fc1.*",)),
        Rule("pool.mlp.fc2.*", ("head.mlp.fc2.*",)),
    ),
    idle={
        "text_model*": "reads texts",
        "text_projection*": "of texts",
        "logit_scale": "of the comparison with texts",
        "logit_bias": "of the comparison with texts",
        "embeddings.position_ids": "the numbers from 0",
    },
    prefixes=("vision_model.",),
    unread=unread_by_classes,
    of_tensors=of_clip,
    of_module=partial(of_module, kind="CLIP"),
    of_config=partial(facts_of, kind="CLIP"),
    answer=answer,
)
