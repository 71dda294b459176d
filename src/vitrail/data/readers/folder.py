"""Labelled images from a tree of folders, where the name of a folder is the name of a class.

Either `train/` and `val/` (or `valid/`, `validation/`) and `test/` each hold class folders, or the class folders lie
there at once. Inside a class folder images may lie at any depth. Whatever is left aside is noted.
"""

import os
from collections import Counter
from pathlib import Path

from vitrail.data.columns import LABEL, Labels
from vitrail.data.dataset import ALL, SPLIT_NAMES, SPLITS, TRAIN, RawDataset, Samples
from vitrail.data.images import EXTENSIONS, FileImages, is_broken_link
from vitrail.errors import DataError, counted, some_of

HIDDEN = "Ignored hidden and system folders"
EMPTY = "Ignored folders without images"
BESIDE = "Ignored folders beside train"
LINKS = "Did not follow links to folders that are read anyway"


class _Walk:
    """A walk through a tree of folders, and what it passed over: folders, images, and the endings of other files."""

    def __init__(self, root: Path) -> None:
        self.root, self.loose, self.other = root, 0, Counter[str]()
        self.passed: dict[str, list[Path]] = {HIDDEN: [], EMPTY: [], BESIDE: [], LINKS: []}

    def listed(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The visible folders and the images in a folder, both sorted; other visible files are counted.

        A link that leads nowhere and is named as an image is one: whoever opens it reports it as unreadable.
        """
        folders, images = [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                broken = is_broken_link(path) if entry.is_symlink() else False
                image = entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith(".")
                if not broken and entry.is_dir():
                    hidden = entry.name.startswith((".", "__MACOSX", "@eaDir"))
                    (self.passed[HIDDEN] if hidden else folders).append(path)
                elif image and (broken or entry.is_file()):
                    images.append(path)
                elif not entry.name.startswith("."):
                    self.other[path.suffix.lower()] += 1
        return sorted(folders), sorted(images)

    def below(self, folder: Path, seen: set[tuple[int, int]]) -> list[Path]:
        """All images at any depth, sorted; no folder is entered twice, so that links cannot make a circle."""
        files, waiting = [], [folder]
        seen.add(_identity(folder))
        while waiting:
            folders, images = self.listed(waiting.pop())
            files += images
            for path in folders:
                if _identity(path) in seen:
                    self.passed[LINKS].append(path)
                else:
                    seen.add(_identity(path))
                    waiting.append(path)
        return sorted(files)

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of thing that was left aside."""
        self.passed[HIDDEN].sort()
        notes = [
            f"{what}: {some_of([path.relative_to(self.root).as_posix() for path in paths])}."
            for what, paths in self.passed.items()
            if paths
        ]
        if self.loose:
            notes.append(f"Ignored {counted(self.loose, 'image')} outside class folders.")
        if self.other:
            endings = ", ".join(f"{ending or 'no suffix'} ({count})" for ending, count in sorted(self.other.items()))
            notes.append(f"Ignored files without an image suffix: {endings}.")
        return tuple(notes)


def read_folder(what: str, data_root: Path | None = None) -> RawDataset:
    """Read a tree of class folders.

    Args:
        what: The path of the folder with `train/` and so on, or with the class folders.
        data_root: Not used: the path is enough.

    Returns:
        The splits `train`, `validation` and `test` as far as they are there, or one split `all`.

    Raises:
        DataError: There are no class folders, no images, two folders for one split, or a folder cannot be read.
    """
    root = Path(what).expanduser().resolve()
    walk = _Walk(root)
    try:
        splits = _read_splits(root, walk)
    except OSError as error:
        raise _unreadable(root, error) from error
    if not splits:
        raise DataError(
            f"{root} has no images in its class folders", f"one folder per class with {', '.join(EXTENSIONS)} files"
        )
    return RawDataset(str(root), splits, walk.notes())


def image_files(folder: Path) -> list[Path]:
    """Every image file in a folder and below it, sorted by path; hidden files and folders are left out.

    Raises:
        DataError: The folder, or one in it, is missing or cannot be read.
    """
    try:
        return _Walk(folder).below(folder, set())
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: OSError) -> DataError:
    return DataError(f"{error.filename or folder} cannot be read ({error.strerror})", "check its permissions")


def _read_splits(root: Path, walk: _Walk) -> dict[str, Samples]:
    folders, loose = walk.listed(root)
    walk.loose += len(loose)
    named = {SPLIT_NAMES[path.name.lower()]: path for path in folders if path.name.lower() in SPLIT_NAMES}
    has_train = TRAIN in named and bool(_Walk(root).listed(named[TRAIN])[0])
    if not has_train and len(named) < len(folders):
        named = {}  # class folders that only happen to be called so
    for path in folders if named else ():
        split = SPLIT_NAMES.get(path.name.lower())
        if split is None:
            walk.passed[BESIDE].append(path)
        elif named[split] != path:
            two = f"{named[split].name}, {path.name}"
            raise DataError(f"{root} has two folders for one split: {two}", "keep one of them")
    splits, places = {}, {ALL: (root, folders, loose)}
    if named:
        places = {each: (named[each], *walk.listed(named[each])) for each in SPLITS if each in named}
        walk.loose += sum(len(loose) for _, _, loose in places.values())
    for split, (folder, classes, loose) in places.items():
        if not classes and (loose or not named):
            raise _no_classes(folder, len(loose))
        samples = _read_classes(folder, classes, walk)
        if samples is not None:
            splits[split] = samples
        elif not classes:
            walk.passed[EMPTY].append(folder)
    return splits


def _no_classes(folder: Path, loose: int) -> DataError:
    if loose:
        return DataError(
            f"{folder} has {counted(loose, 'image')} but no class folders",
            "one folder per class, or a manifest: labels.csv with path,label",
        )
    if shards := sum(path.suffix == ".tar" for path in folder.iterdir() if path.is_file()):
        problem = f"{folder} has {counted(shards, 'shard')} but no index shards.json"
        return DataError(problem, "a complete folder written by vitrail data pack; or pack the data again")
    return DataError(f"{folder} has no class folders and no images", "one folder per class with images in it")


def _read_classes(folder: Path, classes: list[Path], walk: _Walk) -> Samples | None:
    """Read all images below the class folders; None when there is none."""
    seen = {_identity(path) for path in (walk.root, folder, *classes)}
    paths, labels = list[Path](), list[str]()
    for path in classes:
        files = walk.below(path, seen)
        if not files:
            walk.passed[EMPTY].append(path)
        paths += files
        labels += [path.name] * len(files)
    return Samples(FileImages(paths, walk.root), {LABEL: Labels.of(labels)}) if paths else None


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
