"""A ViT in float64, whose attention weights, standard deviations and gates can be given: `held.py`'s reference.

    logits, factors = trace(network, images)            # as the network computes them
    logits, _ = trace(network, other, factors)          # another image under the factors of the first

Under given factors the network is affine in its pixels and biases: nothing is detached here, the factors are numbers.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tests.explain.reference import turned_one_by_one
from vitrail.nn import ViT


class Factors:
    """Computes each factor and keeps it, or hands back those it was given, in order."""

    def __init__(self, given: list[Tensor] | None) -> None:
        self.kept: list[Tensor] = []
        self._given: Iterator[Tensor] | None = None if given is None else iter(given)

    def __call__(self, computed: Tensor) -> Tensor:
        self.kept.append(computed if self._given is None else next(self._given))
        return self.kept[-1]


def norm(tokens: Tensor, layer: torch.nn.LayerNorm, factor: Factors) -> Tensor:
    centred = tokens - tokens.sum(dim=-1, keepdim=True) / tokens.shape[-1]
    deviation = factor(((centred**2).sum(dim=-1, keepdim=True) / tokens.shape[-1] + layer.eps) ** 0.5)
    return layer.weight * centred / deviation + layer.bias


def gated(hidden: Tensor, network: ViT, factor: Factors) -> Tensor:
    if network.config.activation == "relu":
        return hidden * factor((hidden > 0).to(hidden))
    return hidden * factor(0.5 * (1 + torch.erf(hidden / math.sqrt(2))))


def cut(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(b, p, c * ph * pw) by loops over the grid."""
    rows, columns = images.shape[2] // patch[0], images.shape[3] // patch[1]
    patches = [
        images[:, :, i * patch[0] : (i + 1) * patch[0], j * patch[1] : (j + 1) * patch[1]].flatten(1)
        for i in range(rows)
        for j in range(columns)
    ]
    return torch.stack(patches, dim=1)


def embed(network: ViT, images: Tensor) -> Tensor:
    tokens = cut(images, network.config.patch) @ network.patch_embed.proj.weight.flatten(1).T
    tokens = tokens + network.patch_embed.proj.bias
    front = (network.cls_token, network.dist_token, network.reg_token)
    tokens = torch.cat([*(part.expand(len(images), -1, -1) for part in front if part is not None), tokens], dim=1)
    return tokens if network.pos_embed is None else tokens + network.pos_embed


def from_tokens(
    network: ViT, tokens: Tensor, given: list[Tensor] | None = None, grid: tuple[int, int] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Logits of what enters the first block, and the factors on the way; of the configuration's grid when None."""
    config, factor = network.config, Factors(given)
    inner = config.heads * config.head_width
    for block in network.blocks:
        read = norm(tokens, block.norm1, factor)
        q, k, v = (
            (read @ weight.T + bias).unflatten(-1, (config.heads, -1)).transpose(1, 2)
            for weight, bias in zip(block.attn.qkv.weight.split(inner), block.attn.qkv.bias.split(inner), strict=True)
        )
        q, k = (turned_one_by_one(each, config, grid or config.grid) for each in (q, k))
        scores = torch.exp(torch.einsum("bkie,bkje->bkij", q, k) / math.sqrt(config.head_width))
        weights = factor(scores / scores.sum(dim=-1, keepdim=True))
        mixed = torch.einsum("bkij,bkje->bike", weights, v).flatten(2)
        scale = (block.ls1.gamma, block.ls2.gamma) if config.layer_scale else (1.0, 1.0)
        tokens = tokens + (mixed @ block.attn.proj.weight.T + block.attn.proj.bias) * scale[0]
        hidden = norm(tokens, block.norm2, factor) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
        hidden = gated(hidden, network, factor) @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
        tokens = tokens + hidden * scale[1]
    tokens = norm(tokens, network.norm, factor)
    pooled = tokens[:, 0] if config.pooling == "class" else tokens[:, config.prefix :].mean(dim=1)
    logits = pooled @ network.head.weight.T + network.head.bias
    if network.head_dist is not None:
        distilled = tokens[:, 1 if config.class_token else 0] @ network.head_dist.weight.T + network.head_dist.bias
        logits = (logits + distilled) / 2
    return logits, factor.kept


def trace(network: ViT, images: Tensor, given: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
    """Logits of images, and the factors on the way."""
    return from_tokens(network, embed(network, images), given, network.grid(images))
