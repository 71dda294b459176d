"""Pairs of texts from a file: what is read, and what is to be written.

source<TAB>target[<TAB>split]        one pair a line; a first line of just these names, also in capitals, is a header
"""

import unicodedata
from pathlib import Path

from vitrail.data.columns import TEXT, Texts
from vitrail.data.dataset import ALL, RawDataset, Samples
from vitrail.data.readers.manifest import in_splits, read_text, shared_note, split_named
from vitrail.errors import DataError, counted

_COLUMNS = ("source", "target", "split")


def read_pairs(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a `.tsv` of pairs.

    Args:
        what: The path of the file.
        data_root: Not used: the path is enough.

    Returns:
        The splits that the lines name, or one split `all`; sources are inputs, targets the column `text`.

    Raises:
        DataError: The file is damaged, or a line is.
    """
    path = Path(what).expanduser()
    pairs, split_of = [], []
    lines = enumerate(read_text(path).split("\n"), start=1)
    filled = [(number, line.rstrip("\r")) for number, line in lines if line.strip() or "\t" in line]
    first = tuple(cell.strip().lower() for cell in filled[0][1].split("\t")) if filled else ()
    header = first in (_COLUMNS[:2], _COLUMNS)
    for number, line in filled[header:]:
        cells = [unicodedata.normalize("NFC", cell.strip()) for cell in line.split("\t")]
        where = f"{path}, line {number}"
        if len(cells) not in (2, 3):
            raise DataError(
                f"{where} has {counted(len(cells), 'column')}", "source<TAB>target or source<TAB>target<TAB>split"
            )
        for name, cell in zip(_COLUMNS, cells, strict=False):
            if not cell:
                raise DataError(f"{where}: the {name} is empty", f"give it a {name} or remove the line")
        pairs.append(cells[:2])
        split_of.append(split_named(cells[2], where) if len(cells) == 3 else ALL)
    if not pairs:
        raise DataError(f"{path} holds no pairs", "one pair a line: source<TAB>target")
    splits = {}
    for name, numbers in in_splits(split_of, path).items():
        sources, targets = (Texts(tuple(pairs[number][side] for number in numbers)) for side in (0, 1))
        splits[name] = Samples(sources, {TEXT: targets})
    notes = shared_note([source for source, _ in pairs], split_of, "source")
    return RawDataset(str(path.resolve()), splits, notes)
