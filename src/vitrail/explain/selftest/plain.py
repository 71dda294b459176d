"""A ViT written out plainly, with its attention weights inside the graph: the second route of the self-test.

    A = softmax(Q K^T / sqrt(e))
    x <- x + proj(A V)
    x <- x + fc2(h Phi(h)),  h = fc1(norm(x))

No record, no fused kernel and no piece of a layer: what methods read from a record stands here in full, and autograd
goes through all of it. With `held`, weights, deviations and gates are constants to the gradient (Ali et al., 2022).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn import MLP, Attention, EncoderBlock, ViT
from vitrail.nn.vit import Images


@dataclass(frozen=True, eq=False)
class Step:
    """One block: what its attention reads, its weights, what attention and MLP add, and what leaves the block."""

    norm1: Float[Tensor, "b n d"]
    attention: Float[Tensor, "b k n n"]
    attended: Float[Tensor, "b k n e"]
    written: Float[Tensor, "b n d"]
    mlp: Float[Tensor, "b n d"]
    output: Float[Tensor, "b n d"]


@dataclass(frozen=True, eq=False)
class PlainRun:
    """A whole network: what enters the first block, every block, and the logits."""

    tokens: Float[Tensor, "b n d"]
    steps: tuple[Step, ...]
    logits: Float[Tensor, "b v"]


def run_plainly(network: ViT, pixels: Images, held: bool = False) -> PlainRun:
    """The whole network, of the standard parts."""
    tokens = start = network.embed(pixels)
    steps = []
    for block in network.blocks:
        assert isinstance(block, EncoderBlock)
        steps.append(through(block, tokens, held))
        tokens = steps[-1].output
    return PlainRun(start, tuple(steps), read_out(network, tokens, held))


def through(
    block: EncoderBlock,
    tokens: Float[Tensor, "b n d"],
    held: bool = False,
    swap: Callable[[Tensor], Tensor] = lambda attended: attended,
) -> Step:
    """One block; `swap` may put other numbers in place of what the heads attended, (b, k, n, e)."""
    attention, mlp = block.attn, block.mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, MLP)
    read = _norm(block.norm1, tokens, held)
    heads = attention.qkv(read).unflatten(-1, (3, attention.heads, attention.head_dim))
    queries, keys, values = heads.permute(2, 0, 3, 1, 4)
    weights = torch.softmax(queries @ keys.transpose(-2, -1) / math.sqrt(attention.head_dim), dim=-1)
    attended = swap(_constant(weights, held) @ values)
    written = block.ls1(attention.proj(attended.transpose(1, 2).flatten(2)))
    tokens = tokens + written
    hidden = mlp.fc1(_norm(block.norm2, tokens, held))
    added = block.ls2(mlp.fc2(hidden * _constant(_gate(mlp.act, hidden), held)))
    return Step(read, weights, attended, written, added, tokens + added)


def read_out(network: ViT, tokens: Float[Tensor, "b n d"], held: bool = False) -> Float[Tensor, "b v"]:
    """Norm, pooling and heads."""
    tokens = _norm(network.norm, tokens, held)
    logits = network.head(network.pool(tokens, network.config.prefix))
    if network.head_dist is None:
        return logits
    return (logits + network.head_dist(tokens[:, 1 if network.config.class_token else 0])) / 2


def _constant(tensor: Tensor, held: bool) -> Tensor:
    return tensor.detach() if held else tensor


def _norm(norm: nn.Module, tokens: Tensor, held: bool) -> Tensor:
    if type(norm) is nn.Identity:
        return tokens
    assert isinstance(norm, nn.LayerNorm)
    centred = tokens - tokens.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    unit = centred / _constant(deviation, held)
    scaled = unit if norm.weight is None else unit * norm.weight
    return scaled if norm.bias is None else scaled + norm.bias


def _gate(activation: nn.Module, hidden: Tensor) -> Tensor:
    """What the activation multiplies its input by."""
    if isinstance(activation, nn.ReLU):
        return (hidden > 0).to(hidden)
    assert isinstance(activation, nn.GELU)
    if activation.approximate == "tanh":
        return (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))) / 2
    return (1 + torch.erf(hidden / math.sqrt(2))) / 2
