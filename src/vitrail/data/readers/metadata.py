"""A folder of images with a list beside them, as the hub's `imagefolder` has it: `metadata.csv` or `metadata.jsonl`.

The column `file_name` is relative to the list. It lies in the root, or in each of `train/`, `validation/` and `test/`,
which are the splits then; of one in the root these are splits, too, where all images lie in them. It goes before class
folders: their names are the labels only where it has no column to be learnt. Where both name classes and do not agree,
an error asks.
"""

from pathlib import Path, PurePosixPath

import numpy as np

from vitrail.data.columns import ALL, LABEL, LABELS, SPLITS, TEXT, Labels, RawDataset, Samples, split_of
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.readers.folder import disagreement, image_files
from vitrail.data.readers.manifest import read_list
from vitrail.data.sources import METADATA
from vitrail.data.stores import Tree
from vitrail.errors import DataError, Hint, UsageError, counted, some_of


def read_metadata(what: str, data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
    """Read a folder of images with metadata.

    Args:
        what: The path of the folder.
        data_root: Not used: the path is enough.
        layout: The columns, where a person names them.

    Returns:
        The splits of the folders or of a column, else one split `all`; names are relative to the folder.

    Raises:
        UsageError: Class folders and the column of the label disagree, or as for a list.
        DataError: Two files say what is in one folder, or as for a list.
    """
    tree = Tree(Path(what).expanduser().resolve())
    return read_described(tree, metadata_in(tree), layout)


def metadata_in(tree: Tree) -> dict[str, Path]:
    """The files with metadata: of each split, or one of all.

    Raises:
        DataError: Two of them say what is in one folder.
    """
    found = dict[str, list[Path]]()
    for name, is_folder in tree.entries(tree.root).items():
        if name in METADATA:
            found.setdefault(ALL, []).append(tree.root / name)
        elif is_folder and (split := split_of(name)):
            inside = {*METADATA} & {*tree.entries(tree.root / name)}
            found.setdefault(split, []).extend(tree.root / name / each for each in sorted(inside))
    for split, files in found.items():
        rivals = [*files, *found[ALL][: split != ALL]] if files and ALL in found else files
        if len(rivals) > 1:
            names = some_of([file.relative_to(tree.root).as_posix() for file in rivals])
            raise DataError(f"{tree.root} has more than one list of the same images: {names}", "keep one of them")
    return {split: found[split][0] for split in (*SPLITS, ALL) if found.get(split)}


def read_described(tree: Tree, lists: dict[str, Path], layout: Layout) -> RawDataset:
    """The same of files that lie anywhere; errors are those of `read_metadata`."""
    splits, notes = dict[str, Samples](), list[str]()
    for split, file in lists.items():
        raw = read_list(file, tree, layout)
        notes += [note for note in raw.notes if note not in notes]
        if split != ALL and ALL not in raw.splits:
            problem = f"{file} has a column of splits, but lies in the folder of one"
            raise DataError(problem, f"leave out that column, or one {file.name} beside the folders")
        splits |= raw.splits if split == ALL else {split: raw.splits[ALL]}
    if [*splits] == [ALL]:
        splits = _by_folder(splits[ALL])
    name = next(iter(lists.values())).name
    splits, note = _with_folders(splits, layout, name)
    listed = {each for samples in splits.values() for each in samples.inputs.names()}
    there = {each.relative_to(tree.root).as_posix() for each in image_files(tree.root, tree)[0]}
    if unlisted := len(there - listed):
        notes.append(f"Ignored {counted(unlisted, 'image')} that {name} does not list.")
    return RawDataset(str(tree.root), splits, (*notes, *note))


def _by_folder(samples: Samples) -> dict[str, Samples]:
    """Splits by the first folder of each name, where all are called so; else one split of all."""
    found = [split_of(name.partition("/")[0]) for name in samples.inputs.names()]
    if None in found:
        return {ALL: samples}
    numbers = {split: [row for row, each in enumerate(found) if each == split] for split in SPLITS}
    return {split: samples.select(np.array(rows)) for split, rows in numbers.items() if rows}


def _class_folder(name: str) -> str:
    """The folder that names the class of an image, as of class folders; empty where there is none."""
    folders = PurePosixPath(name).parts[:-1]
    return next(iter(folders[bool(folders and split_of(folders[0])) :]), "")


def _with_folders(splits: dict[str, Samples], layout: Layout, file: str) -> tuple[dict[str, Samples], list[str]]:
    """The splits with the names of class folders as labels, where nothing else is to be learnt; and a sentence on it.

    Raises:
        UsageError: Folders and labels are both there and disagree, and nobody has said which are meant.
    """
    folders = {split: [*map(_class_folder, samples.inputs.names())] for split, samples in splits.items()}
    every = {folder for each in folders.values() for folder in each}
    if len(every) < 2 or "" in every:
        return splits, []
    if not {LABEL, LABELS, TEXT} & {*next(iter(splits.values())).columns}:
        named = {split: samples.holding(LABEL, Labels.of(folders[split])) for split, samples in splits.items()}
        return named, [f"Labels are the names of class folders, since {file} has none."]
    of = {
        name: each
        for split, some in splits.items()
        for name, each in zip(some.inputs.names(), folders[split], strict=True)
    }
    if not layout.label_column and (rivals := disagreement(of, splits)):
        problem = f"class folders and {file} disagree, as on {rivals}"
        text = f"--label-column NAME for the labels of {file}; for class folders move it elsewhere"
        raise UsageError(problem, Hint(text=text, python=text.replace("--label-column NAME", 'label_column="NAME"')))
    return splits, [f"Labels are those of {file}, and the names of folders are none."]
