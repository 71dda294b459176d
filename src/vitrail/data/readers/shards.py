"""Images that `vitrail data pack` wrote into shards: the splits, names and columns of the data that they came from."""

import shlex
from dataclasses import replace
from pathlib import Path

from vitrail.data.dataset import RawDataset, Samples
from vitrail.data.formats import PACKING, SHARDS, is_address
from vitrail.data.shards.images import FolderStore, ShardImages
from vitrail.data.shards.index import read_split, read_table
from vitrail.data.shards.remote import RemoteStore, cache_limit, checked_address
from vitrail.errors import DataError, counted
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
        DataError: It is not finished, a file is missing, damaged or of another size, or the index lies.
        RunError: A server answers in no way.
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
