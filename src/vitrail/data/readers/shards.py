"""Images that `vitrail data pack` wrote into shards: the splits, names and columns of the data that they came from.

Each image is read by its place: so any order, any number of workers and any number of shards will do. Shards lie in a
folder, or behind an http(s) address: then whole ones are stored in a cache of bounded size, or, where a set is larger
than that, each image is fetched alone.

    ~/.cache/vitrail/shards/<SHA-256>                       a file that is whole and has that hash
    ~/.cache/vitrail/shards/<SHA-256>.<bytes>.writing       one that is on its way; the rest of it is requested again

A file is identified by its hash alone: so a set that changes, or is in two places, is never taken for another. Of many
processes that need a shard one fetches it and the others wait. What was used longest ago is removed for room.
"""

import contextlib
import errno
import hashlib
import http.client
import math
import netrc
import os
import shlex
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.columns import RawDataset, Samples
from vitrail.data.images import LOOKED_INTO, Images, evenly, files_digest, opened_apart
from vitrail.data.shard_files import Member, Rows, bytes_at, read_split, read_table
from vitrail.data.sources import PACKING, SHARDS, is_address
from vitrail.errors import DataError, Hint, RunError, UsageError, counted, look_at
from vitrail.io import WRITING, read_json, user_cache, written

LIMIT, GIGABYTES = "VITRAIL_SHARD_CACHE", 20.0  # the variable with the most gigabytes of the cache
ATTEMPTS, PAUSE = 5, 0.5  # without a new byte; seconds behind the first, doubled each time
TIMEOUT = 30.0  # seconds without an answer
CHUNK = 2**18
MOST_TABLE = 2**28  # bytes of `shards.json` that are read
FOR_A_WHILE = (408, 425, 429)  # and all from 500 on: what may be otherwise in a moment
USED = 60.0  # seconds within which a use need not be noted again


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
        table = b"".join(islice(fetch_bytes(f"{root}/{SHARDS}", 0, None), MOST_TABLE // CHUNK))
        about, parts = read_table(table, f"{root}/{SHARDS}", hint)
        total = sum(shard.size for part in parts.values() for shard in part.shards)
        store = replace(remote, whole=total <= remote.limit)
    else:
        folder = Path(what).expanduser().resolve()
        root, store, hint = str(folder), FolderStore(folder), look_at(folder, "-l")
        about, parts = read_table(_table(folder, hint), str(folder / SHARDS), hint)
        for shard in (shard for part in parts.values() for shard in part.shards):
            store.check(shard)
    splits, notes = dict[str, Samples](), list(map(str, about.get("notes", ())))
    for split, part in parts.items():
        rows, columns = read_split(store.file(part.index), part, f"{root}/{part.index.file}", hint)
        splits[split] = Samples(ShardImages(store, part.shards, rows), columns)
        if part.left_out:
            many = counted(len(part.left_out), "image")
            notes.append(f"{split}: {many} left out when it was packed, such as {part.left_out[0]}.")
    published = about.get("published")
    classes = None if published is None else tuple(map(str, published))
    return RawDataset(root, splits, tuple(notes), classes, about.get("split_seed"), about.get("facts", {}))


def _table(folder: Path, hint: str | Hint) -> bytes:
    """The file that says what lies in a folder; there when all of it is there."""
    try:
        return (folder / SHARDS).read_bytes()
    except FileNotFoundError as error:
        again = str(read_json(folder / PACKING, hint).get("again", hint))
        raise DataError(f"packing of {folder} was not finished", again) from error
    except OSError as error:
        raise DataError(f"{folder / SHARDS} cannot be read ({error.strerror})", hint) from error


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
            raise RunError(problem, look_at(path, "-l")) from error

    def file(self, member: Member) -> Path:
        """One of the other files."""
        return self.root / member.file

    def check(self, shard: Member) -> None:
        """Check the size of a shard.

        Raises:
            DataError: It is missing, cut short or longer.
        """
        path, hint = self.root / shard.file, look_at(self.root, "-l")
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

    def __init__(self, store: "FolderStore | RemoteStore", shards: tuple[Member, ...], rows: Rows) -> None:
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
        return opened_apart(self.name(index), self.content(index))

    def content_hash(self, index: int, content: bytes | None = None) -> bytes:
        """That of the image that was packed, which the index has."""
        return self.rows.hash[index].tobytes()

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


# ---- behind an address


def checked_address(what: str) -> str:
    """The address of a folder, without a slash at its end.

    Raises:
        UsageError: It carries a password or a query, which would be written into runs.
    """
    parts = urllib.parse.urlsplit(what)
    plain = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    if "@" in parts.netloc or parts.query or parts.fragment:
        problem = f"addresses are stored in runs, and that of {parts.hostname} contains a password or a query"
        raise UsageError(problem, f"{plain}  # with a line for {parts.hostname} in ~/.netrc")
    return plain


def cache_limit(environment: Mapping[str, str] = os.environ) -> int:
    """How many bytes the cache may have.

    Raises:
        UsageError: The variable holds no number.
    """
    value = environment.get(LIMIT, str(GIGABYTES))
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not (math.isfinite(limit) and limit >= 0):
        problem = f"{LIMIT} must be a number of gigabytes, at least 0, got '{value}'"
        raise UsageError(problem, f"export {LIMIT}={GIGABYTES:g}")
    return int(limit * 1e9)


def fetch_bytes(address: str, first: int, last: int | None, *, ranged: bool = False) -> Iterator[bytes]:
    """The bytes of an address, in pieces; what is cut, slow or fails for a moment is requested again.

    Args:
        address: Of a file.
        first: The first byte.
        last: Behind the last one; None for all that there is.
        ranged: Whether a server that cannot begin in the middle is refused; else what it sends too much is passed over.

    Raises:
        DataError: The server refuses.
        RunError: It does not answer, several times in a row.
    """
    have, failures, why = first, 0, ""
    while last is None or have < last:
        before = have
        try:
            with urllib.request.urlopen(_request(address, have, last), timeout=TIMEOUT) as answer:
                at = have if answer.status == 206 else 0
                if ranged and answer.status != 206:
                    problem = f"{address}: the server sends only whole files, and the data are larger than the cache"
                    hint = f"export {LIMIT}=1000  # gigabytes, if {user_cache()} has that much free space"
                    raise RunError(problem, hint)
                if last is None and (length := answer.headers.get("Content-Length")) is not None:
                    last = at + int(length)
                while chunk := answer.read(CHUNK):
                    new = chunk[max(0, have - at) :][: None if last is None else last - have]
                    at += len(chunk)
                    have += len(new)
                    yield new
                    if have == last:
                        return
                if last is None:
                    return
            why = f"the connection ended after {have:,} of {last:,} bytes"
        except urllib.error.HTTPError as error:
            error.close()
            why = f"the server answers {error.code} ({error.reason})"
            if error.code < 500 and error.code not in FOR_A_WHILE:
                raise DataError(f"{address}: {why}", shlex.join(["curl", "-I", address])) from None
        except (OSError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", error)) or type(error).__name__
        failures = failures + 1 if have == before else 1
        if failures == ATTEMPTS:
            problem = f"{address}: {why}, {ATTEMPTS} times in a row"
            raise RunError(problem, f"{shlex.join(['curl', '-I', address])}  # then the same command again")
        time.sleep(PAUSE * 2 ** (failures - 1))


def _request(address: str, first: int, last: int | None) -> urllib.request.Request:
    request = urllib.request.Request(address, headers={"User-Agent": "vitrail"})
    if first or last is not None:
        request.add_header("Range", f"bytes={first}-{'' if last is None else last - 1}")
    host = urllib.parse.urlsplit(address).hostname or ""
    try:
        known = netrc.netrc().authenticators(host) if request.type == "https" else None
    except (OSError, netrc.NetrcParseError):
        known = None
    if known is not None:
        credentials = b64encode(f"{known[0]}:{known[2]}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {credentials}")
    return request


@final
@dataclass(frozen=True)
class RemoteStore:
    """Shards behind an address.

    Args:
        address: Of the folder, without a slash at its end.
        cache: The folder of files that were fetched.
        limit: The most bytes there.
        whole: Whether whole shards are stored there; else each image is fetched alone.
    """

    address: str
    cache: Path
    limit: int
    whole: bool = False

    def read(self, shard: Member, offset: int, size: int) -> bytes:
        """From the cache, or from the server."""
        try:
            if not self.whole:
                return b"".join(fetch_bytes(f"{self.address}/{shard.file}", offset, offset + size, ranged=True))
            while True:
                try:
                    return bytes_at(self.file(shard), offset, size)
                except FileNotFoundError:  # another process needed the room
                    continue
        except DataError as error:  # that of one image, and this one is that of all
            raise RunError(error.problem, error.hint) from error
        except OSError as error:
            raise RunError(f"{error.filename}: {error.strerror}", f"export {LIMIT}=0  # keeps no shards") from error

    def file(self, member: Member) -> Path:
        """A file in the cache, which is fetched where it is not there.

        Raises:
            DataError: The server refuses, or the file is not the one of the index.
            RunError: It cannot be had.
            OSError: It cannot be written.
        """
        path = self.cache / member.sha256
        if not path.is_file():
            with FileLock(self.cache / f"{member.sha256[:2]}.lock"):
                if not path.is_file():
                    self._fetch(member, path)
        if time.time() - path.stat().st_mtime > USED:
            os.utime(path)
        return path

    def _fetch(self, member: Member, path: Path) -> None:
        """Fetch a file, or the rest of it, and hold it against its hash; a second time where it is another one."""
        beside, address = path.with_name(f"{path.name}.{member.size}{WRITING}"), f"{self.address}/{member.file}"
        self._make_room(beside, member.size)
        for _ in range(2):
            try:
                with written(beside, member.size), open(beside, "a+b") as handle:
                    handle.seek(0)
                    digest = hashlib.file_digest(handle, "sha256")
                    for piece in fetch_bytes(address, handle.tell(), member.size):
                        handle.write(piece)
                        digest.update(piece)
                    handle.flush()
                    os.fsync(handle.fileno())
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    beside.unlink(missing_ok=True)
                raise
            if digest.hexdigest() == member.sha256:
                os.replace(beside, path)
                return
            beside.unlink()
        problem = f"{address} does not have the SHA-256 in its index"
        raise DataError(problem, f"{shlex.join(['curl', '-I', address])}  # the index belongs to other shards")

    def _make_room(self, beside: Path, size: int) -> None:
        """Remove what was used longest ago until so many bytes fit in, and take their place."""
        with FileLock(self.cache / "room.lock"):
            files, taken = list[tuple[float, int, Path]](), 0
            for one in self.cache.iterdir():
                with contextlib.suppress(FileNotFoundError):  # it has just got its name
                    if one.suffix != ".lock" and one != beside:
                        status = one.stat()
                        needs = int(one.suffixes[0][1:]) if one.suffix == WRITING else status.st_size
                        files.append((status.st_mtime, needs, one))
                        taken += needs
            for _, needs, one in sorted(files):
                if taken + size <= self.limit:
                    break
                one.unlink(missing_ok=True)
                taken -= needs
            beside.touch()
