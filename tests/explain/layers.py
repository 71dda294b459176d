"""Layers whose attention weights are at hand as tensors, for the rules that multiply them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.explain.forward import Indices, LayerAttention
from vitrail.nn.twin import wide


class Weights(LayerAttention):
    """A layer of these weights (b, k, n, n), and of their gradient."""

    def __init__(self, weights: Tensor, gradient: Tensor) -> None:
        self.of = weights, gradient
        self.images, self.heads, self.tokens, _ = weights.shape
        self.like = wide(weights.detach().flatten()[:0])

    def weights(self, heads: Indices, queries: Indices) -> Tensor:
        return wide(self.of[0][:, heads][:, :, queries])

    def gradient(self, heads: Indices, queries: Indices) -> Tensor:
        return wide(self.of[1][:, heads][:, :, queries])


def layers_of(attentions: Sequence[Tensor], gradients: Sequence[Tensor] | None = None) -> list[LayerAttention]:
    """First layer first; without gradients for rules that read none."""
    none = [torch.full_like(one, torch.nan) for one in attentions]
    return [Weights(*one) for one in zip(attentions, gradients or none, strict=True)]
