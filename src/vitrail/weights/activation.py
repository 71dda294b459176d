"""Which of our activations a foreign one is: found by what it computes, not by its name."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import DataError
from vitrail.nn.blocks import ACTIVATIONS

SAME = 1e-6  # absolute; the two forms of GELU differ by 4e-4


def activation_of(foreign: Callable[[Tensor], Tensor]) -> str:
    """The name of the activation that gives the same numbers.

    Raises:
        DataError: If none does.
    """
    points = torch.linspace(-6, 6, 97)
    with torch.no_grad():
        theirs = foreign(points.clone())
        for name, make in ACTIVATIONS.items():
            if float((make()(points.clone()) - theirs).abs().max()) < SAME:
                return name
    kind = getattr(foreign, "__name__", type(foreign).__name__)
    raise DataError(f"the activation {kind} is none of {', '.join(ACTIVATIONS)}", "a network with one of these")
