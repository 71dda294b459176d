"""A network that shares another's parameters and differs in some parts: how a method changes the rules of a network.

    frozen = twin(network, {nn.LayerNorm: FrozenNorm})     # FrozenNorm(layer_norm) -> module

The original is not touched; training either trains both.
"""

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def twin(network: Network, parts: Mapping[type[nn.Module], Callable[[nn.Module], nn.Module]]) -> Network:
    """A network with the same parameters and buffers, in which some classes of parts are replaced.

    Args:
        network: Any module; left as it is.
        parts: For a class of parts, what makes the replacement out of the original part. A part is replaced when it is
            exactly of that class, and the replacement is kept as it comes (nothing inside it is replaced again).

    Returns:
        The twin, in the same mode (train or eval).
    """
    if type(network) in parts:
        replacement = parts[type(network)](network)
        kept = set(network.modules())
        for module in replacement.modules():
            if module not in kept:
                module.training = network.training
        return replacement  # pyrefly: ignore[bad-return]
    other = copy.copy(network)
    other._parameters = dict(network._parameters)
    other._buffers = dict(network._buffers)
    other._modules = {name: None if child is None else twin(child, parts) for name, child in network._modules.items()}
    return other
