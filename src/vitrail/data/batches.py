"""From a feed to the batches that a training or an evaluation consumes: plan, draw, apply, normalise, mix."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation import Augmentation, Draws, apply, draw, mix
from vitrail.data.feed import Feed
from vitrail.data.plan import Slots, plan
from vitrail.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Batch:
    """A few pictures ready for the network.

    Attributes:
        images: (b, c, h, w) float32, normalised.
        targets: What is to be learnt: (b,) class indices, or (b, classes) shares that sum to 1.
        labels: (b,) class index of each picture itself, also where a partner is mixed in.
        ids: (b,) sample ids.
        epoch: Counted from 0.
        number: Which batch of its epoch, from 0.
        unreadable: How many pictures were left out because they could not be read.
    """

    images: Float[Tensor, "b c h w"]
    targets: Int[Tensor, " b"] | Float[Tensor, "b v"]
    labels: Int[Tensor, " b"]
    ids: NDArray[np.int64]
    epoch: int
    number: int
    unreadable: int

    def __len__(self) -> int:
        """How many pictures it holds."""
        return len(self.labels)


@dataclass(frozen=True)
class TrainingSet:
    """Everything that decides a training's batches.

    Attributes:
        feed: Where pixels come from (at the size in which pictures are fetched).
        labels: (n,) class indices.
        classes: Number of classes.
        preprocessing: Of the model; decides the size and the scale of what the network sees.
        augmentation: What may happen on the way.
        seed: Of the run.
        device: Where the batches go.
    """

    feed: Feed
    labels: NDArray[np.int64]
    classes: int
    preprocessing: Preprocessing
    augmentation: Augmentation
    seed: int
    device: torch.device

    def __len__(self) -> int:
        """How many pictures an epoch has."""
        return len(self.labels)

    def batches(self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on; the last one may be smaller.

        Which pictures, their random numbers and their partners depend on seed, epoch and ids alone.

        Args:
            epoch: Counted from 0.
            batch_size: Pictures in a batch.
            start: The first batch that is wanted.
            part_size: Each batch comes in parts of at most so many pictures, and `start` and `Batch.number` count
                parts; None for whole batches.
        """
        a = self.augmentation
        slots = plan(self.seed, epoch, len(self.labels), mixup=a.mixup, cutmix=a.cutmix)
        places = places_of(len(slots), batch_size, part_size or batch_size)[start:]
        rows = [np.unique(np.concatenate([slots.ids[place], slots.partners[place]])) for place in places]
        if not (a.mixup or a.cutmix):
            rows = [slots.ids[place] for place in places]
        fetched = self.feed.fetch(rows)
        for number, (place, ids, got) in enumerate(zip(places, rows, fetched, strict=True), start=start):
            pixels = got.pixels.to(self.device, non_blocking=True)
            aspect = pixels.shape[3] / pixels.shape[2]
            draws = draw(a, ids, seed=self.seed, epoch=epoch, aspect=aspect)
            images = self.preprocessing.scale(apply(a, pixels, draws, self.preprocessing.size))
            yield self._batch(slots[place], ids, got.readable, images, draws, epoch, number)

    def _batch(
        self,
        slots: Slots,
        ids: NDArray[np.int64],
        readable: Tensor,
        images: Tensor,
        draws: Draws,
        epoch: int,
        number: int,
    ) -> Batch:
        a, labels = self.augmentation, torch.from_numpy(self.labels[slots.ids])
        shares = None
        if a.mixup or a.cutmix:
            own, other = (torch.from_numpy(np.searchsorted(ids, wanted)) for wanted in (slots.ids, slots.partners))
            slots = Slots(slots.ids, slots.partners, np.where(readable[other], slots.shares, 1.0), slots.cut)
            images, shares = mix(images[own], images[other], slots, draws.pasted[own])
            readable = readable[own]
        targets = self._targets(labels, torch.from_numpy(self.labels[slots.partners]), shares)
        left_out = int((~readable).sum())
        if left_out:
            images, targets, labels = images[readable], targets[readable], labels[readable]
        kept = slots.ids[readable.numpy()] if left_out else slots.ids
        return Batch(images, targets.to(self.device), labels.to(self.device), kept, epoch, number, left_out)

    def _targets(self, labels: Tensor, partners: Tensor, shares: Tensor | None) -> Tensor:
        smoothing = self.augmentation.label_smoothing
        if shares is None and not smoothing:
            return labels
        targets = F.one_hot(labels, self.classes).float()
        if shares is not None:
            share = shares.cpu()[:, None]
            targets = share * targets + (1 - share) * F.one_hot(partners, self.classes).float()
        return (1 - smoothing) * targets + smoothing / self.classes


def places_of(count: int, batch_size: int, part_size: int) -> list[slice]:
    """Where the parts of all batches lie in an order of `count` pictures; no part reaches into the next batch."""
    batches = [(first, min(first + batch_size, count)) for first in range(0, count, batch_size)]
    return [slice(part, min(part + part_size, end)) for first, end in batches for part in range(first, end, part_size)]


def evaluation_batches(
    feed: Feed,
    labels: NDArray[np.int64],
    preprocessing: Preprocessing,
    batch_size: int,
    device: torch.device,
) -> Iterator[Batch]:
    """Every picture once, in order, unchanged; pictures that cannot be read are left out and counted."""
    everyone = np.arange(len(labels), dtype=np.int64)
    rows = [everyone[first : first + batch_size] for first in range(0, len(everyone), batch_size)]
    for number, (ids, got) in enumerate(zip(rows, feed.fetch(rows), strict=True)):
        kept = got.readable
        images = preprocessing.normalise(got.pixels.to(device))
        targets = torch.from_numpy(labels[ids])
        if not bool(kept.all()):
            images, targets, ids = images[kept], targets[kept], ids[kept.numpy()]
        targets = targets.to(device)
        yield Batch(images, targets, targets, ids, 0, number, int((~kept).sum()))
