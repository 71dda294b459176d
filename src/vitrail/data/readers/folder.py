"""Images from a tree of folders, where the name of a folder is the name of a class.

Either `train/`, `val/` and `test/` (or `training_set`, `valid`, `dev`, `test_images`) each hold class folders, or the
class folders lie there at once. Inside a class folder images may lie at any depth. Where no split has class folders,
its images have no labels; beside splits that have them such a split is left aside. Whatever is left aside is noted.
"""

import shlex
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vitrail.data.columns import ALL, LABEL, SPLITS, TRAIN, Labels, RawDataset, Samples, split_of
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.sources import EXTENSIONS
from vitrail.data.stores import Tree
from vitrail.errors import DataError, Hint, UsageError, VitrailError, counted, look_at, raised_as, some_of

ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
LISTS = (".csv", ".tsv", ".jsonl")
OF_IMAGES = tuple({name} for name in ("images", "image", "imgs", "img", "photos", "pictures"))
HIDDEN_NAMES = (".", "__MACOSX", "@eaDir")
HIDDEN = "Ignored hidden and system folders"
EMPTY = "Ignored folders without images"
BESIDE = "Ignored folders beside train"
SPLIT = "Read as splits, by a part of their names"
UNLABELLED = "Ignored folders of images without classes"
AS_MEANT = "splits outside, with their usual names: train/cat, test/cat; or labels.csv with path,label,split"
LINKS = "Did not follow links to folders that are read anyway"

NOTED = HIDDEN, EMPTY, SPLIT, BESIDE, UNLABELLED, LINKS


class _Walk:
    """A walk through a tree of folders, and what it passed over: folders, images, and the endings of other files."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.loose, self.other, self.archives = tree, 0, Counter[str](), list[str]()
        self.passed: dict[str, list[Path]] = {kind: [] for kind in NOTED}

    def listed(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The visible folders and the images in a folder, both sorted; other visible files are counted.

        A link that leads nowhere and is named as an image is one: whoever opens it reports it as unreadable.
        """
        folders, images = [], []
        for name, is_folder in self.tree.entries(folder).items():
            path = folder / name
            if is_folder:
                (self.passed[HIDDEN] if name.startswith(HIDDEN_NAMES) else folders).append(path)
            elif name.startswith("."):
                continue
            elif name.lower().endswith(EXTENSIONS):
                images.append(path)
            else:
                self.other[path.suffix.lower()] += 1
                if name.lower().endswith(ARCHIVES):
                    self.archives.append(path.relative_to(self.tree.root).as_posix())
        return sorted(folders), sorted(images)

    def below(self, folder: Path, seen: set[Hashable]) -> list[Path]:
        """All images at any depth, sorted; no folder is entered twice, so that links cannot make a circle."""
        files, waiting = [], [folder]
        seen.add(self.tree.identity(folder))
        while waiting:
            folders, images = self.listed(waiting.pop())
            files += images
            for path in folders:
                if self.tree.identity(path) in seen:
                    self.passed[LINKS].append(path)
                else:
                    seen.add(self.tree.identity(path))
                    waiting.append(path)
        return sorted(files)

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of thing that was left aside."""
        self.passed[HIDDEN].sort()
        notes = [
            f"{what}: {some_of([path.relative_to(self.tree.root).as_posix() for path in paths])}."
            for what, paths in self.passed.items()
            if paths
        ]
        if self.loose:
            notes.append(f"Ignored {counted(self.loose, 'image')} outside class folders.")
        if self.other:
            endings = ", ".join(f"{ending or 'no suffix'} ({count})" for ending, count in sorted(self.other.items()))
            notes.append(f"Ignored files without an image suffix: {endings}.")
        return tuple(notes)


def read_folder(what: str, data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
    """Read a tree of class folders; where it has but one, called as images are, a list beside it has the labels.

    Args:
        what: The path of the folder with `train/` and so on, or with the class folders.
        data_root: Not used: the path is enough.
        layout: The columns of that list, where a person names them.

    Returns:
        The splits `train`, `validation` and `test` as far as they are there, or one split `all`; without class folders
        they have no column.

    Raises:
        UsageError: Several lists have the labels, or one and the class folders disagree.
        DataError: There are no images, two folders for one split, or a folder cannot be read.
    """
    tree = Tree(Path(what).expanduser().resolve())
    with raised_as(DataError, f"{tree.root} cannot be read", look_at(tree.root, "-ld"), OSError):
        seen = tree.entries(tree.root)
    if lists_in(tree) and {name.lower() for name, is_folder in seen.items() if is_folder} in OF_IMAGES:
        return read_by_list(tree, what, layout)
    layout.check_columns(what)
    return beside_lists(read_tree(tree), tree, what)


def lists_in(tree: Tree) -> list[Path]:
    """The lists in the root."""
    entries = tree.entries(tree.root).items()
    return sorted(tree.root / name for name, is_folder in entries if not is_folder and name.lower().endswith(LISTS))


def read_by_list(tree: Tree, what: str, layout: Layout) -> RawDataset:
    """The images of a tree by the list that names them.

    Raises:
        UsageError: Several lists do.
        DataError: As for a list.
    """
    from vitrail.data.readers.manifest import read_list  # of lists alone

    lists, found = lists_in(tree), dict[Path, RawDataset]()
    for file in lists if len(lists) > 1 else ():
        with suppress(VitrailError):  # it lists something else
            found[file] = read_list(file, tree, layout)
    if len(found or lists) > 1:
        names = some_of([file.name for file in found or lists], 5)
        raise _which(f"{tree.root} has more than one list of its images: {names}", what, tree, min(found or lists))
    return next(iter(found.values())) if found else read_list(lists[0], tree, layout)


def beside_lists(raw: RawDataset, tree: Tree, what: str) -> RawDataset:
    """Class folders that no list beside them speaks against, with a note on each list of the same images.

    Raises:
        UsageError: Labels of one disagree with the folders.
    """
    from vitrail.data.readers.manifest import read_list  # of lists alone

    labelled = [samples for samples in raw.splits.values() if LABEL in samples.columns]
    folders = {
        name: label for some in labelled for name, label in zip(some.inputs.names(), some.labels or (), strict=True)
    }
    notes = list[str]()
    for file in lists_in(tree) if folders else ():
        splits = dict[str, Samples]()
        with suppress(VitrailError):  # it lists something else
            splits = read_list(file, tree).splits
        if rivals := disagreement(folders, splits):
            raise _which(f"{tree.root}: class folders and {file.name} disagree, as on {rivals}", what, tree, file)
        if any(name in folders for samples in splits.values() for name in samples.inputs.names()):
            notes.append(f"{file.name} lists these images, too, and is not read unless it is named.")
    return replace(raw, notes=(*raw.notes, *notes))


def disagreement(folders: Mapping[str, str], splits: Mapping[str, Samples]) -> str:
    """An image of which labels disagree with its folder (by the names of images), with both; empty where none do.

    They agree where each label stands for one folder, under whatever name.
    """
    pairs, example = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    with suppress(DataError):  # of a column that may not be read at all
        for samples in splits.values():
            for name, label in zip(samples.inputs.names(), samples.labels or (), strict=False):
                if name in folders:
                    pairs[folders[name], label] += 1
                    example.setdefault((folders[name], label), name)
    if len(pairs) == len({folder for folder, _ in pairs}) == len({label for _, label in pairs}):
        return ""
    rare = min(pairs, key=lambda pair: pairs[pair])
    return f"{example[rare]}: '{rare[0]}' or '{rare[1]}'"


def _which(problem: str, what: str, tree: Tree, file: Path) -> UsageError:
    """That more than one reading fits, of which a list is one."""
    named = str(Path(what) / file.relative_to(tree.root))
    hint = (
        Hint(instead={what: named}, text="or move away the lists that are not meant")
        if file.is_file()
        else unpack(Path(what))
    )
    return UsageError(problem, hint)


def read_tree(tree: Tree) -> RawDataset:
    """The same of the files below a root, wherever they lie; errors are those of `read_folder`."""
    walk = _Walk(tree)
    try:
        splits = _read_splits(tree.root, walk)
    except OSError as error:
        raise _unreadable(tree.root, error) from error
    if not splits:
        held, wanted = "", f"one folder per class with {', '.join(EXTENSIONS)} files"
        if walk.archives:
            held, wanted = (
                f", but archives: {some_of(sorted({*walk.archives}), 3)}",
                unpack(tree.root / min(walk.archives)),
            )
        raise DataError(" ".join([f"{tree.root} contains no image{held}.", *walk.notes()]), wanted)
    return RawDataset(str(tree.root), splits, walk.notes())


def unpack(archive: Path) -> str:
    """The command that unpacks an archive on disk into a folder of its name, beside it; else what to do."""
    file, into = shlex.quote(str(archive)), shlex.quote(str(archive.with_suffix("").with_suffix("")))
    if archive.is_file() and archive.suffix.lower() == ".zip":
        return f"unzip {file} -d {into}"
    is_tar = archive.is_file() and ({".tar"} & {*archive.suffixes} or archive.suffix == ".tgz")
    return f"mkdir {into} && tar -xf {file} -C {into}" if is_tar else "unpack it, and name the folder"


def image_files(folder: Path, tree: Tree | None = None) -> tuple[list[Path], tuple[str, ...]]:
    """Every image file in a folder and below it, sorted by path, and a sentence on each kind of what was left aside.

    Args:
        folder: On disk, or in a tree.
        tree: What it is a folder of, where that lies elsewhere or notes are to be relative to its root.

    Raises:
        DataError: The folder, or one in it, is missing or cannot be read.
    """
    walk = _Walk(tree or Tree(folder))
    try:
        return walk.below(folder, set()), walk.notes()
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: OSError) -> DataError:
    file = str(error.filename or folder)
    return DataError(f"{file} cannot be read ({error.strerror})", look_at(file, "-ld"))


def _read_splits(root: Path, walk: _Walk) -> dict[str, Samples]:
    folders, loose = walk.listed(root)
    named = _named_splits(walk.tree, folders)
    walk.passed[BESIDE] += [path for path in folders if named and path not in named.values()]
    places = {ALL: (root, folders, loose)}
    if named:
        walk.loose += len(loose)
        walk.passed[SPLIT] += [path for path in named.values() if split_of(path.name) is None]
        whole = {split: _unwrap(walk.tree, path) for split, path in named.items()}
        places = {split: (whole[split], *walk.listed(whole[split])) for split in SPLITS if split in named}
    labelled, splits = any(classes for _, classes, _ in places.values()), dict[str, Samples]()
    for split, (folder, classes, files) in places.items():
        if labelled and not classes and files:
            walk.passed[UNLABELLED].append(folder)
            continue
        walk.loose += len(files) if labelled else 0
        samples = _read_classes(folder, classes, walk) if labelled else Samples(walk.tree.images(files), {})
        if samples is not None and len(samples):
            splits[split] = samples
        elif not classes and folder != root:
            walk.passed[EMPTY].append(folder)
    return splits


def _named_splits(tree: Tree, folders: list[Path]) -> dict[str, Path]:
    """The folders that are splits by their names; none where they are classes, whatever they are called.

    Raises:
        DataError: Two folders have the name of one split; or they may be splits as well as classes.
    """
    plain = [(split, path) for path in folders if (split := split_of(path.name))]
    if len(plain) < len(folders) and not any(split == TRAIN and _classes_in(tree, path) for split, path in plain):
        likely = [(split, path) for path in folders if (split := split_of(path.name, among=True))]
        learnt = {name for split, path in likely if split == TRAIN for name in _classes_in(tree, path)}
        alike = [path for path in folders if learnt & _classes_in(tree, path)] if learnt else []
        if len(alike) > 1 and not {*alike} <= {path for _, path in likely}:
            names = some_of([path.name for path in alike], 3)
            problem = f"{tree.root}: {names} hold folders of the same names ({some_of(sorted(learnt), 3)})"
            raise DataError(f"{problem}, so they may be splits or classes", AS_MEANT)
        plain = likely if len(alike) > 1 else []  # else class folders that only happen to be called so
        inner = [{*map(split_of, _classes_in(tree, path))} for path in folders[:3]]
        if not plain and all(TRAIN in splits and None not in splits for splits in inner) and inner:
            raise DataError(f"{tree.root}: the splits lie inside its class folders ({folders[0].name}/train)", AS_MEANT)
    named = dict(reversed(plain))
    for split, path in plain:
        if named[split] != path:
            two = f"{named[split].name}, {path.name}"
            raise DataError(f"{tree.root} has two folders for one split: {two}", "keep one of them")
    return named


def _unwrap(tree: Tree, folder: Path) -> Path:
    """The folder of a split inside of another of the same split, as archives unpack it (`train/train`)."""
    folders, images = _Walk(tree).listed(folder)
    inner = folders[0] if len(folders) == 1 and not images else folder
    return inner if split_of(inner.name, among=True) == split_of(folder.name, among=True) is not None else folder


def _classes_in(tree: Tree, folder: Path) -> set[str]:
    """The names of the class folders of a split."""
    return {path.name for path in _Walk(tree).listed(_unwrap(tree, folder))[0]}


def _read_classes(folder: Path, classes: list[Path], walk: _Walk) -> Samples | None:
    """Read all images below the class folders; None when there is none."""
    seen = {walk.tree.identity(path) for path in (walk.tree.root, folder, *classes)}
    paths, labels = list[Path](), list[str]()
    for path in classes:
        files = walk.below(path, seen)
        if not files:
            walk.passed[EMPTY].append(path)
        paths += files
        labels += [path.name] * len(files)
    return Samples(walk.tree.images(paths), {LABEL: Labels.of(labels)}) if paths else None
