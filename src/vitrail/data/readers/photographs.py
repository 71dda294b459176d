"""Photographs to put digits on: those in a folder, or those that scikit-learn and scikit-image carry.

Training and test never share a photograph. Larger ones are scaled down until their shorter side has 321 pixels, as
those of BSDS500 (481 x 321) have, so that a small cut-out shows about as much of a scene as in MNIST-M.
"""

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vitrail.data.decode import convert, open_picture
from vitrail.data.readers.folder import picture_files
from vitrail.errors import DataError, UsageError, counted

SIDE = 321
TEST_PART = 5  # of a folder that is not divided, one in five photographs is for test
TWO_OR_MORE = "two photographs or more there, or take the folder away for those of scikit-learn and scikit-image"
MOST = 500  # photographs that are read for one side, as many as BSDS500 has in all

# Package, file in it. By their packages' notes: astronaut and rocket are in the public domain (NASA, SpaceX), coffee,
# chelsea (CC0: R. Michetti, S. van der Walt) and ihc (CMMI) have no restrictions, china (danielbuechele) and flower
# (vultilion) are CC BY 2.0. They stay where they are: vitrail brings no photographs.
PACKAGED_TRAIN = (
    ("skimage", "data/astronaut.png"),
    ("sklearn", "datasets/images/china.jpg"),
    ("skimage", "data/coffee.png"),
    ("sklearn", "datasets/images/flower.jpg"),
    ("skimage", "data/ihc.png"),
)
PACKAGED_TEST = (("skimage", "data/chelsea.png"), ("skimage", "data/rocket.jpg"))

Photograph = UInt8[np.ndarray, "_ _ 3"]  # each of its own size


@dataclass(frozen=True, eq=False)
class Photographs:
    """Photographs for training and others for test.

    Args:
        train: Each (h, w, 3), values 0..255; sizes may differ.
        test: The same; none of them is in `train`.
        says: What they are, to be put behind "made from MNIST and".
        notes: What was ignored, one sentence each.
    """

    train: tuple[Photograph, ...]
    test: tuple[Photograph, ...]
    says: str
    notes: tuple[str, ...] = ()


def read_photographs(folder: Path, least: int) -> Photographs:
    """The photographs in a folder, at any depth.

    Where the folder has folders `train` and `test`, these say what is for which; else one in five, chosen by a hash of
    its path in the folder, is for test.

    Args:
        folder: Where they lie.
        least: Photographs whose shorter side has fewer pixels are ignored.

    Returns:
        The photographs, scaled down where they are large; at most 500 for training and 500 for test.

    Raises:
        DataError: There are no photographs, too few or too small ones, one cannot be read, or one is on both sides.
    """
    try:
        sides = _divided(folder)
        if not any(sides):
            raise DataError(f"{folder} is a folder of photographs without any picture", TWO_OR_MORE)
    except OSError as error:
        raise DataError(
            f"{error.filename or folder} cannot be read ({error.strerror})", "check its permissions"
        ) from error
    (train, small_train), (test, small_test) = (_open_all(side[:MOST], least) for side in sides)
    for name, kept, small in (("training", train, small_train), ("test", test, small_test)):
        if not kept:
            raise DataError(_nothing_left(folder, name, small, least), TWO_OR_MORE)
    _check_disjoint(train, test)
    notes = []
    if left := sum(max(0, len(side) - MOST) for side in sides):
        notes.append(f"Ignored {counted(left, 'photograph')} beyond the first {MOST} for training and {MOST} for test.")
    if small_train + small_test:
        notes.append(f"Ignored {counted(small_train + small_test, 'photograph')} smaller than {least} pixels.")
    says = f"the photographs in {folder}: {len(train)} for training and validation, {len(test)} others for test"
    return Photographs(tuple(train.values()), tuple(test.values()), says, tuple(notes))


def packaged_photographs() -> Photographs:
    """The photographs that scikit-learn and scikit-image carry.

    Returns:
        Five for training, two others for test.

    Raises:
        UsageError: A package is missing, or carries a photograph no more.
    """
    sides = []
    for files in (PACKAGED_TRAIN, PACKAGED_TEST):
        sides.append(tuple(_open(_packaged(package, file)) for package, file in files))
    train, test = (", ".join(Path(file).stem for _, file in files) for files in (PACKAGED_TRAIN, PACKAGED_TEST))
    says = (
        f"the photographs that scikit-learn and scikit-image carry: {train} for training and validation, "
        f"{test} for test"
    )
    return Photographs(sides[0], sides[1], says)


def _nothing_left(folder: Path, name: str, small: int, least: int) -> str:
    """Why no photograph is left for one side."""
    if small:
        many = counted(small, "photograph")
        return f"{folder} has {many} for {name}, and none of {least} pixels or more on both sides"
    return f"{folder} has no photograph for {name}: training and test need different ones"


def _divided(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files for training and those for test."""
    train, test = folder / "train", folder / "test"
    if train.is_dir() and test.is_dir():
        return picture_files(train), picture_files(test)
    files = sorted(picture_files(folder), key=lambda path: _rank(path.relative_to(folder)))
    for_test = max(1, len(files) // TEST_PART)
    return files[for_test:], files[:for_test]


def _rank(path: Path) -> bytes:
    return hashlib.blake2b(os.fsencode(path.as_posix()), digest_size=8).digest()


def _open_all(files: Sequence[Path], least: int) -> tuple[dict[Path, Photograph], int]:
    """The photographs that are large enough, and the number of the others."""
    opened = {path: _open(path) for path in files}
    kept = {path: pixels for path, pixels in opened.items() if min(pixels.shape[:2]) >= least}
    return kept, len(opened) - len(kept)


def _open(path: Path) -> Photograph:
    try:
        picture = convert(open_picture(path), 3)
    except DataError as error:
        raise DataError(f"a photograph cannot be read: {error.problem}", error.hint) from error
    scale = SIDE / min(picture.size)
    if scale < 1:
        size = (round(picture.width * scale), round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return np.asarray(picture)


def _check_disjoint(train: dict[Path, Photograph], test: dict[Path, Photograph]) -> None:
    """Refuse a photograph that lies on both sides, under whatever name."""
    known = {(pixels.shape, pixels.tobytes()): path for path, pixels in train.items()}
    for path, pixels in test.items():
        twin = known.get((pixels.shape, pixels.tobytes()))
        if twin is not None:
            raise DataError(f"{twin} and {path} are the same photograph, for training and for test", f"remove {path}")


def _packaged(package: str, file: str) -> Path:
    """Where a package has a file, found without importing the package."""
    found = importlib.util.find_spec(package)
    places = (found.submodule_search_locations or []) if found is not None else []
    path = next((Path(place, file) for place in places if Path(place, file).is_file()), None)
    if path is None:
        name = {"skimage": "scikit-image", "sklearn": "scikit-learn"}[package]
        raise UsageError(
            f"MNIST-M is made with photographs that come with {name}, and {file} is missing",
            'pip install "vitrail[photos]", or --data-root DIR with photographs in DIR/photographs',
        )
    return path
