"""The ViT of vit-pytorch as a vitrail network: the same numbers, the same logits.

    converted = convert(theirs.state_dict(), image_size=256, patch_size=32, heads=16)
    network = converted.network()

Its network is the paper's with three marks of its own: queries, keys and values have no bias, LayerNorm's epsilon is
1e-5, and heads x head_dim (64 unless said otherwise) is free of the width. Activation: the exact GELU. Two forms are in
use and told apart by the names of their tensors:

    0.29     patches, flattened by rows with channels last, mapped linearly; the last norm stands in the head
    today    the same map between two LayerNorms; the last norm stands behind the blocks; `pool="mean"` has no
             class token and no position for it

The first is a plain ViT, whose patch map becomes a convolution. The second has a patch part of its own, `PARTS`.
A network of the first form with `pool="mean"` normalises *after* it averaged class token and patches; the tensors do
not tell, and it is not this network.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.errors import DataError
from vitrail.nn import STANDARD, Parts, ViT, ViTConfig, grid_of
from vitrail.nn.embedding import Size
from vitrail.nn.parts import NormedPatchEmbedding

EPSILON = 1e-5  # of its LayerNorm, torch's own
FIRST = {
    "norm1": "0.norm",
    "attn.qkv": "0.fn.to_qkv",
    "attn.proj": "0.fn.to_out.0",
    "norm2": "1.norm",
    "mlp.fc1": "1.fn.net.0",
    "mlp.fc2": "1.fn.net.3",
}
TODAY = {
    "norm1": "0.norm",
    "attn.qkv": "0.to_qkv",
    "attn.proj": "0.to_out.0",
    "norm2": "1.net.0",
    "mlp.fc1": "1.net.1",
    "mlp.fc2": "1.net.4",
}


PARTS = Parts(embedding=NormedPatchEmbedding)


class Converted(NamedTuple):
    """What makes the network: `ViT(config, parts)` with these tensors."""

    config: ViTConfig
    parts: Parts
    tensors: dict[str, Tensor]

    def network(self) -> ViT:
        """The network with its numbers, in eval mode."""
        network = ViT(self.config, self.parts)
        network.load_state_dict(self.tensors)
        return network.eval()


def convert(state: Mapping[str, Tensor], *, image_size: int | Size, patch_size: int | Size, heads: int) -> Converted:
    """Turn the tensors of a vit-pytorch ViT into those of a vitrail network.

    Args:
        state: Its `state_dict()`.
        image_size: What it was built with: one number or (height, width).
        patch_size: The same of the patches.
        heads: The same of the heads. The tensors tell everything else but the dropout, which is 0 in the result.

    Raises:
        DataError: If these are not the tensors of such a network, or do not fit the sizes.
    """
    names = _names(state, heads)
    wrong = sorted(set(names.values()) ^ set(state))
    if wrong:
        problem = f"{len(wrong)} tensors are missing or unknown, first '{wrong[0]}'"
        raise DataError(f"this is not a ViT of vit-pytorch: {problem}", "state_dict() of vit_pytorch.ViT")
    tensors = {ours: state[theirs].detach().clone() for ours, theirs in names.items()}
    width = tensors["norm.weight"].shape[0]
    for token in ("cls_token", "pos_embed"):
        tensors[token] = tensors[token].reshape(1, -1, width)
    if tensors["cls_token"].numel() == 0:
        del tensors["cls_token"]
    for index in range(_depth(state)):  # one head as wide as the tokens has no output map
        tensors.setdefault(f"blocks.{index}.attn.proj.weight", torch.eye(width).to(tensors["norm.weight"]))
        tensors.setdefault(f"blocks.{index}.attn.proj.bias", torch.zeros(width).to(tensors["norm.weight"]))
    config = _config(tensors, _depth(state), _sides(image_size), _sides(patch_size), heads)
    if _has_patch_norms(state):
        return Converted(config, PARTS, tensors)
    patch_map = tensors["patch_embed.proj.weight"]  # of patches flattened by rows, channels last
    as_kernel = patch_map.unflatten(1, (*config.patch, config.channels)).permute(0, 3, 1, 2)
    tensors["patch_embed.proj.weight"] = as_kernel.contiguous()
    return Converted(config, STANDARD, tensors)


def _names(state: Mapping[str, Tensor], heads: int) -> dict[str, str]:
    """Our name of every tensor, and theirs."""
    parts = {"patch_embed.proj": "to_patch_embedding.1", "norm": "mlp_head.0", "head": "mlp_head.1"}
    if _has_patch_norms(state):
        parts["patch_embed.norm_patches"] = "to_patch_embedding.1"
        parts["patch_embed.proj"] = "to_patch_embedding.2"
        parts["patch_embed.norm_tokens"] = "to_patch_embedding.3"
    if "transformer.norm.weight" in state:
        parts |= {"norm": "transformer.norm", "head": "mlp_head"}
    block = FIRST if "transformer.layers.0.0.fn.to_qkv.weight" in state else TODAY
    for index in range(_depth(state)):
        at = f"transformer.layers.{index}"
        parts |= {f"blocks.{index}.{ours}": f"{at}.{theirs}" for ours, theirs in block.items()}
        if heads == 1 and f"{at}.{block['attn.proj']}.weight" not in state:
            del parts[f"blocks.{index}.attn.proj"]
    names = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in parts.items() for kind in ("weight", "bias")}
    for index in range(_depth(state)):
        del names[f"blocks.{index}.attn.qkv.bias"]
    return {**names, "cls_token": "cls_token", "pos_embed": "pos_embedding"}


def _has_patch_norms(state: Mapping[str, Tensor]) -> bool:
    return "to_patch_embedding.3.weight" in state


def _depth(state: Mapping[str, Tensor]) -> int:
    found = (re.match(r"transformer\.layers\.(\d+)\.", name) for name in state)
    return 1 + max((int(match[1]) for match in found if match), default=0)


def _config(tensors: Mapping[str, Tensor], depth: int, image: Size, patch: Size, heads: int) -> ViTConfig:
    """What the shapes of the tensors say."""
    numbers, inner = tensors["patch_embed.proj.weight"].shape[1], tensors["blocks.0.attn.proj.weight"].shape[1]
    rows, columns = grid_of(image, patch)
    class_token = "cls_token" in tensors
    wanted, found = rows * columns + class_token, tensors["pos_embed"].shape[1]
    if wanted != found or numbers % (patch[0] * patch[1]):
        raise DataError(
            f"{found} positions and {numbers} numbers in a patch do not fit pictures of {image[0]}x{image[1]} pixels "
            f"in patches of {patch[0]}x{patch[1]}",
            "the image_size and patch_size that the network was built with",
        )
    if heads < 1 or inner % heads:
        raise DataError(f"{inner} numbers cannot be shared among {heads} heads", f"heads={max(1, inner // 64)}")
    return ViTConfig(
        image_size=image,
        patch_size=patch,
        channels=numbers // (patch[0] * patch[1]),
        classes=tensors["head.weight"].shape[0],
        width=tensors["norm.weight"].shape[0],
        depth=depth,
        heads=heads,
        head_dim=inner // heads,
        mlp_dim=tensors["blocks.0.mlp.fc1.weight"].shape[0],
        class_token=class_token,
        pooling="class" if class_token else "mean",
        qkv_bias=False,
        norm_eps=EPSILON,
    )


def _sides(size: int | Size) -> Size:
    return (size, size) if isinstance(size, int) else size
