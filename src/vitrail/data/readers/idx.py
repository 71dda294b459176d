"""MNIST and Fashion-MNIST from IDX files, gzipped or not; and the digits that come with scikit-learn.

The format (LeCun, Cortes, Burges, "The MNIST database"): two zero bytes, one byte for the type (8: unsigned bytes), one
byte for the number of dimensions, each dimension as a big-endian 32-bit number, then the values. Both sets have the
same four file names, so checksums show which set lies there.
"""

import contextlib
import gzip
import hashlib
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from vitrail.data.columns import TEST, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.dataset import DIGITS, MOST_HELD_OUT, hold_out, label_inputs, pixels_of
from vitrail.data.images import ArrayImages
from vitrail.data.roots import FILES, OF_TORCHVISION, check_folder, file_in, missing_files, usual_folders
from vitrail.errors import DataError, UsageError, raised_as

GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CLASSES: Mapping[str, tuple[str, ...]] = {"mnist": DIGITS, "fashion-mnist": GARMENTS}

# MD5 of the published .gz files, and of MNIST's unpacked files; the order is that of FILES.
_KNOWN = {
    "mnist": (
        {"f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"},
        {"d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"},
        {"9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"},
        {"ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"},
    ),
    "fashion-mnist": (
        {"8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
        {"25c81989df183df01b3e8a0aad5dffbe"},
        {"bef4ecab320f06d8554ea6380940ec79"},
        {"bb300cfdad3c16e7a12a480ee83cd310"},
    ),
}


def read_idx(name: str, data_root: Path | None = None) -> RawDataset:
    """Read MNIST or Fashion-MNIST.

    The files are looked for in `data_root`, else in the folder that the environment variable VITRAIL_DATA names, else
    in the user's cache; directly there or in the subfolders that are usual. Where there are none, torchvision
    downloads them.

    Args:
        name: `mnist` or `fashion-mnist`.
        data_root: The folder to look in.

    Returns:
        The splits `train` and `test`, with the published class names in the published order.

    Raises:
        DataError: The files are missing and cannot be downloaded, damaged, or those of the other set.
    """
    folder = _locate(name, data_root)
    contents, sums = zip(*(_read_file(folder, file) for file in FILES), strict=True)
    unknown = _unpublished_files(name, sums)
    for other in CLASSES:
        if other != name and len(_unpublished_files(other, sums)) < len(FILES):
            problem = f"{folder} contains the files of {other}, not of {name}"
            raise DataError(problem, f"{other} instead of {name}, or another --data-root")
    notes = (f"Not the published files of {name} (unknown checksum): {', '.join(unknown)}.",) if unknown else ()
    paths, classes, splits = [folder / file for file in FILES], CLASSES[name], dict[str, Samples]()
    hint = f"put the four files of {name} into {folder}"
    for split, first in ((TRAIN, 0), (TEST, 2)):
        pixels = parse_idx(contents[first], 3, str(paths[first]))
        labels = parse_idx(contents[first + 1], 1, str(paths[first + 1]))
        if not pixels.size:
            raise DataError(f"{paths[first]} has the shape {pixels.shape}, so it contains no images", hint)
        if len(pixels) != len(labels):
            raise DataError(f"{folder} has {len(pixels)} {split} images but {len(labels)} labels", hint)
        if labels.max() >= len(classes):
            problem = f"{paths[first + 1]} has the label {labels.max()}, outside 0..{len(classes) - 1}"
            raise DataError(problem, hint)
        splits[split] = label_inputs(ArrayImages(pixels, f"{name}/{split}"), labels.astype(np.int64), classes)
    if pixels_of(splits[TRAIN]).shape[1:] != pixels_of(splits[TEST]).shape[1:]:
        problem = f"training and test images in {folder} differ in size"
        raise DataError(problem, "put the four files of one data set there")
    return RawDataset(str(folder.resolve()), splits, notes, classes)


def mnist_in_three(data_root: Path | None = None) -> RawDataset:
    """MNIST with digits held out for validation, always the same, so that what is made of one split is in no other.

    Args:
        data_root: The folder to look in.

    Raises:
        DataError: As for `read_idx`.
    """
    found = read_idx("mnist", data_root)
    train, validation = hold_out(found.splits[TRAIN], MOST_HELD_OUT, 0)
    return replace(found, splits={TRAIN: train, VALIDATION: validation, TEST: found.splits[TEST]})


def parse_idx(content: bytes, dimensions: int, name: str) -> UInt8[np.ndarray, "..."]:
    """Read the array in an IDX file of unsigned bytes.

    Args:
        content: The whole file, unpacked.
        dimensions: How many dimensions it must have.
        name: What to call the file in an error.

    Returns:
        The array, read-only.

    Raises:
        DataError: The file does not start as such a file must, or has too few or too many values.
    """
    hint = "download the file again"
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{name} is not an IDX file of unsigned bytes with {dimensions} dimensions", hint)
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    wanted = int(np.prod(shape, dtype=object))
    if len(content) - start != wanted:
        raise DataError(f"{name} should have {wanted} values {shape} but has {len(content) - start}", hint)
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def download(name: str, folder: Path) -> None:
    """Fetch the four files with torchvision, into its own subfolders of `folder`; what it prints goes to stderr."""
    from torchvision import datasets

    with contextlib.redirect_stdout(sys.stderr):
        getattr(datasets, OF_TORCHVISION[name])(str(folder), download=True)


def _locate(name: str, data_root: Path | None) -> Path:
    """The folder that holds the four files; downloads them when there is none."""
    root = check_folder(name, data_root)
    lacking = {place: missing_files(place) for place in usual_folders(name, root)}
    place, missing = min(lacking.items(), key=lambda each: len(each[1]))
    if not missing:
        return place
    if len(missing) < len(FILES):
        lacks = f"{place} lacks {', '.join(missing)} (.gz or unpacked)"
        raise DataError(lacks, f"put the missing files of {name} there")
    try:
        download(name, root)
    except (RuntimeError, OSError) as error:
        problem = f"there are no files of {name} in {root}, and they cannot be downloaded (no network?)"
        raise DataError(problem, f"put {', '.join(file + '.gz' for file in FILES)} into {root}") from error
    return root / OF_TORCHVISION[name] / "raw"


def _read_file(folder: Path, file: str) -> tuple[bytes, set[str]]:
    """The unpacked content, and the checksums of the file as it lies there and unpacked."""
    path = file_in(folder, file)
    assert path is not None
    with raised_as(DataError, f"{path} cannot be read", "download the file again", (OSError, EOFError, zlib.error)):
        packed = path.read_bytes()
        content = gzip.decompress(packed) if path.suffix == ".gz" else packed
    return content, {hashlib.md5(each, usedforsecurity=False).hexdigest() for each in (packed, content)}


def _unpublished_files(name: str, sums: Sequence[set[str]]) -> list[str]:
    """Those of the four files, with these checksums, that are not the published ones of a set."""
    return [file for file, known, own in zip(FILES, _KNOWN[name], sums, strict=True) if own.isdisjoint(known)]


# ---- the digits that come with scikit-learn: 1,797 real handwritten digits of 8 x 8 pixels, no network needed

# They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI, 1998). There is no
# official split, so one is made here, once and for all: it does not depend on the seed of a training.

SPLIT_SEED = 0
TEST_FRACTION = 0.2
VALIDATION_FRACTION = 0.1


def read_digits(what: str = "digits", data_root: Path | None = None) -> RawDataset:
    """Read the digits: 20 % for testing and 10 % for validation, stratified, by a fixed seed.

    Args:
        what: `digits`.
        data_root: Not looked at: the digits come with scikit-learn.

    Returns:
        Grey images of 8 x 8 pixels; the original values 0..16 become round(value * 255 / 16).

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        problem = "the digits come with scikit-learn, which is missing"
        raise UsageError(problem, 'pip install "vitrail[digits]"') from error
    pixels, targets = _parse_digits(load_digits)
    whole = label_inputs(ArrayImages(pixels, "digits"), targets, DIGITS)
    rest, test = hold_out(whole, round(TEST_FRACTION * len(pixels)), SPLIT_SEED)
    train, validation = hold_out(rest, round(VALIDATION_FRACTION * len(pixels)), SPLIT_SEED)
    splits = {TRAIN: train, VALIDATION: validation, TEST: test}
    return RawDataset("scikit-learn", splits, classes=DIGITS, split_seed=SPLIT_SEED)


@cache
def _parse_digits(load_digits: Callable[..., Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels and classes, which are stored as text: parsed once in a process, and never written to."""
    values, targets = (np.asarray(each) for each in load_digits(return_X_y=True))
    pixels, targets = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), targets.astype(np.int64)
    for each in (pixels, targets):
        each.flags.writeable = False
    return pixels, targets
