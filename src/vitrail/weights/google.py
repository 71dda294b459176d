"""Google's own files (`.npz`): those of ViT, MLP-like names and all, and those of big_vision, SigLIP among them.

The names are Flax's. Linear maps are stored as (in, out), kernels as (height, width, in, out), and queries, keys and
values by heads, whose number the shapes show. big_vision's `scan` stacks the tensors of all blocks along a first axis.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.errors import DataError
from vitrail.weights.family import Facts, Family, NameRule, Tensors
from vitrail.weights.infer import DEEPEST


def _norm(ours: str, theirs: str) -> list[NameRule]:
    return [NameRule(f"{ours}.weight", (f"{theirs}/scale",)), NameRule(f"{ours}.bias", (f"{theirs}/bias",))]


def _dense(ours: str, theirs: str) -> list[NameRule]:
    weight = NameRule(f"{ours}.weight", (f"{theirs}/kernel",), lambda kernel: kernel[0].T)
    return [weight, NameRule(f"{ours}.bias", (f"{theirs}/bias",))]


def _attention(ours: str, theirs: str) -> list[NameRule]:
    maps = "query", "key", "value"
    kernels, biases = (tuple(f"{theirs}/{one}/{kind}" for one in maps) for kind in ("kernel", "bias"))
    return [
        NameRule(f"{ours}.qkv.weight", kernels, lambda three: torch.cat([kernel.flatten(1).T for kernel in three])),
        NameRule(f"{ours}.qkv.bias", biases, lambda three: torch.cat([bias.flatten() for bias in three])),
        NameRule(f"{ours}.proj.weight", (f"{theirs}/out/kernel",), lambda kernel: kernel[0].flatten(0, 1).T),
        NameRule(f"{ours}.proj.bias", (f"{theirs}/out/bias",)),
    ]


def _block(attention: int, norm: int, mlp: int) -> list[NameRule]:
    """The rules of a block whose parts have these numbers in their names."""
    block = "Transformer/encoderblock_#"
    return [
        *_attention("blocks.#.attn", f"{block}/MultiHeadDotProductAttention_{attention}"),
        *_norm("blocks.#.norm2", f"{block}/LayerNorm_{norm}"),
        *_dense("blocks.#.mlp.fc1", f"{block}/MlpBlock_{mlp}/Dense_0"),
        *_dense("blocks.#.mlp.fc2", f"{block}/MlpBlock_{mlp}/Dense_1"),
    ]


def unstack(tensors: Mapping[str, Tensor]) -> Tensors:
    """A tensor for each block, of those with all blocks along their first axis.

    Raises:
        DataError: If there are more blocks than a network has, or one is there by itself as well.
    """
    found: Tensors = {}
    for name, tensor in tensors.items():
        front, stacked, rest = name.partition("Transformer/encoderblock/")
        if stacked and not 0 < (*tensor.shape, 0)[0] <= DEEPEST:
            problem = f"{name} has the shape {tuple(tensor.shape)}"
            raise DataError(problem, f"at most {DEEPEST} blocks along its first axis")
        each = {f"{front}{stacked[:-1]}_{block}/{rest}": part for block, part in enumerate(tensor)} if stacked else {}
        if twice := each.keys() & tensors.keys():
            raise DataError(f"{min(twice)} is there by itself and in {name}", "a file of one network")
        found |= each or {name: tensor}
    return found


def of_tensors(tensors: Mapping[str, Tensor]) -> Facts:
    """The heads, by the shape of the queries' kernel."""
    kernels = [tensor for name, tensor in tensors.items() if name.endswith("/query/kernel") and tensor.ndim == 3]
    return {"heads": kernels[0].shape[1]} if kernels else {}


GOOGLE = Family(
    name="Google's .npz",
    marks=("Transformer/encoderblock/LayerNorm_0/scale", "Transformer/encoderblock_#/LayerNorm_0/scale"),
    rules=(
        NameRule("cls_token", ("cls",)),
        NameRule("pos_embed", ("Transformer/posembed_input/pos_embedding",)),
        NameRule("pos_embed", ("pos_embedding",)),
        NameRule("patch_embed.proj.weight", ("embedding/kernel",), lambda kernel: kernel[0].permute(3, 2, 0, 1)),
        NameRule("patch_embed.proj.bias", ("embedding/bias",)),
        *_norm("blocks.#.norm1", "Transformer/encoderblock_#/LayerNorm_0"),
        *_block(1, 2, 3),
        *_block(0, 1, 0),
        *_norm("norm", "Transformer/encoder_norm"),
        *_dense("head", "head"),
        NameRule("pool.query", ("MAPHead_0/probe",)),
        *_attention("pool.attn", "MAPHead_0/MultiHeadDotProductAttention_0"),
        *_norm("pool.norm", "MAPHead_0/LayerNorm_0"),
        *_dense("pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        *_dense("pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ),
    idle={"opt/state*": "of the optimizer", "txt/*": "reads texts", "t": "of the comparison with texts"},
    prefixes=("opt/target/", "params/", "img/"),
    source="timm opens these files; Google's own code has gelu_tanh",  # the form of flax.linen.gelu
    assumed={"norm_eps": 1e-6, "activation": "gelu", "position_resize": "timm"},
    unstacked=unstack,
    of_tensors=of_tensors,
)
