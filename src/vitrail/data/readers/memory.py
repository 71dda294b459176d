"""Python objects as data, passed where else a path is named.

    [(image, label), ...]                 an image is a path, a PIL image, or pixels: an array or a tensor
    a Dataset of torch                    map style, gives (image, label); its `classes` name numbers
    [{"image": .., "label": ..}, ...]     rows, whose keys may differ
    {"image": [..], "label": [..]}        columns, as of a list; so a DataFrame, and a Dataset of the library datasets
    {"train": .., "test": ..}             any of these by split; so a DatasetDict

Neither of these libraries is imported: an object is known by what it has. Labels are read at once, images when they are
needed. Data are known by their content, so that a run finds its own again among others of the same type.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.arguments import PASSED, contract
from vitrail.data.columns import ALL, LABEL, SPLITS, RawDataset, split_of
from vitrail.data.images import FileImages, Images, evenly
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.stores import ItemImages
from vitrail.data.tables import PATH, PATHS, Listing, Roles, classes_in_order, divided, find_roles, no_paths, splits_in
from vitrail.errors import DataError, Hint, raised_as, some_of

BYTES = "bytes"  # of an image in a cell, beside its path
HELD = "[(image, label), ...], a torch Dataset, or {'image': [..], 'label': [..]}"
WANTED = "one value an image in each column"
READ_TWICE = 4  # images by which it is known whether an object gives the same ones each time


class Part(NamedTuple):
    """What an object holds.

    Attributes:
        images: None where a column has their paths.
        table: The other columns.
        classes: The order of classes, where it is known.
    """

    images: Images | None
    table: Listing
    classes: tuple[str, ...] = ()


class Passed:
    """The reader of an object.

    Args:
        data: One of those above.
        layout: The column of images, where a person names it.
    """

    takes_layout = True

    def __init__(self, data: Any, layout: Layout = AS_FOUND) -> None:
        self.data, self.layout = data, layout
        by_split = isinstance(data, Mapping) and len(data) > 0 and all(split_of(str(name)) for name in data)
        self.given = {str(split_of(str(name))): each for name, each in data.items()} if by_split else {ALL: data}
        self.kind = type(next(iter(self.given.values()))).__name__
        self.__qualname__ = f"{PASSED}{self.kind}"  # what a run stores of its reader

    @cached_property
    def parts(self) -> dict[str, Part]:
        """What it holds, by split."""
        with contract(f"data of the type {self.kind}", HELD, DataError):
            return {split: _part_of(self.given[split], self._label(split), self.layout) for split in self.given}

    @cached_property
    def name(self) -> str:
        """What the data are called: their type, and a hash of their content."""
        state = hashlib.blake2b(digest_size=4)
        for split, part in self.parts.items():
            state.update(repr((split, part.table.columns)).encode() + (part.images.digest() if part.images else b""))
        return f"{PASSED}{self.kind}-{state.hexdigest()}"

    def _label(self, split: str) -> str:
        return self.kind if split == ALL else f"{self.kind}/{split}"

    def __call__(self, what: str = "", data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
        """The samples, as every reader gives them.

        Args:
            what: Not looked at.
            data_root: Not looked at.
            layout: The columns, where a person names them.

        Raises:
            UsageError: A column that was named is not there, or two could be the label.
            DataError: There are no images, files are missing, or a label is empty.
        """
        found, notes = dict[str, Any](), dict[str, None]()
        order = [split for split in (*SPLITS, ALL) if split in self.parts]
        labelled = [split for split in order if self.parts[split].table.columns] or order
        if bare := [split for split in order if split not in labelled]:
            notes[f"Ignored, without labels: {', '.join(bare)}."] = None
        for split in labelled:
            images, table, _ = self.parts[split]
            roles = Roles() if not table.columns else find_roles(table, layout, None if images is None else "")
            images = _files(table.texts(roles.path), no_paths(table, roles.path)) if images is None else images
            if wrong := [name for name, cells in table.columns.items() if len(cells) != len(images)]:
                raise DataError(
                    f"{table.name}: {len(images)} images, but {len(table.columns[wrong[0]])} {wrong[0]}", WANTED
                )
            where, note = splits_in(table, roles) if split == ALL else ([ALL] * len(images), "")
            notes |= dict.fromkeys(filter(None, (roles.sentence(), note)))
            parts = divided(images, table, roles, where or [ALL] * len(images))
            found |= parts if split == ALL else {split: parts[ALL]}
        classes = next(iter(self.parts.values())).classes or classes_in_order(next(iter(found.values())))
        return RawDataset(self.name, found, tuple(notes), classes, name=self.name)


def _part_of(data: Any, label: str, layout: Layout) -> Part:
    """The images and columns of one object.

    Raises:
        DataError: It is empty, gives something else, or other images each time.
    """
    if not len(data):
        raise DataError(f"{label} is empty", "[(image, label), ...]")
    if isinstance(data, list | tuple) and isinstance(data[0], Mapping):
        data = {name: [row.get(name) for row in data] for name in dict.fromkeys(name for row in data for name in row)}
    names = getattr(data, "column_names", None) or getattr(data, "columns", None)
    if isinstance(data, Mapping) or names is not None:
        return _of_columns(data, list(data if names is None else names), label, layout)
    classes = tuple(map(str, getattr(data, "classes", None) or getattr(getattr(data, "dataset", None), "classes", ())))
    if isinstance(data, list | tuple):
        items, labels = zip(*data, strict=True)
        images = _images_of(items, label)
    else:
        images, labels = ItemImages(partial(_first_of, data), label, range(len(data))), _labels_of(data)
        for row in evenly(range(len(data)), READ_TWICE):
            if images.content_hash(row) != images.content_hash(row):
                problem = f"{label} gives another image each time, as {images.name(row)}"
                raise DataError(problem, "the same without random transforms: a training has its own")
    cells = {} if labels is None else {LABEL: _cells(labels, classes, label)}
    return Part(images, _listing(label, cells), classes)


def _first_of(data: Any, number: int) -> Any:
    item = data[number]
    return item[0] if isinstance(item, tuple | list) else item


def _labels_of(data: Any) -> Sequence[Any] | None:
    """The labels of a Dataset of torch, where it can without its images; None where it has none."""
    targets, rows = getattr(data, "targets", None), getattr(data, "indices", None)
    if rows is not None and hasattr(data, "dataset"):
        every = _labels_of(data.dataset)
        return None if every is None else [every[row] for row in rows]
    if targets is not None and len(targets) == len(data) and getattr(data, "target_transform", None) is None:
        return targets
    return [data[row][1] for row in range(len(data))] if isinstance(data[0], tuple | list) else None


def _of_columns(data: Any, names: Sequence[str], label: str, layout: Layout) -> Part:
    """Images and columns of a table.

    Raises:
        DataError: Several columns could be the images.
    """
    features = (getattr(data, "features", None) or {}) if hasattr(data, "with_format") else {}
    likely = [name for name in names if type(features.get(name)).__name__ == "Image" or _is_image(data[name])]
    usual = [name for name in (layout.path_column, *PATHS) if name in likely]
    if len(likely) > 1 and not usual:
        problem = f"{label}: {some_of(likely, 5)} could each be the images"
        raise DataError(problem, Hint({"path_column": likely[0]}))
    cells, classes = dict[str, Sequence[Any]](), dict[str, tuple[str, ...]]()
    for name in (name for name in names if name not in likely):
        feature = getattr(features.get(name), "feature", features.get(name))
        classes[name] = tuple(getattr(feature, "names", None) or ())
        cells[name] = _cells(data[name], classes[name], label)
    published = next(filter(None, classes.values()), ()) if len([*filter(None, classes.values())]) == 1 else ()
    column = next(iter([*usual, *likely]), "")
    if not column:
        return Part(None, _listing(label, cells), published)
    if hasattr(data, "with_format"):  # the files themselves, not what is decoded of them
        rows = ItemImages(partial(_stored, data.with_format("arrow"), column), label, range(len(data)))
        return Part(rows, _listing(label, cells), published)
    return Part(_images_of([*data[column]], label), _listing(label, cells), published)


def _listing(label: str, cells: Mapping[str, Sequence[Any]]) -> Listing:
    """The columns in which anything stands."""
    return Listing(label, {name: cells[name] for name in cells if any(cell not in (None, "") for cell in cells[name])})


def _is_image(cells: Any) -> bool:
    """Whether the first cell of a column is an image, and no path or label."""
    first = next(iter(cells), None)
    pixels = isinstance(first, np.ndarray | Tensor) and first.ndim > 1
    return pixels or isinstance(first, Image.Image | bytes) or (isinstance(first, Mapping) and BYTES in first)


def _stored(data: Any, column: str, number: int) -> Any:
    return _file_of(data[number][column][0].as_py())


def _file_of(item: Any) -> Any:
    """The bytes or the path of a cell that has both; any other as it is."""
    return (item.get(BYTES) or item.get(PATH)) if isinstance(item, Mapping) else item


def _images_of(items: Sequence[Any], label: str) -> Images:
    """Files, where all are paths; else what an object gives."""
    items = [*map(_file_of, items)]
    if all(isinstance(item, str | Path) for item in items):
        return _files([*map(str, items)])
    return ItemImages(items.__getitem__, label, range(len(items)))


def _files(paths: Sequence[str], error: DataError | None = None) -> FileImages:
    """Files, whose names are relative to the folder that all lie in; raises an error where all, or some are missing."""
    files = [Path(os.path.abspath(os.path.expanduser(path))) for path in paths]
    if missing := [path for path, file in zip(paths, files, strict=True) if not file.is_file()]:
        if error and len(missing) == len(files):
            raise error
        problem = f"{len(missing)} of {len(files)} files are missing: {some_of(missing, 5)}"
        raise DataError(problem, f"paths that are absolute, or relative to {Path.cwd()}")
    return FileImages(files, Path(os.path.commonpath([file.parent for file in files])))


def _cells(values: Any, names: Sequence[str], label: str) -> list[Any]:
    with raised_as(DataError, f"{label}: a label is a number without a name", f"0 to {len(names) - 1}", IndexError):
        return [_cell(value, names) for value in values]


def _cell(value: Any, names: Sequence[str]) -> Any:
    """A label as text, by its name where it is a number; several as a list, also of an array of 0 and 1."""
    is_flags = getattr(value, "ndim", 0) == 1
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple | set):
        chosen = [number for number, flag in enumerate(value) if flag] if is_flags else value
        return [_cell(each, names) for each in chosen]
    if value is None or value != value:  # NaN, as tables have it
        return None
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return names[int(value)] if names and value >= 0 else "" if names else str(int(value))
    return str(value) if isinstance(value, float) else value
