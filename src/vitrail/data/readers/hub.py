"""Tables of images as hubs have them: parquet files that hold the images themselves, or say where they are.

    photos.parquet                               a column of images, as `{bytes, path}`, as bytes or as paths
    data/train-00000-of-00002.parquet, ...       the same in parts; splits by the names of files and their folders

Names of classes are those of the table's own features, where it has some. Images are unpacked once into one file of the
user's cache for each file of a table, and read there by their places: in any order, by any number of processes, without
pyarrow. It takes the disk that the images take, and goes when its table has changed. An image is called by the path
beside it, where no two are called alike; else by its file and row.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.columns import ALL, RawDataset, split_of
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.readers.folder import read_tree
from vitrail.data.readers.manifest import listed_files, stems_in
from vitrail.data.shard_files import Words
from vitrail.data.stores import EncodedImages, Tree, remembered, splits_of_files
from vitrail.data.tables import PATH, PATHS, Listing, Roles, divided, find_roles, splits_in
from vitrail.errors import DataError, Hint, UsageError, byte_size, raised_as, some_of
from vitrail.io import writing

AT_ONCE = 64  # images of a table in memory
BUFFER = 2**20  # bytes of a column that are read at once
BYTES = "bytes"  # of an image in a table, beside its path
IMAGE = re.compile(rf"(large_)?binary|struct<(.*, )?{BYTES}: (large_)?binary.*")  # a type, as pyarrow calls it
_WORD = r"(large_)?string|u?int\d+|bool"
PLAIN = re.compile(rf"{_WORD}|float|double|dictionary<values=({_WORD}),.*|(large_)?list<\w+: ({_WORD})( not null)?>")


def read_hub(what: str, data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
    """Read a table of images.

    Args:
        what: The path of a parquet file, or of a folder with such files; beside tables that have nothing to do with
            images its class folders are read.
        data_root: Not used: the path is enough.
        layout: The columns, where a person names them.

    Returns:
        The splits by the names of files, else by a column, else one split `all`.

    Raises:
        UsageError: Several tables lie there, several columns could be the images or the label, or pyarrow is missing.
        DataError: There is no column of images, or a file is damaged.
    """
    path = Path(what).expanduser().resolve()
    root = path if path.is_dir() else path.parent
    files, notes = _files_in(path, root)
    rows = [_rows_in(file) for file in files]
    column, cells, classes, odd = _columns_in(path, [*files], layout) if files else ("", {}, {}, [])
    if path.is_dir() and not (column or layout.columns or {*PATHS} & {*cells}):  # features, or the like
        found, aside = read_tree(Tree(path)), some_of([file.relative_to(path).as_posix() for file in files])
        return replace(found, notes=(*found.notes, f"Ignored tables without images: {aside}."))
    if not sum(rows):
        raise DataError(f"{path} has no rows", "a table with an image in each row")
    listing = Listing(str(path), cells)
    tree = Tree(root)
    stems = partial(stems_in, root, tree)
    roles = find_roles(listing, layout, "" if column else None, stems) if cells or not column else Roles()
    if column:
        images, taken = _unpacked([*files], column, root)
        notes += [f"Images were unpacked into the user's cache, once: {byte_size(taken)}."] if taken else []
    else:
        images = tree.images(listed_files(listing, roles.path, root, tree, _likely_in(next(iter(files)))))
    of_row = [split for split, count in zip(files.values(), rows, strict=True) for _ in range(count)]
    if {*of_row} == {ALL} and roles.split:
        of_row, note = splits_in(listing, roles)
        notes.append(note)
    notes += [f"Ignored columns that are neither texts nor numbers: {some_of(odd)}."] if odd else []
    published = None
    if len(roles.labels) == 1:
        label = roles.labels[0]
        named = {split for split, cell in zip(of_row, cells[label], strict=True) if cell not in ("", None)}
        if named and (bare := sorted({*of_row} - named)):
            notes.append(f"Ignored, without labels: {', '.join(bare)}.")
            of_row = ["" if split in bare else split for split in of_row]
        if label in classes and {*classes[label]} <= {cell for cell in cells[label] if isinstance(cell, str)}:
            published = classes[label]
    splits = divided(images, listing, roles, of_row)
    return RawDataset(str(path), splits, (*filter(None, (roles.sentence(), *notes)),), published)


def _files_in(path: Path, root: Path) -> tuple[dict[Path, str], list[str]]:
    """The files of a table, each with its split, and a sentence on those that are left aside.

    Raises:
        UsageError: They are of several tables.
    """
    below = {file: file.relative_to(root) for file in (sorted(path.rglob("*.parquet")) if path.is_dir() else [path])}
    below = {file: one for file, one in below.items() if not any(part.startswith(".") for part in one.parts)}
    tables = {tuple(each for each in one.parts[:-1] if each != "data" and not split_of(each)) for one in below.values()}
    if len(tables) > 1:
        names = sorted("/".join(table) or "." for table in tables)
        raise UsageError(f"{path} holds several tables: {some_of(names, 5)}", f"one of them: {path / names[-1]}")
    found, note = splits_of_files([*below.values()])
    return {file: split for file, split in zip(below, found, strict=True) if split}, [note]


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    """The library, where what a damaged file brings about names it."""
    try:
        import pyarrow
        import pyarrow.parquet as library
    except ImportError as error:
        raise UsageError(f"{file} needs pyarrow, which is not installed", 'pip install "vitrail[parquet]"') from error
    hint = "download it again; in a clone, git lfs pull"
    with raised_as(DataError, f"{file} cannot be read as parquet", hint, (pyarrow.ArrowException, OSError)):
        yield library


def _rows_in(file: Path) -> int:
    with _parquet(file) as library:
        return library.read_metadata(file).num_rows


def _likely_in(file: Path) -> list[str]:
    """The columns that could be images."""
    with _parquet(file) as library:
        return [field.name for field in library.read_schema(file) if IMAGE.fullmatch(str(field.type))]


def _columns_in(
    path: Path, files: list[Path], layout: Layout
) -> tuple[str, dict[str, list[Any]], dict[str, tuple[str, ...]], list[str]]:
    """The column of images, the cells of others, the names of their classes, and those that hold something else.

    Raises:
        UsageError: Several columns could be the images.
        DataError: A file is damaged or has other columns than the first, or a class has no name.
    """
    with _parquet(files[0]) as library:
        schema = library.read_schema(files[0])
    likely = _likely_in(files[0])
    usual = [name for name in (layout.path_column, *PATHS) if name in likely] or likely
    if len(likely) > 1 and usual == likely:
        problem = f"{path}: {some_of(likely, 5)} could each be the images"
        raise UsageError(problem, Hint({"path_column": likely[0]}))
    column = "" if layout.path_column not in ("", *likely) else next(iter(usual), "")
    plain = [field.name for field in schema if PLAIN.fullmatch(str(field.type))]
    cells: dict[str, list[Any]] = {name: [] for name in plain}
    for file in files:
        with _parquet(file) as library:
            for name, more in library.read_table(file, columns=plain, partitioning=None).to_pydict().items():
                cells[name] += more
    features, classes = dict[str, Any](), dict[str, tuple[str, ...]]()
    with suppress(ValueError, KeyError, TypeError):  # of a table that no hub wrote
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    for name in plain:
        if names := _class_names(features.get(name)):
            with raised_as(DataError, f"{path}: '{name}' has a number without a name", "0 and up", IndexError):
                cells[name] = [_named(cell, names) for cell in cells[name]]
            classes[name] = names
    return column, cells, classes, [name for name in schema.names if name not in (*plain, column)]


def _class_names(feature: Any) -> tuple[str, ...]:
    """The names of the classes of a column, or of those in its lists, by number; empty of other columns."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    inner = inner.get("feature", inner) if isinstance(inner, dict) else {}
    return tuple(map(str, inner.get("names") or ())) if inner.get("_type") == "ClassLabel" else ()


def _named(cell: Any, names: tuple[str, ...]) -> str | list[str]:
    """The names for a number or a list of numbers; empty where a class is not known, which hubs write as -1."""
    if isinstance(cell, list):
        return [names[each] for each in cell]
    return "" if cell is None or cell < 0 else names[cell]


def _unpacked(files: list[Path], column: str, root: Path) -> tuple[EncodedImages, int]:
    """The images of all files, and the bytes that were written for them, now."""
    sizes, names, blobs, written = list[NDArray[np.int64]](), list[str](), list[Path](), list[int]()
    for file in files:
        found, blob = remembered(file, f"images of {column}", partial(_unpack, column=column, written=written))
        words = Words(found["name"], found["name.ends"])
        names += [words[row] for row in range(len(words))]
        sizes.append(found["size"])
        blobs.append(blob)
    if len({*names}) < len(names) or "" in names:
        stems = (file.relative_to(root).with_suffix("").as_posix() for file in files)
        names = [f"{stem}/{row}" for stem, part in zip(stems, sizes, strict=True) for row in range(len(part))]
    places = [
        np.stack([np.full_like(size, number), np.cumsum(size) - size, size, size, np.zeros_like(size)], axis=1)
        for number, size in enumerate(sizes)
    ]
    return EncodedImages(blobs, np.concatenate(places), Words.of(names)), sum(written)


def _unpack(file: Path, blob: Path, column: str, written: list[int]) -> Mapping[str, NDArray[Any]]:
    """Write the images of a table one behind the other; their sizes, and the paths beside them."""
    sizes, paths = list[int](), list[str]()
    with writing(blob, file.stat().st_size) as handle:
        for content, path in _images_in(file, column):
            handle.write(content)
            sizes.append(len(content))
            paths.append(path)
    written.append(sum(sizes))
    words = Words.of(paths)
    return {"size": np.array(sizes, np.int64), "name": words.content, "name.ends": words.ends}


def _images_in(file: Path, column: str) -> Iterator[tuple[bytes, str]]:
    """The bytes of each image, none where it has none, and its path; of one on another machine the last part."""
    with _parquet(file) as library:
        table = library.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)  # else all of it is in memory
        for batch in table.iter_batches(AT_ONCE, columns=[column]):
            for cell in batch.column(0).to_pylist():
                content, path = (cell.get(BYTES), cell.get(PATH)) if isinstance(cell, dict) else (cell, "")
                parts = PurePosixPath((path or "").replace("\\", "/")).parts
                within = not {"/", ".."} & {*parts} and ":" not in (path or "")
                yield content or b"", "/".join(parts if within else parts[-1:])
