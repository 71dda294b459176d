"""Tar files of webdataset that others made: an image and what belongs to it lie side by side, under one key.

    000017.jpg     the image
    000017.cls     the number or the name of its class
    000017.json    values by name, such as {"label": "cat", "patient": 3}
    000017.txt     its class, or a text of its own

A key is the name up to its first dot, with its folders. Splits are in the names of the files (`train-000003.tar`), else
in a value. `.cls` is the label where no value has a usual name; `.txt` is where most images share theirs.
"""

import json
import os
from pathlib import Path
from typing import Any

from vitrail.data.columns import ALL, LABEL, TEXT, RawDataset
from vitrail.data.layout import Layout
from vitrail.data.readers.archive import Archive
from vitrail.data.sources import EXTENSIONS
from vitrail.data.stores import splits_of_files
from vitrail.data.tables import LABEL_NAMES, Listing, divided, find_roles, splits_in
from vitrail.errors import DataError

CLASS, VALUES, WORDS = "cls", "json", "txt"


def read_beside(tree: Archive, layout: Layout) -> RawDataset | None:
    """What lies beside images in tars; None where nothing does.

    Raises:
        UsageError: As for a list.
        DataError: Values are no JSON object, or as for a list.
    """
    beside = _beside(tree)
    if not any(beside.values()):
        return None
    paths = [path for one in beside.values() for path in one.values()]
    contents = tree.images(paths)  # which are none, but lie there alike
    text = {path: contents.content(row).decode("utf-8", "replace").strip() for row, path in enumerate(paths)}
    values = [_values(tree, one[VALUES], text[one[VALUES]]) if VALUES in one else {} for one in beside.values()]
    cells: dict[str, list[Any]] = {name: [] for one in values for name in one}
    for name, column in cells.items():
        column += [one.get(name) for one in values]
    for kind in (CLASS, WORDS):
        if any(kind in one for one in beside.values()):
            texts = [text.get(one.get(kind, ""), "") for one in beside.values()]
            shared = kind == CLASS or len({*texts}) <= len(texts) / 2
            label = shared and not {*LABEL_NAMES} & {*cells}
            cells[LABEL if label else TEXT if kind == WORDS else kind] = texts
    listing = Listing(str(tree.root), cells)
    roles, images = find_roles(listing, layout, ""), tree.images([*beside])
    inner = len({file.parent for file in tree.files}) > 1
    of_file, note = splits_of_files([Path(*file.parts[-2 if inner else -1 :]) for file in tree.files])
    of_row = [of_file[tree.places[tree.rows[path], 0]] for path in beside]
    if {*of_file} == {ALL}:
        of_row, note = splits_in(listing, roles)
    notes = tuple(filter(None, (roles.sentence(), note)))
    return RawDataset(str(tree.root), divided(images, listing, roles, of_row), notes)


def _beside(tree: Archive) -> dict[str, dict[str, str]]:
    """Of each image the members beside it, by ending."""
    keys, found = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    for path in tree.rows:
        above, name = os.path.split(path)
        stem, _, ending = name.partition(".")
        keys.setdefault(f"{above}/{stem}", {})[ending.lower()] = path
    for members in keys.values():
        for image in (path for ending, path in members.items() if f".{ending}" in EXTENSIONS):
            found[image] = {kind: members[kind] for kind in (CLASS, VALUES, WORDS) if kind in members}
    return found


def _values(tree: Archive, path: str, text: str) -> dict[str, Any]:
    """The values of an image that a column may have."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError("it is no object")
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error})", '{"label": "cat"}') from error
    return {name: each for name, each in found.items() if not isinstance(each, dict)}
