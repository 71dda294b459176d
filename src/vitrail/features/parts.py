"""What is kept of a range of images until a file of features is whole: on disk (.npz), or in memory."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from vitrail.jobs.parts import Parts


class Part(NamedTuple):
    """Some images of one split.

    Attributes:
        ids: (m,) which of the range could be read, by their places in it.
        values: (m, ...) of each, by name; empty where none could be read.
        unreadable: Why the others could not, one line each.
    """

    ids: Int64[np.ndarray, " _"]
    values: Mapping[str, NDArray[np.float32]]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class Arrays:
    """Parts as .npz.

    Attributes:
        ending: Of their files.
    """

    ending: str = ".npz"

    def to_bytes(self, part: Part) -> bytes:
        """A part as a file."""
        content = io.BytesIO()
        unreadable = np.array(json.dumps(part.unreadable))
        np.savez(content, ids=part.ids, unreadable=unreadable, **part.values)  # pyrefly: ignore[bad-argument-type]
        return content.getvalue()

    def check(self, content: bytes) -> None:
        """Hold every byte against the sums in the file.

        Raises:
            ValueError: It is not whole.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                damaged = archive.testzip()
        except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
            raise ValueError("no whole part") from error
        if damaged is not None:
            raise ValueError("no whole part")


@dataclass(frozen=True)
class OnDisk:
    """Parts that are whole, on disk.

    Args:
        parts: Where they lie.
    """

    parts: Parts

    def rows(self, number: int) -> tuple[Int64[np.ndarray, " _"], tuple[str, ...]]:
        """Which images a part has, and why it lacks others."""
        return self.column(number, "ids"), tuple(json.loads(str(self.column(number, "unreadable"))))

    def column(self, number: int, name: str) -> NDArray[Any]:
        """One column of a part."""
        with np.load(Path(self.parts.file(number)), allow_pickle=False) as arrays:
            return arrays[name]

    def is_whole(self, number: int) -> bool:
        """Whether a part is there."""
        return self.parts.is_whole(number)

    def write(self, number: int, part: Part) -> None:
        """Keep a part."""
        self.parts.write(number, part)

    def remove(self) -> None:
        """Remove all of them."""
        self.parts.remove()


class Kept:
    """The parts of what is wanted in memory alone, with the same questions."""

    def __init__(self) -> None:
        self._parts = dict[int, Part]()

    def rows(self, number: int) -> tuple[Int64[np.ndarray, " _"], tuple[str, ...]]:
        """Which images a part has, and why it lacks others."""
        return self._parts[number].ids, self._parts[number].unreadable

    def column(self, number: int, name: str) -> NDArray[Any]:
        """One column of a part."""
        return self._parts[number].values[name]

    def is_whole(self, number: int) -> bool:
        """Whether a part is there."""
        return number in self._parts

    def write(self, number: int, part: Part) -> None:
        """Keep a part."""
        self._parts[number] = part

    def remove(self) -> None:
        """Forget them."""
        self._parts.clear()
