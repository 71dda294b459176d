"""From a loader to the batches that a training or an evaluation consumes: plan, draw, apply, normalise, mix.

One kind of batch serves every task: inputs (normalised images, or ids of texts) and targets, which the codec makes of
the column that is learnt. Which samples, their random numbers and their partners depend on seed, epoch and ids alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation import Augmentation, apply, draw, mix
from vitrail.data.columns import Codec, Column, Texts
from vitrail.data.dataset import Samples
from vitrail.data.images import ArrayImages, Images
from vitrail.data.loader import Loaded, Loader, open_loader
from vitrail.data.made import MadeImages
from vitrail.data.plan import Slots, plan
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.vocabulary import PADDING, Vocabulary
from vitrail.errors import DataError

PLAIN = Augmentation()  # nothing happens

Blend = Callable[[Tensor, Tensor, Tensor | None, float, int], Tensor]
"""Targets of mixed samples: (own, partners', weights of its own (b,) or None, label smoothing, outputs) -> targets."""


@dataclass(frozen=True)
class Batch:
    """A few samples ready for the network.

    Attributes:
        inputs: Images (b, c, h, w) float32, normalised; or ids of texts (b, s), filled up with padding.
        targets: (b, ...) what is to be learnt, mixed and smoothed as the augmentation says.
        labels: (b, ...) the codec's targets of each sample itself, also where a partner is mixed in.
        ids: (b,) sample ids.
        epoch: Counted from 0.
        number: Which batch (or micro-batch) of its epoch, from 0.
        unreadable: How many samples were left out because they could not be read.
    """

    inputs: Float[Tensor, "b c h w"] | Int[Tensor, "b s"]
    targets: Tensor
    labels: Tensor
    ids: NDArray[np.int64]
    epoch: int
    number: int
    unreadable: int

    def __len__(self) -> int:
        """How many samples it holds."""
        return len(self.ids)


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
    """

    loader: Loader
    column: Column
    codec: Codec
    input: Preprocessing | Vocabulary
    augmentation: Augmentation = PLAIN
    blend: Blend | None = None
    seed: int = 0
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # a plain value

    def __len__(self) -> int:
        """How many samples an epoch has."""
        return len(self.column)

    @property
    def unreadable(self) -> Mapping[int, str]:
        """For each sample that could not be read so far: why."""
        return self.loader.unreadable

    def batches(self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on; the last one may be smaller.

        Args:
            epoch: Counted from 0.
            batch_size: Samples in a batch.
            start: The first batch that is wanted.
            part_size: Each batch comes in micro-batches of at most so many samples, and `start` and `Batch.number`
                count these; None for whole batches.
        """
        a = self.augmentation
        mixes = bool(a.mixup or a.cutmix)
        slots = plan(self.seed, epoch, len(self), mixup=a.mixup, cutmix=a.cutmix)
        places = places_of(len(slots), batch_size, part_size or batch_size)[start:]
        rows = [slots.ids[place] for place in places]
        if mixes:
            rows = [np.unique(np.concatenate([slots.ids[place], slots.partners[place]])) for place in places]
        fetched = self.loader.fetch(rows, epoch)
        for number, (place, ids, got) in enumerate(zip(places, rows, fetched, strict=True), start=start):
            yield self._batch(slots[place], ids, got, mixes, epoch, number)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every sample once, in order, unchanged, as it is in epoch 0: for an evaluation."""
        everyone = np.arange(len(self), dtype=np.int64)
        rows = [everyone[first : first + batch_size] for first in range(0, len(everyone), batch_size)]
        for number, (ids, got) in enumerate(zip(rows, self.loader.fetch(rows, 0), strict=True)):
            inputs = got.pixels.to(self.device)
            if isinstance(self.input, Preprocessing):
                inputs = self.input.normalise(inputs)
            labels = self.codec.targets(self.column.take(ids, 0))
            yield self._readable(inputs, labels, labels, ids, got.readable, 0, number)

    def _batch(self, slots: Slots, ids: NDArray[np.int64], got: Loaded, mixes: bool, epoch: int, number: int) -> Batch:
        """One batch, from the inputs with `ids`; where samples are mixed these are of both partners."""
        a, readable = self.augmentation, got.readable
        inputs = got.pixels.to(self.device, non_blocking=True)
        labels = self.codec.targets(self.column.take(slots.ids, epoch))
        weights, partners = None, labels
        if isinstance(self.input, Preprocessing):
            size = self.input.size
            draws = draw(a, ids, seed=self.seed, epoch=epoch, aspect=size[1] / size[0], extents=got.extents)
            inputs = self.input.scale(apply(a, inputs, draws, size, got.extents))
            if mixes:
                own, other = (torch.from_numpy(np.searchsorted(ids, wanted)) for wanted in (slots.ids, slots.partners))
                slots = Slots(slots.ids, slots.partners, np.where(readable[other], slots.shares, 1.0), slots.cut)
                inputs, weights = mix(inputs[own], inputs[other], slots, draws.pasted[own])
                readable = readable[own]
                partners = self.codec.targets(self.column.take(slots.partners, epoch))
        targets = labels
        if self.blend is not None:
            targets = self.blend(labels, partners, weights, a.label_smoothing, self.codec.outputs)
        return self._readable(inputs, targets, labels, slots.ids, readable, epoch, number)

    def _readable(
        self,
        inputs: Tensor,
        targets: Tensor,
        labels: Tensor,
        ids: NDArray[np.int64],
        readable: Tensor,
        epoch: int,
        number: int,
    ) -> Batch:
        """A batch of what could be read, on its device."""
        left_out = int((~readable).sum())
        if left_out:
            inputs, targets, labels = inputs[readable.to(inputs.device)], targets[readable], labels[readable]
            ids = ids[readable.numpy()]
        return Batch(inputs, targets.to(self.device), labels.to(self.device), ids, epoch, number, left_out)


class TextLoader(Loader):
    """Texts as ids, all in memory."""

    def __init__(self, texts: Texts, vocabulary: Vocabulary) -> None:
        self.rows = torch.from_numpy(vocabulary.rows(texts.values, framed=False))
        self.unreadable = {}

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Loaded]:
        """Ids, with no more padding than the longest text of each array needs."""
        for ids in wanted:
            rows = self.rows[torch.from_numpy(ids)]
            longest = int((rows != PADDING).sum(dim=1).max()) if len(ids) else 1
            yield Loaded(rows[:, :longest], None, torch.ones(len(ids), dtype=torch.bool))


class MadeLoader(Loader):
    """Images made when they are asked for."""

    def __init__(self, images: MadeImages, preprocessing: Preprocessing) -> None:
        self.images, self.preprocessing = images, preprocessing
        self.unreadable = {}

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int = 0) -> Iterator[Loaded]:
        """The images of the epoch, at the model's size."""
        for ids in wanted:
            made, shape = ArrayImages(self.images.pixels(ids, epoch)), self.preprocessing
            if shape.fits(made.pixels):
                pixels = shape.as_pixels(made.pixels)
            else:
                pixels = torch.stack([shape.to_uint8(made.open(index)) for index in range(len(made))])
            yield Loaded(pixels, None, torch.ones(len(ids), dtype=torch.bool))


def open_inputs(
    samples: Samples,
    input: Preprocessing | Vocabulary,
    *,
    workers: int,
    whole: bool = False,
    pin: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Loader:
    """The loader of some samples' inputs.

    Args:
        samples: Images or texts.
        input: How one is read: its preprocessing (at the size to be fetched), or the vocabulary of its texts.
        workers: Processes or threads that decode images.
        whole: Whether images keep their own shape, for random crops; see `open_loader`.
        pin: Whether batches are pinned in memory, for a GPU.
        progress: Called with the number of images read at the start.

    Raises:
        DataError: A text has a token that the vocabulary does not know, or the inputs are of another kind.
    """
    inputs = samples.inputs
    if isinstance(input, Vocabulary):
        if not isinstance(inputs, Texts):
            raise DataError("the data holds images, and texts are read here", "data with texts")
        return TextLoader(inputs, input)
    if isinstance(inputs, MadeImages):
        return MadeLoader(inputs, input)
    if not isinstance(inputs, Images):
        raise DataError("the data holds texts, and images are read here", "data with images")
    return open_loader(inputs, input, workers=workers, whole=whole, pin=pin, progress=progress)


def places_of(count: int, batch_size: int, part_size: int) -> list[slice]:
    """Where the micro-batches of all batches lie in an order of `count` samples; none reaches into the next batch."""
    batches = [(first, min(first + batch_size, count)) for first in range(0, count, batch_size)]
    return [slice(part, min(part + part_size, end)) for first, end in batches for part in range(first, end, part_size)]
