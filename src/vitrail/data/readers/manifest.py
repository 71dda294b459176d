"""Samples from a list: a table with a header, a file with one JSON object a line, or pairs of texts.

Columns of images are `path` (or, without one, `file`, `image`, `filename` or `file_name`), if the data is split
`split`, and what is known of each image: `label` (a class), `text` (what stands on it), `group` (what it belongs to: a
scene, a patient), or any other; there may be none. Which of them is learnt is the task's choice; a column is checked
when it is read. A table has commas in a `.csv` file and tabs in a `.tsv` file; its header may name ours in capitals.
Paths are relative to the list.

Pairs of texts, what is read and what is to be written, stand one a line in a `.tsv` file without a column `path`; a
first line of just these names, also in capitals, is a header:

    source<TAB>target[<TAB>split]
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.columns import (
    ALL,
    GROUP,
    LABEL,
    SPLITS,
    TEXT,
    Column,
    Labels,
    Lazy,
    RawDataset,
    Samples,
    Texts,
    split_of,
)
from vitrail.data.images import FileImages
from vitrail.errors import DataError, counted, raised_as, some_of
from vitrail.text import canonical

PATH, SOURCE, SPLIT = "path", "source", "split"
_PATHS = PATH, "file", "image", "filename", "file_name"  # the first of them that is there
_OURS = (*_PATHS, SPLIT, LABEL, TEXT, GROUP)
_BETWEEN = "commas between the columns of a .csv file in every line, tabs in those of a .tsv file"
_OF_PAIRS = (SOURCE, "target", SPLIT)

Line = tuple[str, Mapping[str, object]]  # where it stands, for messages, and its cells by column


def read_manifest(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a list of images, `.csv`, `.tsv` or `.jsonl`, or a `.tsv` of pairs of texts.

    Args:
        what: The path of the list; relative paths in it start from its folder.
        data_root: Not used: the path is enough.

    Returns:
        The splits that the column `split` names (train, val, valid, validation, test), or one split `all` without it.
        Of pairs, sources are inputs, and targets are the column `text`.

    Raises:
        DataError: The column `path` is missing, a value is empty or not understood, or a file is missing.
    """
    path = Path(what).expanduser()
    suffix, notes, splits = path.suffix.lower(), list[str](), dict[str, Samples]()
    problem = f"{path} cannot be read as UTF-8 text"
    with raised_as(DataError, problem, "save it as UTF-8", (OSError, UnicodeDecodeError)):
        text = path.read_text(encoding="utf-8-sig")
    header = {name.strip().lower() for name in re.split(r"[\t,;]", text.partition("\n")[0])}
    named = PATH in header or (header & {*_PATHS} and header & {SPLIT, LABEL, TEXT, GROUP})
    pairs = suffix == ".tsv" and not named
    column = SOURCE if pairs else PATH
    lines = list((_pair_lines if pairs else _json_lines if suffix == ".jsonl" else _table_lines)(text, path))
    if not lines and pairs:
        raise DataError(f"{path} contains no pairs", "one pair per line: source<TAB>target")
    if not lines:
        raise DataError(f"{path} lists no images", "one line per image: path,label")
    values = [_text(cells[column], column, where) for where, cells in lines]
    split_of = [_split_of(line) for line in lines]
    if ALL in split_of and set(split_of) != {ALL}:
        raise DataError(f"{path} has a split in only some of its lines", "a split in every line, or in none")
    files = [] if pairs else [path.parent / Path(value).expanduser() for value in values]
    if missing := [file for file in files if not file.is_file()]:
        named = some_of([os.path.relpath(file, path.parent) for file in missing], 5)
        problem = f"{path}: {len(missing)} of {len(lines)} files are missing: {named}"
        raise DataError(problem, "write paths relative to the folder of the list")
    if repeated := sum(count > 1 for count in Counter(files).values()):
        notes.append(f"Listed more than once: {counted(repeated, 'file')}.")
    texts = list(map(canonical, values)) if pairs else []
    number_of_splits = Counter(one for one, _ in set(zip(files or texts, split_of, strict=True)))
    if shared := sum(count > 1 for count in number_of_splits.values()):
        notes.append(f"In more than one split: {counted(shared, 'source' if pairs else 'file')}.")
    inputs = Texts(tuple(texts)) if pairs else FileImages(files, path.parent)
    for name in (*SPLITS, ALL):
        if numbers := [number for number, split in enumerate(split_of) if split == name]:
            mine = _columns([lines[number] for number in numbers], column)
            splits[name] = Samples(inputs.select(np.array(numbers, np.int64)), mine)
    return RawDataset(str(path.resolve()), splits, tuple(notes))


def _split_of(line: Line) -> str:
    """The split that a line belongs to; `all` where it names none."""
    where, cells = line
    if SPLIT not in cells:
        return ALL
    named = _text(cells[SPLIT], SPLIT, where)
    if (split := split_of(named)) is None:
        raise DataError(f"{where}: the split is {named}", f"one of {', '.join(SPLITS)}")
    return split


def _columns(lines: Sequence[Line], inputs: str) -> Lazy:
    """The columns of some lines beside that of the inputs, each made and checked when it is read."""

    def make(name: str) -> Column:
        values = [_text(cells.get(name), name, where) for where, cells in lines]
        return Labels.of(values) if name == LABEL else Texts(tuple(values))

    names = dict.fromkeys(name for _, cells in lines for name in cells if name not in (inputs, SPLIT))
    return Lazy(names, make)


def _table_lines(text: str, path: Path) -> Iterator[Line]:
    between = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True, delimiter=between)
    try:
        columns = _name_columns([name.strip() for name in reader.fieldnames or []], str(path))
        reader.fieldnames = columns
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if None in cells.values() and re.search(r"[\t,;]", cells[PATH] or ""):
                raise DataError(f"{where}: '{cells[PATH]}' has other separators than the first line", _BETWEEN)
            yield where, {name: cell for name, cell in cells.items() if name is not None}
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV ({error})", "check the quotes there") from error


def _name_columns(columns: list[str], where: str) -> list[str]:
    """The columns, one of them `path`; a name of ours in capitals is ours, unless it could be more than one column."""
    small = [name.lower() for name in columns]
    named = [low if low in _OURS and small.count(low) == 1 else name for name, low in zip(columns, small, strict=True)]
    if twice := [name for name, number in Counter(named).items() if number > 1 and name]:
        raise DataError(f"{where}: more than one column is called {twice[0]}", "another name for each column")
    if (path := next((name for name in _PATHS if name in named), None)) is None:
        apart = len(named) != 1 or not re.search(r"[\t,;]", named[0])
        problem = f"{where}: no column {PATH}; the columns are {', '.join(named) or 'none'}"
        raise DataError(problem, "name the columns path,label or path,label,split" if apart else _BETWEEN)
    return [PATH if name == path else name for name in named]


def _json_lines(text: str, path: Path) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:  # the first also of a number with thousands of digits
            problem = f"{where}: not valid JSON ({getattr(error, 'msg', error)})"
            raise DataError(problem, "one JSON object per line") from error
        if not isinstance(cells, dict):
            raise DataError(f"{where}: not a JSON object", 'one {"path": .., "label": ..} a line')
        yield where, dict(zip(_name_columns(list(cells), where), cells.values(), strict=True))


def _pair_lines(text: str, path: Path) -> Iterator[Line]:
    header = True
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() and "\t" not in line:
            continue
        cells, where = [cell.strip() for cell in line.split("\t")], f"{path}, line {number}"
        is_header, header = header and tuple(map(str.lower, cells)) in (_OF_PAIRS[:2], _OF_PAIRS), False
        if is_header:
            continue
        if len(cells) not in (2, 3):
            wanted = "source<TAB>target or source<TAB>target<TAB>split"
            raise DataError(f"{where} has {counted(len(cells), 'column')}", wanted)
        for name, cell in zip(_OF_PAIRS, cells, strict=False):
            _text(cell, name, where)
        yield where, dict(zip((SOURCE, TEXT, SPLIT), cells, strict=False))


def _text(value: object, column: str, where: str) -> str:
    """A value as text without blanks around it; a number is a value, too, and a whole one a label."""
    numbers = (int,) if column in _OURS else (int, float)
    if isinstance(value, bool) or not (value is None or isinstance(value, (str, *numbers))):
        raise DataError(f"{where}: the {column} is {value!r}", f"write the {column} as text")
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{where}: the {column} is empty", f"give it a {column} or remove the line")
    return text
