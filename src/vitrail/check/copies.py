"""Images that are in data more than once: the same file, or the same picture saved again, resized or mirrored.

    exact     the same bytes (or pixels, of images in no file)
    near      a hash of the picture is nearly the same, and so are the thumbnails

All pairs are looked at, in a fixed order: by the hashes of `vitrail.data.pictures`, and those that pass by their
thumbnails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from vitrail.arguments import typed
from vitrail.check.crops import crop_pairs
from vitrail.check.survey import Survey
from vitrail.data.pictures import (
    FLAT,
    TILE,
    Greys,
    Hashes,
    alike_hashes,
    are_told_apart,
    differing_bits,
    picture_hashes,
)
from vitrail.runtime import cores, in_order
from vitrail.text import ShortRepr

KINDS = "exact", "near", "mirrored", "part"
COSINE = 0.65  # of the greys of two thumbnails, each less its mean, at least
TOGETHER = 4096  # pairs of thumbnails that are compared at a time
MOST = 50  # near copies that are listed of an image, among those behind it


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Copies(ShortRepr):
    """Pairs of images that are the same picture, and the chains that they make.

    Attributes:
        pairs: (m, 2) rows of the survey, the smaller first; of k equal ones the first with each other.
        kinds: (m,) numbers in `KINDS`: same content, same picture, its mirror image, or one a part of the other.
        differing: (m,) bits of their hashes that differ, of 255; 0 of exact copies and of parts.
        chains: (n,) for each row the first that it hangs together with, its own where it stands alone.
        by_picture: Whether near copies were looked for, and not exact ones alone.
    """

    pairs: Int64[np.ndarray, "m 2"]
    kinds: Int64[np.ndarray, " m"]
    differing: Int64[np.ndarray, " m"]
    chains: Int64[np.ndarray, " n"]
    by_picture: bool

    def groups(self) -> list[list[int]]:
        """The rows of each chain of two or more, in order."""
        return rows_of(self.chains)


def disagreeing(groups: Sequence[Sequence[int]], labels: Sequence[str]) -> list[Sequence[int]]:
    """Those groups whose images do not all have the same label."""
    return [rows for rows in groups if len({labels[row] for row in rows}) > 1]


def find_copies(
    survey: Survey,
    progress: Callable[[int, int], object] = lambda done, total: None,
    near: bool | None = None,
    crops: bool = False,
) -> Copies:
    """All copies among the images of a survey.

    Args:
        survey: Of the data.
        progress: Called with the number of images that were compared with all others, and of all.
        near: Whether to look for near copies, too; where images of strangers are no further apart than copies are, only
            exact ones when None.
        crops: Whether to look for parts, too, among those that are no copies of each other.
    """
    rows, grey = np.flatnonzero(survey.readable), survey.rows["grey"]
    _, first, inverse = np.unique(survey.rows["content"][rows].view("V16"), return_index=True, return_inverse=True)
    same = rows[first[inverse.ravel()]]
    exact = np.stack([same, rows], 1)[same != rows]
    some = np.sort(rows[first])  # one of each content
    some = some[np.ptp(grey[some], axis=(1, 2)) > FLAT]
    hashes = picture_hashes(grey[some])
    near = are_told_apart(hashes) if near is None else near
    some, hashes = (some, hashes) if near else (some[:0], hashes[:0])
    found = near_pairs(grey[some], hashes, progress)
    pairs, parts = np.concatenate([exact, some[found.pairs]]), exact[:0]
    chains = chains_of(len(survey), pairs)
    if crops:
        parts = np.unique(np.sort(some[crop_pairs(survey.rows[some], progress)], axis=1), axis=0)
        parts = parts[chains[parts[:, 0]] != chains[parts[:, 1]]]
        pairs = np.concatenate([pairs, parts])
        chains = chains_of(len(survey), pairs)
    kinds = np.concatenate([np.repeat(0, len(exact)), 1 + found.mirrored, np.repeat(3, len(parts))])
    return Copies(pairs, kinds, np.pad(found.differing, (len(exact), len(parts))), chains, near)


def chains_of(count: int, pairs: Int64[np.ndarray, "m 2"]) -> Int64[np.ndarray, " n"]:
    """For each of so many, the first of all that pairs tie it to, however far round."""
    first = np.arange(count)
    while True:
        before = first.copy()
        low = first[pairs].min(axis=1)
        for side in (0, 1):
            np.minimum.at(first, pairs[:, side], low)
        first = first[first]
        if (first == before).all():
            return first


def rows_of(chains: Int64[np.ndarray, " n"]) -> list[list[int]]:
    """The rows of each chain of two or more."""
    order = np.argsort(chains, kind="stable")
    return [rows.tolist() for rows in np.split(order, np.flatnonzero(np.diff(chains[order])) + 1) if len(rows) > 1]


# ---- pictures that are nearly the same


class NearPairs(NamedTuple):
    """Pairs of near copies among n thumbnails.

    Attributes:
        pairs: (m, 2) the smaller number first.
        differing: (m,) bits.
        mirrored: (m,) whether that is so with one of both mirrored.
    """

    pairs: Int64[np.ndarray, "m 2"]
    differing: Int64[np.ndarray, " m"]
    mirrored: Bool[np.ndarray, " m"]


def near_pairs(
    grey: Greys, hashes: Hashes, progress: Callable[[int, int], object] = lambda done, total: None
) -> NearPairs:
    """All pairs of thumbnails that pass for the same picture; of one with many, the nearest `MOST` behind it.

    The time grows with the square of their number: a million take a hundred times as long as 100,000.
    """
    found = [NearPairs(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros(0, bool))]
    starts = range(0, len(grey), TILE[0])
    searches = (partial(_alike, hashes, start) for start in starts)
    for start, alike in zip(starts, in_order(searches, cores()), strict=True):
        found += [_confirm(grey, hashes, some) for some in np.split(alike, range(TOGETHER, len(alike), TOGETHER))]
        progress(min(start + TILE[0], len(grey)), len(grey))
    pairs, differing, mirrored = map(np.concatenate, zip(*found, strict=True))
    order = np.lexsort((pairs[:, 1], differing, pairs[:, 0]))  # the nearest of each first
    nth = np.arange(len(order)) - np.searchsorted(pairs[order, 0], pairs[order, 0])
    kept = order[nth < MOST]
    return NearPairs(pairs[kept], differing[kept], mirrored[kept])


def _alike(hashes: Hashes, start: int) -> Int64[np.ndarray, "m 2"]:
    """Pairs of the next rows and any behind them whose hashes are alike, as they are or with one of both mirrored."""
    pairs = start + alike_hashes(hashes[start : start + TILE[0]], hashes[start:])
    return pairs[pairs[:, 0] < pairs[:, 1]]


def _confirm(grey: Greys, hashes: Hashes, pairs: Int64[np.ndarray, "m 2"]) -> NearPairs:
    """Those of some pairs whose thumbnails are alike."""
    plain, turned = differing_bits(hashes, pairs)
    mirrored = turned < plain
    both = grey[pairs].astype(np.float64)
    both[mirrored, 1] = both[mirrored, 1, :, ::-1]
    both -= both.mean(axis=(2, 3), keepdims=True)
    product, (own, other) = (both[:, 0] * both[:, 1]).sum(axis=(1, 2)), (both**2).sum(axis=(2, 3)).T
    kept = product >= COSINE * np.sqrt(own * other)
    return NearPairs(pairs[kept], np.minimum(plain, turned)[kept], mirrored[kept])
