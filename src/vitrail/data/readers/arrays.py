"""Images in arrays of numpy, with their labels in others: a `.npz`, a `.npy`, or a folder of `.npy` files.

    train_images, train_labels, val_images, ..., test_labels    as MedMNIST has them; also x_train, y_train, x_test
    images, labels    or X, y                                   in one piece, or with an array `split`
    images.npy, labels.npy                                      the same names as files in a folder

Images are the array of a usual name, else the only one of three or four dimensions. What stands beside them, one value
an image, are columns as in a list (`vitrail.data.tables`). Labels of the shape (n, k) are 0 and 1: several labels an
image, or one class where each row has one 1. Nothing that was pickled is opened.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from vitrail.data.columns import ALL, SPLITS, RawDataset, Samples, split_of
from vitrail.data.images import ArrayImages
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.tables import SPLIT, Listing, Roles, classes_in_order, columns_of, find_roles, splits_in
from vitrail.errors import DataError, Hint, counted, raised_as, some_of

Arrays = dict[str, NDArray[Any]]
IMAGES = ("images", "image", "x", "imgs", "img", "pixels", "data")
CHANNELS = 1, 3
WANTED = "values 0 to 255 as uint8, or 0 to 1 as floats, of the shape (n, height, width) or (n, height, width, 3)"


def read_arrays(what: str, data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
    """Read images from arrays: grey or colour, channels first or last, as uint8 or as floats from 0 to 1.

    Args:
        what: The path of a `.npz`, of a `.npy`, or of a folder of `.npy` files.
        data_root: Not used: the path is enough.
        layout: The arrays of images, labels, splits and groups, where a person names them.

    Returns:
        The splits that the names of arrays, or an array `split`, tell; else one split `all`. Labels that are whole
        numbers name classes in their order.

    Raises:
        UsageError: Labels, splits or groups that were named are not there, or two arrays could be the label.
        DataError: A file cannot be read, or is pickled; none or several arrays could be the images; they have another
            shape or type or other values; or there are not as many labels as images.
    """
    path, notes = Path(what).expanduser(), dict[str, None]()
    images, tables = dict[str, ArrayImages](), dict[str, Arrays]()
    for split, arrays in _parts(path).items():
        name = _images_in(arrays, layout.path_column, path)
        pixels = _pixels(arrays.pop(name), f"{path}: {name}", notes)
        images[split] = ArrayImages(pixels, path.stem if split == ALL else f"{path.stem}/{split}")
        tables[split] = _for_each(arrays, len(pixels), path)
        if split != ALL:
            tables[split][SPLIT] = np.full(len(pixels), split)
    most = max(map(len, tables.values()))
    if bare := [split for split, columns in tables.items() if len(columns) < 2 <= most]:
        notes[f"Ignored images without labels: {', '.join(bare)}."] = None
    table = _listing(path, [columns for split, columns in tables.items() if split not in bare])
    roles = find_roles(table, layout, "") if len(table) else Roles()
    where, note = splits_in(table, roles) if len(table) else ([ALL] * len(images[ALL]), "")
    notes |= dict.fromkeys(filter(None, (roles.sentence(), note)))
    splits = dict[str, Samples]()
    for split in (split for split in (*SPLITS, ALL) if split in where):
        rows = [row for row, each in enumerate(where) if each == split]
        inputs = images[split] if split in images else images[ALL].select(rows)
        splits[split] = Samples(inputs, columns_of(table, roles, rows))
    return RawDataset(str(path.resolve()), splits, tuple(notes), classes_in_order(next(iter(splits.values()))))


def _parts(path: Path) -> dict[str, Arrays]:
    """The arrays of each split that has images, by their names without it; else all of them.

    Raises:
        DataError: A file cannot be read.
    """
    found, parts = Arrays(), dict[str, Arrays]()
    for file in sorted(path.glob("*.npy")) if path.is_dir() else [path]:
        damaged = raised_as(DataError, f"{file} cannot be read", "a file of numpy with nothing pickled", Exception)
        with damaged, file.open("rb") as handle:
            arrays = np.load(handle, allow_pickle=False)
            found |= {file.stem: arrays} if isinstance(arrays, np.ndarray) else arrays
    for name, values in found.items():
        words = re.split(r"[\W_]+", name)
        if split := next(filter(None, map(split_of, words)), None):
            parts.setdefault(split, {})["_".join(word for word in words if not split_of(word)) or IMAGES[0]] = values
    named = {split: part for split, part in parts.items() if any(values.ndim > 2 for values in part.values())}
    return named or {ALL: found}


def _images_in(arrays: Arrays, named: str, path: Path) -> str:
    """The name of the array of images; raises DataError where none or several could be it."""
    likely = [name for name, values in arrays.items() if values.ndim > 2 and named in ("", name)]
    usual = [name for each in IMAGES for name in likely if name.lower() == each]
    if not usual and len(likely) != 1:
        problem = f"{path} has {counted(len(likely), 'array')} that could be the images {named}".rstrip()
        hint = Hint({"path_column": likely[0]}) if likely else WANTED
        raise DataError(f"{problem}: {_shown(arrays)}", hint)
    return [*usual, *likely][0]


def _shown(arrays: Arrays) -> str:
    return some_of([f"{name} {values.shape}" for name, values in arrays.items()]) or "nothing at all"


def _pixels(values: NDArray[Any], where: str, notes: dict[str, None]) -> UInt8[np.ndarray, "n h w *c"]:
    """Images as 0 to 255 with channels last; what was changed is noted.

    Raises:
        DataError: They have another shape, type or range.
    """
    if values.ndim == 4 and values.shape[3] not in CHANNELS and values.shape[1] in CHANNELS:
        notes["Read the channels of images as first, before height and width."] = None
        values = values.transpose(0, 2, 3, 1)
    fits = values.size and values.ndim in (3, 4) and (values.shape[-1] in CHANNELS) == (values.ndim == 4)
    scaled = values.dtype.kind == "f" and bool(((values >= 0) & (values <= 1)).all())
    if not fits or not (scaled or values.dtype == np.uint8):
        span = f" from {values.min():g} to {values.max():g}" if values.size and values.dtype.kind == "f" else ""
        raise DataError(f"{where} has the shape {values.shape}, the type {values.dtype}{span}", WANTED)
    if scaled:
        notes["Scaled images from 0..1 to 0..255."] = None
    return np.rint(values * 255).astype(np.uint8) if scaled else np.ascontiguousarray(values)


def _for_each(arrays: Arrays, count: int, path: Path) -> Arrays:
    """Those with one value for each image, or with 0 or 1 for each image and label.

    Raises:
        DataError: There are only others.
    """
    fit = Arrays()
    for name, values in arrays.items():
        flat = values[:, 0] if values.shape[1:] == (1,) else values
        if flat.shape[:1] == (count,) and (flat.ndim == 1 or (flat.ndim == 2 and np.isin(flat, (0, 1)).all())):
            fit[name] = flat
    if arrays and not fit:
        wanted = f"labels of the shape ({count},), or ({count}, k) of 0 and 1"
        raise DataError(f"{path} has {counted(count, 'image')}, but beside them {_shown(arrays)}", wanted)
    return fit


def _listing(path: Path, tables: Sequence[Arrays]) -> Listing:
    """The columns that all splits have, one split below the other."""
    shared = [name for name in tables[0] if all(name in each for each in tables)]
    with raised_as(DataError, f"{path}: the labels cannot be read", "the same shape in all splits", ValueError):
        return Listing(str(path), {name: _cells(np.concatenate([each[name] for each in tables])) for name in shared})


def _cells(values: NDArray[Any]) -> list[Any]:
    """As text; of 0 and 1 for each label the labels, or the only one of each row."""
    if values.ndim == 2:
        alone = (values.sum(axis=1) == 1).all()
        return _cells(np.nonzero(values)[1]) if alone else [_cells(np.flatnonzero(row)) for row in values]
    if values.dtype.kind == "b" or (values.dtype.kind == "f" and (values % 1 == 0).all()):
        values = values.astype(np.int64)
    words = values.astype(str).tolist()
    return ["" if values.dtype.kind == "f" and word == "nan" else word for word in words]
