"""A pretended device that has no float64, as Apple's MPS: tensors tagged as being there, which refuse what it refuses.

    with on_the_device() as there:          # what asks for a tensor on that device gets a tagged one
        method(moved(network), there(images))

What is computed of a tagged tensor is tagged; `.cpu()` and `.to("cpu")` take the tag away. A tagged tensor in float64
is a TypeError, as on MPS, and an operation on a tagged tensor and one of the CPU (but for numbers and indices) is a
RuntimeError. The numbers are those of the CPU. What autograd does on its way back is not looked at.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vitrail.nn import ViT

DEVICE = torch.device("mps")
MAY_MIX = {"__getitem__", "__setitem__", "to", "copy_", "detach"}


class There(Tensor):
    """A tensor on the device."""

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        if function == Tensor.device.__get__:
            return DEVICE
        if name not in MAY_MIX and any(type(leaf) is Tensor and leaf.dim() for leaf in tree_leaves((args, kwargs))):
            raise RuntimeError(f"{name} of a tensor on {DEVICE} and one on the CPU")
        found = super().__torch_function__(function, types, args, kwargs)
        if name == "cpu" or (name == "to" and not _stays(args, kwargs)):
            return found.as_subclass(Tensor)
        for leaf in tree_leaves(found):
            refuse_float64(leaf)
        return found


def _stays(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call of `to` leaves its tensor on the device, or brings it there."""
    for given in (*args[1:], *kwargs.values()):
        if isinstance(given, Tensor):
            return type(given) is There
        if isinstance(given, str | torch.device):
            return torch.device(given) == DEVICE
    return type(args[0]) is There


def refuse_float64(found: Any) -> None:
    """Raise what MPS raises."""
    if type(found) is There and found.dtype in (torch.float64, torch.complex128):
        raise TypeError(f"{DEVICE} has no float64")


class _Asked(TorchFunctionMode):
    """Gives a tagged tensor to what asks for one on the device."""

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if DEVICE not in [each for each in (*args, *kwargs.values()) if isinstance(each, torch.device)]:
            return function(*args, **kwargs)
        here = torch.device("cpu")
        plain = [each.as_subclass(Tensor) if type(each) is There else each for each in args]
        args = tuple(here if isinstance(each, torch.device) else each for each in plain)
        kwargs = {name: here if isinstance(each, torch.device) else each for name, each in kwargs.items()}
        found = function(*args, **kwargs).as_subclass(There)
        refuse_float64(found)
        return found


@contextmanager
def on_the_device() -> Iterator[Callable[[Tensor], Tensor]]:
    """While it lasts there is such a device; gives what brings a tensor to it."""
    with _Asked():
        yield lambda tensor: tensor.to(DEVICE)


def moved(network: ViT) -> ViT:
    """A copy of a network whose parameters are on the device."""
    network = copy.deepcopy(network)
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module._parameters[name] = nn.Parameter(parameter.detach().as_subclass(There))
    return network
