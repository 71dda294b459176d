"""MNIST-M, coloured digits on photographs: read from its published files, or made from MNIST and photographs.

The rule is that of Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), section 4: a digit
and a random cut-out of a photograph become |photograph - digit|, for each pixel and channel. The published files hold
32 x 32 pictures made from the photographs of BSDS500; what is made here has MNIST's 28 x 28 pixels.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy.lib.stride_tricks import sliding_window_view

from vitrail.data.dataset import TEST, TRAIN, RawDataset, Samples, labelled, labels_of
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.plan import BACKGROUND, uniforms
from vitrail.data.readers.idx import HELD_OUT, data_folder, read_idx
from vitrail.data.readers.photographs import Photograph, packaged_photographs, read_photographs
from vitrail.errors import DataError, counted

CLASSES = tuple("0123456789")
SEED = 0  # of the set that has the name mnist-m: the same for every training
PHOTOGRAPHS = "photographs"  # the folder in the root where a person puts photographs
BELOW = ("", "mnist_m")  # where in the root the published files may lie


def read_mnist_m(what: str = "mnist-m", data_root: Path | None = None, seed: int = SEED) -> RawDataset:
    """Read or make MNIST-M.

    The root is `data_root`, else the folder that the environment variable VITRAIL_DATA names, else MNIST's place in the
    user's cache. In this order:

    1. The published files, in the root or in its folder `mnist_m`: the folders `mnist_m_train` and `mnist_m_test`, and
       beside them `mnist_m_train_labels.txt` and `mnist_m_test_labels.txt` with lines such as `00000000.png 5`.
    2. Made from MNIST (found as `read_idx` finds it) and the photographs in the root's folder `photographs`.
    3. Made from MNIST and the photographs that scikit-learn and scikit-image carry (extra `photos`).

    Args:
        what: `mnist-m`.
        data_root: The folder to look in.
        seed: Of the cut-outs, where the pictures are made.

    Returns:
        The parts `train` and `test`, with classes 0 to 9. Photographs for training are never those for test; pictures
        held out for validation have the photographs of training behind them.

    Raises:
        DataError: Published files are incomplete or damaged, MNIST is missing, or a photograph folder is of no use.
        UsageError: There is no photograph folder, and the packages with photographs are missing.
    """
    root, _ = data_folder("mnist", data_root)
    for place in (root / each for each in BELOW):
        there = [file for file in _published_names() if (place / file).exists()]
        if there:
            return _read_published(root, place, there)
    digits = read_idx("mnist", data_root)
    train, test = _pixels(digits.splits[TRAIN]), _pixels(digits.splits[TEST])
    folder = root / PHOTOGRAPHS
    photographs = read_photographs(folder, max(train.shape[1:])) if folder.is_dir() else packaged_photographs()
    made = {
        TRAIN: blend(train, photographs.train, seed=seed, split=0),
        TEST: blend(test, photographs.test, seed=seed, split=1),
    }
    parts = {
        name: labelled(ArrayImages(pixels, f"mnist-m/{name}"), labels_of(digits.splits[name]), CLASSES)
        for name, pixels in made.items()
    }
    note = f"Made from MNIST and {photographs.says}; the published MNIST-M has those of BSDS500."
    notes = (*digits.notes, note, *photographs.notes)
    return RawDataset(str(root.resolve()), parts, notes, CLASSES, most_held_out=HELD_OUT)


def blend(
    digits: UInt8[np.ndarray, "n h w"], photographs: Sequence[Photograph], *, seed: int, split: int
) -> UInt8[np.ndarray, "n h w 3"]:
    """|cut-out of a photograph - digit| for every digit, pixel and channel.

    Which photograph and which cut-out is a hash of (seed, split, number of the digit): every photograph is as likely as
    the others, every place in it too. So a picture does not change when digits are added behind it.

    Args:
        digits: Grey pictures, values 0..255.
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


def _pixels(part: Samples) -> UInt8[np.ndarray, "n h w"]:
    assert isinstance(part.inputs, ArrayImages)
    return part.inputs.pixels


def _published_names() -> tuple[str, ...]:
    return tuple(f"mnist_m_{split}{ending}" for split in ("train", "test") for ending in ("", "_labels.txt"))


def _read_published(root: Path, place: Path, there: Sequence[str]) -> RawDataset:
    missing = [file for file in _published_names() if file not in there]
    if missing:
        raise DataError(
            f"{place} has {there[0]}, and lacks {', '.join(missing)}",
            f"put the missing files of MNIST-M there; without {there[0]} it is made from MNIST",
        )
    parts, notes = {}, []
    for name in (TRAIN, TEST):
        parts[name], without_label = _published_part(root, place, name)
        if without_label:
            notes.append(
                f"Ignored {counted(without_label, 'file')} in mnist_m_{name} that mnist_m_{name}_labels.txt does not "
                "name."
            )
    return RawDataset(str(root.resolve()), parts, tuple(notes), CLASSES, most_held_out=HELD_OUT)


def _published_part(root: Path, place: Path, name: str) -> tuple[Samples, int]:
    """One split, and how many files in its folder have no label."""
    folder, file = place / f"mnist_m_{name}", place / f"mnist_m_{name}_labels.txt"
    try:
        present = {entry.name for entry in os.scandir(folder)}
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        wrong = error.filename if isinstance(error, OSError) else file
        raise DataError(f"{wrong} cannot be read ({error})", "unpack MNIST-M again") from error
    labels: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words:
            picture, label = _labelled(words, f"{file} line {number}")
            if picture in labels:
                raise DataError(f"{file} line {number} names {picture} again", "unpack MNIST-M again")
            labels[picture] = label
    if not labels:
        raise DataError(f"{file} has no line such as '00000000.png 5'", "unpack MNIST-M again")
    absent = [picture for picture in labels if picture not in present]
    if absent:
        many = counted(len(absent), "picture")
        raise DataError(f"{file} names {many} that {folder} lacks: {absent[0]}", "unpack MNIST-M again")
    pictures = FileImages([folder / picture for picture in labels], root)
    return labelled(pictures, np.array(list(labels.values()), dtype=np.int64), CLASSES), len(present) - len(labels)


def _labelled(words: Sequence[str], where: str) -> tuple[str, int]:
    if len(words) != 2 or words[1] not in CLASSES:
        raise DataError(f"{where} is {' '.join(words)!r}, wanted such as '00000000.png 5'", "unpack MNIST-M again")
    return words[0], int(words[1])
