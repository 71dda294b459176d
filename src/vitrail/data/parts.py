"""What a reader of data brings back, before classes are numbered for a network, and how a part is held out.

A reader (a folder, a manifest, IDX files, scikit-learn's digits) returns `Found`. It says what lies there and decides
nothing; `vitrail.data.source` decides which classes count and what validates.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from vitrail.data.pictures import Pictures

TRAIN, VALIDATION, TEST, ALL = "train", "validation", "test", "all"

SPLIT_NAMES: Mapping[str, str] = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
}
"""What people call the splits, in small letters, and what they are called here."""


@dataclass(frozen=True, eq=False)
class Part:
    """Pictures with labels that index into the part's own class names.

    Args:
        pictures: n pictures.
        classes: The names of the classes.
        labels: (n,), each 0..len(classes)-1.
    """

    pictures: Pictures
    classes: tuple[str, ...]
    labels: Int64[np.ndarray, " n"]

    def __post_init__(self) -> None:
        """Check that every picture has a label and every label a name."""
        assert len(self.pictures) == len(self.labels)
        assert not len(self.labels) or (self.labels.min() >= 0 and self.labels.max() < len(self.classes))

    def select(self, indices: Int64[np.ndarray, " m"]) -> "Part":
        """The part made of these pictures, in this order."""
        return Part(self.pictures.select(indices.tolist()), self.classes, self.labels[indices])

    def counts(self) -> dict[str, int]:
        """How many pictures each class has, classes without any left out."""
        numbers = np.bincount(self.labels, minlength=len(self.classes))
        return {name: int(number) for name, number in zip(self.classes, numbers, strict=True) if number}


@dataclass(frozen=True, eq=False)
class Found:
    """What lies in one place.

    Args:
        root: The place, as an absolute path (or the name of a package that brings the data).
        parts: `train`, `validation` and `test` as far as they are there, or one part `all` when nothing is split.
        notes: What was ignored or odd, one sentence each.
        classes: The published order of the classes of a named set; None where the sorted names serve.
        split_seed: The seed, when the reader itself made the parts of data that came in one piece.
        most_held_out: The most pictures to hold out for validation, where a tenth would be more.
    """

    root: str
    parts: Mapping[str, Part]
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    split_seed: int | None = None
    most_held_out: int | None = None


def hold_out(part: Part, count: int, seed: int) -> tuple[Part, Part]:
    """Split a part in two so that every class is shared out in the same proportion.

    Class c with n_c of the n pictures gives count * n_c / n of them, rounded by the method of largest remainders so
    that the sum is `count`; then every class with two or more pictures gives at least one and keeps at least one, and
    a class with one picture keeps it. Which pictures go is decided by a hash of seed and name, so that a picture stays
    on its side when others are added, on every machine and with every version of numpy.

    Args:
        part: What to split.
        count: How many pictures to hold out, 0..n.
        seed: The seed of the choice.

    Returns:
        The pictures kept and the pictures held out, both in their old order.
    """
    sizes = np.bincount(part.labels, minlength=len(part.classes))
    by_class = np.split(np.argsort(part.labels, kind="stable"), np.cumsum(sizes)[:-1])
    held = np.zeros(len(part.labels), dtype=bool)
    named = (os.fsencode(f"{seed}:{name}") for name in part.pictures.names())
    ranks = np.array([hashlib.blake2b(each, digest_size=8).digest().hex() for each in named])
    for members, quota in zip(by_class, _quotas(sizes, count), strict=True):
        held[members[np.argsort(ranks[members], kind="stable")[:quota]]] = True
    return part.select(np.flatnonzero(~held)), part.select(np.flatnonzero(held))


def _quotas(sizes: Int64[np.ndarray, " classes"], count: int) -> list[int]:
    total = int(sizes.sum())
    assert 0 <= count <= total
    exact = [count * int(size) / max(total, 1) for size in sizes]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda label: quotas[label] - exact[label])
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1
    return [min(max(quota, 1), int(size) - 1) if size else 0 for quota, size in zip(quotas, sizes, strict=True)]
