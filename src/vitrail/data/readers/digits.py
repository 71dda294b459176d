"""The digits that come with scikit-learn: 1,797 real handwritten digits of 8 x 8 pixels, no network needed.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI, 1998). There is no
official split, so one is made here, once and for all: it does not depend on the seed of a training.
"""

from pathlib import Path

import numpy as np

from vitrail.data.dataset import TEST, TRAIN, VALIDATION, RawDataset, hold_out, labelled
from vitrail.data.images import ArrayImages
from vitrail.errors import UsageError

CLASSES = tuple("0123456789")
SPLIT_SEED = 0
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1


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
        raise UsageError(
            "the digits come with scikit-learn, which is missing", 'pip install "vitrail[digits]"'
        ) from error
    values, targets = (np.asarray(each) for each in load_digits(return_X_y=True))
    pixels = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    whole = labelled(ArrayImages(pixels, "digits"), targets.astype(np.int64), CLASSES)
    rest, test = hold_out(whole, round(TEST_SHARE * len(pixels)), SPLIT_SEED)
    train, validation = hold_out(rest, round(VALIDATION_SHARE * len(pixels)), SPLIT_SEED)
    parts = {TRAIN: train, VALIDATION: validation, TEST: test}
    return RawDataset("scikit-learn", parts, classes=CLASSES, split_seed=SPLIT_SEED)
