"""What the tests of data share: tiny sets in memory, some of whose images cannot be read, and data opened in full."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batches
from vitrail.data.columns import Labels
from vitrail.data.dataset import Counts, Dataset, Split, make_dataset, match_split
from vitrail.data.loader import Loaded, Loader, ResidentLoader
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sets.planted import Planted
from vitrail.data.sources import read
from vitrail.tasks import Classes, Classification, choose_task

CPU = torch.device("cpu")
PLAIN = Preprocessing((8, 8), channels=1, mean=(0.3,), std=(0.4,))
LIVELY = Augmentation(
    shift=0.1,
    rotate=10.0,
    zoom=(0.9, 1.1),
    flip=0.5,
    random_erasing=0.3,
    mixup=0.4,
    cutmix=1.0,
    label_smoothing=0.1,
    fill=0,
)


class PatchyLoader(Loader):
    """Images in memory, some of which cannot be read."""

    def __init__(self, pixels: Tensor, bad: Iterable[int] = ()) -> None:
        self.inner, self.bad, self.unreadable = ResidentLoader(pixels), set(bad), {}

    def read(self, ids: NDArray[np.int64], epoch: int = 0) -> Loaded:
        """Pixels, with zeros where an image is bad."""
        readable = torch.tensor([int(one) not in self.bad for one in ids], dtype=torch.bool)
        self.unreadable |= {int(one): f"{int(one)}.png: is empty" for one in ids if int(one) in self.bad}
        return Loaded(self.inner.read(ids).pixels * readable[:, None, None, None], None, readable)


def denormalised(preprocessing: Preprocessing, images: Tensor) -> Tensor:
    """The way back from what a network takes to values 0..255, rounded."""
    mean, std = torch.tensor([preprocessing.mean, preprocessing.std])[:, :, None, None]
    return (images * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)


def digit_patches(made: Planted, patch: int | tuple[int, int]) -> NDArray[np.bool_]:
    """Which patches show each planted digit, (n, p, gh, gw); exact, because patches divide cells."""
    height, width = (patch, patch) if isinstance(patch, int) else patch
    assert made.side % height == made.side % width == 0, "a patch would lie in two cells"
    down, across = made.side // height, made.side // width
    row, column = made.cells // made.grid[1], made.cells % made.grid[1]
    in_row = np.arange(made.grid[0] * down) // down == row[..., None]
    in_column = np.arange(made.grid[1] * across) // across == column[..., None]
    return in_row[..., :, None] & in_column[..., None, :]


def noise(count: int = 22, classes: int = 3, seed: int = 0) -> tuple[Tensor, NDArray[np.int64]]:
    """Noise on which a class is told by where it is bright, and the classes."""
    labels = np.random.default_rng(seed).integers(0, classes, count)
    pixels = torch.randint(0, 120, (count, 1, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    for row, label in enumerate(labels):
        pixels[row, 0, 2 * label : 2 * label + 3] += 100
    return pixels, labels


def labelled_set(
    loader: Loader,
    labels: NDArray[np.int64],
    preprocessing: Preprocessing = PLAIN,
    augmentation: Augmentation = LIVELY,
    seed: int = 0,
    classes: int = 3,
) -> Batches:
    """The training batches of labelled images."""
    names, blend = tuple("abcdefghij"[:classes]), Classification().blend
    return Batches(loader, Labels(labels, names), Classes(names), preprocessing, augmentation, blend, seed, CPU)


def tiny_set(count: int = 22, augmentation: Augmentation = LIVELY, seed: int = 0, bad: Iterable[int] = ()) -> Batches:
    """A training set in memory."""
    pixels, labels = noise(count)
    return labelled_set(PatchyLoader(pixels, bad), labels, PLAIN, augmentation, seed)


def open_set(what: str, root: Path | None = None, seed: int = 0, counts: Counts | None = None) -> Dataset:
    """Data to train on, with the task that its columns allow."""
    raw = read(what, root, split_seed=seed, counts=counts)
    task = choose_task(what, raw.columns())
    return make_dataset(what, raw, task.column, lambda raw, splits: task.codec(raw, splits, ""), seed)


def open_split(
    what: str, classes: tuple[str, ...], root: Path | None = None, split: str | None = None, seed: int = 0
) -> Split:
    """A split to evaluate a model of these classes on."""
    return match_split(what, read(what, root), "label", Classes(classes), split, seed)


def names_of(dataset: Dataset) -> tuple[str, ...]:
    """The classes of labelled data."""
    assert isinstance(dataset.codec, Classes)
    return dataset.codec.names
