"""Images that are in data more than once: the same file, or the same picture saved again, resized or mirrored.

    exact     the same bytes (or pixels, of images in no file)
    near      a hash of the picture is nearly the same, and so are the thumbnails

The hash has a bit for each of the 255 lowest frequencies of a thumbnail's grey, by the cosine transform: its sign. The
mirror image has the other sign at every second frequency across, so that one search finds both. All pairs are looked
at, in a fixed order: those whose first 64 bits are alike, which a mirror does not change, by all bits, and those that
pass by their thumbnails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

from vitrail.arguments import typed
from vitrail.check.crops import crop_pairs
from vitrail.check.survey import GREY, Survey
from vitrail.runtime import cores, in_order
from vitrail.text import ShortRepr

KINDS = "exact", "near", "mirrored", "part"
WAVES = 16  # frequencies in each direction
SCALE = 1024  # by which cosines are whole numbers, so that sums are the same on every machine
ALIKE_FIRST = 20  # of the first 64 bits that may differ
ALIKE = 66  # of all 255; in random pairs of photographs 127 differ, with a standard deviation of 8
COSINE = 0.65  # of the greys of two thumbnails, each less its mean, at least
DRAWN = 20_000  # random pairs
WIDEST = 9.5  # standard deviation of their bits, by the upper half, up to which near copies are told from strangers
FLAT = 8  # levels of grey from the darkest to the brightest part of a thumbnail, up to which it shows nothing
TOGETHER = 4096  # thumbnails that are hashed, or pairs of them compared, at a time
TILE = 64, 4096  # pairs that are compared at a time
MOST = 50  # near copies that are listed of an image, among those behind it

Hashes = UInt64[np.ndarray, "n 4"]
Greys = UInt8[np.ndarray, "n 32 32"]


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
        order = np.argsort(self.chains, kind="stable")
        starts = np.flatnonzero(np.diff(self.chains[order], prepend=-1))
        return [rows.tolist() for rows in np.split(order, starts[1:]) if len(rows) > 1]


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
    near = random_spread(hashes) <= WIDEST if near is None else near
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
    first, found = np.ascontiguousarray(hashes[start:, 0]), list[Int64[np.ndarray, "_ 2"]]()
    high, wide = TILE
    for begin in range(0, len(first), wide):
        bits = np.bitwise_count(first[:high, None] ^ first[None, begin : begin + wide])
        places = np.divmod(np.flatnonzero(bits <= ALIKE_FIRST), bits.shape[1])
        pairs = np.stack(places, 1) + np.array([start, start + begin])
        pairs = pairs[pairs[:, 0] < pairs[:, 1]]
        found.append(pairs[differing_bits(hashes, pairs).min(axis=0) <= ALIKE])
    return np.concatenate(found)


def differing_bits(hashes: Hashes, pairs: Int64[np.ndarray, "m 2"]) -> Int64[np.ndarray, "2 m"]:
    """How many bits differ, of two pictures as they are, and with one of both mirrored."""
    turned = hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]
    masks = np.stack([np.zeros(4, np.uint64), np.packbits(_order() % 2 == 1).view(np.uint64)])
    return np.bitwise_count(turned ^ masks[:, None]).sum(axis=2, dtype=np.int64)


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


def random_spread(hashes: Hashes) -> float:
    """Standard deviation of the bits that differ in random pairs, by their upper half; 0 where there is no pair.

    It is wide where some strangers are as near as copies, such as digits are. Copies, of which there may be many, are
    in the lower half.
    """
    rows = np.random.default_rng(0).integers(0, max(1, len(hashes)), (DRAWN, 2))
    pairs = rows[rows[:, 0] != rows[:, 1]]
    if not len(pairs):
        return 0.0
    below = np.cumsum(np.bincount(differing_bits(hashes, pairs)[0], minlength=256)) / len(pairs)
    middle, high = np.interp([0.5, 0.9], below, np.arange(256) + 0.5)
    return float(high - middle) / 1.2816  # standard deviations of a normal distribution up to nine tenths


def picture_hashes(grey: Greys) -> Hashes:
    """255 bits of each thumbnail: the signs of its lowest frequencies but the mean, those first that a mirror keeps."""
    places = (np.arange(GREY) + 0.5)[None] * np.arange(WAVES)[:, None]
    cosines = np.rint(SCALE * np.cos(np.pi / GREY * places))
    found = [np.zeros((0, WAVES * WAVES // 8), np.uint8)]
    for some in np.split(grey, range(TOGETHER, len(grey), TOGETHER)):
        waves = cosines @ some.astype(np.float64) @ cosines.T
        bits = waves.reshape(len(some), WAVES * WAVES)[:, _order()] > 0
        bits[:, -1] = False  # the mean
        found.append(np.packbits(bits, axis=1))
    return np.concatenate(found).view(np.uint64)


def _order() -> Int64[np.ndarray, " 256"]:
    """Places of the frequencies: even ones across before odd ones, low before high, the mean last."""
    down, across = np.divmod(np.arange(WAVES * WAVES), WAVES)
    return np.roll(np.lexsort((across, down**2 + across**2, across % 2)), -1)
