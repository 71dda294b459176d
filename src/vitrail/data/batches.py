"""From a loader to the batches that a training or an evaluation consumes: plan, draw, apply, normalise, mix.

One kind of batch serves every task: inputs (normalised images, or ids of texts) and targets, which the codec makes of
the column that is learnt. Which samples, their random numbers and their partners depend on seed, epoch and ids alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation import Augmentation, apply, draw, mix
from vitrail.data.columns import Column, Vocabulary
from vitrail.data.loader import Contents, Loaded, Loader, no_contents
from vitrail.data.plan import WHOLE, EpochPlan, Share, plan
from vitrail.data.preprocessing import Preprocessing

PLAIN = Augmentation()  # nothing happens

Blend = Callable[[Tensor, Tensor, Tensor | None, float, int], Tensor]
"""Targets of mixed samples: (own, partners', weights of its own (b,) or None, label smoothing, outputs) -> targets."""


@dataclass(frozen=True)
class Batch:
    """A few samples ready for the network.

    Attributes:
        inputs: Images (b, c, h, w) float32, normalised; or ids of texts (b, s), filled up with padding.
        targets: (b, ...) what is to be learnt, mixed and smoothed by the augmentation.
        labels: (b, ...) the codec's targets of each sample itself, also where a partner is mixed in.
        ids: (b,) sample ids.
        epoch: Counted from 0.
        number: Which batch (or micro-batch) of its epoch, from 0.
        unreadable: How many samples were left out because they could not be read.
        spare: Whether it holds one sample that does not count: of a process whose share of a batch has none, and which
            exchanges gradients with the others all the same.
    """

    inputs: Float[Tensor, "b c h w"] | Int[Tensor, "b s"]
    targets: Tensor
    labels: Tensor
    ids: NDArray[np.int64]
    epoch: int
    number: int
    unreadable: int = 0
    spare: bool = False

    def __len__(self) -> int:
        """How many samples it holds."""
        return len(self.ids)

    def only(self, kept: Bool[Tensor, " b"]) -> "Batch":
        """Some of its samples."""
        inputs, targets, labels = (each[kept.to(each.device)] for each in (self.inputs, self.targets, self.labels))
        return replace(self, inputs=inputs, targets=targets, labels=labels, ids=self.ids[kept.numpy()])


@dataclass(frozen=True, eq=False)
class Batches:
    """Everything that decides the batches of one split.

    Attributes:
        loader: Where inputs come from, at the size in which they are fetched.
        column: What is learnt, n values.
        codec: Makes targets of them.
        input: The model's; decides the size and the scale of what the network sees.
        augmentation: What may happen on the way.
        blend: Makes targets of mixed samples; None where targets stay as they are.
        seed: Of the run.
        device: Where the batches go.
        chosen: (n,) ids in the loader of the samples that are these, under ids of their own from 0 on; None for all.
        units: (n,) where the column's classes come equally often, what takes turns (see `vitrail.data.plan.balanced`);
            None where an epoch has every sample once.
    """

    loader: Loader
    column: Column
    codec: Any  # of `vitrail.tasks`, which stand above data
    input: Preprocessing | Vocabulary
    augmentation: Augmentation = PLAIN
    blend: Blend | None = None
    seed: int = 0
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # a plain value
    chosen: Int64[np.ndarray, " n"] | None = None
    units: Int64[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        """How many samples an epoch has."""
        return len(self.column)

    @property
    def unreadable(self) -> Mapping[int, str]:
        """For each sample that could not be read so far: why."""
        found = self.loader.unreadable
        if self.chosen is None:
            return found
        return {place: found[id] for place, id in enumerate(self.chosen.tolist()) if id in found}

    def contents(self, ids: Int64[np.ndarray, " b"]) -> Contents:
        """By what each of these images is known, if it was read; zeros of others and of texts."""
        known = self.loader.contents
        return known[ids if self.chosen is None else self.chosen[ids]] if len(known) else no_contents(len(ids))

    def subset(self, ids: Int64[np.ndarray, " n"]) -> "Batches":
        """Some of the samples, which are not read again."""
        chosen = ids if self.chosen is None else self.chosen[ids]
        units = None if self.units is None else self.units[ids]
        return replace(self, chosen=chosen, column=self.column.select(ids), units=units)

    def _fetch(self, rows: list[NDArray[np.int64]], epoch: int) -> Iterator[Loaded]:
        rows = [ids % len(self) for ids in rows]  # of what an epoch has twice
        return self.loader.fetch(rows if self.chosen is None else [self.chosen[ids] for ids in rows], epoch)

    def batches(
        self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None, share: Share = WHOLE
    ) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on; the last one may be smaller.

        Args:
            epoch: Counted from 0.
            batch_size: Samples in a batch.
            start: The first batch that is wanted.
            part_size: Each batch comes in micro-batches of at most so many samples, and `start` and `Batch.number`
                count these; None for whole batches.
            share: What is wanted of each of them, where several processes compute a batch together. Where that is
                nothing, or nothing that can be read, it is a `spare`; alone, an empty batch.
        """
        a = self.augmentation
        mixes = bool(a.mixup or a.cutmix)
        classes = self.column.strata()
        balance = None if self.units is None or classes is None else (classes, self.units)
        planned = plan(self.seed, epoch, len(self), mixup=a.mixup, cutmix=a.cutmix, balance=balance)
        whole = places_of(len(planned), batch_size, part_size or batch_size)[start:]
        wanted = [share.part(place) for place in whole]
        places = [
            mine if mine.start < mine.stop else slice(place.start, place.start + 1)
            for place, mine in zip(whole, wanted, strict=True)
        ]
        rows = [planned.ids[place] for place in places]
        if mixes:
            rows = [np.unique(np.concatenate([planned.ids[place], planned.partners[place]])) for place in places]
        fetched = self._fetch(rows, epoch)
        numbers = range(start, start + len(places))
        for number, place, mine, ids, got in zip(numbers, places, wanted, rows, fetched, strict=True):
            batch, readable = self._batch(planned[place], ids, got, mixes, epoch, number)
            yield self._on_device(batch, readable, share, counts=mine == place)

    def in_order(self, batch_size: int, share: Share = WHOLE) -> Iterator[Batch]:
        """Every sample once, in order, unchanged, as it is in epoch 0: for an evaluation.

        Args:
            batch_size: Samples in a batch; the last one may be smaller.
            share: Of the batches, where several processes answer: each takes whole ones in turn, so that what is
                computed is what one process computes.
        """
        everyone = np.arange(len(self), dtype=np.int64)
        numbers = range(-(-len(everyone) // batch_size))[share.index :: share.of]
        rows = [everyone[number * batch_size : (number + 1) * batch_size] for number in numbers]
        for number, ids, got in zip(numbers, rows, self._fetch(rows, 0), strict=True):
            inputs = got.pixels.to(self.device)
            if isinstance(self.input, Preprocessing):
                inputs = self.input.normalise(inputs)
            labels = self.codec.targets(self.column.take(ids, 0))
            yield self._on_device(Batch(inputs, labels, labels, ids, 0, number), got.readable)

    def _batch(
        self, planned: EpochPlan, ids: NDArray[np.int64], got: Loaded, mixes: bool, epoch: int, number: int
    ) -> tuple[Batch, Bool[Tensor, " b"]]:
        """One batch, from the inputs with `ids`, and what of it could be read.

        Where samples are mixed the inputs are of both partners.
        """
        a, readable = self.augmentation, got.readable
        inputs = got.pixels.to(self.device, non_blocking=True)
        labels = self.codec.targets(self.column.take(planned.ids % len(self), epoch))
        weights, partners = None, labels
        if isinstance(self.input, Preprocessing):
            size = self.input.size
            draws = draw(a, ids, seed=self.seed, epoch=epoch, aspect=size[1] / size[0], extents=got.extents)
            inputs = self.input.scale(apply(a, inputs, draws, size, got.extents))
            if mixes:
                both = planned.ids, planned.partners
                own, other = (torch.from_numpy(np.searchsorted(ids, wanted)) for wanted in both)
                planned = replace(planned, weights=np.where(readable[other], planned.weights, 1.0))
                inputs, weights = mix(inputs[own], inputs[other], planned, draws.pasted[own])
                readable = readable[own]
                partners = self.codec.targets(self.column.take(planned.partners % len(self), epoch))
        targets = labels
        if self.blend is not None:
            targets = self.blend(labels, partners, weights, a.label_smoothing, self.codec.outputs)
        return Batch(inputs, targets, labels, planned.ids % len(self), epoch, number), readable

    def _on_device(
        self, batch: Batch, readable: Bool[Tensor, " b"], share: Share = WHOLE, counts: bool = True
    ) -> Batch:
        """What could be read of a batch, on its device.

        Args:
            batch: All of it.
            readable: What could be read.
            share: Of the process.
            counts: False where its share is empty, and the batch holds a sample of another process.
        """
        left_out, kept = int((~readable).sum()), readable
        spare = share.of > 1 and (not counts or left_out == len(batch))
        if spare:
            left_out, kept = left_out if counts else 0, torch.arange(len(batch)) == 0
        if left_out or spare:
            batch = replace(batch.only(kept), unreadable=left_out, spare=spare)
        return replace(batch, targets=batch.targets.to(self.device), labels=batch.labels.to(self.device))


def places_of(count: int, batch_size: int, part_size: int) -> list[slice]:
    """Where the micro-batches of all batches lie in an order of `count` samples; none reaches into the next batch."""
    batches = [(first, min(first + batch_size, count)) for first in range(0, count, batch_size)]
    return [slice(part, min(part + part_size, end)) for first, end in batches for part in range(first, end, part_size)]
