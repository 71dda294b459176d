"""What the five lessons share: how a number is shown, which pictures there are, how long something takes.

A lesson keeps every number that it prints in a plain dict, against which the tests hold it and `docs/errata.md`.
"""

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data import ArrayImages, Dataset, read
from vitrail.data.dataset import labels_of, make_dataset
from vitrail.errors import DataError
from vitrail.tasks import TASKS

Value = int | float | bool | str | list[int] | list[float] | list[str]

_RESULTS: dict[str, Value] = {}


def results() -> dict[str, Value]:
    """The dict in which `show` keeps the numbers of this lesson; empty at its beginning."""
    _RESULTS.clear()
    return _RESULTS


def show(name: str, value: Value, says: str) -> None:
    """Print a number with what it says, and keep it under `name`."""
    assert name not in _RESULTS, f"{name} is shown twice"
    _RESULTS[name] = value
    print(f"{says}: {written(value)}")


def written(value: Value) -> str:
    """Whole numbers with thousands commas, others with four significant digits."""
    if isinstance(value, list):
        return "[" + ", ".join(written(each) for each in value) + "]"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def pictures(split: str = "train", count: int = 1000) -> tuple[Tensor, Tensor, str]:
    """The first `count` handwritten digits of a split, `train` or `test`.

    Returns:
        Images (count, 1, 28, 28) from 0 to 1, labels (count,), and where they come from: `mnist`, or `digits` (the set
        that scikit-learn carries, enlarged) where MNIST is not on this machine. Nothing is downloaded.
    """
    dataset = _dataset()
    found = dataset.splits[split]
    assert isinstance(found.inputs, ArrayImages)
    images = torch.from_numpy(np.array(found.inputs.pixels[:count])).float()[:, None] / 255
    if images.shape[-1] != 28:
        images = nn.functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    return images, torch.from_numpy(np.array(labels_of(found)[:count])), dataset.name


@cache
def _dataset() -> Dataset:
    """MNIST where it is, else the digits, which is said once."""
    named = os.environ.get("VITRAIL_DATA")
    roots = [Path(named)] if named else []
    roots += [Path(__file__).resolve().parents[2] / "shared" / "data", Path.home() / ".cache" / "vitrail"]
    for root in roots:
        for folder in (root, root / "mnist", root / "MNIST" / "raw", root / "mnist" / "MNIST" / "raw"):
            if any((folder / f"train-images-idx3-ubyte{ending}").is_file() for ending in ("", ".gz")):
                try:
                    return _divided("mnist", folder)
                except DataError:  # other files under the same names, or damaged ones
                    continue
    print("MNIST is not here (VITRAIL_DATA names no folder with its four files): scikit-learn's digits instead.")
    return _divided("digits")


def _divided(name: str, folder: Path | None = None) -> Dataset:
    """A set of images with classes, of which some training images are held out."""
    return make_dataset(name, read(name, folder), "label", TASKS["classify"].codec)


def seconds(function: Callable[[], object], repeat: int = 3) -> float:
    """The shortest time of `repeat` calls, after one that does not count."""
    function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def parameters(network: nn.Module) -> int:
    """How many numbers an optimizer over `network.parameters()` trains."""
    return sum(parameter.numel() for parameter in network.parameters())


def largest(tensor: Tensor) -> float:
    """The largest absolute value: of a difference, how far two tensors are apart."""
    return float(tensor.detach().abs().max())
