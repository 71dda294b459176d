"""Parts that the library does not know: SwiGLU, RMSNorm, attention with rotary positions, attention pooling.

Each says what explanations ask of it; see `vitrail/nn/parts.py`.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nn import SILENT, Parts, ViTConfig, attend

CONFIG = ViTConfig(
    image_size=(12, 20), patch_size=4, channels=2, classes=4, width=16, depth=3, heads=4, positions="none", registers=1
)


class SwiGLU(nn.Module):
    """W3 (act(W1 x) * W2 x): "GLU variants improve Transformer" (Shazeer, 2020), equation 6."""

    def __init__(self, width: int, hidden: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.act, self.held = activation(), False

    def forward(self, tokens: Tensor) -> Tensor:
        gate = self.act(self.gate(tokens))
        return self.down((gate.detach() if self.held else gate) * self.up(tokens))

    def detached(self) -> nn.Module:
        form = copy.copy(self)
        form.held = True
        return form


class RMSNorm(nn.Module):
    """x / rms(x) * w: "Root mean patch layer normalization" (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.held = nn.Parameter(torch.ones(width)), False

    def forward(self, tokens: Tensor) -> Tensor:
        scale = (tokens.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
        return tokens * (scale.detach() if self.held else scale) * self.weight

    def detached(self) -> nn.Module:
        form = copy.copy(self)
        form.held = True
        return form


class RotaryAttention(nn.Module):
    """Attention whose queries and keys are turned by their patch's row and column (Su et al., 2021, in the plane).

    The fused kernel runs; prefix tokens are not turned.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.kernel = config.heads, attend
        self.qkv, self.proj = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        rows, columns = config.grid
        quarter = config.width // config.heads // 4
        speed = 100.0 ** -(torch.arange(quarter) / quarter)
        row = torch.arange(rows)[:, None, None] * speed.expand(1, columns, quarter)
        column = torch.arange(columns)[None, :, None] * speed.expand(rows, 1, quarter)
        angles = torch.cat([row, column], dim=-1).flatten(0, 1)
        self.register_buffer("angles", F.pad(angles, (0, 0, config.prefix, 0)), persistent=False)

    def turned(self, tokens: Tensor) -> Tensor:
        sine, cosine, (one, other) = self.angles.sin(), self.angles.cos(), tokens.chunk(2, dim=-1)
        return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)

    def forward(self, tokens: Tensor, record=SILENT) -> Tensor:
        split = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = self.turned(split[0]), self.turned(split[1]), split[2]
        attended = self.kernel(queries, keys, values)
        record.keep_attention(queries, keys, values, attended, None)
        return self.join(attended)

    def join(self, attended: Tensor) -> Tensor:
        return self.proj(attended.transpose(1, 2).flatten(2))

    def detached(self) -> nn.Module:
        form = copy.copy(self)
        form.kernel = lambda queries, keys, values: attend(queries.detach(), keys.detach(), values)
        return form


class AttentionPooling(nn.Module):
    """One learnt query reads the patches ("Set Transformer", 2019, section 3.2), as SigLIP pools."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.held = nn.Parameter(torch.zeros(width)), False
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, tokens: Tensor, prefix: int) -> Tensor:
        weights = self.token_weights(tokens, prefix).to(tokens)
        weights = weights.detach() if self.held else weights
        return (weights[:, None] @ self.value(tokens))[:, 0]

    def token_weights(self, tokens: Tensor, prefix: int) -> Tensor:
        scores = self.key(tokens[:, prefix:]) @ self.query * len(self.query) ** -0.5
        return F.pad(scores.softmax(dim=-1), (prefix, 0))

    def start_weights(self) -> None:
        nn.init.normal_(self.query)

    def detached(self) -> nn.Module:
        form = copy.copy(self)
        form.held = True
        return form


def rms_norm(config: ViTConfig) -> nn.Module:
    return RMSNorm(config.width)


def swiglu(config: ViTConfig, activation: Callable[[], nn.Module]) -> nn.Module:
    return SwiGLU(config.width, config.mlp_width, activation)


def silu(config: ViTConfig) -> nn.Module:
    return nn.SiLU()


def attention_pooling(config: ViTConfig) -> nn.Module:
    return AttentionPooling(config.width)


def head(config: ViTConfig) -> nn.Module:
    return nn.Linear(config.width, config.classes)


PARTS = Parts(
    embed_norm=rms_norm,
    norm=rms_norm,
    attention=RotaryAttention,
    mlp=swiglu,
    activation=silu,
    pooling=attention_pooling,
    head=head,
)
