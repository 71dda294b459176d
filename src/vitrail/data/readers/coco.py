"""Images whose labels are the categories of what is annotated in them, from COCO's JSON.

It is one file, or a folder with `annotations/*.json`, with `train/_annotations.coco.json` (Roboflow), or with
`annotations.json` or `instances_*.json`; where these list no images, its class folders are read. Boxes, masks and
panoptic segments are read alike. Images lie beside the file, in `images`, or in a folder of the last word of its name,
such as `train2017` of `instances_train2017.json`. Its name tells the split, else that of its folder.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.columns import ALL, LABEL, LABELS, SPLITS, Labels, RawDataset, Samples, split_of
from vitrail.data.multiple import LabelSets
from vitrail.data.readers.folder import read_folder
from vitrail.data.sources import ANNOTATIONS, AT_ROOT
from vitrail.data.stores import Tree
from vitrail.errors import DataError, counted, raised_as, some_of
from vitrail.io import read_json
from vitrail.text import canonical

Categories = Mapping[Path, set[str]]
"""Of each image those that are in it."""

WANTED = 'COCO\'s {"images": [..], "annotations": [..], "categories": [..]}'
BOXES = "instances"  # begins the name of the file of these, beside others on the same images


def read_coco(what: str, data_root: Path | None = None) -> RawDataset:
    """Read images with COCO's annotations.

    Args:
        what: The path of a JSON file, or of a folder with such files.
        data_root: Not used: the path is enough.

    Returns:
        Splits as the files tell, else one split `all`; their columns are those of `with_categories`.

    Raises:
        DataError: A file cannot be read or is of another kind, two are of one split, or images are missing.
    """
    path = Path(os.path.abspath(Path(what).expanduser()))  # not `resolve`: images lie where links seem to be
    if not path.is_dir():
        return read_annotated(Tree(path.parent), [path], path)
    files = annotations_in(Tree(path))
    return read_annotated(Tree(path), files) if files else read_folder(what)


def read_annotated(tree: Tree, files: Sequence[Path], named: Path | None = None) -> RawDataset:
    """The same of files of annotations in a tree; `named` is the one that was asked for in place of all."""
    path, found, order = named or tree.root, dict[str, Categories](), dict[str, None]()
    for file in files:
        split = split_of(file.stem, among=True) or split_of(file.parent.name) or ALL
        if split in found:
            raise DataError(f"{path} has two files for one split, such as {file.name}", "the path of one of them")
        names, sets = _parsed(file, tree)
        base, folder = _place_of(file, next(iter(sets), ""), tree)
        found[split] = {folder / name: each for name, each in sets.items()}
        order |= dict.fromkeys(names)
        tree = Tree(base) if named else tree
    return with_categories(path, tree, found, [*order])


def annotations_in(tree: Tree) -> list[Path]:
    """The files of annotations in a folder: those of boxes where there are others, too."""
    files = sorted(file for mark in ANNOTATIONS for file in tree.glob(mark))
    files = files or sorted(file for mark in AT_ROOT for file in tree.glob(mark) if _lists_images(file, tree))
    return [file for file in files if file.name.startswith(BOXES)] or files


def _lists_images(file: Path, tree: Tree) -> bool:
    """Whether JSON does so, as that of other tools under the same name does not; also where it cannot be read."""
    try:
        content = json.loads(tree.content(file))
    except (OSError, ValueError, RecursionError):  # whoever reads it says so
        return True
    return isinstance(content, dict) and isinstance(content.get("images"), list)


def _parsed(file: Path, tree: Tree) -> tuple[list[str], dict[str, set[str]]]:
    """The names of all categories, in their order, and those in each image, by the name of its file."""
    content = read_json(file, WANTED, tree.content)
    with raised_as(DataError, f"{file} holds other JSON", WANTED, (KeyError, TypeError, AttributeError)):
        names = {each["id"]: canonical(str(each["name"])) for each in content.get("categories", ())}
        files = {each["id"]: str(each["file_name"]).replace("\\", "/") for each in content["images"]}
        found = {name: set[str]() for name in files.values()}
        for each in content.get("annotations", ()):
            for one in each.get("segments_info", [each]):
                if "category_id" in one:
                    found[files[each["image_id"]]].add(names[one["category_id"]])
    return [*names.values()], found


def _place_of(file: Path, first: str, tree: Tree) -> tuple[Path, Path]:
    """The folder of everything, and that of the images, of which one is known."""
    word = re.split(r"[_.]", file.stem)[-1]
    for base in (file.parent, file.parent.parent):
        for inner in ("", "images", word, f"images/{word}"):
            if first and tree.is_folder(base / inner / first) is False:
                return base, base / inner
    problem = f"{file} lists {first}, which is neither beside it nor in images" if first else f"{file} lists no image"
    raise DataError(problem, f"{file.parent / 'images'}, with the images")


def with_categories(path: Path, tree: Tree, found: Mapping[str, Categories], order: Sequence[str]) -> RawDataset:
    """Images with their categories as labels.

    Where each image has one category, this is its `label`, and images without any are left out. Else they are its
    `labels`, of which it may have none; so, too, where there is one category only, which is in some of the images.

    Args:
        path: What was read.
        tree: What holds them, below the folder that names are relative to.
        found: By split.
        order: Of the categories.

    Raises:
        DataError: A file is missing.
    """
    every = {image: each for split in found.values() for image, each in split.items()}
    if missing := [image for image in every if tree.is_folder(image) is not False]:
        problem = f"{path}: {len(missing)} of {counted(len(every), 'image')} are missing"
        raise DataError(
            f"{problem}: {some_of([os.path.relpath(each, tree.root) for each in missing], 5)}", "restore them"
        )
    bare, present = sum(not each for each in every.values()), set[str]().union(*every.values())
    names = tuple(dict.fromkeys(name for name in order if name in present))
    several = max(map(len, every.values()), default=0) > 1 or (len(names) == 1 and bare > 0)
    splits, note = dict[str, Samples](), f"Without any category: {counted(bare, 'image')}"
    for split in (split for split in (*SPLITS, ALL) if split in found):
        kept = {image: each for image, each in found[split].items() if each or several or not names}
        columns = dict[str, Labels | LabelSets]()
        if not kept:
            continue
        if several:
            flags = [[name in each for name in names] for each in kept.values()]
            columns[LABELS] = LabelSets(np.array(flags), names)
        elif names:
            numbers = [names.index(name) for each in kept.values() for name in each]
            columns[LABEL] = Labels(np.array(numbers, np.int64), names)
        splits[split] = Samples(tree.images([*kept]), columns)
    if not splits:
        raise DataError(f"{path} lists no image", "images with their annotations")
    learnt = next(iter(splits.values())).labels
    classes = tuple(name for name in names if name in {*learnt}) if learnt else None
    left_out = ", which are left out" if names and not several else ""
    return RawDataset(str(path.resolve()), splits, (f"{note}{left_out}.",) if bare else (), classes)
