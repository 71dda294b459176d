"""What moves the weights: which parameter learns how fast and decays, the optimizer, and the moving average."""

import copy

import torch
from torch import Tensor, nn

from vitrail.training.settings import Optimization

BEHIND = ("norm", "pool", "head", "head_dist")  # what stands behind the blocks of a ViT
NO_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed")


def layer_of(name: str, depth: int) -> int:
    """The layer of a parameter of a ViT by its name: 0 for what stands before the blocks, depth + 1 behind them."""
    first, _, rest = name.partition(".")
    if first == "blocks":
        return 1 + int(rest.partition(".")[0])
    return depth + 1 if first in BEHIND else 0


def decay_groups(network: nn.Module, weight_decay: float, layer_decay: float = 1.0) -> list[dict]:
    """Parameter groups: matrices decay; biases, norms, LayerScale, tokens and positions do not.

    Args:
        network: Whose parameters.
        weight_decay: Of matrices.
        layer_decay: Layer by layer from the head to the patches, the learning rate shrinks by this factor (Clark,
            Luong, Le and Manning, "ELECTRA", 2020); `scale` of a group says how far. With 1 there are two groups.
    """
    groups: dict[tuple[int, bool], list[Tensor]] = {}
    blocks = getattr(network, "blocks", None) if layer_decay < 1 else None
    depth = 0 if blocks is None else len(blocks)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim > 1 and name.rpartition(".")[2] not in NO_DECAY
            layer = 1 if blocks is None else layer_of(name, depth)
            groups.setdefault((-layer, not plain), []).append(parameter)
    return [
        {"params": own, "weight_decay": 0.0 if kept else weight_decay, "scale": layer_decay ** (depth + 1 + layer)}
        for (layer, kept), own in sorted(groups.items(), key=lambda group: group[0])
    ]


def make_optimizer(network: nn.Module, choices: Optimization) -> torch.optim.AdamW:
    """AdamW ("Decoupled weight decay regularization", 2017) in one fused kernel; without decay it is Adam."""
    groups = decay_groups(network, choices.weight_decay, choices.layer_decay)
    return torch.optim.AdamW(groups, lr=choices.learning_rate, betas=choices.betas, fused=True)


class Average:
    """An exponential moving average of a network's parameters, its buffers as they are: what is evaluated and saved.

    average <- d * average + (1 - d) * weights, with d = min(decay, (1 + step) / (10 + step)), so that the first
    steps do not weigh down the rest.

    Attributes:
        network: A network like the one that is trained, with the averaged parameters.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).requires_grad_(False).eval()
        self._averaged: list[Tensor] = list(self.network.parameters())
        self._current: list[Tensor] = list(network.parameters())
        self._buffers = list(zip(self.network.buffers(), network.buffers(), strict=True))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights of step `step` (counted from 0) into the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._current, 1 - decay)
        for kept, current in self._buffers:  # such as running means, which are averages already
            kept.copy_(current)
