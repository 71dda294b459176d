"""Lists and tables as columns by name, and which column is what.

A person may name columns (`Layout`). Else they are found, in this order: by a usual name (the tuples below), then as
the only column that can be it. Numbers of rows, coordinates and ids are never a label. Where two columns could be it,
an error names both; what was taken under another name than its own is said in one sentence.

    path    the image: a file, or an id that is the stem of an image below the folder of the list, under any name
    label   a class; several labels an image as `a|b`, as a list in JSON, or as columns of 0 and 1; a class of each of
            several columns
    split   train, validation, test; `is_valid`, yes or no; `fold`, of which the first is for validation
    group   what images belong to: a patient, a recording, a scene
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.amounts import MANY, amounts_in, numbers_in, refuse_others
from vitrail.data.columns import (
    ALL,
    ATTRIBUTES,
    GROUP,
    LABEL,
    LABELS,
    NUMBER,
    SPLITS,
    TEXT,
    TRAIN,
    VALIDATION,
    Column,
    Labels,
    Lazy,
    Samples,
    Texts,
    split_of,
)
from vitrail.data.images import Images
from vitrail.data.layout import Layout
from vitrail.data.multiple import ClassColumns, LabelSets, Quantities
from vitrail.data.sources import EXTENSIONS
from vitrail.errors import DataError, Hint, UsageError, counted, look_into, nearest, some_of

PATH, SPLIT = "path", "split"
PATHS = (
    PATH,
    "file",
    "image",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "image_path",
    "img",
    "photo",
    "images",
)
IDS = ("id", "image_id", "id_code", "image_name", "name")  # of images without a suffix, too
LABEL_NAMES = (LABEL, LABELS, "class", "target", "count", "score", "age", "y")
SPLIT_NAMES = (SPLIT, "subset", "partition", "is_valid", "fold")
GROUP_NAMES = (
    GROUP,
    *(f"{what}{end}" for what in ("patient", "subject", "recording", "video", "scene") for end in ("", "_id")),
)
NO_LABEL = re.compile(  # columns that are never taken for a label unasked
    r"|unnamed.*|index|row|.*_?id|[xyz]\d?|[xy](min|max|_?center|_?centre)|width|height|left|top|right|bottom|bbox.*"
    r"|lat(itude)?|lon(gitude)?|dots|url|caption|description|date|time(stamp)?|md5|sha\d+|p|probability|p_.*|label_\d+|p_\d+",
    re.IGNORECASE,
)
LOOKED_AT = 1000  # rows by which the kind of a column is known
YES, NO = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no"}


@dataclass(frozen=True, eq=False)
class Listing:
    """A list, column by column.

    Args:
        name: Of its file, for messages.
        columns: By name, as many cells each; None or an empty text where a cell is empty.
        lines: Of each row the line on which it ends; None for a file without lines.
    """

    name: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int] | None = None

    def __len__(self) -> int:
        """How many rows it has."""
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """What a row is called in a message."""
        return f"{self.name}, row {row + 1}" if self.lines is None else f"{self.name}, line {self.lines[row]}"

    def show(self, row: int, advice: str) -> str | Hint:
        """A hint at a row: what shows its line, where it lies in a file of lines."""
        if self.lines is None or not Path(self.name).is_file():
            return advice
        return look_into(self.name, self.lines[row], advice)

    def first_lines(self) -> Hint | None:
        """What shows its first lines; None where it lies in no file of lines."""
        return look_into(self.name) if self.lines is not None and Path(self.name).is_file() else None

    def texts(self, column: str, rows: Sequence[int] | None = None, role: str = "") -> list[str]:
        """The cells of some rows as text, without blanks around them.

        Raises:
            DataError: One is empty, or no text and no number.
        """
        cells, found = self.columns[column], list[str]()
        known, whole = (
            range(len(self)) if rows is None else rows,
            column.lower() not in (PATH, SPLIT, LABEL, TEXT, GROUP),
        )
        for row in known:
            cell = cells[row]
            if type(cell) is str:  # nearly all, of a million rows
                found.append(cell.strip())
                continue
            number = isinstance(cell, int | np.integer) or (whole and isinstance(cell, float | np.floating))
            if isinstance(cell, bool) or not (cell is None or isinstance(cell, str) or number):
                what = role or column
                raise DataError(f"{self.where(row)}: the {what} is {cell!r}", f"write the {what} as text")
            found.append("" if cell is None else str(cell).strip())
        if not all(found):
            empty = [row for row, text in zip(known, found, strict=True) if not text]
            more = f", as in {len(empty) - 1:,} more of {len(found):,} lines" if len(empty) > 1 else ""
            what = role or column
            hint = self.show(empty[0], f"give it a {what} or remove the line")
            raise DataError(f"{self.where(empty[0])}: the {what} is empty{more}", hint)
        return found

    def some(self, column: str) -> list[str]:
        """Some of its cells as small text, evenly spread, the empty ones left out."""
        cells = self.columns[column]
        step = max(1, len(cells) // LOOKED_AT)
        return [word for cell in cells[::step] if cell is not None and (word := str(cell).strip().lower())]


@dataclass(frozen=True)
class Roles:
    """Which columns are what; empty where there is none.

    Attributes:
        path: Of the images.
        labels: Of what is learnt: one, or several of 0 and 1.
        split: Of the splits.
        group: Of the groups.
        others: The columns that are none of these.
        named: Whether a person named those of what is learnt.
    """

    path: str = ""
    labels: tuple[str, ...] = ()
    split: str = ""
    group: str = ""
    others: tuple[str, ...] = ()
    named: bool = False

    def sentence(self) -> str:
        """What was taken under another name than its own; empty where nothing was."""
        usual = {PATH: self.path, SPLIT: self.split, GROUP: self.group}
        said = [f"{role} is {name}" for role, name in usual.items() if name.lower() not in (role, "")]
        sentences = [f"Columns: {', '.join(said)}."] * bool(said)
        usual_too = not self.named and {*map(str.lower, self.others)} & {*LABEL_NAMES}
        if self.labels and (tuple(map(str.lower, self.labels)) != (LABEL,) or usual_too):
            what = f"column {self.labels[0]} is" if len(self.labels) == 1 else f"columns {some_of(self.labels, 5)} are"
            sentences.append(f"The {what} learnt{(self.others and f', not {some_of(self.others, 5)}') or ''}.")
        return " ".join(sentences)


def find_roles(
    table: Listing, layout: Layout, path: str | None = None, stems: Callable[[], Iterable[str]] = frozenset
) -> Roles:
    """Which columns are what.

    Args:
        table: Of at least one row.
        layout: What a person says of it.
        path: The column of the images, where it is known; empty where the images lie elsewhere.
        stems: Gives those of the images that ids may stand for.

    Raises:
        UsageError: A column that was named is not there, or two could be the label.
        DataError: There is no column of images.
    """
    small = {name.lower(): name for name in reversed([*table.columns])}
    small |= {name: name for name in table.columns if name == name.lower()}

    def named(option: str) -> list[str]:
        """The columns that a person named."""
        wanted = [name.strip() for name in getattr(layout, option).split(",") if name.strip()]
        for name in wanted:
            if name not in table.columns:
                close = nearest(name, table.columns)
                there = f"; the columns are {some_of(list(table.columns), 9)}"
                hint = Hint({option: close}) if close else Hint(drop=[option])
                raise UsageError(f"{table.name} has no column '{name}'{there * (not close)}", hint)
        return wanted

    def usual(names: Sequence[str]) -> str:
        """The first of some usual names that is there."""
        return next((small[name] for name in names if name in small), "")

    if path is None:
        path = next(iter(named("path_column")), "") or _path_of(table, usual, stems)
    split = next(iter(named("split_column")), "") or usual(SPLIT_NAMES)
    group = next(iter(named("group_column")), "") or usual(GROUP_NAMES)
    labels, others = tuple(named("label_column")), [name for name in table.columns if name not in (path, split, group)]
    if not (is_named := bool(labels)):
        first = next((small[name] for name in LABEL_NAMES if small.get(name) in others), "")
        labels = (first,) if first and not _is_coordinate(first, small) else _only_label(table, others)
    return Roles(path, labels, split, group, tuple(name for name in others if name not in labels), is_named)


def _is_coordinate(name: str, small: Mapping[str, str]) -> bool:
    """Whether a `y` stands beside an `x`."""
    return name.lower() == "y" and "x" in small


def _path_of(table: Listing, usual: Any, stems: Callable[[], Iterable[str]]) -> str:
    """The column of the images: by its name; else the only one of names of image files; else one of ids."""
    if found := usual(PATHS):
        return found
    likely = _of_images(table, stems)
    if (found := usual(IDS)) and (found in likely or not likely):
        return found
    if len(likely) > 1:
        raise _ask(table, "path", likely)
    if likely:
        return likely[0]
    columns = some_of(list(table.columns), 9) or "none"
    problem = f"{table.name}: no column of images, such as {PATH}; the columns are {columns}"
    named = Hint(text="--path-column NAME of images or their paths", python="a column path of images or their paths")
    raise DataError(problem, table.first_lines() or named)


def _of_images(table: Listing, stems: Callable[[], Iterable[str]]) -> list[str]:
    """The columns of names of image files; else those of stems of images, where some differ in each row these alone."""
    some = {name: cells for name in table.columns if (cells := table.some(name))}
    if likely := [name for name, cells in some.items() if all(map(_is_image, cells))]:
        return likely
    known = {*map(str.lower, stems())}
    likely = [name for name, cells in some.items() if known.issuperset(cells)]
    return [name for name in likely if len({*some[name]}) == len(some[name])] or likely


def no_paths(
    table: Listing, column: str, stems: Callable[[], Iterable[str]] = frozenset, images: Sequence[str] = ()
) -> DataError | None:
    """The error for a column of words that no image is called by; None where they are names of image files.

    Args:
        table: The list.
        column: Its column that was taken for the images.
        stems: As for `find_roles`.
        images: The columns that hold images themselves.
    """
    words = table.some(column)
    if any(map(_is_image, words)):
        return None
    likely = images or _of_images(table, stems)
    problem = f"{table.name}: the column {column} holds no paths of images: {some_of([*dict.fromkeys(words)], 5)}"
    columns = f"a column of paths; the columns are {some_of([*table.columns], 9)}"
    return DataError(problem, Hint({"path_column": likely[0]}) if likely else table.first_lines() or columns)


def _is_image(cell: str) -> bool:
    return cell.endswith(EXTENSIONS)


def _only_label(table: Listing, others: Sequence[str]) -> tuple[str, ...]:
    """The label among columns of no usual name: all columns of 0 and 1, else the only one of words, else of numbers."""
    open_to = [name for name in others if not NO_LABEL.fullmatch(name) and name.lower() != TEXT]
    some = {name: table.some(name) for name in open_to}
    if TEXT in map(str.lower, others):
        return ()
    flags = tuple(name for name in open_to if some[name] and {*some[name]} <= YES | NO)
    if len(flags) > 1:
        return flags
    kinds: tuple[list[str], list[str]] = ([], [])
    for name, cells in some.items():
        is_id = len({*cells}) == len(cells) >= MANY
        if cells and not is_id:
            kinds[all(map(_is_number, cells))].append(name)
    for likely in kinds:
        if len(likely) > 1:
            raise _ask(table, LABEL, likely)
        if likely:
            return (likely[0],)
    return ()


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", cell))


def _ask(table: Listing, role: str, likely: Sequence[str]) -> UsageError:
    """That several columns could be it."""
    problem = f"{table.name}: {some_of(list(likely), 5)} could each be the {role}"
    every = f"or {','.join(likely[:5])} for all of them" if role == LABEL else ""
    return UsageError(problem, Hint({f"{role}_column": likely[0]}, text=every))


def splits_in(table: Listing, roles: Roles) -> tuple[list[str], str]:
    """The split of each row, and a sentence on what folds and flags were taken for.

    Raises:
        DataError: A cell names no split, or only some do.
    """
    if not roles.split:
        return [ALL] * len(table), ""
    cells = [("" if cell is None else str(cell).strip()) for cell in table.columns[roles.split]]
    words = {*map(str.lower, cells)}
    if words <= YES | NO and roles.split.lower() not in (SPLIT, "fold"):
        found = {word: VALIDATION if word in YES else TRAIN for word in words}
        return [found[cell.lower()] for cell in cells], ""
    if roles.split.lower() == "fold" and all(word.isdecimal() for word in words):
        first = min(words, key=int)
        note = f"Fold {first} is for validation, the other {counted(len(words) - 1, 'fold')} for training."
        return [VALIDATION if cell == first else TRAIN for cell in cells], note
    if "" in words and words != {""}:
        raise DataError(f"{table.name} has a split in only some of its lines", "a split in every line, or in none")
    known = {cell: split_of(cell) for cell in {*cells}}
    for row, cell in enumerate(cells):
        if known[cell] is None:
            raise DataError(f"{table.where(row)}: the split is {cell or 'empty'}", f"one of {', '.join(SPLITS)}")
    return [str(known[cell]) for cell in cells], ""


def columns_of(table: Listing, roles: Roles, rows: Sequence[int], without: Sequence[str] = ()) -> Lazy:
    """The columns of some rows beside path and split, each made and checked when it is read.

    Raises:
        DataError: Of a column that is read: a cell is empty or no text.
    """
    taken = {roles.path, roles.split, roles.group, *roles.labels, *without}
    learnt = {LABEL, LABELS, NUMBER, ATTRIBUTES, *[TEXT] * roles.named} if roles.labels else set[str]()  # not by others
    names = dict.fromkeys(name for name in table.columns if name not in taken and name.lower() not in learnt)
    named = {name: name.lower() if name.lower() == TEXT else name for name in names}
    numbers = numbers_in(table, roles.labels)
    label = _kind_of_labels(table, roles.labels, numbers)
    back = {new: old for old, new in named.items()}

    def make(name: str) -> Column:
        if name == NUMBER and numbers is not None:
            refuse_others(table, roles.labels)
            return Quantities(numbers[np.array(rows, np.int64)], roles.labels)
        if name == label == ATTRIBUTES:
            words = {each: table.columns[each] for each in roles.labels}
            return ClassColumns.of({each: [_class_in(cells[row]) for row in rows] for each, cells in words.items()})
        if name == label and roles.labels:
            return _label_sets(table, roles.labels, rows) if label == LABELS else _labels(table, roles.labels, rows)
        if name == GROUP and roles.group:
            cells = table.columns[roles.group]
            alone = [str(cells[row] if cells[row] not in (None, "") else f"row {row + 1}").strip() for row in rows]
            return Texts(tuple(alone))
        return Texts(tuple(table.texts(back[name], rows)))

    of_labels = [label] * bool(roles.labels and label)
    if numbers is not None:
        of_labels = [NUMBER, *of_labels] if amounts_in(roles.labels, numbers) else [*of_labels, NUMBER]
    every = of_labels + [GROUP] * bool(roles.group) + [*back]
    return Lazy(every, make)


def divided(
    inputs: Images | Texts, table: Listing, roles: Roles, split_of: Sequence[str], without: Sequence[str] = ()
) -> dict[str, Samples]:
    """The samples of each split, with their columns.

    Args:
        inputs: Of each row.
        table: The rows.
        roles: Which columns are what.
        split_of: Of each row.
        without: Columns that are none of samples.
    """
    splits = dict[str, Samples]()
    for name in (*SPLITS, ALL):
        if rows := [row for row, split in enumerate(split_of) if split == name]:
            splits[name] = Samples(inputs.select(np.array(rows)), columns_of(table, roles, rows, without))
    return splits


def classes_in_order(samples: Samples) -> tuple[str, ...] | None:
    """Classes that are whole numbers, in the order of these and not of their digits; None where some are none."""
    names = {*(samples.labels or ())}
    is_number = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=int)) if names and is_number else None


def _has_several(table: Listing, name: str) -> bool:
    """Whether its cells are lists, or words with `|` between."""
    cells = table.columns[name]
    return any(isinstance(cell, list) for cell in cells) or any("|" in cell for cell in cells if isinstance(cell, str))


def _is_one_class(table: Listing, names: Sequence[str]) -> bool:
    """Whether of several columns of 0 and 1 each row has exactly one 1."""
    rows = zip(*(table.columns[name] for name in names), strict=True)
    return all(sum(str(cell).strip().lower() in YES for cell in row) == 1 for row in rows)


def _kind_of_labels(table: Listing, names: Sequence[str], numbers: NDArray[np.float64] | None) -> str:
    """The column that those of the labels make: of one class, several labels, or a class each; empty for amounts.

    Raises:
        UsageError: Some of them are amounts, and others words.
    """
    if len(names) < 2:
        return LABELS if any(_has_several(table, name) for name in names) else LABEL
    if numbers is not None:
        return "" if amounts_in(names, numbers) else ATTRIBUTES
    words = {str(cell).strip().lower() for name in names for cell in table.columns[name] if cell is not None}
    if words <= YES | NO | {""}:
        return LABEL if _is_one_class(table, names) else LABELS
    alone = {name: found for name in names if (found := numbers_in(table, (name,))) is not None}
    if amounts := [name for name, found in alone.items() if amounts_in((name,), found)]:
        rest = [name for name in names if name not in amounts]
        problem = f"{table.name}: {', '.join(amounts)} holds amounts, and {', '.join(rest)} classes"
        raise UsageError(problem, Hint({"label_column": ",".join(rest)}, text=f"or {','.join(amounts)} alone"))
    return ATTRIBUTES


def _class_in(cell: Any) -> str:
    """A cell as the name of a class; empty where nobody knows it."""
    word = "" if cell is None else str(cell).strip()
    return "" if word.lower() == "nan" else word


def _labels(table: Listing, names: Sequence[str], rows: Sequence[int]) -> Labels:
    if len(names) == 1:
        return Labels.of(table.texts(names[0], rows, LABEL))
    flags = [[str(table.columns[name][row]).strip().lower() in YES for name in names] for row in rows]
    return Labels.of([names[each.index(True)] for each in flags])


def _label_sets(table: Listing, names: Sequence[str], rows: Sequence[int]) -> LabelSets:
    """Several labels a row: an empty list is a row without, an empty cell of a column of 0 and 1 is not known."""
    if len(names) == 1:
        cells = [table.columns[names[0]][row] for row in rows]
        sets = [cell if isinstance(cell, list) else str("" if cell is None else cell).split("|") for cell in cells]
        return LabelSets.of([[word for each in one if (word := str(each).strip())] for one in sets])
    found = np.full((len(rows), len(names)), -1, np.int8)
    for number, name in enumerate(names):
        for place, row in enumerate(rows):
            given = table.columns[name][row]
            cell = "" if given is None else str(given).strip().lower()
            found[place, number] = cell in YES if cell else -1
    return LabelSets(found, tuple(names))
