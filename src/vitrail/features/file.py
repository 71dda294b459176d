"""A file of features: one row an image, and whose features they are, so that no other model is compared with them.

    .npz        arrays `id`, `split`, `label` (where the data name classes) and one for each pooling, to be read by
                `numpy.load`; what the file knows of itself stands in `about`, as JSON
    .parquet    the same as columns; `about` is its metadata under `vitrail`. It needs pyarrow

Rows stand in the order of the data. The same content always gives the same bytes (of Parquet: with the same pyarrow).
A file is written row by row from its parts, so that it may be larger than memory.
"""

import io
import json
import math
import shlex
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from vitrail.arguments import Numbered
from vitrail.data.sources import FEATURES, MAKES_FEATURES, check_path
from vitrail.errors import DataError, counted, raised_as, remove, some_of
from vitrail.features.poolings import PATCHES
from vitrail.io import check_table, to_json, writing
from vitrail.jobs.parts import KEY, Kind, other_name
from vitrail.text import utf8

NPZ = FEATURES[0]
FORMAT = 2
ABOUT, WORDS = "about", ("id", "split", "label")
MODEL = ("weights", "network", "preprocessing")  # by which a model is known again
BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, NotImplementedError)


@dataclass(frozen=True, eq=False)
class FeatureSet(Numbered):
    """Features of images.

    Attributes:
        ids: (n,) what each image is called in its data.
        splits: (n,) which split it belongs to; "all" of data that is not split.
        labels: (n,) its class; None where the data name none.
        values: (n, d) float32 of each pooling, by name; patches (n, rows, columns, d), where they were wanted and no
            file holds them.
        about: Whose they are: `weights`, `network` and `preprocessing` of the model, without its head; `data` and
            `images` (a hash of their names, sizes and classes); `unreadable`: what was left out, one line each.
    """

    ids: tuple[str, ...]
    splits: tuple[str, ...]
    labels: tuple[str, ...] | None
    values: Mapping[str, NDArray[np.float32]]
    about: Mapping[str, Any]

    def __repr__(self) -> str:
        """In a few lines: how many images, with how many classes, and the shape of each pooling."""
        classes = f" of {counted(len(set(self.labels)), 'class', 'classes')}" if self.labels else ""
        shapes = [f"{name} {' x '.join(map(str, value.shape))}" for name, value in self.values.items()]
        return f"Features of {counted(len(self), 'image')}{classes}\n  {some_of(shapes)}"

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.ids)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What was left out, one line each."""
        return tuple(self.about["unreadable"])

    def select(self, rows: Sequence[int]) -> "FeatureSet":
        """These images, in this order."""
        chosen = (tuple(each[row] for row in rows) for each in (self.ids, self.splits, self.labels or ()) if each)
        ids, splits, *labels = chosen
        values = {name: value[list(rows)] for name, value in self.values.items()}
        return FeatureSet(ids, splits, labels[0] if labels else None, values, self.about)

    def to_dict(self) -> dict[str, Any]:
        """All but the numbers, for JSON."""
        facts = {name: self.about[name] for name in ("weights", "data", "unreadable")}
        facts["compute_dtype"] = self.about.get("precision", "fp32")  # which older files do not say
        return {"images": len(self), "columns": dict(self.about["columns"]), **facts}


Pieces = Callable[[str], Iterator[NDArray[Any]]]
"""The rows of a column of that name, some at a time, in order."""


# ---- where it goes


def check_ending(out: Path) -> None:
    """Refuse a file that could not be written in the end.

    Raises:
        UsageError: Its ending is of no kind that is written, what writes it is missing, or it is a folder.
    """
    check_table(out, out.suffix, "features", NPZ)


def is_features(path: Path) -> bool:
    """Whether this is named like a file of features, and is a file."""
    return path.suffix in FEATURES and path.is_file()


# ---- writing


def write_features(out: Path, names: Sequence[str], pieces: Pieces, count: int, about: Mapping[str, Any]) -> None:
    """Write a file whole, from pieces of its columns, or leave the former one.

    Args:
        out: Where to, with an ending that `check_ending` let pass.
        names: Of the columns, in order.
        pieces: What they hold: words, or numbers (m, ...).
        count: How many rows there are in all.
        about: What it knows of itself.

    Raises:
        OSError: It cannot be written.
    """
    with writing(out) as handle:
        (_write_npz if out.suffix == NPZ else _write_parquet)(handle, names, pieces, count, to_json(about, indent=None))


def _write_npz(file: IO[bytes], names: Sequence[str], pieces: Pieces, count: int, about: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            like, words = next(pieces(name)), name in WORDS
            kind = np.result_type(*(piece.dtype for piece in pieces(name))) if words else like.dtype
            shape = (count, *like.shape[1:])
            entry = zipfile.ZipInfo(f"{name}.npy")  # its date is always the same
            entry.compress_type = zipfile.ZIP_DEFLATED if words else zipfile.ZIP_STORED
            with archive.open(entry, "w", force_zip64=True) as handle:
                header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(handle, header)
                for piece in pieces(name):
                    handle.write(np.ascontiguousarray(piece, dtype=kind).tobytes())
        with archive.open(zipfile.ZipInfo(f"{ABOUT}.npy"), "w") as handle:
            np.lib.format.write_array(handle, np.array(about), allow_pickle=False)


def _write_parquet(file: IO[bytes], names: Sequence[str], pieces: Pieces, count: int, about: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(name: str, piece: NDArray[Any]) -> Any:
        if name in WORDS:
            return pa.array([utf8(word) for word in piece.tolist()], pa.string())
        return pa.FixedSizeListArray.from_arrays(pa.array(piece.ravel()), math.prod(piece.shape[1:]))

    words = [name for name in names if name in WORDS]
    schema = pa.schema([(name, column(name, next(pieces(name))).type) for name in names], {KEY: about.encode()})
    with pq.ParquetWriter(file, schema, compression="NONE", use_dictionary=words) as writer:
        for together in zip(*map(pieces, names), strict=True):
            made = [column(name, piece) for name, piece in zip(names, together, strict=True)]
            writer.write_table(pa.Table.from_arrays(made, schema=schema))


# ---- reading


def read_about(path: Path) -> dict[str, Any]:
    """What a file of features knows of itself.

    Raises:
        DataError: It is damaged, or none that vitrail wrote.
        UsageError: What reads it is missing.
    """
    check_path(path)
    if not is_features(path):
        raise DataError(f"{path} is not a feature file written by vitrail", MAKES_FEATURES)
    check_ending(path)
    with _damage_in(path):
        if path.suffix == NPZ:
            with np.load(path, allow_pickle=False) as arrays:
                about = json.loads(str(arrays[ABOUT])) if ABOUT in arrays else {}
        else:
            import pyarrow.parquet as pq

            about = json.loads((pq.read_schema(path).metadata or {}).get(KEY, "{}"))
        if dict(about).get("format") != FORMAT:
            raise DataError(f"{path} is not a feature file written by vitrail", MAKES_FEATURES)
        return about


def read_features(path: str | Path) -> FeatureSet:
    """What a file holds, but for the patches.

    Raises:
        DataError: It is damaged, or none that vitrail wrote.
        UsageError: What reads it is missing.
    """
    path = Path(path)
    about = read_about(path)
    names = [name for name in about["columns"] if name != PATCHES]
    with _damage_in(path):
        wanted = [*WORDS, *names]
        if path.suffix == NPZ:
            with np.load(path, allow_pickle=False) as arrays:
                columns = {name: arrays[name] for name in wanted if name in arrays}
        else:
            columns = _read_parquet(path, wanted)
        values = {name: columns[name].reshape(-1, *about["columns"][name]) for name in names}
        ids, splits, *labels = (tuple(columns[name].tolist()) for name in WORDS if name in columns)
        if len({len(ids), len(splits), *map(len, (*labels, *values.values()))}) != 1:
            raise ValueError("columns of different lengths")
    return FeatureSet(ids, splits, labels[0] if labels else None, values, about)


def _read_parquet(path: Path, names: list[str]) -> dict[str, NDArray[Any]]:
    import pyarrow.parquet as pq

    there = pq.read_schema(path).names
    table = pq.read_table(path, columns=[name for name in names if name in there])
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    return {
        name: np.array(column.to_pylist(), dtype=str)
        if name in WORDS
        else np.array(column.flatten())  # a copy that may be written to
        for name, column in columns.items()
    }


def _damage_in(path: Path) -> AbstractContextManager[None]:
    return raised_as(DataError, f"{path} is damaged", remove(path, "then embed again"), BROKEN)


def check_same_model(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], opened: str) -> None:
    """Refuse features of another model, or of the same with images that go in otherwise.

    Args:
        path: Their file.
        theirs: What it knows of itself.
        ours: What is known of the model.
        opened: What it was loaded from.

    Raises:
        DataError: Names what differs.
    """
    for name in MODEL:
        if theirs.get(name) != ours[name]:
            differs = f"{name} {theirs.get(name)}, and not {ours[name]}" if name == "weights" else f"another {name}"
            problem = f"{path} holds features of another model: {differs}"
            root = ["--data-root", str(theirs["data_root"])] if theirs.get("data_root") else []
            words = ["vitrail", "embed", opened, str(theirs.get("data")), *root, "--out", str(other_name(path))]
            raise DataError(problem, shlex.join(words))


class FeaturePart(NamedTuple):
    """Some images of one split.

    Attributes:
        ids: (m,) which of the range could be read, by their places in it.
        values: (m, ...) of each, by name; empty where none could be read.
        unreadable: Why the others could not, one line each.
    """

    ids: Int64[np.ndarray, " _"]
    values: Mapping[str, NDArray[np.float32]]
    unreadable: tuple[str, ...]


def _arrays_to_bytes(part: FeaturePart) -> bytes:
    content = io.BytesIO()
    unreadable = np.array(json.dumps(part.unreadable))
    np.savez(content, ids=part.ids, unreadable=unreadable, **part.values)  # pyrefly: ignore[bad-argument-type]
    return content.getvalue()


def _read_arrays(file: Path) -> FeaturePart:
    """A part; each of its values is read when it is asked for."""
    arrays = np.load(file, allow_pickle=False)
    return FeaturePart(arrays["ids"], arrays, tuple(json.loads(str(arrays["unreadable"]))))


ARRAYS = Kind(".npz", _arrays_to_bytes, _read_arrays)
"""Parts as .npz."""
