"""One shard: a tar file that is put together, written whole, and found again by who goes on behind it."""

import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitrail.data.shards.index import Member
from vitrail.io import writing

BLOCK = 512  # of a tar file


class Row(NamedTuple):
    """Where an image lies within a shard."""

    id: int
    offset: int
    size: int
    crc: int


@dataclass
class Shard:
    """A tar file that is put together."""

    pieces: list[bytes] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    taken: int = 2 * BLOCK  # with its end

    def add(self, id: int, files: Iterable[tuple[str, bytes]]) -> None:
        """One more sample, the image first."""
        for number, (suffix, content) in enumerate(files):
            header = tarfile.TarInfo(f"{id:09d}.{suffix}")
            header.size = len(content)
            if number == 0:
                self.rows.append(Row(id, self.taken - BLOCK, len(content), zlib.crc32(content)))
            self._put(header.tobuf(tarfile.USTAR_FORMAT))
            self._put(content + bytes(-len(content) % BLOCK))

    def _put(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.taken += len(piece)

    def write(self, path: Path) -> Member:
        """Write it whole, or not at all."""
        digest = hashlib.sha256()
        with writing(path, self.taken) as handle:
            for piece in (*self.pieces, bytes(2 * BLOCK)):
                handle.write(piece)
                digest.update(piece)
        return Member(path.name, self.taken, digest.hexdigest())


def taken_by(files: Iterable[tuple[str, bytes]]) -> int:
    """Bytes that a sample takes in a tar file."""
    return sum(BLOCK + len(content) + -len(content) % BLOCK for _, content in files)


def whole_shard(path: Path, count: int) -> tuple[Member, list[Row]] | None:
    """A shard that was written before, and what is in it; None where there is none, or no whole one."""
    rows, end = list[Row](), 0
    try:
        with open(path, "rb") as handle:
            with tarfile.open(fileobj=handle, mode="r:") as tar:
                for one in tar:
                    end = one.offset_data + one.size + -one.size % BLOCK + 2 * BLOCK
                    key, _, suffix = one.name.partition(".")
                    if suffix in ("cls", "json"):
                        continue
                    if re.fullmatch(r"\d{9}", key) is None or not (rows[-1].id if rows else -1) < int(key) < count:
                        return None
                    handle.seek(one.offset_data)
                    content = handle.read(one.size)
                    rows.append(Row(int(key), one.offset_data, one.size, zlib.crc32(content)))
            handle.seek(0)
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
            return (Member(path.name, end, digest), rows) if rows and handle.tell() == end else None
    except (OSError, tarfile.TarError, ValueError):
        return None
