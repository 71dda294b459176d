"""Sources with their target texts: what a network learns from that reads one and writes the other."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int64

from vitrail.data.pictures import Pictures


class Samples(ABC):
    """Sources with their target texts, counted and named by number."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What one is called, for messages and pages."""

    @abstractmethod
    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """What is to be written for each of these, in an epoch."""

    @abstractmethod
    def digest(self) -> bytes:
        """A short hash that changes with the samples."""


@final
@dataclass(frozen=True, eq=False)
class TextSamples(Samples):
    """Texts, and what is to be written for each.

    Args:
        sources: What is read.
        targets: What is written.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.targets)

    def name(self, index: int) -> str:
        """The source itself."""
        return self.sources[index]

    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """The targets, the same in every epoch."""
        return [self.targets[number] for number in ids.tolist()]

    def digest(self) -> bytes:
        """A hash of all texts."""
        return _digest((*self.sources, *self.targets))


@final
@dataclass(frozen=True, eq=False)
class PictureSamples(Samples):
    """Pictures, and what stands on each.

    Args:
        pictures: What is read.
        targets: What is written.
    """

    pictures: Pictures
    targets: tuple[str, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.targets)

    def name(self, index: int) -> str:
        """The picture's name."""
        return self.pictures.name(index)

    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """The targets, the same in every epoch."""
        return [self.targets[number] for number in ids.tolist()]

    def digest(self) -> bytes:
        """A hash of pictures and texts."""
        return self.pictures.digest() + _digest(self.targets)


def _digest(texts: Iterable[str]) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
