"""Images from a list: a CSV file with a header, or a file with one JSON object a line.

Columns are `path`, if the data is split `split`, and what is known of each image: `label` (a class), `text` (what
stands on it), or any other. Which of them is learnt is the task's choice; a column is checked when it is read. A
CSV header may name ours in capitals. Paths are relative to the list.
"""

import csv
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.columns import LABEL, TEXT, Column, Labels, Lazy, Texts
from vitrail.data.dataset import ALL, SPLIT_NAMES, TEST, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.images import FileImages
from vitrail.errors import DataError, counted, some_of

PATH, SPLIT = "path", "split"
_OURS = (PATH, SPLIT, LABEL, TEXT)


@dataclass(frozen=True)
class Row:
    """One line of a manifest: a file, the split it belongs to, all that stands there, and where that is."""

    path: Path
    split: str
    cells: Mapping[str, object]
    where: str


def read_manifest(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a `.csv` or `.jsonl` manifest.

    Args:
        what: The path of the manifest; relative paths in it start from its folder.
        data_root: Not used: the path is enough.

    Returns:
        The splits that the column `split` names (train, val, valid, validation, test), or one split `all` without it.

    Raises:
        DataError: The column `path` is missing, a value is empty or not understood, or a file is missing.
    """
    path = Path(what).expanduser()
    text = read_text(path)
    lines = _csv_lines(text, path) if path.suffix.lower() == ".csv" else _json_lines(text, path)
    rows = []
    for number, cells in lines:
        where = f"{path}, line {number}"
        written = _text(cells[PATH], PATH, where)
        split = split_named(_text(cells[SPLIT], SPLIT, where), where) if SPLIT in cells else ALL
        rows.append(Row(path.parent / Path(written).expanduser(), split, cells, where))
    if not rows:
        raise DataError(f"{path} lists no images", "one line per image: path,label")
    split_of = [row.split for row in rows]
    by_split = in_splits(split_of, path)
    if missing := [row.path for row in rows if not row.path.is_file()]:
        named = some_of([os.path.relpath(each, path.parent) for each in missing], 5)
        problem = f"{path}: {len(missing)} of {len(rows)} files are missing: {named}"
        raise DataError(problem, "write paths relative to the folder of the manifest")
    splits = {}
    for name, numbers in by_split.items():
        chosen = [rows[number] for number in numbers]
        splits[name] = Samples(FileImages([row.path for row in chosen], path.parent), _columns(chosen))
    files = [row.path for row in rows]
    repeated = sum(count > 1 for count in Counter(files).values())
    notes = (f"Listed more than once: {counted(repeated, 'file')}.",) if repeated else ()
    return RawDataset(str(path.resolve()), splits, (*notes, *shared_note(files, split_of, "file")))


def _columns(rows: Sequence[Row]) -> Lazy:
    """The columns of some lines, each made and checked when it is read."""

    def make(name: str) -> Column:
        cells = [_text(row.cells.get(name), name, row.where) for row in rows]
        values = [unicodedata.normalize("NFC", cell) for cell in cells]
        return Labels.of(values) if name == LABEL else Texts(tuple(values))

    names = dict.fromkeys(name for row in rows for name in row.cells if name not in (PATH, SPLIT))
    return Lazy(names, make)


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text ({error})", "save it as UTF-8") from error


def split_named(split: str, where: str) -> str:
    """The split that people call so.

    Raises:
        DataError: Nobody does.
    """
    if split.lower() not in SPLIT_NAMES:
        raise DataError(f"{where}: the split is {split}", f"one of {', '.join(SPLIT_NAMES)}")
    return SPLIT_NAMES[split.lower()]


def in_splits(split_of: Sequence[str], path: Path) -> dict[str, list[int]]:
    """The numbers of the lines of each split; all lines, in one split `all`, where none is named.

    Raises:
        DataError: Only some lines name a split.
    """
    if len({split == ALL for split in split_of}) > 1:
        raise DataError(f"{path} has a split in some lines only", "give every line a split, or none")
    order = [name for name in (TRAIN, VALIDATION, TEST, ALL) if name in split_of]
    return {name: [number for number, split in enumerate(split_of) if split == name] for name in order}


def shared_note(things: Sequence[Hashable], split_of: Sequence[str], what: str) -> tuple[str, ...]:
    """A sentence where some things stand in lines of more than one split."""
    splits_of = Counter(thing for thing, _ in set(zip(things, split_of, strict=True)))
    shared = sum(count > 1 for count in splits_of.values())
    return (f"In more than one split: {counted(shared, what)}.",) if shared else ()


def _csv_lines(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True, skipinitialspace=True)
    try:
        columns = _known([name.strip() for name in reader.fieldnames or []])
        _check_path(columns, str(path))
        reader.fieldnames = columns
        for cells in reader:
            yield reader.line_num, {name: cell for name, cell in cells.items() if name is not None}
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV ({error})", "check the quotes there") from error


def _known(columns: list[str]) -> list[str]:
    """The columns of a header; a name of ours in capitals counts as ours, unless it could be more than one column."""
    small = [name.lower() for name in columns]
    return [low if low in _OURS and small.count(low) == 1 else name for name, low in zip(columns, small, strict=True)]


def _json_lines(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error.msg})", "one JSON object a line") from error
        if not isinstance(cells, dict):
            raise DataError(f"{path}, line {number}: not a JSON object", 'one {"path": .., "label": ..} a line')
        _check_path(list(cells), f"{path}, line {number}")
        yield number, cells


def _check_path(columns: list[str], where: str) -> None:
    if PATH not in columns:
        problem = f"{where}: no column {PATH}; the columns are {', '.join(columns) or 'none'}"
        raise DataError(problem, "name the columns path,label or path,label,split")


def _text(value: object, column: str, where: str) -> str:
    """A value as text without blanks around it; a number is a value, too, and a whole one a label."""
    numbers = (int,) if column in _OURS else (int, float)
    if isinstance(value, bool) or not (value is None or isinstance(value, (str, *numbers))):
        raise DataError(f"{where}: the {column} is {value!r}", f"write the {column} as text")
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{where}: the {column} is empty", f"give it a {column} or remove the line")
    return text
