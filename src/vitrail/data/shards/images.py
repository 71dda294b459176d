"""Images in shards, each read by its place: so any order, any number of workers and any number of shards will do."""

import errno
import shlex
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.images import Images, files_digest, looked_into, open_image
from vitrail.data.shards.index import Member, Rows
from vitrail.errors import DataError, RunError


@runtime_checkable
class Store(Protocol):
    """Where shards lie. It goes to worker processes, and is asked by many threads at once."""

    def read(self, shard: Member, offset: int, size: int) -> bytes:
        """Some bytes of a shard.

        Raises:
            RunError: They cannot be had, all of them; nothing of the image is known then.
        """
        ...


@final
@dataclass(frozen=True)
class FolderStore:
    """Shards in a folder of this machine, opened anew for each image: nothing is shared by threads and processes."""

    root: Path

    def read(self, shard: Member, offset: int, size: int) -> bytes:
        """From the file."""
        path = self.root / shard.file
        try:
            return bytes_at(path, offset, size)
        except OSError as error:
            problem = f"{path} cannot be read ({error.strerror})"
            raise RunError(problem, shlex.join(["ls", "-l", str(path)])) from error

    def file(self, member: Member) -> Path:
        """One of the other files."""
        return self.root / member.file

    def check(self, shard: Member) -> None:
        """Hold a shard against the size that it is to have.

        Raises:
            DataError: It is missing, cut short or longer.
        """
        path, hint = self.root / shard.file, shlex.join(["ls", "-l", str(self.root)])
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path} is in the index but cannot be read ({error.strerror})", hint) from error
        if size != shard.size:
            raise DataError(f"{path} has {size:,} bytes, but {shard.size:,} according to the index", hint)


def bytes_at(path: Path, offset: int, size: int) -> bytes:
    """Some bytes of a file.

    Raises:
        OSError: It cannot be read, or has fewer.
    """
    with open(path, "rb") as handle:
        handle.seek(offset)
        content = handle.read(size)
    if len(content) != size:
        raise OSError(errno.EIO, f"it is truncated: {size:,} bytes should be at offset {offset:,}", str(path))
    return content


@final
class ShardImages(Images):
    """Images in shards.

    Args:
        store: Where the shards lie.
        shards: Of the split.
        rows: Where each image lies.
    """

    encoded = True

    def __init__(self, store: Store, shards: tuple[Member, ...], rows: Rows) -> None:
        self.store, self.shards, self.rows = store, shards, rows

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.rows)

    def name(self, index: int) -> str:
        """The name that it had where it was packed from."""
        return self.rows.names[index]

    def content(self, index: int) -> bytes:
        """Its bytes, held against their checksum."""
        shard = self.shards[self.rows.shard[index]]
        offset, size = int(self.rows.offset[index]), int(self.rows.size[index])
        content = self.store.read(shard, offset, size)
        if zlib.crc32(content) != self.rows.crc[index]:
            problem = f"{self.name(index)}: damaged in {shard.file}, at byte {offset:,}"
            raise DataError(problem, "copy that file again, or pack the data again")
        return content

    def open(self, index: int) -> Image.Image:
        """The decoded image."""
        return open_image(self.name(index), self.content(index))

    def open_reduced(self, index: int, least: int) -> Image.Image:
        """A JPEG at a half, a quarter or an eighth of its size."""
        return open_image(self.name(index), self.content(index), least)

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "ShardImages":
        """The chosen images."""
        return ShardImages(self.store, self.shards, self.rows.select(np.fromiter(indices, np.int64)))

    def digest(self) -> bytes:
        """That of the files, where their bytes are as they were."""
        sizes = ((self.name(index), int(size)) for index, size in enumerate(self.rows.size))
        return files_digest(sizes, (int(self.rows.crc[index]) for index in looked_into(len(self))))
