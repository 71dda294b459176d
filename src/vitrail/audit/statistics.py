"""The tests and intervals of an audit: of signs, of many tests at once, of how little would be missed, of means."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

LEVEL = 0.05  # of Holm's method
POWER = 0.8  # with which a shortcut is named, where it is said how small a one would be missed
DRAWS = 2_000  # of the bootstrap


def sign_test(effects: Sequence[float]) -> float:
    """p of the exact one-sided sign test: that so many effects are above zero where either sign is as likely."""
    above, below = sum(value > 0 for value in effects), sum(value < 0 for value in effects)
    count = above + below
    return sum(math.comb(count, k) for k in range(above, count + 1)) / 2**count if count else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """Values of p adjusted for being so many (Holm, 1979): below a limit with at most that chance of any false one."""
    order, found, worst = np.argsort(values, kind="stable").tolist(), [1.0] * len(values), 0.0
    for place, number in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[number]))
        found[number] = worst
    return found


def least_share(images: int, tests: int) -> float:
    """The least part of a class that a shortcut decides to be named in four of five audits; above 1 where none is.

    The images that it does not decide are taken to fall on either side of zero alike.

    Args:
        images: Of the class, in the second half.
        tests: Over which Holm's method counts.
    """

    def beyond(k: int, chance: float) -> float:
        return sum(math.comb(images, j) * chance**j * (1 - chance) ** (images - j) for j in range(k, images + 1))

    needed = next((k for k in range(images + 1) if beyond(k, 0.5) <= LEVEL / tests), images + 1)
    return next((share / 100 for share in range(101) if beyond(needed, (1 + share / 100) / 2) >= POWER), 1.01)


def bootstrap_of_ratios(values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "2 others"]:
    """95 % intervals of the sum of each column but the first over that of the first, by drawing rows again.

    Args:
        values: A row for each image; a first column of ones makes means of the others.
    """
    drawn = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    sums = values[drawn].sum(axis=1)
    return np.quantile(sums[:, 1:] / np.maximum(sums[:, :1], 1e-12), (0.025, 0.975), axis=0)
