"""MNIST as tensors, read from the four gzipped IDX files."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from vitrail.errors import DataError

FILE_STEMS = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class Digits:
    """One split of MNIST: `images` (b, 1, 28, 28) between 0 and 1, `labels` (b,) from 0 to 9."""

    images: Float[Tensor, "b 1 28 28"]
    labels: Int64[Tensor, " b"]


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """The array in one gzipped IDX file of unsigned bytes (two zeros, type, rank, big-endian sizes, values).

    Raises:
        DataError: The file is absent, damaged, or no IDX file of unsigned bytes.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}", "a folder with the four gzipped MNIST files") from error
    if content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{path} is not an IDX file of unsigned bytes", "a folder with the four gzipped MNIST files")
    rank = content[3]
    sizes = np.frombuffer(content, dtype=">i4", count=rank, offset=4).tolist()
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank)
    if values.size != np.prod(sizes):
        raise DataError(f"{path} holds {values.size} values where its header wants {sizes}", "download the file again")
    return values.reshape(sizes)


def load_digits(root: Path, split: Literal["train", "test"]) -> Digits:
    """The `train` or `test` split of the MNIST whose files lie in `root`.

    Raises:
        DataError: A file is absent or damaged.
    """
    stem = FILE_STEMS[split]
    images = read_idx(root / f"{stem}-images-idx3-ubyte.gz")
    labels = read_idx(root / f"{stem}-labels-idx1-ubyte.gz")
    return Digits(torch.from_numpy(images[:, None] / np.float32(255)), torch.from_numpy(labels.astype(np.int64)))
