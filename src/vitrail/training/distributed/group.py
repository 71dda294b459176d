"""The processes of torch.distributed's default group, as `vitrail.runs.group` describes them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, final

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.errors import Hint
from vitrail.runs.group import Group
from vitrail.training.distributed.watch import Watch, waiting


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

    def largest(self, values: UInt8[np.ndarray, "n d"]) -> UInt8[np.ndarray, "n d"]:
        """Through the processor."""
        found = torch.from_numpy(values.copy())
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.numpy()

    def gather(self, content: Any) -> list[Any]:
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

    def receive(self) -> dict[str, Any]:
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
        watch.step, watch.stopping, watch.hint = step, stop or watch.stopping, Hint(text=hint) if hint else watch.hint
        watch.check()
        return watch.stopping
