"""The files of a folder of shards, written and read: a table, an index for each split, and tar files.

    shards.json           splits, columns, classes, every other file with its bytes and SHA-256; written last
    train.safetensors     of each image of a split: where it lies, its CRC-32, its name, its columns, and the hash of
                          what was packed (`Images.content_hash`), by which it is known however it was encoded
    train-000000.tar      000000017.jpg, 000000017.cls, 000000017.json, ...

The tar files alone are what webdataset reads. Nothing in the index is trusted: names of files follow from the split
and a number, every place must be within its shard, and every image must have its CRC-32 when it is read.
"""

import errno
import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from vitrail.data.columns import ALL, SPLITS, Column, Labels, Texts, Values
from vitrail.data.images import HASH
from vitrail.data.multiple import ClassColumns, LabelSets, Quantities
from vitrail.data.tensor_files import read_tensors, tensors_to_bytes
from vitrail.errors import DataError, Hint, UsageError, raised_as
from vitrail.io import to_json, write_file, writing

FORMAT, VERSION = "vitrail shards", 1
PLACE = ("shard", "offset", "size", "crc")  # arrays of every split
AT_ONCE = 2**16  # texts that are gathered
BLOCK = 512  # of a tar file
BESIDE = ".json"  # of the file beside a shard, until all are written

Kind = Literal["labels", "sets", "numbers", "classes", "values", "texts"]
NAMED: Mapping[Kind, type[Values]] = {  # kinds of columns whose values have names
    "labels": Labels,
    "sets": LabelSets,
    "numbers": Quantities,
    "classes": ClassColumns,
}

Count = Annotated[int, Field(strict=True, ge=0, lt=2**62)]


@dataclass(frozen=True)
class Member:
    """A file of the folder.

    Attributes:
        file: Its name, without a folder.
        size: Its bytes.
        sha256: Of them.
    """

    file: str
    size: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class ColumnEntry:
    """What `shards.json` has of a column.

    Attributes:
        name: Of the column.
        kind: Of its values.
        classes: Of labels, by number; the names of several labels, of numbers, or of columns of classes.
        of: The classes of each of these columns.
    """

    name: str
    kind: Kind
    classes: tuple[str, ...] = ()
    of: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class ShardPart:
    """What `shards.json` has of one split.

    Attributes:
        images: How many there are.
        index: The file that says where they are.
        shards: Which hold them.
        columns: Name and kind of each.
        left_out: Of images that could not be read: why, one line each.
    """

    images: Count
    index: Member
    shards: tuple[Member, ...]
    columns: tuple[ColumnEntry, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Words:
    """Many texts in one array.

    Args:
        content: All of them in UTF-8, one behind the other.
        ends: (n,) where each ends.

    Raises:
        ValueError: The ends do not divide the content.
    """

    content: UInt8[np.ndarray, " _"]
    ends: Int64[np.ndarray, " n"]

    def __post_init__(self) -> None:
        """Check that one ends behind the other, and the last with all."""
        if (np.diff(self.ends, prepend=0) < 0).any() or (int(self.ends[-1]) if len(self) else 0) != len(self.content):
            raise ValueError("its texts have the wrong length")

    @staticmethod
    def of(texts: Iterable[str]) -> "Words":
        """These texts."""
        coded = [text.encode("utf-8", "surrogateescape") for text in texts]
        ends = np.cumsum([len(text) for text in coded], dtype=np.int64)
        return Words(np.frombuffer(b"".join(coded), np.uint8), ends)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        """One of them."""
        start = self.ends[index - 1] if index else 0
        return self.content[start : self.ends[index]].tobytes().decode("utf-8", "surrogateescape")

    def select(self, ids: NDArray[np.int64]) -> "Words":
        """Some of them, without the others."""
        lengths = np.diff(self.ends, prepend=0)[ids]
        ends, pieces = np.cumsum(lengths, dtype=np.int64), [self.content[:0]]
        for first in range(0, len(ids), AT_ONCE):  # each byte needs the 16 of two numbers for a moment
            part = slice(first, first + AT_ONCE)
            moved = np.repeat(self.ends[ids[part]] - ends[part], lengths[part])  # how far each lies from where it goes
            start = ends[first - 1] if first else 0
            pieces.append(self.content[np.arange(start, start + len(moved)) + moved])
        return Words(np.concatenate(pieces), ends)


@dataclass(frozen=True, eq=False)
class Rows:
    """Where images lie.

    Args:
        shard: (n,) in which shard of the split.
        offset: (n,) of the first byte within it.
        size: (n,) bytes.
        crc: (n,) CRC-32 of them.
        names: Of the images.
        hash: (n, 16) of the images that were packed (`Images.content_hash`).
    """

    shard: Int64[np.ndarray, " n"]
    offset: Int64[np.ndarray, " n"]
    size: Int64[np.ndarray, " n"]
    crc: Int64[np.ndarray, " n"]
    names: Words
    hash: UInt8[np.ndarray, "n 16"]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.shard)

    def select(self, ids: NDArray[np.int64]) -> "Rows":
        """Some of them, in this order."""
        places = (self.shard[ids], self.offset[ids], self.size[ids], self.crc[ids])
        return Rows(*places, self.names.select(ids), self.hash[ids])


def split_file(rows: Rows, columns: Mapping[str, Column]) -> tuple[bytes, tuple[ColumnEntry, ...]]:
    """The index of a split as a safetensors file, and what `shards.json` has of its columns."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(rows, name) for name in (*PLACE, "hash")}
    arrays |= {"name": rows.names.content, "name.ends": rows.names.ends}
    entries = list[ColumnEntry]()
    for number, (name, column) in enumerate(columns.items()):
        at = f"column.{number}"
        if isinstance(column, Texts):
            entries.append(ColumnEntry(name, "texts"))
            words = Words.of(column.values)
            arrays |= {at: words.content, f"{at}.ends": words.ends}
            continue
        assert isinstance(column, Values)
        kind: Kind = next((kind for kind, own in NAMED.items() if isinstance(column, own)), "values")
        entries.append(ColumnEntry(name, kind, *column.named))
        arrays[at] = column.values
    tensors = {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}
    return tensors_to_bytes(tensors), tuple(entries)


def table_file(about: Mapping[str, Any], splits: Mapping[str, ShardPart]) -> str:
    """The content of `shards.json`."""
    plain = {name: asdict(one) for name, one in splits.items()}
    return to_json({"format": FORMAT, "version": VERSION, **about, "splits": plain})


def read_table(content: bytes, where: str, hint: str | Hint) -> tuple[dict[str, Any], dict[str, ShardPart]]:
    """What `shards.json` has: of the whole, and of each split.

    Args:
        content: The file.
        where: What it is called.
        hint: What to try when it cannot be used.

    Raises:
        DataError: It is damaged or inconsistent.
    """
    with _damage_in(where, hint):
        table = json.loads(content)
        _must(isinstance(table, dict) and table.get("format") == FORMAT, "it is not an index of shards")
        if table.get("version") != VERSION:
            problem = f"{where} has version {table.get('version')!r}, but this vitrail reads version {VERSION}"
            raise DataError(problem, "pip install -U vitrail")
        _must(bool(table.get("splits")), "it has no splits")
        splits = TypeAdapter(dict[str, ShardPart]).validate_python(table["splits"])
        for split, part in splits.items():  # names of files are known beforehand: so none lies elsewhere
            _must(split in (*SPLITS, ALL), f"it has a split {split!r}")
            known = [f"{split}.safetensors", *(f"{split}-{number:06d}.tar" for number in range(len(part.shards)))]
            for one, name in zip((part.index, *part.shards), known, strict=True):
                _must(one.file == name, f"a file is called {one.file!r} in place of {name}")
        return table, splits


def read_split(file: Path, part: ShardPart, where: str, hint: str | Hint) -> tuple[Rows, dict[str, Column]]:
    """Where the images of a split lie, and their columns.

    Args:
        file: The index of the split.
        part: What `shards.json` has of it.
        where: What the file is called.
        hint: What to try when it cannot be used.

    Raises:
        DataError: It is damaged or inconsistent.
    """
    with _damage_in(where, hint):
        arrays = {name: tensor.numpy() for name, tensor in read_tensors(file, hint).items()}
        shard, offset, size, crc = (_whole(arrays, name, part.images) for name in PLACE)
        _must(bool(((shard >= 0) & (shard < len(part.shards))).all()), "it refers to a shard that does not exist")
        room = np.array([each.size for each in part.shards], np.int64)[shard]
        inside = (offset >= 0) & (size >= 0) & (size <= room) & (offset <= room - size)
        _must(bool(inside.all()), "it has an image that lies beyond its shard")
        known = arrays["hash"]
        fits = known.dtype == np.uint8 and known.shape == (part.images, HASH)
        _must(fits, f"it does not have {HASH} bytes of hash per image")
        rows = Rows(shard, offset, size, crc, _words(arrays, "name", part.images), known)
        columns = {one.name: _column(arrays, f"column.{i}", one, part) for i, one in enumerate(part.columns)}
        return rows, columns


@contextmanager
def _damage_in(where: str, hint: str | Hint) -> Iterator[None]:
    """Whatever breaks on what stands in a file is a DataError that names the file."""
    with raised_as(DataError, f"{where} is damaged", hint, (ValueError, TypeError, RecursionError, KeyError)):
        try:
            yield
        except ValidationError as error:
            first = next(iter(error.errors()))
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except UsageError as error:  # of the values of a column
            raise ValueError(error.problem) from error


def _must(holds: bool, words: str) -> None:
    if not holds:
        raise ValueError(words)


def _whole(arrays: Mapping[str, NDArray[Any]], name: str, count: int) -> Int64[np.ndarray, " n"]:
    found = arrays[name]
    fits = found.dtype == np.int64 and found.shape == (count,)
    _must(fits, f"{name} has {found.shape} numbers of {found.dtype} for {count:,} images")
    return found


def _words(arrays: Mapping[str, NDArray[Any]], name: str, count: int) -> Words:
    content = arrays[name]
    _must(content.dtype == np.uint8 and content.ndim == 1, f"{name} contains no text")
    return Words(content, _whole(arrays, f"{name}.ends", count))


def _column(arrays: Mapping[str, NDArray[Any]], at: str, entry: ColumnEntry, part: ShardPart) -> Column:
    if entry.kind == "labels":
        _whole(arrays, at, part.images)
    if entry.kind == "texts":
        words = _words(arrays, at, part.images)
        return Texts(tuple(words[index] for index in range(len(words))))
    _must(arrays[at].shape[:1] == (part.images,), f"the column {entry.name} does not have one value per image")
    named = (entry.classes, entry.of) if entry.of else (entry.classes,)
    return NAMED[entry.kind](arrays[at], *named) if entry.kind in NAMED else Values(arrays[at])


# ---- one shard: put together, written whole, and found again when packing continues


class Row(NamedTuple):
    """Where an image lies within a shard.

    Attributes:
        id: Of the sample.
        offset: Of the first byte.
        size: Bytes.
        crc: CRC-32 of them.
        hash: Of the image that was packed (`Images.content_hash`), as 32 digits.
    """

    id: int
    offset: int
    size: int
    crc: int
    hash: str


class WrittenShard(NamedTuple):
    """A shard that is whole; what stands beside it until all are.

    Attributes:
        member: The file.
        rows: Of each image.
        left_out: Of images between them that could not be read: why, one line each.
        end: The sample behind its last one.
    """

    member: Member
    rows: list[Row]
    left_out: list[str]
    end: int


@dataclass
class Shard:
    """A tar file that is put together."""

    pieces: list[bytes] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    taken: int = 2 * BLOCK  # with its end

    def add(self, id: int, files: Iterable[tuple[str, bytes]], content_hash: bytes) -> None:
        """One more sample, the image first."""
        for number, (suffix, content) in enumerate(files):
            header = tarfile.TarInfo(f"{id:09d}.{suffix}")
            header.size = len(content)
            if number == 0:
                place = self.taken - BLOCK  # behind its header, before the end
                self.rows.append(Row(id, place, len(content), zlib.crc32(content), content_hash.hex()))
            self._put(header.tobuf(tarfile.USTAR_FORMAT))
            self._put(content + bytes(-len(content) % BLOCK))

    def _put(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.taken += len(piece)

    def write(self, path: Path, end: int) -> WrittenShard:
        """Write it whole, or not at all; and before that, what is in it, so that packing can continue behind it."""
        pieces, digest = (*self.pieces, bytes(2 * BLOCK)), hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        found = WrittenShard(Member(path.name, self.taken, digest.hexdigest()), self.rows, self.left_out, end)
        write_file(path.with_suffix(BESIDE), to_json([asdict(found.member), *found[1:]], indent=None))
        with writing(path, self.taken) as handle:
            handle.writelines(pieces)
        return found


def taken_by(files: Iterable[tuple[str, bytes]]) -> int:
    """Bytes that a sample takes in a tar file."""
    return sum(BLOCK + len(content) + -len(content) % BLOCK for _, content in files)


def written_shard(path: Path) -> WrittenShard | None:
    """A shard that was written before; None where there is none, or no whole one."""
    try:
        member, rows, left_out, end = json.loads(path.with_suffix(BESIDE).read_text(encoding="utf-8"))
        whole = path.stat().st_size == member["size"]
    except (OSError, ValueError):
        return None
    return WrittenShard(Member(**member), [Row(*row) for row in rows], left_out, end) if whole else None


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
