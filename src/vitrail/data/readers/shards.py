"""Images that `vitrail data pack` wrote into shards: the splits, names and columns of the data that they came from."""

import shlex
from pathlib import Path

from vitrail.data.dataset import RawDataset, Samples
from vitrail.data.readers.table import PACKING, SHARDS
from vitrail.data.shards.images import FolderStore, ShardImages
from vitrail.data.shards.index import Part, read_split, read_table
from vitrail.errors import DataError, counted
from vitrail.io import read_json


def read_shards(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a folder of shards.

    Args:
        what: Its path.
        data_root: Not looked at: the path says where.

    Returns:
        The splits of the data that was packed.

    Raises:
        DataError: It is not finished, a file is missing, damaged or of another size, or the index lies.
    """
    root = Path(what).expanduser().resolve()
    table, hint = root / SHARDS, shlex.join(["ls", "-l", str(root)])
    try:
        content = table.read_bytes()
    except FileNotFoundError as error:
        again = str(read_json(root / PACKING, hint).get("again", hint))
        raise DataError(f"{root} is not packed to its end", again) from error
    except OSError as error:
        raise DataError(f"{table} cannot be read ({error.strerror})", hint) from error
    about, parts = read_table(content, str(table), hint)
    store, splits = FolderStore(root), dict[str, Samples]()
    for split, part in parts.items():
        for shard in part.shards:
            store.check(shard)
        file = root / part.index.file
        rows, columns = read_split(file, part, str(file), hint)
        splits[split] = Samples(ShardImages(store, part.shards, rows), columns)
    published, notes = about.get("published"), tuple(map(str, about.get("notes", ())))
    return RawDataset(
        str(root),
        splits,
        (*notes, *(_left_out(split, part) for split, part in parts.items() if part.left_out)),
        None if published is None else tuple(map(str, published)),
        about.get("split_seed"),
        about.get("most_held_out"),
        about.get("facts", {}),
    )


def _left_out(split: str, part: Part) -> str:
    return f"{split}: {counted(len(part.left_out), 'image')} left out when it was packed, such as {part.left_out[0]}."
