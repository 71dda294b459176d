"""MNIST-M, coloured digits on photographs: read from its published files, or made from MNIST and photographs.

The rule is that of Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), section 4: a digit
and a random cut-out of a photograph become |photograph - digit|, for each pixel and channel. The published files hold
32 x 32 images made from the photographs of BSDS500; what is made here has MNIST's 28 x 28 pixels.

Photographs are those in a folder with `train` and `test`, or those that scikit-learn and scikit-image carry. None
serves training and test.
Larger ones are scaled down until their shorter side has 321 pixels, as those of BSDS500 (481 x 321) have, so that a
small cut-out shows about as much of a scene as in MNIST-M.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from vitrail.data.columns import TEST, TRAIN, RawDataset, Samples
from vitrail.data.dataset import DIGITS, label_inputs, labels_of, pixels_of
from vitrail.data.images import ArrayImages, FileImages, convert_mode, open_image
from vitrail.data.plan import BACKGROUND, uniforms
from vitrail.data.readers.folder import image_files
from vitrail.data.readers.idx import read_idx
from vitrail.data.roots import data_folder
from vitrail.errors import DataError, UsageError, counted, remove

SEED = 0  # of the set that has the name mnist-m: the same for every training
PHOTOGRAPHS = "photographs"  # the folder in the root where a person puts photographs
BELOW = ("", "mnist_m")  # where in the root the published files may lie
PUBLISHED = tuple(f"mnist_m_{split}{ending}" for split in ("train", "test") for ending in ("", "_labels.txt"))
SIDE = 321
BOTH = "put photographs into train/ and test/ there, or remove the folder to use those of scikit-learn and scikit-image"

Photograph = UInt8[np.ndarray, "_ _ 3"]  # each of its own size


class Photographs(NamedTuple):
    """Photographs for training and others for test.

    Args:
        train: Each (h, w, 3), values 0..255; sizes may differ.
        test: The same; none of them is in `train`.
        description: What they are, to be put behind "made from MNIST and".
    """

    train: tuple[Photograph, ...]
    test: tuple[Photograph, ...]
    description: str


def read_mnist_m(what: str = "mnist-m", data_root: Path | None = None, seed: int = SEED) -> RawDataset:
    """Read or make MNIST-M.

    The root is `data_root`, else the folder that the environment variable VITRAIL_DATA names, else MNIST's place in the
    user's cache. In this order:

    1. The published files, in the root or in its folder `mnist_m`: the folders `mnist_m_train` and `mnist_m_test`, and
       beside them `mnist_m_train_labels.txt` and `mnist_m_test_labels.txt` with lines such as `00000000.png 5`.
    2. Made from MNIST (found as `read_idx` finds it) and the photographs in the root's folder `photographs`, which has
       folders `train` and `test`.
    3. Made from MNIST and the photographs that scikit-learn and scikit-image carry (extra `photos`).

    Args:
        what: `mnist-m`.
        data_root: The folder to look in.
        seed: Of the cut-outs, where the images are made.

    Returns:
        The splits `train` and `test`, with classes 0 to 9. Photographs for training are never those for test; images
        held out for validation have the photographs of training behind them.

    Raises:
        DataError: Published files are incomplete or damaged, MNIST is missing, or a photograph folder is of no use.
        UsageError: There is no photograph folder, and the packages with photographs are missing.
    """
    root, _ = data_folder("mnist", data_root)
    published = (root / below for below in BELOW if any((root / below / file).exists() for file in PUBLISHED))
    if place := next(published, None):
        splits, notes = _read_published(root, place)
    else:
        digits, folder, splits = read_idx("mnist", data_root), root / PHOTOGRAPHS, dict[str, Samples]()
        side = max(pixels_of(digits.splits[TRAIN]).shape[1:])
        photographs = read_photographs(folder, side) if folder.is_dir() else packaged_photographs()
        for number, (name, behind) in enumerate(((TRAIN, photographs.train), (TEST, photographs.test))):
            pixels = blend_digits(pixels_of(digits.splits[name]), behind, seed=seed, split=number)
            splits[name] = label_inputs(ArrayImages(pixels, f"mnist-m/{name}"), labels_of(digits.splits[name]), DIGITS)
        note = f"Made from MNIST and {photographs.description}; the published MNIST-M has those of BSDS500."
        notes = (*digits.notes, note)
    return RawDataset(str(root.resolve()), splits, notes, DIGITS)


def blend_digits(
    digits: UInt8[np.ndarray, "n h w"], photographs: Sequence[Photograph], *, seed: int, split: int
) -> UInt8[np.ndarray, "n h w 3"]:
    """|cut-out of a photograph - digit| for every digit, pixel and channel.

    Which photograph and which cut-out is a hash of (seed, split, number of the digit): every photograph is as likely as
    the others, every place in it too. So an image does not change when digits are added behind it.

    Args:
        digits: Grey images, values 0..255.
        photographs: At least one, each at least as large as a digit.
        seed: Of the choice.
        split: A number for each split, so that they differ.

    Returns:
        Images in colour, values 0..255.
    """
    count, height, width = digits.shape
    assert photographs
    numbers = uniforms(np.arange(count, dtype=np.int64), 3, seed=seed, epoch=split, stream=BACKGROUND)
    chosen = (numbers[:, 0] * len(photographs)).astype(np.int64)
    blended = np.empty((count, height, width, 3), np.uint8)
    for number, photograph in enumerate(photographs):
        ids = np.flatnonzero(chosen == number)
        places = sliding_window_view(photograph, (height, width), axis=(0, 1))  # (rows, columns, 3, h, w), no copy
        rows, columns = ((numbers[ids, 1:] * places.shape[:2]).astype(np.int64)).T
        behind = np.moveaxis(places[rows, columns], 1, 3)
        before = digits[ids][..., None]
        blended[ids] = np.maximum(behind, before) - np.minimum(behind, before)
    return blended


def _read_published(root: Path, place: Path) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """The splits of the published files, and a note on files that have no label."""
    again = "unpack MNIST-M again"
    if missing := [file for file in PUBLISHED if not (place / file).exists()]:
        there = next(file for file in PUBLISHED if file not in missing)
        problem = f"{place} has {there} but lacks {', '.join(missing)}"
        raise DataError(problem, f"put the missing files there; or remove {there} to make MNIST-M from MNIST")
    splits, notes = dict[str, Samples](), list[str]()
    for name in (TRAIN, TEST):
        folder, file, labels = place / f"mnist_m_{name}", place / f"mnist_m_{name}_labels.txt", dict[str, int]()
        try:
            present = {entry.name for entry in os.scandir(folder)}
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            wrong = error.filename if isinstance(error, OSError) else file
            raise DataError(f"{wrong} cannot be read ({error})", again) from error
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                continue
            if len(words) != 2 or words[1] not in DIGITS:
                raise DataError(f"{file} line {number} is {' '.join(words)!r}, not like '00000000.png 5'", again)
            if words[0] in labels:
                raise DataError(f"{file} line {number} lists {words[0]} again", again)
            labels[words[0]] = int(words[1])
        if not labels:
            raise DataError(f"{file} has no line such as '00000000.png 5'", again)
        if absent := [image for image in labels if image not in present]:
            raise DataError(f"{file} lists {counted(len(absent), 'image')} missing in {folder}: {absent[0]}", again)
        images = FileImages([folder / image for image in labels], root)
        splits[name] = label_inputs(images, np.array(list(labels.values()), dtype=np.int64), DIGITS)
        if without := len(present) - len(labels):
            notes.append(f"Ignored {counted(without, 'file')} in {folder.name} that {file.name} does not list.")
    return splits, tuple(notes)


def read_photographs(folder: Path, least: int) -> Photographs:
    """The photographs in the folders `train` and `test` of a folder, at any depth: as BSDS500 has them.

    Args:
        folder: Where both lie.
        least: Pixels that each side has at least.

    Returns:
        The photographs, scaled down where they are large.

    Raises:
        DataError: There are none for training or none for test, one cannot be read, is too small, or is on both sides.
    """
    sides, known = list[tuple[Photograph, ...]](), dict[tuple[tuple[int, ...], bytes], tuple[str, Path]]()
    for name in (TRAIN, TEST):
        files = image_files(folder / name)[0] if (folder / name).is_dir() else []
        if not files:
            raise DataError(f"there are no photographs in {folder / name}", BOTH)
        side = tuple(_scale_down(convert_mode(open_image(path), 3)) for path in files)
        for path, pixels in zip(files, side, strict=True):
            height, width = pixels.shape[:2]
            if min(height, width) < least:
                raise DataError(f"{path} has {width} x {height} pixels, and needs {least} on both sides", remove(path))
            on, twin = known.setdefault((pixels.shape, pixels.tobytes()), (name, path))
            if on != name:  # under whatever name
                raise DataError(f"{twin} and {path} are the same photograph, for training and for test", remove(path))
        sides.append(side)
    train, test = sides
    what = f"the photographs in {folder}: {len(train)} for training and validation, {len(test)} others for test"
    return Photographs(train, test, what)


def packaged_photographs() -> Photographs:
    """The photographs that scikit-learn and scikit-image carry: vitrail brings none.

    By these packages' notes: astronaut and rocket are in the public domain (NASA, SpaceX), coffee, chelsea (CC0: R.
    Michetti, S. van der Walt) and immunohistochemistry (CMMI) have no restrictions, china (danielbuechele) and flower
    (vultilion) are CC BY 2.0.

    Returns:
        Five for training, two others for test.

    Raises:
        UsageError: A package is missing, or carries a photograph no more.
    """
    try:
        from skimage import data
        from sklearn.datasets import load_sample_image

        china, flower = map(load_sample_image, ("china.jpg", "flower.jpg"))
        train = (data.astronaut(), china, data.coffee(), flower, data.immunohistochemistry())
        test = (data.chelsea(), data.rocket())
    except (ImportError, AttributeError, OSError) as error:
        problem = f"MNIST-M is made with photographs of scikit-image and scikit-learn, and one is missing ({error})"
        hint = 'pip install "vitrail[photos]", or --data-root DIR with photographs in DIR/photographs/train and test'
        raise UsageError(problem, hint) from error
    train, test = (tuple(_scale_down(Image.fromarray(each)) for each in side) for side in (train, test))
    what = "the photographs that come with scikit-learn and scikit-image: astronaut, china, coffee, flower, "
    what += "immunohistochemistry for training and validation, chelsea, rocket for test"
    return Photographs(train, test, what)


def _scale_down(image: Image.Image) -> Photograph:
    """Scaled down to a shorter side of 321 pixels where that is longer."""
    scale = SIDE / min(image.size)
    if scale < 1:
        size = (round(image.width * scale), round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    return np.asarray(image)
