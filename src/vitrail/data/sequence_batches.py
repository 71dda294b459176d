"""From samples to the batches that a network learns from that reads one thing and writes another.

As for pictures with classes: order and, where pictures are made, the pictures themselves are a function of (seed,
epoch, id), so a training goes on from any batch with the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.batches import places_of
from vitrail.data.feed import Feed, open_feed
from vitrail.data.pictures import ArrayPictures
from vitrail.data.plan import plan
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.mnist_strings import MadeSamples
from vitrail.data.samples import PictureSamples, Samples, TextSamples
from vitrail.data.vocabulary import PADDING, Vocabulary


@dataclass(frozen=True)
class SequenceBatch:
    """A few samples ready for the network.

    Attributes:
        inputs: What is read: ids (b, s) filled up with padding, or pictures (b, c, h, w), normalised.
        target: (b, t) ids: begin, the text, end, filled up with padding.
        ids: (b,) sample ids.
        epoch: Counted from 0.
        number: Which batch of its epoch, from 0.
        unreadable: How many samples were left out because they could not be read.
    """

    inputs: Int[Tensor, "b s"] | Float[Tensor, "b c h w"]
    target: Int[Tensor, "b t"]
    ids: NDArray[np.int64]
    epoch: int
    number: int
    unreadable: int

    def __len__(self) -> int:
        """How many samples it holds."""
        return len(self.target)


class Pairs(NamedTuple):
    """Inputs, before pictures are normalised, and texts of a few samples, and which of them could be read."""

    inputs: Tensor
    texts: list[str]
    readable: Bool[Tensor, " n"]


class SequenceFeed(ABC):
    """Samples by id."""

    @property
    @abstractmethod
    def pictures(self) -> Feed | None:
        """The feed of pictures behind it, which knows what could not be read; None where nothing is read from files."""

    @abstractmethod
    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int) -> Iterator[Pairs]:
        """Samples for each array of ids, in turn."""


class TextFeed(SequenceFeed):
    """Texts as ids, all in memory."""

    def __init__(self, samples: TextSamples, vocabulary: Vocabulary) -> None:
        self.samples = samples
        self.rows = torch.from_numpy(vocabulary.rows(samples.sources, framed=False))

    @property
    def pictures(self) -> Feed | None:
        """None."""
        return None

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int) -> Iterator[Pairs]:
        """Ids, with no more padding than the longest source of each array needs."""
        for ids in wanted:
            rows = self.rows[torch.from_numpy(ids)]
            longest = int((rows != PADDING).sum(dim=1).max()) if len(ids) else 1
            yield Pairs(rows[:, :longest], self.samples.texts(ids), torch.ones(len(ids), dtype=torch.bool))


class PictureFeed(SequenceFeed):
    """Pictures from memory or files, and the texts that stand on them."""

    def __init__(self, samples: PictureSamples, feed: Feed) -> None:
        self.samples, self.feed = samples, feed

    @property
    def pictures(self) -> Feed | None:
        """The feed of the pictures."""
        return self.feed

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int) -> Iterator[Pairs]:
        """Pixels (n, c, h, w) and texts."""
        wanted = list(wanted)
        for ids, got in zip(wanted, self.feed.fetch(wanted), strict=True):
            yield Pairs(got.pixels, self.samples.texts(ids), got.readable)


class MadeFeed(SequenceFeed):
    """Pictures made when they are asked for."""

    def __init__(self, samples: MadeSamples, preprocessing: Preprocessing) -> None:
        self.samples, self.preprocessing = samples, preprocessing

    @property
    def pictures(self) -> Feed | None:
        """None."""
        return None

    def fetch(self, wanted: Iterable[NDArray[np.int64]], epoch: int) -> Iterator[Pairs]:
        """The pictures of the epoch and what they show."""
        for ids in wanted:
            made = self.samples.maker.make(ids, epoch)
            yield Pairs(
                pixels_of(ArrayPictures(made.pixels), self.preprocessing),
                list(made.texts),
                torch.ones(len(ids), dtype=torch.bool),
            )


def pixels_of(pictures: ArrayPictures, preprocessing: Preprocessing) -> Tensor:
    """Pictures in memory at the model's size, (n, c, h, w) uint8."""
    if preprocessing.fits(pictures.pixels):
        return preprocessing.as_pixels(pictures.pixels)
    return torch.stack([preprocessing.to_uint8(pictures.open(index)) for index in range(len(pictures))])


def feed_of(
    samples: Samples,
    preprocessing: Preprocessing | None,
    vocabulary: Vocabulary | None,
    workers: int,
    progress: Callable[[int], None] = lambda done: None,
) -> SequenceFeed:
    """The feed of some samples.

    Args:
        samples: Texts or pictures.
        preprocessing: Of the model, where pictures are read.
        vocabulary: Of the sources, where texts are read.
        workers: Processes or threads that decode pictures.
        progress: Called with the number of pictures read at the start.

    Raises:
        DataError: A text has a token that the vocabulary does not know.
    """
    match samples:
        case TextSamples():
            assert vocabulary is not None
            return TextFeed(samples, vocabulary)
        case PictureSamples():
            assert preprocessing is not None
            return PictureFeed(samples, open_feed(samples.pictures, preprocessing, workers=workers, progress=progress))
        case MadeSamples():
            assert preprocessing is not None
            return MadeFeed(samples, preprocessing)
    raise AssertionError(type(samples))


@dataclass(frozen=True, eq=False)
class SequenceSet:
    """Everything that decides a training's batches of sequences.

    Attributes:
        feed: Where the samples come from.
        count: How many an epoch has.
        vocabulary: Of the texts that are written.
        preprocessing: Of the model, where pictures are read; normalises them.
        seed: Of the run.
        device: Where the batches go.
    """

    feed: SequenceFeed
    count: int
    vocabulary: Vocabulary
    preprocessing: Preprocessing | None
    seed: int
    device: torch.device

    def __len__(self) -> int:
        """How many samples an epoch has."""
        return self.count

    def batches(
        self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None
    ) -> Iterator[SequenceBatch]:
        """The batches of one epoch, from batch `start` on; the last one may be smaller.

        Args:
            epoch: Counted from 0.
            batch_size: Samples per batch.
            start: The first batch wanted.
            part_size: Split batches into parts of at most so many samples; `start` and `number` then count parts.
        """
        order = plan(self.seed, epoch, self.count).ids
        rows = [order[place] for place in places_of(self.count, batch_size, part_size or batch_size)[start:]]
        yield from self._batches(rows, epoch, start)

    def in_order(self, batch_size: int) -> Iterator[SequenceBatch]:
        """Every sample once, in order, as they are in epoch 0: for an evaluation."""
        everyone = np.arange(self.count, dtype=np.int64)
        yield from self._batches([everyone[place] for place in places_of(self.count, batch_size, batch_size)], 0, 0)

    def _batches(self, rows: list[NDArray[np.int64]], epoch: int, first: int) -> Iterator[SequenceBatch]:
        for number, (ids, got) in enumerate(zip(rows, self.feed.fetch(rows, epoch), strict=True), start=first):
            inputs, readable = got.inputs.to(self.device, non_blocking=True), got.readable
            if self.preprocessing is not None:
                inputs = self.preprocessing.normalise(inputs)
            target = torch.from_numpy(self.vocabulary.rows(got.texts, framed=True)).to(self.device)
            left_out = int((~readable).sum())
            if left_out:
                inputs, target, ids = inputs[readable], target[readable], ids[readable.numpy()]
            yield SequenceBatch(inputs, target, ids, epoch, number, left_out)
