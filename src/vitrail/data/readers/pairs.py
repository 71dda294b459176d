"""Pairs of texts from a file: what is read, and what is to be written.

source<TAB>target[<TAB>split]        one pair a line; a first line of just these names is a header
"""

import unicodedata
from pathlib import Path

from vitrail.data.columns import TEXT, Texts
from vitrail.data.dataset import ALL, RawDataset, Samples
from vitrail.data.readers.manifest import part_named, read_text
from vitrail.errors import DataError, counted

_COLUMNS = ("source", "target", "split")


def read_pairs(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a `.tsv` of pairs.

    Args:
        what: The path of the file.
        data_root: Not looked at: the path says where.

    Returns:
        The splits that the lines name, or one split `all`; sources are inputs, targets the column `text`.

    Raises:
        DataError: The file is damaged, or a line is.
    """
    path = Path(what).expanduser()
    rows: list[tuple[str, str, str]] = []
    lines = enumerate(read_text(path).split("\n"), start=1)
    filled = [(number, line.rstrip("\r")) for number, line in lines if line.strip() or "\t" in line]
    header = bool(filled) and _is_header(filled[0][1])
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
        rows.append((cells[0], cells[1], part_named(cells[2], where) if len(cells) == 3 else ALL))
    if not rows:
        raise DataError(f"{path} holds no pairs", "one pair a line: source<TAB>target")
    if len({part == ALL for _, _, part in rows}) > 1:
        raise DataError(f"{path} has a split in some lines only", "give every line a split, or none")
    splits: dict[str, Samples] = {}
    for part in dict.fromkeys(part for _, _, part in rows):
        some = [row for row in rows if row[2] == part]
        sources, targets = Texts(tuple(row[0] for row in some)), Texts(tuple(row[1] for row in some))
        splits[part] = Samples(sources, {TEXT: targets})
    sources = [set(part.inputs.values) for part in splits.values() if isinstance(part.inputs, Texts)]
    shared = sum(len(sources[a] & sources[b]) for a in range(len(sources)) for b in range(a))
    notes = (f"In more than one split: {counted(shared, 'source')}.",) if shared else ()
    return RawDataset(str(path.resolve()), splits, notes)


def _is_header(line: str) -> bool:
    """Whether a line names the columns, in small letters or capitals, and nothing else."""
    return tuple(cell.strip().lower() for cell in line.split("\t")) in (_COLUMNS[:2], _COLUMNS)
