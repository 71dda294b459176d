"""Probabilities that mean what they say: a temperature, and answers that hold what is true as often as is promised.

Both are made of validation images that neither trained nor, where there are enough, chose the network. The temperature
divides logits before they become probabilities, in every verb alike; logits, top classes and maps stay as they are (Guo
and others, "On calibration of modern neural networks", ICML 2017). Its loss counts one wrong answer more than there is,
as Platt's targets do, and from fewer than 50 images it is never below 1, so that a handful of right answers makes
nobody certain.

A promise of coverage c is split conformal prediction (Papadopoulos and others, ECML 2002): every calibration image has
a score, high where the network is wrong about it; with the score at rank ceil(c (n + 1)) of n as limit, what is true
lies within the limit for a new image of the same kind with a probability of at least c. It is an average over
calibrations: the coverage of one of them is a Beta variable, whose range is stated.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.text import ShortRepr, percent_in_words

COVERAGE = 0.9  # where no other is asked for
FEWEST = 10  # images by which a temperature or an interval is fitted
FOR_SETS = 50  # images from which on sets of classes are promised, and a temperature may make answers surer
LEVELS = 200  # coverages for which a limit is kept: 0.5 %, 1 %, ... 99.5 %
COLDEST, HOTTEST = 0.05, 20.0
BINS, DRAWS = 15, 1000


@final
@dataclass(frozen=True, repr=False)
class Calibration(ShortRepr):
    """What calibration images decided.

    Args:
        on: The split of these images.
        images: How many there are.
        temperature: What logits are divided by; 1 leaves them.
        right: The fraction of these images whose answer is right; None where answers are numbers.
        limits: For each number of an answer (for classes one list) the limit of the score by coverage, k of 200 at
            place k - 1; None where it takes more images. Empty where there are too few.
    """

    on: str
    images: int
    temperature: float = 1.0
    right: float | None = None
    limits: tuple[tuple[float | None, ...], ...] = ()

    def limit(self, coverage: float, number: int = 0) -> float:
        """The limit of a score at a coverage, rounded up to half a percent; infinite where that is too much."""
        level = math.ceil(coverage * LEVELS - 1e-9)
        found = self.limits[number][level - 1] if level < LEVELS else None
        return math.inf if found is None else found

    def band(self, coverage: float) -> tuple[float, float]:
        """Between what the coverage of such a calibration lies in 95 of 100 cases."""
        rank = min(self.images, math.ceil(coverage * (self.images + 1) - 1e-9))
        drawn = np.random.default_rng(0).beta(rank, self.images + 1 - rank, 100_000)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(low), float(high)

    def promise(self, coverage: float, words: str) -> str:
        """The guarantee, its assumption and its range, in a sentence; `words` say what holds so often."""
        low, high = (percent_in_words(end) for end in self.band(coverage))
        split, _, folds = self.on.partition(", ")
        fitted = f"by which that was fitted (such a fit gives {low} to {high})"
        if folds:  # of which no theorem gives a range
            fitted = f"by whose errors that was fitted, {folds}: a close estimate, not a guarantee"
        return f"{words}, for images like the {self.images:,} of {split} {fitted}; for other kinds nothing is promised"


def calibration_from(values: Mapping[str, Any] | None) -> Calibration | None:
    """The way back from `stored`."""
    if not values:
        return None
    limits = tuple(tuple(map(_number, each)) for each in values.get("limits", ()))
    right = _number(values.get("right"))
    return Calibration(str(values["on"]), int(values["images"]), float(values.get("temperature", 1)), right, limits)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def stored(calibration: Calibration | None) -> dict[str, Any]:
    """Its values for a file, by the key `calibration`; nothing of none."""
    return {} if calibration is None else {"calibration": asdict(calibration)}


def check_coverage(coverage: float | None) -> None:
    """Refuse what is no coverage.

    Raises:
        UsageError: It is not above 0 and below 1.
    """
    if coverage is not None and not 0 < coverage < 1:
        raise UsageError(f"coverage must lie between 0 and 1, got {coverage:g}", Hint({"coverage": COVERAGE}))


def check_fitted(calibration: Calibration | None, what: str, least: int) -> Calibration:
    """The calibration, by which something can be promised.

    Args:
        calibration: Of the model.
        what: What is promised, in the plural.
        least: How many images that takes.

    Raises:
        DataError: There is none, or of too few images.
    """
    if calibration is not None and calibration.limits:
        return calibration
    few = f"was calibrated on {counted(calibration.images, 'image')}" if calibration else "is not calibrated"
    problem = f"this model {few}, and {what} take {least} validation images"
    raise DataError(problem, Hint(drop=["coverage"], text="a training with more of them and without --no-calibration"))


def fit_temperature(loss: Callable[[Tensor], Tensor], images: int) -> float:
    """The temperature with the least loss, between a twentieth and 20; from fewer than 50 images at least 1.

    Args:
        loss: What a temperature, a scalar of float64, comes to; it has one minimum, as a cross-entropy does.
        images: By how many it is fitted.
    """
    coldest = math.log(COLDEST if images >= FOR_SETS else 1.0)
    logarithm = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logarithm], max_iter=60, tolerance_grad=1e-10, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(logarithm.clamp(math.log(COLDEST), math.log(HOTTEST)).exp())
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # pyrefly: ignore[bad-argument-type]  # torch types it by a float
    return float(logarithm.detach().clamp(coldest, math.log(HOTTEST)).exp())


def limits_of(scores: Float[Tensor, " n"]) -> tuple[float | None, ...]:
    """The limit of a score by coverage, k of 200 at place k - 1; see the head of this file."""
    ordered, count = scores.double().sort().values.tolist(), len(scores)
    ranks = [math.ceil(level / LEVELS * (count + 1) - 1e-9) for level in range(1, LEVELS)]
    return tuple(float(f"{ordered[rank - 1]:.9g}") if rank <= count else None for rank in ranks)


# ---- how far off probabilities are


class Reliability(NamedTuple):
    """How sure answers are against how often they are right.

    Attributes:
        error: The expected calibration error: the mean distance of both over 15 ranges of sureness of equal width.
        by_chance: What it would be of a calibrated network that is as sure of as many images: the mean.
        at_most: The same: what it exceeds in 1 of 20 cases.
        rows: Of each range with answers its ends, their number, mean sureness and fraction that is right.
    """

    error: float
    by_chance: float
    at_most: float
    rows: Sequence[tuple[float, float, int, float, float]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        keys = ("from", "to", "answers", "sureness", "right")
        rows = [dict(zip(keys, row, strict=True)) for row in self.rows]
        return {"error": self.error, "by_chance": self.by_chance, "at_most": self.at_most, "ranges": rows}


def reliability(
    sureness: NDArray[np.float64], right: Bool[np.ndarray, " n"], of: Int64[np.ndarray, " n"] | None = None
) -> Reliability | None:
    """See `Reliability`; None of no answers, or where some sureness is not known.

    Args:
        sureness: (n,) the probability that each answer has.
        right: Whether it is right.
        of: The image of each, 0, 1 and so on, where one has several answers: chance takes these together.
    """
    if not len(sureness) or not np.isfinite(sureness).all():
        return None
    places = np.minimum((sureness * BINS).astype(np.int64), BINS - 1)
    counts, sums = np.bincount(places, minlength=BINS), np.bincount(places, sureness, BINS)

    def off(hits: NDArray[Any]) -> float:
        return float(np.abs(sums - hits).sum() / len(sureness))

    hits = np.bincount(places, right, BINS)
    ends = pairwise(edge / BINS for edge in range(BINS + 1))
    rows = [
        (*end, int(count), float(total / count), float(hit / count))
        for end, count, total, hit in zip(ends, counts, sums, hits, strict=True)
        if count
    ]
    draw = np.random.default_rng(0)
    if of is None and len(sureness) <= 20_000:
        drawn = [off(np.bincount(places[draw.random(len(places)) < sureness], minlength=BINS)) for _ in range(DRAWS)]
    else:  # what one range adds is nearly normal
        variances = np.bincount(places, sureness * (1 - sureness), BINS)
        mixed = np.diag(np.sqrt(variances)) if of is None else _mixed(right - sureness, places, of, variances)
        drawn = (np.abs(draw.standard_normal((DRAWS, len(mixed))) @ mixed).sum(axis=1) / len(sureness)).tolist()
    return Reliability(off(hits), float(np.mean(drawn)), float(np.quantile(drawn, 0.95)), rows)


def _mixed(
    errors: NDArray[np.float64], places: Int64[np.ndarray, " n"], of: Int64[np.ndarray, " n"], variances: NDArray[Any]
) -> NDArray[np.float64]:
    """(k, 15), by which independent normals become sums of ranges: their covariance, as a root.

    How the answers of an image vary together is seen in their errors, from the mean of each range; how much the answers
    of a range vary is what a calibrated network says of it. (Liang and Zeger, Biometrika 1986, sum errors by unit.)
    """
    counts = np.bincount(places, minlength=BINS).clip(min=1)
    apart = errors - (np.bincount(places, errors, BINS) / counts)[places]
    found = np.bincount(places, apart**2, BINS)
    apart = np.where(found[places] > 0, apart, 1.0)  # of a single answer
    sums = np.zeros((int(of.max()) + 1, BINS))
    np.add.at(sums, (of, places), apart)
    return np.linalg.qr(sums * np.sqrt(variances / np.where(found > 0, found, counts))).R
