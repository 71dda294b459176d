"""Samples that are made when they are asked for, and anew in every epoch: images, and the texts that stand on them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.columns import Column
from vitrail.data.images import Images


@runtime_checkable
class Made(Protocol):
    """Some samples: pixels (n, h, w) or (n, h, w, c), and what stands on them."""

    @property
    def pixels(self) -> UInt8[np.ndarray, "n h w *c"]:
        """The images."""
        ...

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts."""
        ...


@runtime_checkable
class Maker(Protocol):
    """Makes samples by a hash of their number and the epoch."""

    def make(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> Made:
        """The samples with these numbers, in an epoch."""
        ...

    def content(self) -> bytes:
        """All that decides what it makes, as bytes."""
        ...


@final
@dataclass(frozen=True, eq=False)
class MadeImages(Images):
    """Images that a maker makes.

    Args:
        maker: Makes them.
        label: What the set is called.
        count: Of an epoch.
    """

    maker: Maker
    label: str
    count: int

    def __len__(self) -> int:
        """How many there are in an epoch."""
        return self.count

    def name(self, index: int) -> str:
        """The set's label and the image's number."""
        return f"{self.label}/{index}"

    def names(self) -> list[str]:
        """The names of all."""
        return [self.name(index) for index in range(self.count)]

    def open(self, index: int) -> Image.Image:
        """The image as it is in epoch 0."""
        pixels = self.pixels(np.array([index], np.int64), 0)[0]
        return Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)

    def pixels(self, ids: Int64[np.ndarray, " n"], epoch: int) -> UInt8[np.ndarray, "n h w *c"]:
        """The images of an epoch."""
        return self.maker.make(ids, epoch).pixels

    def select(self, indices: "Iterable[int] | NDArray[np.int64]") -> "MadeImages":
        """The first of them; others cannot be chosen, since they are new in every epoch."""
        chosen = [int(index) for index in indices]
        assert chosen == list(range(len(chosen)))
        return MadeImages(self.maker, self.label, len(chosen))

    def digest(self) -> bytes:
        """A hash of what they are made of, and of their number."""
        return hashlib.blake2b(f"{self.count} ".encode() + self.maker.content(), digest_size=16).digest()


@final
@dataclass(frozen=True, eq=False)
class MadeTexts(Column):
    """The texts on images that a maker makes; see `MadeImages`."""

    maker: Maker
    count: int

    def __len__(self) -> int:
        """How many there are in an epoch."""
        return self.count

    def take(self, ids: Int64[np.ndarray, " m"], epoch: int = 0) -> list[str]:
        """The texts of an epoch."""
        return list(self.maker.make(ids, epoch).texts)

    def select(self, ids: Int64[np.ndarray, " m"]) -> "MadeTexts":
        """The first of them."""
        return MadeTexts(self.maker, len(ids))

    def digest(self) -> bytes:
        """Empty: the images' hash says all."""
        return b""
