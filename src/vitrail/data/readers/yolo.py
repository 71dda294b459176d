"""Images whose labels are the categories of the boxes in them, from YOLO's folders (also as Roboflow exports them).

`data.yaml`, or one of another name, has the names of the categories and, for `train`, `val` and `test`, a folder of
images or a text file with one path a line. The boxes of `images/a.jpg` stand in `labels/a.txt`, one a line, which
begins with the number of its category; an image without that file has none.
"""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from vitrail.data.columns import RawDataset, split_of
from vitrail.data.readers.coco import Categories, with_categories
from vitrail.data.readers.folder import image_files
from vitrail.data.sources import YOLO, YOLO_NAMES
from vitrail.data.stores import Tree
from vitrail.errors import DataError, look_into, raised_as
from vitrail.text import canonical

WANTED = "names: [cat, dog], train: train/images, val: valid/images"


def read_yolo(what: str, data_root: Path | None = None) -> RawDataset:
    """Read images with YOLO's boxes or polygons.

    Args:
        what: The path of `data.yaml`, or of its folder.
        data_root: Not used: the path is enough.

    Returns:
        The splits that it names; their columns are those of `vitrail.data.readers.coco.with_categories`.

    Raises:
        DataError: It has no names or no images, a folder that it names is missing, or a line of boxes has no category.
    """
    path = Path(os.path.abspath(Path(what).expanduser()))
    tree = Tree(path if path.is_dir() else path.parent)
    file = path if path != tree.root else config_in(tree)
    assert file is not None, "asked for where there is one"
    return read_boxes(tree, file, path)


def config_in(tree: Tree) -> Path | None:
    """The file that names the categories, of a usual name or of another one; None where there is none."""
    usual = [tree.root / name for name in YOLO if tree.is_folder(tree.root / name) is False]
    others = (file for mark in ("*.yaml", "*.yml") for file in tree.glob(mark))
    return next(chain(usual, (file for file in others if YOLO_NAMES.search(tree.content(file)))), None)


def read_boxes(tree: Tree, file: Path, named: Path | None = None) -> RawDataset:
    """The same of such a file in a tree; `named` is what was asked for."""
    with raised_as(DataError, f"{file} cannot be read", WANTED, (OSError, ValueError, yaml.YAMLError)):
        config = yaml.safe_load(tree.content(file).decode())
    names = config.get("names") if isinstance(config, dict) else None
    names = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(names, dict) or not names:
        raise DataError(f"{file} has no names of categories", WANTED)
    known = {str(number): canonical(str(name)) for number, name in names.items()}
    places, found = dict[str, list[Path]](), dict[str, Categories]()
    for key, value in config.items():
        if value and (split := split_of(str(key))):
            places[split] = [
                _place(file, config, each, tree) for each in (value if isinstance(value, list) else [value])
            ]
            images = [image for place in places[split] for image in _images_in(place, tree)]
            found[split] = {image: _categories_of(image, known, tree) for image in images}
    every = [place for each in places.values() for place in each]
    inside = all(place.is_relative_to(file.parent) for place in every)
    return with_categories(
        named or file, tree if inside else Tree(Path(os.path.commonpath(every))), found, [*known.values()]
    )


def _place(file: Path, config: Mapping[str, Any], value: object, tree: Tree) -> Path:
    """What `data.yaml` names: relative to its `path`, else to itself, where Roboflow writes `../` too much."""
    word = str(value).replace("\\", "/")
    for base in (file.parent / str(config.get("path") or ""), file.parent):
        for each in (word, word.removeprefix("../")):
            if tree.is_folder(base / each) is not None:
                return Path(os.path.normpath(base / each))
    raise DataError(f"{file} names {word}, which is not there", f"a path relative to {file.parent}, or no such line")


def _images_in(place: Path, tree: Tree) -> list[Path]:
    """Those of a folder, or those that a text file names."""
    if tree.is_folder(place):
        return image_files(place, tree)[0]
    with raised_as(DataError, f"{place} cannot be read", "one path a line", (OSError, ValueError)):
        lines = tree.content(place).decode().splitlines()
    return [Path(os.path.normpath(place.parent / line.strip())) for line in lines if line.strip()]


def _categories_of(image: Path, names: Mapping[str, str], tree: Tree) -> set[str]:
    """The categories of the boxes of an image, whose file lies in `labels` instead of `images`, or beside it."""
    above, _, below = image.as_posix().rpartition("/images/")
    places = Path(f"{above}/labels/{below}").with_suffix(".txt"), image.with_suffix(".txt")
    file = next((place for place in places if tree.is_folder(place) is False), None)
    with raised_as(DataError, f"{file} cannot be read", "one box a line: NUMBER X Y W H", (OSError, ValueError)):
        lines = [] if file is None else tree.content(file).decode().splitlines()
    numbers = {words[0]: line for line, words in enumerate(map(str.split, lines), 1) if words}
    for number in numbers.keys() - names.keys():
        problem = f"{file}, line {numbers[number]}: '{number}' is the number of no category"
        known = f"0 to {len(names) - 1}"
        raise DataError(problem, look_into(file, numbers[number], known) if file and file.is_file() else known)
    return {names[number] for number in numbers}
