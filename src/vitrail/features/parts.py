"""What lies beside a file of features until it is whole: its parts, each written once, and whose they are.

    features.npz.parts/about.json     model, preprocessing, images: another one is refused
    features.npz.parts/000012.npz     the 13th part, which has this name only when all of it was written

Whatever ends the work, the same command goes on behind the parts that are whole. A part is decided by its place alone:
so the file that is put together in the end has the same bytes, however often it was interrupted.
"""

import io
import json
import shlex
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from vitrail.errors import UsageError
from vitrail.io import free_name, read_json, to_json, write_file

ROWS = 256  # images of a part
SUFFIX, ABOUT = ".parts", "about.json"


class Part(NamedTuple):
    """Some images of one split.

    Attributes:
        ids: (m,) which of them could be read.
        values: (m, ...) of each, by name; empty where none could be read.
        unreadable: Why the others could not, one line each.
    """

    ids: Int64[np.ndarray, " _"]
    values: Mapping[str, NDArray[np.float32]]
    unreadable: tuple[str, ...]


class Parts:
    """The parts of a file on disk.

    Args:
        out: The file.
        about: Whose features they are.

    Raises:
        UsageError: There are parts of another model, other images or other columns.
        OSError: Nothing can be written there.
    """

    def __init__(self, out: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder_of(out)
        file, own = self.folder / ABOUT, json.loads(to_json(about))
        if not file.is_file():
            if self.folder.is_dir() and any(self.folder.iterdir()):
                raise UsageError(f"{self.folder}, where parts would go, exists", f"--out {other_name(out)}")
            write_file(file, to_json(own))
        theirs = read_json(file, shlex.join(["rm", "-r", str(self.folder)]))
        differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
        if differing:
            problem = f"{self.folder} was begun with other {' and '.join(differing)}"
            raise UsageError(problem, f"--out {other_name(out)}")

    def read(self, number: int) -> Part | None:
        """A part, every byte of it checked; None where it is not there or not whole."""
        try:
            with np.load(self._file(number), allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays}
            return Part(found.pop("ids"), found, tuple(json.loads(str(found.pop("unreadable")))))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def column(self, number: int, name: str) -> NDArray[Any]:
        """One column of a part that is there."""
        with np.load(self._file(number), allow_pickle=False) as arrays:
            return arrays[name]

    def write(self, number: int, part: Part) -> None:
        """Keep a part."""
        content = io.BytesIO()
        unreadable = np.array(json.dumps(part.unreadable))
        np.savez(content, ids=part.ids, unreadable=unreadable, **part.values)  # pyrefly: ignore[bad-argument-type]
        write_file(self._file(number), content.getvalue())

    def remove(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"


class Kept:
    """The parts of what is wanted in memory alone, with the same questions."""

    def __init__(self) -> None:
        self._parts = dict[int, Part]()

    def read(self, number: int) -> Part | None:
        """A part; None where it is not there."""
        return self._parts.get(number)

    def column(self, number: int, name: str) -> NDArray[Any]:
        """One column of a part that is there."""
        return self._parts[number].values[name]

    def write(self, number: int, part: Part) -> None:
        """Keep a part."""
        self._parts[number] = part

    def remove(self) -> None:
        """Forget them."""
        self._parts.clear()


def folder_of(out: Path) -> Path:
    """Where the parts of a file lie."""
    return out.with_name(out.name + SUFFIX)


def other_name(out: Path) -> Path:
    """A file of another name, which is not there yet, nor its parts."""
    return free_name(out, lambda file: file.exists() or folder_of(file).exists())
