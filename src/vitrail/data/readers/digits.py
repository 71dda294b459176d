"""The digits that come with scikit-learn: 1,797 real handwritten digits of 8 x 8 pixels, no network needed.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI, 1998). There is no
official split, so one is made here, once and for all: it does not depend on the seed of a training.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.columns import TEST, TRAIN, VALIDATION, RawDataset
from vitrail.data.dataset import DIGITS, hold_out, labelled
from vitrail.data.images import ArrayImages
from vitrail.errors import UsageError

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
    pixels, targets = _parsed(load_digits)
    whole = labelled(ArrayImages(pixels, "digits"), targets, DIGITS)
    rest, test = hold_out(whole, round(TEST_FRACTION * len(pixels)), SPLIT_SEED)
    train, validation = hold_out(rest, round(VALIDATION_FRACTION * len(pixels)), SPLIT_SEED)
    splits = {TRAIN: train, VALIDATION: validation, TEST: test}
    return RawDataset("scikit-learn", splits, classes=DIGITS, split_seed=SPLIT_SEED)


@cache
def _parsed(load_digits: Callable[..., Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels and classes, which are stored as text: parsed once in a process, and never written to."""
    values, targets = (np.asarray(each) for each in load_digits(return_X_y=True))
    pixels, targets = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), targets.astype(np.int64)
    for each in (pixels, targets):
        each.flags.writeable = False
    return pixels, targets
