"""The processes of one training: what the loop and an evaluation need of them, whether there is one or there are many.

    share       which part of each batch this process computes
    wrap        the network, whose gradients are then exchanged in every backward pass (DDP)
    totals      numbers, summed over all processes
    largest     values, the largest of all processes
    gather      what each process has, in the order of the processes
    send        as the first process, what the others do; they have it `receive`: so all stop at the same step
    meet        all wait for the last one, however long that takes

`ALONE` stands for a training by one process, in which nothing is exchanged; so no code depends on how many there are.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor, nn

from vitrail.data.plan import Share


@dataclass(frozen=True)
class Group:
    """All processes of one training, as one of them sees it; by itself a single process, with which nothing is shared.

    Attributes:
        rank: Of this process, from 0; the first one alone writes and prints.
        world: How many there are.
        machines: On how many machines.
        shard: Whether the network is divided among them; else each has all of it.
    """

    rank: int = 0
    world: int = 1
    machines: int = 1
    shard: bool = False

    @property
    def share(self) -> Share:
        """What this process computes of each batch."""
        return Share(self.rank, self.world)

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network as it is called in training; its parameters become those of the first process.

        After a backward pass each gradient is the mean over all processes.
        """
        return network

    def exchanging(self, wrapped: nn.Module, now: bool) -> AbstractContextManager[None]:
        """A forward and backward pass, behind which gradients are exchanged now, or with a later one."""
        return nullcontext()

    def norms(self, own: Tensor) -> Tensor:
        """(n,) norms of gradients, of which this process has a part; the same where it has all of them."""
        return own

    def counts(self, *numbers: int) -> list[int]:
        """Each number, summed over all processes."""
        return list(numbers)

    def totals(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each value without axes, summed over all processes; they name the same ones."""
        return dict(values)

    def largest(self, values: UInt8[np.ndarray, "n d"]) -> UInt8[np.ndarray, "n d"]:
        """Each value, the largest of all processes."""
        return values

    def gather(self, content: Any) -> list[Any]:
        """What each process has, plain values as JSON holds them, in the order of the processes."""
        return [content]

    def spread(self, tensors: Mapping[str, Tensor]) -> None:
        """Tensors of the same names and shapes become those of the first process, in place."""

    def send(self, order: Mapping[str, Any]) -> None:
        """As the first process: have the others do something, by plain values."""

    def receive(self) -> dict[str, Any]:
        """As another process: wait for the next order."""
        raise AssertionError

    def meet(self) -> None:
        """Wait until every process has come here."""

    def at(self, step: int, stop: bool, hint: str = "") -> bool:
        """Let the others know where this process is.

        Args:
            step: Optimizer steps that are done.
            stop: Whether this process is to stop.
            hint: What is typed to go on with the run.

        Returns:
            Whether it was, or another one was when `counts` was called last.
        """
        return stop


ALONE = Group()
