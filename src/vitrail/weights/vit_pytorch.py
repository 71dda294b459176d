"""vit-pytorch's ViT, in two forms, and its SimpleViT.

    0.29     patches, flattened by rows with channels last, mapped linearly; the last norm stands in the head
    today    the same map between two LayerNorms; the last norm stands behind the blocks; `pool="mean"` has no
             class token and no position for it
    simple   as today, without class token; positions are computed, and the head has no norm

Queries, keys and values have no bias, LayerNorm's epsilon is 1e-5, and heads x head_dim (64 unless stated otherwise) is
independent of the width. A network of the first form with `pool="mean"` normalises *after* it averaged class token and
patches; the tensors do not show that, and it is not this network: the proof at conversion refuses it.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import Hint, UsageError
from vitrail.nn import Parts
from vitrail.nn.embedding import height_and_width
from vitrail.nn.parts import NormedPatchEmbedding
from vitrail.weights.assume import hint_for
from vitrail.weights.family import Facts, Family, Tensors, activation_of, rename_rules

PARTS = Parts(embedding=NormedPatchEmbedding)
WIDTHS = 10_000.0  # of SimpleViT's positions
SIMPLE = {"image_size": 224, "patch_size": 16}  # what they depend on, with examples


def of_module(module: nn.Module) -> Facts | None:
    """What a live network states; None where it is none of vit-pytorch."""
    kind = type(module)
    if kind.__name__ not in ("ViT", "SimpleViT") or not kind.__module__.startswith("vit_pytorch."):
        return None
    net: Any = module
    attention, mlp = net.transformer.layers[0]
    attention, mlp = getattr(attention, "fn", attention), getattr(mlp, "fn", mlp)
    cut = dict(net.to_patch_embedding[0].axes_lengths)  # of einops' Rearrange
    acts = [layer for layer in mlp.net if not isinstance(layer, nn.Linear | nn.LayerNorm | nn.Dropout)]
    norms = [layer for layer in net.transformer.modules() if isinstance(layer, nn.LayerNorm)]
    facts: dict[str, Any] = {
        "heads": attention.heads,
        "norm_eps": norms[0].eps,
        "activation": activation_of(acts[0]),
        "patch_size": (cut["p1"], cut["p2"]),
        "pooling": {"cls": "class", "mean": "mean"}[net.pool],
    }
    if kind.__name__ == "SimpleViT":
        side = math.isqrt(len(net.pos_embedding))
        facts |= {"image_size": (side * cut["p1"], side * cut["p2"]), "pooling": "mean"}
    return facts


def complete(tensors: Tensors, facts: Facts) -> Tensors:
    """The patch map as a kernel, or between norms; and what stands in no file: an output map, computed positions."""
    found = dict(tensors)
    flat, width = found.get("patch_embed.proj.weight"), len(found.get("norm.weight", ()))
    if flat is not None and flat.ndim == 2:
        rows, columns = _stated(facts, "patch_size", _likely_patch(flat))
        if flat.shape[1] % (rows * columns):
            problem = f"{flat.shape[1]} values of a patch do not divide into channels of {rows}x{columns} pixels"
            raise UsageError(problem, _likely_patch(flat))
        if "patch_embed.norm_patches.weight" not in found:
            found["patch_embed.proj.weight"] = flat.unflatten(1, (rows, columns, -1)).permute(0, 3, 1, 2).contiguous()
    if found.get("cls_token", torch.ones(1)).numel() == 0:
        del found["cls_token"]
    for name in ("cls_token", "pos_embed"):
        if name in found:
            found[name] = found[name].reshape(1, -1, width)
    if facts.get("heads") == 1 and not any(".attn.proj." in name for name in found):
        for name in [name for name in found if name.endswith(".attn.qkv.weight")]:
            out = name.replace("qkv", "proj")  # one head as wide as the tokens has no output map
            found |= {out: torch.eye(width), out.replace("weight", "bias"): torch.zeros(width)}
    if "pos_embed" not in found and width:
        image, patch = (_stated(facts, name, hint_for({name: usual})) for name, usual in SIMPLE.items())
        found["pos_embed"] = _plane(image[0] // patch[0], image[1] // patch[1], width)
    return found


def _stated(facts: Facts, name: str, hint: str | Hint) -> tuple[int, int]:
    if facts.get(name) is None:
        raise UsageError(f"no tensor of vit-pytorch shows the {name}", hint)
    return height_and_width(facts[name])


def _likely_patch(flat: Tensor) -> Hint:
    """A square patch of three channels, or of one, with so many values: for hints."""
    values = flat.shape[1]
    return hint_for({"patch_size": math.isqrt(values // 3 if values % 3 == 0 else values)})


def _plane(rows: int, columns: int, width: int) -> Tensor:
    """SimpleViT's positions: a quarter of the width each for sine and cosine of the column, then of the row."""
    frequencies = 1.0 / WIDTHS ** (torch.arange(width // 4) / (width // 4 - 1))
    row = torch.arange(rows)[:, None].expand(rows, columns).reshape(-1, 1) * frequencies
    column = torch.arange(columns)[None].expand(rows, columns).reshape(-1, 1) * frequencies
    return torch.cat([column.sin(), column.cos(), row.sin(), row.cos()], dim=1)[None]


INSIDE = {  # the blocks, of both forms: `fn` is of the first
    "norm1.*": "0.norm.*",
    "attn.qkv.weight": "0.to_qkv.weight 0.fn.to_qkv.weight",
    "attn.proj.*": "0.to_out.0.* 0.fn.to_out.0.* 0.to_out.*",
    "norm2.*": "1.net.0.* 1.norm.*",
    "mlp.fc1.*": "1.net.1.* 1.fn.net.0.*",
    "mlp.fc2.*": "1.net.4.* 1.net.3.* 1.fn.net.3.*",
}
BOTH = (
    *rename_rules({"cls_token": "cls_token", "pos_embed": "pos_embedding"}),
    *rename_rules(INSIDE, "transformer.layers.#"),
)
OUTSIDE = {
    "patch_embed.norm_patches.*": "to_patch_embedding.1.*",
    "patch_embed.proj.*": "to_patch_embedding.2.*",
    "patch_embed.norm_tokens.*": "to_patch_embedding.3.*",
    "norm.*": "transformer.norm.*",
    "head.*": "mlp_head.* linear_head.*",
}
FIRST = {"patch_embed.proj.*": "to_patch_embedding.1.*", "norm.*": "mlp_head.0.*", "head.*": "mlp_head.1.*"}
VIT_PYTORCH = Family(
    name="vit-pytorch",
    marks=("transformer.layers.#.0.to_qkv.weight",),
    rules=(*BOTH, *rename_rules(OUTSIDE)),
    assumed={"norm_eps": 1e-5, "activation": "gelu", "position_resize": "timm"},
    of_module=of_module,
    completed=complete,
)
FIRST_FORM = replace(
    VIT_PYTORCH,
    name="vit-pytorch (early)",
    marks=("transformer.layers.#.0.fn.to_qkv.weight",),
    rules=(*BOTH, *rename_rules(FIRST)),
    assumed={**VIT_PYTORCH.assumed, "pooling": "class"},
)
