"""What a teacher takes at every step beside the student: measured once, by asking it, since it may be anything."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from vitrail.data.preprocessing import Preprocessing
from vitrail.training.distill.teacher import Teacher
from vitrail.training.execution import Work

ASKED = 2  # pictures; a network may take a single one for none


def teacher_cost(teacher: Teacher, student: Preprocessing, device: torch.device) -> Work:
    """Bytes and FLOPs of a teacher that answers in every step.

    Nothing is kept of an answer for the backward pass, so that its activations are about what the widest step of the
    network reads and writes. The weights of a function are unseen.

    Args:
        teacher: What is asked.
        student: The preprocessing of the pictures that it is shown.
        device: Where it lies.
    """
    images = torch.zeros(ASKED, student.channels, *student.size, device=device)
    weights = list(_weights(teacher.module))
    with FlopCounterMode(display=False) as counter, Widest(weights) as widest:
        teacher.answer(images, student)
    return Work(
        weights=sum(tensor.nbytes for tensor in weights),
        activations=widest.bytes // ASKED,
        flops=counter.get_total_flops() // ASKED,
    )


class Widest(TorchFunctionMode):
    """Sees every function of torch that is called within, and keeps the most bytes that one reads and writes.

    Args:
        weights: Tensors that do not count.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.weights = {tensor.untyped_storage().data_ptr() for tensor in weights}
        self.bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and look at what went in and came out."""
        found = func(*args, **(kwargs or {}))
        storages = [tensor.untyped_storage() for tensor in _tensors([*args, *(kwargs or {}).values(), found])]
        together = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self.bytes = max(self.bytes, sum(size for place, size in together.items() if place not in self.weights))
        return found


def _weights(network: nn.Module) -> Iterator[Tensor]:
    yield from network.parameters()
    yield from network.buffers()


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples of them."""
    for value in values:
        match value:
            case Tensor():
                yield value
            case list() | tuple():
                yield from _tensors(value)
