"""A hash by which a picture is known when it is saved again, resized or mirrored.

It has a bit for each of the 255 lowest frequencies of a thumbnail's grey, by the cosine transform: its sign. The mirror
image has the other sign at every second frequency across, so that one search finds both: the first 64 bits are of
frequencies that a mirror does not change.
"""

from functools import cache, partial

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8, UInt64
from PIL import Image

from vitrail.data.images import convert_mode
from vitrail.runtime import cores, in_order

GREY = 32  # sides of the thumbnail
PICTURE = 32  # bytes of the hash
SAMPLED = 3  # pixels of an image in each direction for one of a thumbnail that is made on the way
WAVES = 16  # frequencies in each direction
SCALE = 1024  # by which cosines are whole numbers, so that sums are the same on every machine
ALIKE_FIRST = 20  # of the first 64 bits that may differ
ALIKE = 66  # of all 255; in random pairs of photographs 127 differ, with a standard deviation of 8
DRAWN = 20_000  # random pairs
WIDEST = 9.5  # standard deviation of their bits, by the upper half, up to which near copies are told from strangers
FAR = 6  # standard deviations from copies to the median of strangers, at least
FLAT = 8  # levels of grey from the darkest to the brightest part of a thumbnail, up to which it shows nothing
TOGETHER = 4096  # thumbnails that are hashed at a time
TILE = 64, 4096  # pairs that are compared at a time
SEARCHED = 65_536  # pictures that a thread looks through at a time

Hashes = UInt64[np.ndarray, "n 4"]
Greys = UInt8[np.ndarray, "n 32 32"]


def grey_thumbnail(image: Image.Image) -> UInt8[np.ndarray, "32 32"]:
    """The grey of an image, whatever its aspect, as the means of its parts."""
    return np.asarray(image.convert("L").resize((GREY, GREY), Image.Resampling.BOX))


def picture_hash(image: Image.Image, bits: int | None = None) -> bytes:
    """The 32 bytes of `picture_hashes` of a decoded image; zeros of one that shows nothing.

    Its thumbnail is made of some of its pixels, which takes a third of the time of all: of copies 22 bits differ at
    most in place of 21, and of strangers as many as before.

    Args:
        image: Of any mode and size.
        bits: That are used, of an image of 16; see `convert_mode`.

    Raises:
        DataError: No rule covers its mode.
    """
    if image.mode not in ("L", "RGB"):
        image = convert_mode(image, 3, bits=bits)
    some = image.resize((SAMPLED * GREY, SAMPLED * GREY), Image.Resampling.NEAREST)
    grey = np.asarray(some.convert("L").reduce(SAMPLED))
    return picture_hashes(grey[None]).tobytes() if int(grey.max()) - int(grey.min()) > FLAT else bytes(PICTURE)


def picture_hashes(grey: Greys) -> Hashes:
    """255 bits of each thumbnail: the signs of its lowest frequencies but the mean, those first that a mirror keeps."""
    found, cosines = np.zeros((len(grey), WAVES * WAVES // 8), np.uint8), _cosines()
    for first in range(0, len(grey), TOGETHER):
        some = grey[first : first + TOGETHER]
        waves = cosines @ some.astype(np.float64) @ cosines.T
        bits = waves.reshape(len(some), WAVES * WAVES)[:, _order()] > 0
        bits[:, -1] = False  # the mean
        found[first : first + TOGETHER] = np.packbits(bits, axis=1)
    return found.view(np.uint64)


@cache
def _cosines() -> Float[np.ndarray, "16 32"]:
    places = (np.arange(GREY) + 0.5)[None] * np.arange(WAVES)[:, None]
    return np.rint(SCALE * np.cos(np.pi / GREY * places))


@cache
def _order() -> Int64[np.ndarray, " 256"]:
    """Places of the frequencies: even ones across before odd ones, low before high, the mean last."""
    down, across = np.divmod(np.arange(WAVES * WAVES), WAVES)
    return np.roll(np.lexsort((across, down**2 + across**2, across % 2)), -1)


def differing_bits(
    hashes: Hashes, pairs: Int64[np.ndarray, "m 2"], others: UInt64[np.ndarray, "k 4"] | None = None
) -> Int64[np.ndarray, "2 m"]:
    """How many bits differ, of two pictures as they are, and with one of both mirrored; the second among the others."""
    turned = hashes[pairs[:, 0]] ^ (hashes if others is None else others)[pairs[:, 1]]
    masks = np.stack([np.zeros(4, np.uint64), np.packbits(_order() % 2 == 1).view(np.uint64)])
    return np.bitwise_count(turned ^ masks[:, None]).sum(axis=2, dtype=np.int64)


def alike_hashes(hashes: Hashes, others: UInt64[np.ndarray, "m 4"]) -> Int64[np.ndarray, "p 2"]:
    """Pairs of two sets whose hashes are alike, as they are or with one of both mirrored; in a fixed order."""
    found, (high, wide) = [np.zeros((0, 2), np.int64)], TILE
    first, second = (np.ascontiguousarray(each[:, 0]) for each in (hashes, others))
    for top in range(0, len(first), high):
        for left in range(0, len(second), wide):
            bits = np.bitwise_count(first[top : top + high, None] ^ second[None, left : left + wide])
            places = np.divmod(np.flatnonzero(bits <= ALIKE_FIRST), bits.shape[1])
            pairs = np.stack(places, 1) + np.array([top, left])
            found.append(pairs[differing_bits(hashes, pairs, others).min(axis=0) <= ALIKE])
    return np.concatenate(found)


def are_alike(hashes: Hashes, others: UInt64[np.ndarray, "m 4"]) -> Bool[np.ndarray, " n"]:
    """Whether each of some pictures is alike one of others; the time grows with the product of both numbers."""
    found = np.zeros(len(hashes), dtype=bool)
    parts = (others[first : first + SEARCHED] for first in range(0, len(others), SEARCHED))
    for pairs in in_order((partial(alike_hashes, hashes, part) for part in parts), cores()):
        found[pairs[:, 0]] = True
    return found


def are_told_apart(hashes: Hashes) -> bool:
    """Whether near copies are told from strangers; among drawings, or images that are all alike, they are not."""
    middle, spread = random_spread(hashes)
    return spread <= WIDEST and middle - ALIKE >= FAR * spread


def random_spread(hashes: Hashes) -> tuple[float, float]:
    """Median of the bits that differ in random pairs, and standard deviation by the upper half; 255 and 0 of no pair.

    It is wide where some strangers are as near as copies, such as digits are. Copies, of which there may be many, are
    in the lower half.
    """
    rows = np.random.default_rng(0).integers(0, max(1, len(hashes)), (DRAWN, 2))
    pairs = rows[rows[:, 0] != rows[:, 1]]
    if not len(pairs):
        return 255.0, 0.0
    below = np.cumsum(np.bincount(differing_bits(hashes, pairs)[0], minlength=256)) / len(pairs)
    middle, high = np.interp([0.5, 0.9], below, np.arange(256) + 0.5)
    return float(middle), float(high - middle) / 1.2816  # that of a normal distribution, up to nine tenths
