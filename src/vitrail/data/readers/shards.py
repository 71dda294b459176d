"""Images that `vitrail data pack` wrote into shards: the splits, names and columns of the data that they came from.

Each image is read by its place: so any order, any number of workers and any number of shards will do.
"""

import shlex
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.dataset import RawDataset, Samples
from vitrail.data.formats import PACKING, SHARDS, is_address
from vitrail.data.images import LOOKED_INTO, Images, evenly, files_digest, open_image
from vitrail.data.shards.files import Member, Rows, bytes_at, read_split, read_table
from vitrail.data.shards.remote import RemoteStore, cache_limit, checked_address
from vitrail.errors import DataError, RunError, counted
from vitrail.io import read_json, user_cache


def read_shards(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a folder of shards.

    Args:
        what: Its path, or its http(s) address.
        data_root: Not used: the path is enough.

    Returns:
        The splits of the data that was packed.

    Raises:
        UsageError: An address carries a password, or the cache has no size.
        DataError: It is not finished, a file is missing, damaged or of another size, or the index is wrong.
        RunError: A server does not answer.
    """
    if is_address(what):
        root = checked_address(what)
        remote = RemoteStore(root, user_cache() / "shards", cache_limit())
        hint = shlex.join(["curl", "-I", f"{root}/{SHARDS}"])
        about, parts = read_table(remote.table(SHARDS), f"{root}/{SHARDS}", hint)
        total = sum(shard.size for part in parts.values() for shard in part.shards)
        store = replace(remote, whole=total <= remote.limit)
    else:
        folder = Path(what).expanduser().resolve()
        root, store, hint = str(folder), FolderStore(folder), shlex.join(["ls", "-l", str(folder)])
        about, parts = read_table(_table(folder, hint), str(folder / SHARDS), hint)
        for part in parts.values():
            for shard in part.shards:
                store.check(shard)
    splits = dict[str, Samples]()
    for split, part in parts.items():
        rows, columns = read_split(store.file(part.index), part, f"{root}/{part.index.file}", hint)
        splits[split] = Samples(ShardImages(store, part.shards, rows), columns)
    published, notes = about.get("published"), list(map(str, about.get("notes", ())))
    for split, part in parts.items():
        if part.left_out:
            many = counted(len(part.left_out), "image")
            notes.append(f"{split}: {many} left out when it was packed, such as {part.left_out[0]}.")
    return RawDataset(
        root,
        splits,
        tuple(notes),
        None if published is None else tuple(map(str, published)),
        about.get("split_seed"),
        about.get("most_held_out"),
        about.get("facts", {}),
    )


def _table(folder: Path, hint: str) -> bytes:
    """The file that says what lies in a folder; there when all of it is there."""
    try:
        return (folder / SHARDS).read_bytes()
    except FileNotFoundError as error:
        again = str(read_json(folder / PACKING, hint).get("again", hint))
        raise DataError(f"packing of {folder} was not finished", again) from error
    except OSError as error:
        raise DataError(f"{folder / SHARDS} cannot be read ({error.strerror})", hint) from error


@runtime_checkable
class Store(Protocol):
    """Where shards are. It is sent to worker processes, and many threads read from it at once."""

    def read(self, shard: Member, offset: int, size: int) -> bytes:
        """Some bytes of a shard.

        Raises:
            RunError: They cannot be read; whether the image is damaged is not known then.
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
        """Check the size of a shard.

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


@final
class ShardImages(Images):
    """Images in shards.

    Args:
        store: Where the shards are.
        shards: Of the split.
        rows: Where each image is.
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
        """Its bytes, which must have the checksum of the index."""
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
        return files_digest(sizes, (int(self.rows.crc[index]) for index in evenly(range(len(self)), LOOKED_INTO)))

    def marks(self) -> list[str]:
        """The size and the CRC-32 of each."""
        return [f"{size}-{crc:08x}" for size, crc in zip(self.rows.size.tolist(), self.rows.crc.tolist(), strict=True)]
