"""Labelled pictures from a list: a CSV file with a header, or a file with one JSON object a line.

Columns are `path`, `label` and, if the data is split, `split`; others are ignored. A CSV header may name them in
capitals. Paths are relative to the list.
"""

import csv
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.parts import ALL, SPLIT_NAMES, TEST, TRAIN, VALIDATION, Found, Part
from vitrail.data.pictures import FilePictures
from vitrail.errors import DataError, counted

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Row:
    """One line of a manifest: a file, what it shows, and the part it belongs to."""

    path: Path
    label: str
    part: str


def read_manifest(what: str, data_root: Path | None = None) -> Found:
    """Read a `.csv` or `.jsonl` manifest.

    Args:
        what: The path of the manifest; relative paths in it start from its folder.
        data_root: Not looked at: the path says where.

    Returns:
        The parts that the column `split` names (train, val, valid, validation, test), or one part `all` without it.

    Raises:
        DataError: A column is missing, a value is empty or not understood, or a file is missing.
    """
    path = Path(what).expanduser()
    rows = read_rows(path)
    parts = {}
    for name in (TRAIN, VALIDATION, TEST, ALL):
        chosen = [row for row in rows if row.part == name]
        if chosen:
            classes = tuple(sorted({row.label for row in chosen}))
            number_of = {label: number for number, label in enumerate(classes)}
            labels = np.array([number_of[row.label] for row in chosen], dtype=np.int64)
            pictures = FilePictures([row.path for row in chosen], path.parent)
            parts[name] = Part(pictures, classes, labels)
    return Found(str(path.resolve()), parts, _notes(rows))


def read_rows(path: Path, column: str = "label") -> list[Row]:
    """The lines of a `.csv` or `.jsonl` manifest, whatever its pictures bear: a class, or a text to be read.

    Args:
        path: The manifest; relative paths in it start from its folder.
        column: What stands beside `path` and, if the data is split, `split`; it becomes `Row.label`.

    Raises:
        DataError: A column is missing, a value is empty or not understood, or a file is missing.
    """
    text = read_text(path)
    lines = _csv_lines(text, path, column) if path.suffix.lower() == ".csv" else _json_lines(text, path, column)
    rows = [_row(values, f"{path}, line {number}", path.parent, column) for number, values in lines]
    if not rows:
        raise DataError(f"{path} lists no pictures", f"one line per picture: path,{column}")
    if len({row.part == ALL for row in rows}) > 1:
        raise DataError(f"{path} has a split in some lines only", "give every line a split, or none")
    _check_files(rows, path)
    return rows


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text ({error})", "save it as UTF-8") from error


def part_named(split: str, where: str) -> str:
    """The part that people call so.

    Raises:
        DataError: Nobody does.
    """
    if split.lower() not in SPLIT_NAMES:
        raise DataError(f"{where}: the split is {split}", f"one of {', '.join(SPLIT_NAMES)}")
    return SPLIT_NAMES[split.lower()]


def _csv_lines(text: str, path: Path, column: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True, skipinitialspace=True)
    try:
        columns = _known([name.strip() for name in reader.fieldnames or []], ("path", column, "split"))
        _check_columns(columns, str(path), column)
        reader.fieldnames = columns
        for values in reader:
            yield reader.line_num, values
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV ({error})", "check the quotes there") from error


def _known(columns: list[str], names: tuple[str, ...]) -> list[str]:
    """The columns of a header; a name of ours in capitals counts as ours, unless it could be more than one column."""
    small = [name.lower() for name in columns]
    return [low if low in names and small.count(low) == 1 else name for name, low in zip(columns, small, strict=True)]


def _json_lines(text: str, path: Path, column: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error.msg})", "one JSON object a line") from error
        if not isinstance(values, dict):
            raise DataError(f"{path}, line {number}: not a JSON object", f'one {{"path": .., "{column}": ..}} a line')
        _check_columns(list(values), f"{path}, line {number}", column)
        yield number, values


def _check_columns(columns: list[str], where: str, column: str) -> None:
    missing = [name for name in ("path", column) if name not in columns]
    if missing:
        raise DataError(
            f"{where}: no column {' and '.join(missing)}; the columns are {', '.join(columns) or 'none'}",
            f"name the columns path,{column} or path,{column},split",
        )


def _row(values: Mapping[str, object], where: str, folder: Path, column: str) -> Row:
    written = _text(values["path"], "path", where)
    part = ALL
    if "split" in values:
        part = part_named(_text(values["split"], "split", where), where)
    label = unicodedata.normalize("NFC", _text(values[column], column, where))
    return Row(folder / Path(written).expanduser(), label, part)


def _text(value: object, column: str, where: str) -> str:
    """A value as text without blanks around it; a whole number is a label, too."""
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise DataError(f"{where}: the {column} is {value!r}", f"write the {column} as text")
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{where}: the {column} is empty", f"give it a {column} or remove the line")
    return text


def _check_files(rows: list[Row], path: Path) -> None:
    missing = [row.path for row in rows if not row.path.is_file()]
    if missing:
        named = ", ".join(os.path.relpath(each, path.parent) for each in missing[:_NAMED_AT_MOST])
        more = f" and {len(missing) - _NAMED_AT_MOST} more" if len(missing) > _NAMED_AT_MOST else ""
        raise DataError(
            f"{path}: {len(missing)} of {len(rows)} files are missing: {named}{more}",
            "write paths relative to the folder of the manifest",
        )


def _notes(rows: list[Row]) -> tuple[str, ...]:
    """What is odd: files listed more than once, and files in more than one split."""
    listed = Counter(row.path for row in rows)
    places: dict[Path, set[str]] = {}
    for row in rows:
        places.setdefault(row.path, set()).add(row.part)
    repeated = sum(count > 1 for count in listed.values())
    shared = sum(len(parts) > 1 for parts in places.values())
    notes = [f"Listed more than once: {counted(repeated, 'file')}."] if repeated else []
    return (*notes, f"In more than one split: {counted(shared, 'file')}.") if shared else tuple(notes)
