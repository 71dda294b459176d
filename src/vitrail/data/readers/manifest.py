"""Samples from a list: a table with a header, a file with one JSON object a line, or pairs of texts.

The columns of a table may have any names (`vitrail.data.tables`); commas, semicolons or tabs stand between them. A list
without a header has the path of an image and its label, if any, in each line: `path,label`, or `path label` in a `.txt`
file. A file is UTF-8, UTF-16 or Latin-1. Paths are relative to the list, also with backslashes; ids without a suffix
are the stems of images below its folder. Images may also stand in the table itself, as `pixel0` to `pixel783`.

Pairs of texts, what is read and what is to be written, stand one a line in a `.tsv` file without a column of images; a
first line of just these names, also in capitals, is a header:

    source<TAB>target[<TAB>split]
"""

import csv
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.columns import TEXT, RawDataset, Texts
from vitrail.data.images import ArrayImages, Images
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.sources import EXTENSIONS
from vitrail.data.stores import Tree
from vitrail.data.tables import PATH, PATHS, SPLIT, Listing, Roles, divided, find_roles, no_paths, splits_in
from vitrail.errors import DataError, counted, look_at, look_for, raised_as, some_of
from vitrail.text import canonical

SOURCE, TARGET = "source", "target"
_OF_PAIRS = (SOURCE, TARGET, SPLIT)
_BETWEEN = "the same separators in every line: commas, semicolons or tabs"
_OURS = {SPLIT, "label", TEXT, "group"}  # columns by which a .tsv without `path` is a list of images, too
ROWS = 4096  # that are sorted into columns at a time
_PIXEL = re.compile(r"pixel_?\d+", re.IGNORECASE)


def read_manifest(what: str, data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
    """Read a list of images, `.csv`, `.tsv`, `.txt` or `.jsonl`, or a `.tsv` of pairs of texts.

    Args:
        what: The path of the list; relative paths in it start from its folder.
        data_root: Not used: the path is enough.
        layout: The columns, where a person names them.

    Returns:
        The splits that the list names, or one split `all` without them. Of pairs, sources are inputs, and targets are
        the column `text`.

    Raises:
        UsageError: A column that was named is not there, or two columns could be the label.
        DataError: No column has images, a value is empty or not understood, or a file is missing.
    """
    path = Path(what).expanduser()
    return read_list(path, Tree(path.parent), layout)


def read_list(path: Path, tree: Tree, layout: Layout = AS_FOUND) -> RawDataset:
    """The same of a list and images in one tree; errors are those of `read_manifest`."""
    text, notes = _decoded(path, tree)
    suffix, (first, second) = path.suffix.lower(), [*text.lstrip("\n").split("\n", 2), "", ""][:2]
    header = {name.strip(' "').lower() for name in re.split(r"[\t,;]", first)}
    named = layout.columns or PATH in header or (header & {*PATHS} and header & _OURS)
    if suffix == ".tsv" and not named and not _starts_with_image(first, second):
        table = _pairs_listing(list(_pair_lines(text, path)), path)
        roles = Roles(SOURCE, split=SPLIT if SPLIT in table.columns else "")
    else:
        table = _json_listing(text, path) if suffix == ".jsonl" else _text_listing(text, path, suffix)
        stems = partial(stems_in, path.parent, tree)
        roles = find_roles(table, layout, "" if _pixels_in(table) else None, stems) if len(table) else Roles()
    if not len(table):
        wanted = "pairs" if suffix == ".tsv" and not named else "images"
        hint = "one pair per line: source<TAB>target" if wanted == "pairs" else "one line per image: path,label"
        raise DataError(f"{path} lists no {wanted}", hint)
    inputs, more = _inputs_of(table, roles, path, tree)
    split_of, note = splits_in(table, roles)
    notes += [*filter(None, (roles.sentence() if roles.path != SOURCE else "", note)), *more]
    may = roles.split and (more or roles.path == SOURCE)
    of = Counter(one for one, _ in {*zip(inputs.names(), split_of, strict=True)}) if may else Counter()
    if shared := sum(count > 1 for count in of.values()):
        notes.append(f"In more than one split: {counted(shared, 'source' if roles.path == SOURCE else 'file')}.")
    splits = divided(inputs, table, roles, split_of, _pixels_in(table))
    return RawDataset(str(path.resolve()), splits, tuple(notes))


def _decoded(path: Path, tree: Tree) -> tuple[str, list[str]]:
    """The text of a file, and a sentence where it is no UTF-8.

    Raises:
        DataError: It cannot be read, or is no text.
    """
    with raised_as(DataError, f"{path} cannot be read", look_at(path, "-l"), OSError):
        content = tree.content(path)
    for start, coding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig"), (b"", "latin-1")):
        if content.startswith(start) and not (coding == "latin-1" and b"\0" in content):
            try:
                text = content.decode(coding)
            except UnicodeDecodeError:
                continue
            return text, [f"Read as {coding.title()}, since it is no UTF-8."] if coding == "latin-1" else []
    raise DataError(f"{path} cannot be read as UTF-8 text", "save it as UTF-8")


def _inputs_of(table: Listing, roles: Roles, path: Path, tree: Tree) -> tuple[Images | Texts, list[str]]:
    """The images (or texts) of the rows, and what is unusual about them.

    Raises:
        DataError: A path is empty, or files are missing.
    """
    if pixels := _pixels_in(table):
        return _pixel_images(table, pixels, path), []
    if roles.path == SOURCE:
        return Texts(tuple(map(canonical, table.texts(SOURCE)))), []
    files = listed_files(table, roles.path, path.parent, tree)
    repeated = 0 if len({*files}) == len(files) else sum(count > 1 for count in Counter(files).values())
    notes = [f"Listed more than once: {counted(repeated, 'file')}."] if repeated else []
    return tree.images(files), notes


def stems_in(folder: Path, tree: Tree) -> dict[str, list[Path]]:
    """The images in a folder of a tree and below it, by their stems."""
    from vitrail.data.readers.folder import image_files  # of ids alone

    stems = dict[str, list[Path]]()
    for each in image_files(folder, tree)[0]:
        stems.setdefault(each.stem, []).append(each)
    return stems


def listed_files(table: Listing, column: str, folder: Path, tree: Tree, images: Sequence[str] = ()) -> list[str]:
    """The file of each cell of a column, which is relative to a folder of a tree; other columns may hold images.

    Raises:
        DataError: The column holds no paths, files are missing, or two have the stem that is wanted.
    """
    values, root, known = table.texts(column, role=PATH), str(folder), dict[str, set[str]]()

    def found(file: str) -> bool:
        """Whether it is there, by one look into each folder."""
        above, name = os.path.split(file)
        if above not in known:
            try:
                known[above] = {entry for entry, is_folder in tree.entries(above).items() if not is_folder}
            except OSError:
                known[above] = set()
        return name in known[above]

    homes = (os.path.expanduser(value) if value.startswith("~") else value for value in values)
    files = [os.path.join(root, value) for value in homes]
    if missing := [row for row, file in enumerate(files) if not found(file)]:
        for row in missing:
            files[row] = os.path.join(root, values[row].replace("\\", "/"))
        missing = [row for row in missing if not found(files[row])]
    if missing and not any(values[row].lower().endswith(EXTENSIONS) for row in missing):
        stems = stems_in(folder, tree)
        for row in missing:
            likely = stems.get(values[row], ())
            if len(likely) > 1:
                names = some_of([each.relative_to(folder).as_posix() for each in likely], 3)
                problem = f"{table.where(row)}: '{values[row]}' is the stem of {counted(len(likely), 'file')}: {names}"
                raise DataError(problem, table.show(row, f"write {likely[0].relative_to(folder).as_posix()} there"))
            files[row] = str(likely[0]) if likely else files[row]
        missing = [row for row in missing if values[row] not in stems]
    if len(missing) == len(values) and (error := no_paths(table, column, partial(stems_in, folder, tree), images)):
        raise error
    if missing:
        named = some_of([os.path.relpath(files[row], root) for row in missing], 5)
        problem = f"{table.name}: {len(missing)} of {len(values)} files are missing: {named}"
        hint, name = f"paths relative to {root or '.'}", os.path.basename(files[missing[0]])
        raise DataError(problem, look_for(name, root or ".", hint) if folder.is_dir() else hint)
    return files


def _pixels_in(table: Listing) -> list[str]:
    """The columns of pixels, in their order; none of a table of paths."""
    found = [name for name in table.columns if _PIXEL.fullmatch(name)]
    return found if len(found) > 1 else []


def _pixel_images(table: Listing, names: Sequence[str], path: Path) -> ArrayImages:
    """Images whose pixels stand in columns: of equal sides, grey or coloured."""
    channels = next((c for c in (1, 3) if math.isqrt(len(names) // c) ** 2 * c == len(names)), 0)
    if not channels:
        raise DataError(f"{path} has {len(names)} columns of pixels, of which no square image can be made", "N x N")
    with raised_as(DataError, f"{path} has pixels that are no whole numbers from 0 to 255", "0 to 255", ValueError):
        values = np.array([table.columns[name] for name in names], np.float64).T
        if values.min() < 0 or values.max() > 255 or (values % 1).any():
            raise ValueError(f"{values.min():g} to {values.max():g}")
    side = math.isqrt(len(names) // channels)
    return ArrayImages(values.astype(np.uint8).reshape(-1, side, side, *[channels] * (channels > 1)), path.stem)


# ---- from text to a table


def _text_listing(text: str, path: Path, suffix: str) -> Listing:
    """A table of lines with separators; a first line with an image in it is no header."""
    rows = _rows(text, path, _separator(text, suffix))
    line, first = next(rows, (0, []))
    if _starts_with_image(*first):
        names = [PATH, "label", *(f"column {number}" for number in range(3, len(first) + 1))][: len(first)]
        rows = chain([(line, first)], rows)
    else:
        names = [name.strip() for name in first]
    names = _checked(names, str(path))
    wide = len(names)
    columns, lines, known = [list[str]() for _ in names], list[int](), dict[str, str]()
    while some := [*islice(rows, ROWS)]:
        for line, cells in some:
            if len(cells) != wide:
                if len(cells) == 1 and re.search(r"[\t,;]", cells[0]):
                    problem = f"{path}, line {line}: '{cells[0]}' has other separators than the first line"
                    raise DataError(problem, _BETWEEN)
                cells[wide:] = []
                cells += [""] * (wide - len(cells))
            lines.append(line)
        known = known if len(known) < ROWS else {}
        for column, cells in zip(columns, zip(*(cells for _, cells in some), strict=True), strict=True):
            column += [known.setdefault(cell, cell) for cell in cells] if len({*cells}) < len(cells) else cells
    return Listing(str(path), dict(zip(names, columns, strict=True)), lines)


def _rows(text: str, path: Path, between: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that has some, and its number."""
    if between == " ":
        for number, line in enumerate(text.split("\n"), 1):
            if words := line.split():
                whole = " ".join(words)
                yield number, [whole] if len(words) == 1 or _is_path(whole) else [" ".join(words[:-1]), words[-1]]
        return
    lines = (found.group() for found in re.finditer(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", text))
    reader = csv.reader(lines, strict=True, skipinitialspace=True, delimiter=between)
    try:
        yield from ((reader.line_num, cells) for cells in reader if cells)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV ({error})", "check the quotes there") from error


def _separator(text: str, suffix: str) -> str:
    """What stands between the columns: of the first lines, what all have most of; blanks in a `.txt` file alone."""
    lines = [line for line in text[:20_000].split("\n") if line.strip()][:20]
    usual = "\t" if suffix == ".tsv" else ","
    for between in dict.fromkeys((usual, ";", "\t", ",")):
        if lines and between in lines[0]:
            return between
    return " " if suffix == ".txt" else usual


def _is_path(cell: str) -> bool:
    return cell.strip().lower().endswith(EXTENSIONS)


def _starts_with_image(*cells: str) -> bool:
    """Whether some cells of a first line name an image."""
    return any(_is_path(each) for cell in cells for each in re.split(r"[\t,;]", cell))


def _checked(names: Sequence[str], where: str) -> list[str]:
    """Names of columns, no two of them alike."""
    if twice := [name for name, number in Counter(names).items() if number > 1 and name]:
        raise DataError(f"{where}: more than one column is called {twice[0]}", "another name for each column")
    return list(names)


def _json_listing(text: str, path: Path) -> Listing:
    """A table of JSON objects, one a line, whose keys may differ."""
    rows, lines = list[dict[str, Any]](), list[int]()
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
        rows.append(cells)
        lines.append(number)
    names = dict.fromkeys(name for cells in rows for name in cells)
    return Listing(str(path), {name: [cells.get(name) for cells in rows] for name in names}, lines)


def _pairs_listing(pairs: Sequence[tuple[int, Sequence[str]]], path: Path) -> Listing:
    """The table of pairs of texts."""
    columns = {name: [cells[place] for _, cells in pairs] for place, name in enumerate((SOURCE, TEXT))}
    if any(len(cells) > 2 for _, cells in pairs):
        columns[SPLIT] = [cells[2] if len(cells) > 2 else "" for _, cells in pairs]
    return Listing(str(path), columns, [line for line, _ in pairs])


def _pair_lines(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
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
            if not cell:
                raise DataError(f"{where}: the {name} is empty", f"give it a {name} or remove the line")
        yield number, cells
