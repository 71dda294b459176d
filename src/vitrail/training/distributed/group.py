"""The processes of one training: what the loop and an evaluation need of them, whether there is one or there are many.

    share       which part of each batch this process computes
    wrap        the network, whose gradients are then exchanged in every backward pass (DDP)
    totals      numbers, summed over all processes
    gathered    what each process has, in the order of the processes
    send        as the first process, what the others do; they have it `received`: so all stop at the same step
    meet        all wait for the last one, however long that takes

`ALONE` stands for a training by one process, in which nothing is exchanged; so no code depends on how many there are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, final

import torch
from torch import Tensor, distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.data.plan import Share
from vitrail.training.distributed.watch import Watch, waiting


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

    def gathered(self, content: Any) -> list[Any]:
        """What each process has, plain values as JSON holds them, in the order of the processes."""
        return [content]

    def spread(self, tensors: Mapping[str, Tensor]) -> None:
        """Tensors of the same names and shapes become those of the first process, in place."""

    def send(self, order: Mapping[str, Any]) -> None:
        """As the first process: have the others do something, by plain values."""

    def received(self) -> dict[str, Any]:
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


@final
@dataclass(frozen=True, kw_only=True)
class Together(Group):
    """The processes of torch.distributed's default group, which is open.

    Attributes:
        store: Where they met.
        watch: Over all of them.
    """

    store: dist.Store
    watch: Watch
    _orders: Iterator[int] = field(default_factory=count)
    _meetings: Iterator[int] = field(default_factory=count)

    def wrap(self, network: nn.Module) -> nn.Module:
        """In DistributedDataParallel; buffers stay each process's own. One that is divided exchanges by itself."""
        if self.shard:
            return network
        homes = {type(part).__module__.partition(".")[0] for part in network.modules()}
        idle = not homes <= {"vitrail", "torch"}  # parameters of other parts may get no gradient in a step
        return DistributedDataParallel(network, broadcast_buffers=False, find_unused_parameters=idle)

    def exchanging(self, wrapped: nn.Module, now: bool) -> AbstractContextManager[None]:
        """Where it is not now, only what this process has is added up."""
        if self.shard:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(wrapped, FSDPModule)
            wrapped.set_requires_gradient_sync(now)
            return nullcontext()
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if now else wrapped.no_sync()

    def norms(self, own: Tensor) -> Tensor:
        """Of all parts, where gradients are divided."""
        if not self.shard:
            return own
        squares = own.double().square()
        dist.all_reduce(squares)
        return squares.sqrt().float()

    def counts(self, *numbers: int) -> list[int]:
        """Through the processor, so that nobody waits for an accelerator."""
        both = torch.tensor([*numbers, int(self.watch.stopping)], dtype=torch.int64)
        dist.all_reduce(both)
        *found, stopping = both.tolist()
        self.watch.stopping = stopping > 0
        return found

    def totals(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As one vector, on its device."""
        names = sorted(values)
        vector = torch.stack([values[name] for name in names])
        dist.all_reduce(vector)
        return dict(zip(names, vector, strict=True))

    def gathered(self, content: Any) -> list[Any]:
        """As JSON: nothing that another process sends is ever run."""
        mine = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)
        lengths = self._all(torch.tensor([len(mine)]))
        padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
        padded[: len(mine)] = mine
        pieces = zip(self._all(padded), lengths, strict=True)
        return [json.loads(piece[: int(length)].numpy().tobytes()) for piece, length in pieces]

    def _all(self, mine: Tensor) -> Sequence[Tensor]:
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        return found

    def spread(self, tensors: Mapping[str, Tensor]) -> None:
        """One by one, in the order of their names."""
        for _, tensor in sorted(tensors.items()):
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, 0)
            if self.rank:
                with torch.no_grad():
                    tensor.copy_(whole)

    def send(self, order: Mapping[str, Any]) -> None:
        """Through the store, where the others wait without a limit."""
        self.store.set(f"order/{next(self._orders)}", json.dumps(order))

    def received(self) -> dict[str, Any]:
        """From the store, where the last one that has it takes it away."""
        number = next(self._orders)
        order = json.loads(waiting(self.store, f"order/{number}", self.watch) or b"")
        if self.store.add(f"read/{number}", 1) == self.world - 1:
            self.store.delete_key(f"order/{number}")
            self.store.delete_key(f"read/{number}")
        return order

    def meet(self) -> None:
        """The last one lets the others go on."""
        number = next(self._meetings)
        if self.store.add(f"came/{number}", 1) == self.world:
            self.store.set(f"met/{number}", "all")
        waiting(self.store, f"met/{number}", self.watch)

    def at(self, step: int, stop: bool, hint: str = "") -> bool:
        """The step by the next beat; whether to stop by the next `counts`, so that all know it at the same step."""
        watch = self.watch
        watch.step, watch.stopping, watch.hint = step, stop or watch.stopping, hint or watch.hint
        watch.check()
        return watch.stopping
