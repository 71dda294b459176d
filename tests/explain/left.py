"""What an explanation could leave behind on a network, and whether it did."""

from typing import Any

import torch
from torch import Tensor

from vitrail.nn import ViT

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def state_of(network: ViT) -> dict[str, Any]:
    """All that a method could leave behind on a network."""
    state: dict[str, Any] = {"grad mode": torch.is_grad_enabled()}
    for name, module in network.named_modules():
        state[f"{name} mode"] = module.training
        state[f"{name} hooks"] = [len(getattr(module, hook)) for hook in HOOKS]
        state[f"{name} attributes"] = sorted(vars(module))
    for name, tensor in network.state_dict(keep_vars=True).items():
        state[f"{name} bits"] = tensor.detach().clone()
        state[f"{name} object"] = id(tensor)
        state[f"{name} requires_grad"] = tensor.requires_grad
        state[f"{name} grad"] = None if tensor.grad is None else (id(tensor.grad), tensor.grad.clone())
        state[f"{name} hooks"] = len(tensor._backward_hooks or ())
    return state


def same(before: object, after: object) -> bool:
    match before:
        case Tensor():
            return isinstance(after, Tensor) and torch.equal(before, after)
        case dict():
            return before.keys() == after.keys() and all(same(before[key], after[key]) for key in before)
        case tuple():
            return len(before) == len(after) and all(map(same, before, after))
        case _:
            return before == after


def with_gradients(network: ViT) -> ViT:
    """As in the middle of a training: some parameters have a gradient, some are frozen."""
    for index, parameter in enumerate(network.parameters()):
        parameter.requires_grad_(index % 3 != 0)
        if index % 2:
            parameter.grad = torch.full_like(parameter, 0.25)
    return network
