"""The explicit forms that networks are compared with: attention whose weights are formed, and a whole ViT of it.

Nothing here calls `vitrail.nn`; only tensors and the names of parameters are shared. Everything runs in float64.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn import ViT


def redraw(network: nn.Module, seed: int = 0) -> None:
    """Give every parameter a value that matters: no zero bias, no norm or LayerScale of one, no silent head."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.3 * noise if name.endswith("bias") else 1 + 0.3 * noise)
            elif parameter.dim() == 3:  # prefix tokens and positions
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)


def some_images(*shape: int, seed: int = 1) -> Float[Tensor, "b c h w"]:
    """Random images, as preprocessing leaves them: mean 0, deviation 1."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def explicit_weights(
    queries: Float[Tensor, "b k n e"], keys: Float[Tensor, "b k m e"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "b k n m"]:
    """Attention weights by exponentials and their sum; a row that may see nothing is zero."""
    scores = torch.einsum("bkne,bkme->bknm", queries.double(), keys.double()) / math.sqrt(queries.shape[-1])
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    highest = torch.where(allowed, scores, -1e9).amax(dim=-1, keepdim=True).detach()
    raised = torch.where(allowed, torch.exp(torch.where(allowed, scores - highest, 0.0)), 0.0)
    return raised / raised.sum(dim=-1, keepdim=True).clamp(min=1e-300)


def explicit_attention(
    queries: Float[Tensor, "b k n e"],
    keys: Float[Tensor, "b k m e"],
    values: Float[Tensor, "b k m e"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "b k n e"]:
    """softmax(Q K^T / sqrt(e)) V with its weights formed."""
    return torch.einsum("bknm,bkme->bkne", explicit_weights(queries, keys, mask), values.double())


class Explicit(NamedTuple):
    """What the explicit network leaves: logits, and each block's weights inside the graph."""

    logits: Float[Tensor, "b v"]
    weights: list[Float[Tensor, "b k n n"]]


def _norm(tokens: Tensor, state: dict[str, Tensor], name: str, eps: float) -> Tensor:
    centred = tokens - tokens.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def _linear(tokens: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    mapped = tokens @ state[f"{name}.weight"].mT
    return mapped + state[f"{name}.bias"] if f"{name}.bias" in state else mapped


def _tokens(network: ViT, state: dict[str, Tensor], images: Tensor) -> Tensor:
    rows, columns = network.config.patch
    cut = images.double().unfold(2, rows, rows).unfold(3, columns, columns)  # b c gh gw rows columns
    cut = cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    tokens = cut @ state["patch_embed.proj.weight"].flatten(1).mT + state.get("patch_embed.proj.bias", 0.0)
    prefix = [state[name] for name in ("cls_token", "dist_token", "reg_token") if name in state]
    tokens = torch.cat([*(token.repeat(len(images), 1, 1) for token in prefix), tokens], dim=1)
    return tokens if network.pos_embed is None else tokens + network.pos_embed.detach().double()


def explicit_vit(network: ViT, images: Float[Tensor, "b c h w"]) -> Explicit:
    """The whole network in eval mode from its parameters, in float64; images of the configured size only."""
    config = network.config
    state = {name: tensor.detach().double() for name, tensor in network.state_dict().items()}
    tokens, weights = _tokens(network, state, images), []
    for index in range(config.depth):
        at = f"blocks.{index}"
        qkv = _linear(_norm(tokens, state, f"{at}.norm1", config.norm_eps), state, f"{at}.attn.qkv")
        split = [part.unflatten(-1, (config.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1)]
        weights.append(explicit_weights(split[0], split[1]).requires_grad_())
        mixed = _linear((weights[-1] @ split[2]).transpose(1, 2).flatten(2), state, f"{at}.attn.proj")
        tokens = tokens + mixed * state.get(f"{at}.ls1.gamma", torch.ones(()))
        hidden = _linear(_norm(tokens, state, f"{at}.norm2", config.norm_eps), state, f"{at}.mlp.fc1")
        gelu = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        hidden = gelu if config.activation == "gelu" else hidden.clamp(min=0)
        tokens = tokens + _linear(hidden, state, f"{at}.mlp.fc2") * state.get(f"{at}.ls2.gamma", torch.ones(()))
    tokens = _norm(tokens, state, "norm", config.norm_eps)
    pooled = tokens[:, 0] if config.pooling == "class" else tokens[:, config.prefix :].mean(dim=1)
    logits = _linear(pooled, state, "head")
    if config.distillation_token:
        logits = (logits + _linear(tokens[:, int(config.class_token)], state, "head_dist")) / 2
    return Explicit(logits, weights)
