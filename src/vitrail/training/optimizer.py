"""Optimizer, learning-rate schedule and the moving average of the weights."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.training.settings import Optimization

NO_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed")


def decay_groups(network: nn.Module, weight_decay: float) -> list[dict]:
    """Parameter groups: matrices decay; biases, norms, LayerScale, tokens and positions do not."""
    decayed, kept = [], []
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim > 1 and name.rpartition(".")[2] not in NO_DECAY
            (decayed if plain else kept).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def make_optimizer(network: nn.Module, choices: Optimization) -> torch.optim.AdamW:
    """AdamW ("Decoupled weight decay regularization", 2017) in one fused kernel; without decay it is Adam."""
    groups = [group for group in decay_groups(network, choices.weight_decay) if group["params"]]
    return torch.optim.AdamW(groups, lr=choices.learning_rate, betas=choices.betas, fused=True)


def learning_rate(choices: Optimization, step: int, steps_per_epoch: int) -> float:
    """The rate of a step: a linear warm-up, then constant or half a cosine that would be 0 one step after the last.

    Args:
        choices: The schedule.
        step: Counted from 0.
        steps_per_epoch: Optimizer steps in one epoch.
    """
    warmup = round(choices.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return choices.learning_rate * (step + 1) / (warmup + 1)
    if choices.schedule == "constant":
        return choices.learning_rate
    total = max(1, choices.epochs * steps_per_epoch - warmup)
    return choices.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / total)))


class Average:
    """An exponential moving average of a network's parameters, which is what is evaluated and saved.

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

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights of step `step` (counted from 0) into the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._current, 1 - decay)


def gradient_norms(parameters: Sequence[Tensor]) -> Tensor:
    """(len(parameters),) the norm of each gradient; 0 where there is none."""
    gradients = [torch.zeros((), device=p.device) if p.grad is None else p.grad for p in parameters]
    return torch.stack(torch._foreach_norm(gradients))
