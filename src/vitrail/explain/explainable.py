"""What can be explained and tested: a network, with pictures that lend their patches."""

import copy
from typing import Protocol, get_args, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.tested import Precision
from vitrail.nn import ViT


@runtime_checkable
class Explainable(Protocol):
    """A network, and pictures that lend their patches; `vitrail.Model` is one."""

    @property
    def network(self) -> ViT:
        """In eval mode."""
        ...

    @property
    def donors(self) -> Float[Tensor, "r c h w"] | None:
        """Reference pictures as the network reads them; None where the model carries none."""
        ...


def check_model(model: Explainable) -> None:
    """Refuse what has no network and no references, such as a bare network."""
    if not isinstance(model, Explainable):
        problem = f"a model is wanted, with its network and its references (donors), got {type(model).__name__}"
        raise UsageError(problem, "vitrail.load(folder)")


def in_precision(network: ViT, precision: Precision) -> ViT:
    """The network as it is, or a bfloat16 copy: as exact as bf16 autocast here, and faster."""
    if precision not in get_args(Precision):
        raise UsageError(f"precision is {' or '.join(get_args(Precision))}, not '{precision}'", "precision='bf16'")
    return network if precision == "fp32" else copy.deepcopy(network).bfloat16()
