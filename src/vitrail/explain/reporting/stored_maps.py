"""Maps that another tool computed: an array for each image, as `numpy.save` writes it, in a folder that names a method.

    maps/sub/cat.jpg.npy or maps/sub/cat.npy    of photos/sub/cat.jpg
    maps/cat.jpg.npy or maps/cat.npy            of the same, where no folder has to tell it from another

They are (h, w), of the pixels that the network reads, or (rows, columns) of its patches; the larger, the more relevant.
An image without one is left out where it is opened, as one that cannot be read.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.lib.format import open_memmap
from torch import Tensor

from vitrail.errors import DataError, UsageError, counted
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import WithGrid
from vitrail.explain.methods import Method
from vitrail.explain.target import Target
from vitrail.nn.embedding import Size


def stored_maps(
    network: WithGrid, images: Tensor, target: Target = None, *, names: Sequence[str] = (), folder: Path, method: str
) -> Attribution:
    """The maps of these images, as an attribution.

    Raises:
        UsageError: The images have no names.
        DataError: One has no map.
    """
    if len(names) != len(images):
        problem = f"the maps in {folder} are found by the names of images, and these have none"
        raise UsageError(problem, "vitrail.explain.report(model, ['photo.jpg'], 'maps')")
    size = images.shape[2], images.shape[3]
    maps = np.stack([read_map(folder, name, size, network.grid(images)) for name in names])
    return Attribution.of_pixels(maps, images, network, target, method=method)


def read_map(folder: Path, name: str, size: Size, grid: Size) -> Float[np.ndarray, "rows columns"]:
    """The map of an image by its patches: of pixels the sum in each.

    Args:
        folder: Of all maps.
        name: Of the image.
        size: (height, width) of what the network reads, in pixels.
        grid: (rows, columns) of patches.

    Raises:
        DataError: It has none, or the file holds no numbers, others than finite ones, or of another shape.
    """
    file = _file_of(folder, name)
    if file is None:
        raise DataError(f"{name}: there is no map of it in {folder}", _hint(folder, name))
    try:
        found = open_memmap(file, mode="r")  # no pickled object, and nothing is read that the file does not hold
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: its map {file} cannot be read ({error})", _hint(folder, name)) from error
    with np.errstate(over="ignore"):
        values = found.astype(np.float32) if found.dtype.kind in "buif" else np.full(1, np.nan)
    if found.shape not in (size, grid) or not np.isfinite(values).all():
        wanted = f"{name}: its map {file} must hold finite numbers of the shape {size} or {grid}"
        problem = f"{wanted}, got {found.dtype} of {found.shape}{' with others' * (not np.isfinite(values).all())}"
        raise DataError(problem, "numpy.nan_to_num(map), and map.sum(axis=0) of several channels")
    return values.reshape(grid[0], -1, grid[1], found.shape[1] // grid[1]).sum(axis=(1, 3))


def _hint(folder: Path, name: str) -> str:
    """How a map is written that is found."""
    return f"numpy.save({f'{folder / PurePath(name).name}.npy'!r}, map), of numbers (h, w) or (rows, columns)"


def _file_of(folder: Path, name: str) -> Path | None:
    """Where the map of an image lies: under as many of its folders as there are; None where it has none."""
    path = PurePath(name)
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    places = [folder.joinpath(*parts[first:]) for first in range(len(parts))]
    files = (file for place in places for file in (f"{place}.npy", place.with_suffix(".npy")))
    return next((Path(file) for file in files if os.path.isfile(file)), None)  # also of a name that no file can have


def check_maps(methods: Iterable[Method], names: Sequence[str], size: Size, grid: Size) -> None:
    """Refuse a folder in which one map would be that of two images, or that has none of these that can be read.

    Args:
        methods: Of which some are folders.
        names: Of the images.
        size: (height, width) of what the network reads, in pixels.
        grid: (rows, columns) of patches.

    Raises:
        DataError: Names them.
    """
    for folder in (each.folder for each in methods if each.folder is not None):
        of = dict[Path, str]()
        for name in names:
            if (file := _file_of(folder, name)) is not None and of.setdefault(file, name) != name:
                inside = folder / PurePath(name).parent.name / file.name
                raise DataError(f"{of[file]} and {name} would share the map {file}", f"maps in folders: {inside}")
        if names and not of:
            problem = f"there is no map of {names[0]} in {folder}, nor of {counted(len(names) - 1, 'other image')}"
            raise DataError(problem, _hint(folder, names[0]))
        wrong = list[DataError]()
        for name in of.values():
            try:
                read_map(folder, name, size, grid)
            except DataError as error:  # of some it is said where they would be used
                wrong.append(error)
            else:
                break
        if len(wrong) == len(of) > 0:
            raise wrong[0]


def maps_entry(methods: Iterable[Method]) -> dict[str, Any]:
    """What a job knows its stored maps by: a hash of all files; nothing where there are none."""
    found = hashlib.sha256()
    folders = [each.folder for each in methods if each.folder is not None]
    for folder, file in ((each, file) for each in folders for file in sorted(each.rglob("*.npy"))):
        found.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode("utf-8", "replace"))
        found.update(file.read_bytes())
    return {"maps": found.hexdigest()} if folders else {}
