"""What decoding remembers from one step to the next: keys and values that need not be computed again.

A decoder takes `cache=NO_CACHE` and hands it down like the record. The null cache remembers nothing, so no code asks
whether there is one. With a `Cache` a decoder is given only the new tokens at each step:

    cache = Cache()
    logits = network.decode(target[:, :1], memory, cache=cache)   # the first token
    logits = network.decode(target[:, 1:2], memory, cache=cache)  # the second, which sees the first
"""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor


class NoCache:
    """The cache that remembers nothing: the default of every attention."""

    def at(self, place: str) -> "NoCache":
        """Itself: nothing is remembered at any place."""
        return self

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """The new tensors alone: nothing came before."""
        return new

    def once(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What `make` makes."""
        return make()


NO_CACHE = NoCache()


class Cache:
    """Remembers tensors by place, for one batch of sequences that grow step by step."""

    def __init__(self) -> None:
        self._place = ""
        self._kept: dict[str, tuple[Tensor, ...]] = {}

    def at(self, place: str) -> "Cache":
        """The same cache, whose names now start with `place`."""
        inner = Cache()
        inner._place = f"{self._place}{place}."
        inner._kept = self._kept
        return inner

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append to what stands here, and give all of it: self-attention's keys and values.

        Args:
            *new: Tensors whose third axis counts the tokens, such as (b, k, n, e).

        Returns:
            Each of them behind its predecessors, (b, k, all n so far, e).
        """
        old = self._kept.get(self._place)
        joined = new if old is None else tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True))
        self._kept[self._place] = joined
        return joined

    def once(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What `make` made when it was first asked for here: cross-attention's keys and values of the memory."""
        if self._place not in self._kept:
            self._kept[self._place] = make()
        return self._kept[self._place]

    def reorder(self, rows: Int[Tensor, "r"]) -> None:
        """Let row i go on from what row `rows[i]` remembers, as beam search does after each step."""
        for place, tensors in self._kept.items():
            self._kept[place] = tuple(tensor.index_select(0, rows) for tensor in tensors)


AnyCache = Cache | NoCache
