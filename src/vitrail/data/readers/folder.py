"""Labelled pictures from a tree of folders, where the name of a folder is the name of a class.

Either `train/` and `val/` (or `valid/`, `validation/`) and `test/` each hold class folders, or the class folders lie
there at once. Inside a class folder pictures may lie at any depth. Whatever is left aside is said in a note.
"""

import os
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrail.data.dataset import ALL, SPLIT_NAMES, TEST, TRAIN, VALIDATION, RawDataset, Samples, labelled
from vitrail.data.images import FileImages
from vitrail.errors import DataError, counted

EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
"""The endings, in small letters, of the files that are taken for pictures."""

_Identity = tuple[int, int]


@dataclass
class _LeftAside:
    """What a walk through the tree passed over."""

    hidden: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    loose: int = 0
    other: Counter[str] = field(default_factory=Counter)

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of thing that was left aside."""
        other = ", ".join(f"{ending or 'no ending'} ({count})" for ending, count in sorted(self.other.items()))
        said = (
            (self.hidden, f"Ignored hidden and system folders: {_some(self.hidden)}."),
            (self.empty, f"Ignored folders without pictures: {_some(self.empty)}."),
            (self.beside, f"Ignored folders beside train: {_some(self.beside)}."),
            (self.links, f"Did not follow links to folders that are read anyway: {_some(self.links)}."),
            (self.loose, f"Ignored {counted(self.loose, 'picture')} outside class folders."),
            (self.other, f"Ignored files that are no pictures by their ending: {other}."),
        )
        return tuple(sentence for things, sentence in said if things)


def read_folder(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a tree of class folders.

    Args:
        what: The path of the folder with `train/` and so on, or with the class folders.
        data_root: Not looked at: the path says where.

    Returns:
        The parts `train`, `validation` and `test` as far as they are there, or one part `all`.

    Raises:
        DataError: There are no class folders, no pictures, two folders for one split, or a folder cannot be read.
    """
    root = Path(what).expanduser().resolve()
    aside = _LeftAside()
    try:
        parts = _read_parts(root, aside)
    except OSError as error:
        raise DataError(
            f"{error.filename or root} cannot be read ({error.strerror})", "check its permissions"
        ) from error
    if not parts:
        raise DataError(
            f"{root} has no pictures in its class folders", f"one folder per class with {', '.join(EXTENSIONS)} files"
        )
    return RawDataset(str(root), parts, aside.notes())


def _read_parts(root: Path, aside: _LeftAside) -> dict[str, Samples]:
    folders = _folders(root, root, aside)
    named = {SPLIT_NAMES[path.name.lower()]: path for path in folders if path.name.lower() in SPLIT_NAMES}
    has_train = TRAIN in named and bool(_folders(named[TRAIN], root, _LeftAside()))
    if not has_train and len(named) < len(folders):
        named = {}  # class folders that only happen to be called so
    if not named:
        _count_loose(root, aside)
        if not folders:
            raise _no_classes(root, root, aside)
        part = _read_classes(root, folders, root, aside)
        return {ALL: part} if part is not None else {}
    for path in folders:
        split = SPLIT_NAMES.get(path.name.lower())
        if split is None:
            aside.beside.append(path.name)
        elif named[split] != path:
            raise DataError(
                f"{root} has two folders for one split: {named[split].name}, {path.name}", "keep one of them"
            )
    _count_loose(root, aside)
    parts = {}
    for split in (TRAIN, VALIDATION, TEST):
        if split not in named:
            continue
        classes = _folders(named[split], root, aside)
        before = aside.loose
        _count_loose(named[split], aside)
        if not classes and aside.loose > before:
            raise _no_classes(named[split], root, aside)
        part = _read_classes(named[split], classes, root, aside)
        if part is not None:
            parts[split] = part
        elif not classes:
            aside.empty.append(named[split].relative_to(root).as_posix())
    return parts


def _no_classes(folder: Path, root: Path, aside: _LeftAside) -> DataError:
    if aside.loose:
        return DataError(
            f"{folder} has {counted(aside.loose, 'picture')} but no class folders",
            "one folder per class, or a manifest: labels.csv with path,label",
        )
    return DataError(f"{folder} has no class folders and no pictures", "one folder per class with pictures in it")


def _read_classes(folder: Path, classes: list[Path], root: Path, aside: _LeftAside) -> Samples | None:
    """Read all pictures below the class folders; None when there is none."""
    seen = {_identity(path) for path in (root, folder, *classes)}
    paths, names, labels = [], [], []
    for path in classes:
        files = _pictures_below(path, root, seen, aside)
        if not files:
            aside.empty.append(path.relative_to(root).as_posix())
            continue
        labels += [len(names)] * len(files)
        paths += files
        names.append(unicodedata.normalize("NFC", path.name))
    if not paths:
        return None
    return labelled(FileImages(paths, root), np.array(labels, dtype=np.int64), tuple(names))


def _pictures_below(folder: Path, root: Path, seen: set[_Identity], aside: _LeftAside) -> list[Path]:
    """All picture files at any depth, sorted; no folder is entered twice, so that links cannot make a circle."""
    files = []
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        for path in _folders(current, root, aside):
            identity = _identity(path)
            if identity in seen:
                aside.links.append(path.relative_to(root).as_posix())
            else:
                seen.add(identity)
                waiting.append(path)
        for entry in _visible_files(current):
            if _is_picture(entry):
                files.append(Path(entry.path))
            else:
                aside.other[Path(entry.name).suffix.lower()] += 1
    return sorted(files)


def _folders(folder: Path, root: Path, aside: _LeftAside) -> list[Path]:
    """The visible folders in a folder, sorted by name."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                continue
            if entry.name.startswith((".", "__MACOSX", "@eaDir")):
                aside.hidden.append(Path(entry.path).relative_to(root).as_posix())
            else:
                found.append(Path(entry.path))
    aside.hidden.sort()
    return sorted(found)


def _visible_files(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".") and not entry.is_dir()]


def _is_picture(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(EXTENSIONS) and entry.is_file()


def _count_loose(folder: Path, aside: _LeftAside) -> None:
    for entry in _visible_files(folder):
        if _is_picture(entry):
            aside.loose += 1
        else:
            aside.other[Path(entry.name).suffix.lower()] += 1


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def picture_files(folder: Path) -> list[Path]:
    """Every picture file in a folder and below it, sorted by path; hidden files and folders are left out."""
    return _pictures_below(folder, folder, set(), _LeftAside())
