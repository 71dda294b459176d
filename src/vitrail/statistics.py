"""Intervals and tests: of a share, of means, of signs, of many tests at once, and of how little they would miss."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

LEVEL = 0.05  # the chance of any false name that Holm's method allows
POWER = 0.8  # with which something is found, where it is said how little would be missed
DRAWS = 2_000  # of the bootstrap
Z95 = 1.959963984540054  # standard deviations of a normal distribution around its mean that hold 95 % of it


def wilson_interval(correct: int | float, images: int | float) -> tuple[float, float]:
    """95 % interval of a fraction (Wilson, 1927): sensible also near 0 and 1 and for few images; (0, 1) for none."""
    if images == 0:
        return 0.0, 1.0
    found, z, zz = correct / images, Z95, Z95**2
    middle = (found + zz / (2 * images)) / (1 + zz / images)
    half = z / (1 + zz / images) * math.sqrt(found * (1 - found) / images + zz / (4 * images * images))
    return max(0.0, min(found, middle - half)), min(1.0, max(found, middle + half))


def sign_test(effects: Sequence[float]) -> float:
    """p of the exact one-sided sign test: that so many effects are above zero where either sign is as likely."""
    above, below = (sum(bool(sign * value > 0) for value in effects) for sign in (1, -1))
    count = above + below
    return sum(math.comb(count, k) for k in range(above, count + 1)) / 2**count if count else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """Values of p adjusted for being so many (Holm, 1979): below a limit with at most that chance of any false one."""
    order, found, worst = np.argsort(values, kind="stable").tolist(), [1.0] * len(values), 0.0
    for place, number in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[number]))
        found[number] = worst
    return found


@cache
def least_share(images: int, tests: int) -> float:
    """The least part of a class in which a shortcut must work to pass four of five such tests; above 1 for none.

    The images in which it does not work are taken to fall on either side of zero alike.

    Args:
        images: Of the class, in the second half.
        tests: Over which Holm's method counts.
    """

    def beyond(k: int, chance: float) -> float:
        return sum(math.comb(images, j) * chance**j * (1 - chance) ** (images - j) for j in range(k, images + 1))

    needed = next((k for k in range(images + 1) if beyond(k, 0.5) <= LEVEL / tests), images + 1)
    return next((share / 100 for share in range(101) if beyond(needed, (1 + share / 100) / 2) >= POWER), 1.01)


def least_mean(limit: float, spread: float, images: int) -> float:
    """The least mean of which the lower end of the 95 % interval is at least a limit in four of five draws.

    Args:
        limit: For the lower end.
        spread: The standard deviation of one image.
        images: That are drawn.
    """
    return limit + (Z95 + NormalDist().inv_cdf(POWER)) * spread / math.sqrt(images)


def bootstrap_of_ratios(values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "2 others"]:
    """95 % intervals of the sum of each column but the first over that of the first, by drawing rows again.

    Args:
        values: A row for each image; a first column of ones makes means of the others.
    """
    drawn = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    sums = values[drawn].sum(axis=1)
    return np.quantile(sums[:, 1:] / np.maximum(sums[:, :1], 1e-12), (0.025, 0.975), axis=0)
