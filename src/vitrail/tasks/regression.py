"""One or several numbers for each image: squared error of standardised numbers, mean absolute error in their own unit.

Each number is standardised by the training split, so that numbers of any unit weigh alike. A number that is not known
(NaN) leaves loss and gradient. With each answer stands an interval that holds 90 % of the numbers of images like those
it is fitted on: the middle of it is the answer, its half-width a limit of the absolute errors there (split conformal
prediction, see `vitrail.tasks.calibration`). It is the same for every image, and there is none from fewer than ten
images. Of a probe, fewer than 50 validation images give way to the training images, each by a head that was fitted on
the others (Barber, Candes, Ramdas and Tibshirani, "Predictive inference with the jackknife+", Annals of Statistics
2021; the head of all is in the middle here). What is explained is why a number is high, or low, beside the mean of
training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.columns import NUMBER, Column, Match
from vitrail.data.multiple import Quantities
from vitrail.errors import DataError, Hint, UsageError
from vitrail.tasks.calibration import (
    COVERAGE,
    FEWEST,
    Calibration,
    calibration_from,
    check_coverage,
    check_fitted,
    limits_of,
    stored,
)
from vitrail.tasks.choice import other_columns
from vitrail.tasks.codec import NO_FACTS, Agreement, Codec, Hub, Outputs
from vitrail.tasks.residuals import MEAN_ERROR, NumberMetrics
from vitrail.tasks.target import ChosenTarget, Unit, indices_of, pick, reaches
from vitrail.tasks.task import Input, Measures, Network, Objective, Task, at_least_fp32, expect_codec
from vitrail.text import ShortRepr, canonical_texts, number, percent, percent_in_words, rounded

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.columns import RawDataset, Samples
    from vitrail.tasks.linear import LinearFit

NEAR = 0.1  # standard deviations within which two answers say the same
BINS = 10  # strata of a number
EXAMPLE = 'Standardized(("count",), (120.0,), (40.0,))'

Targets = Float[Tensor, "b v"]


def squared_error(outputs: Outputs, targets: Targets, reduction: str = "mean") -> Float[Tensor, ""]:
    """Half the squared error, the mean over an image's numbers, of which unknown ones (NaN) add nothing.

    Args:
        outputs: Standardised numbers (b, v).
        targets: The same, NaN where nobody knows.
        reduction: "mean" or "sum" over images.
    """
    unknown = targets.isnan()
    gaps = (outputs - targets.masked_fill(unknown, 0.0).to(outputs)).masked_fill(unknown, 0.0)
    whole = 0.5 * gaps.square().mean(dim=1).sum()
    return whole / max(1, len(outputs)) if reduction == "mean" else whole


def summed_error(network: Network, batch: "Batch") -> tuple[Float[Tensor, ""], int, Measures]:
    """The squared error; nothing is measured beside it."""
    return squared_error(at_least_fp32(network(batch.inputs)), batch.targets, "sum"), len(batch), {}


@dataclass(frozen=True, repr=False)
class NumberPrediction(ShortRepr):
    """The numbers of one image.

    Attributes:
        name: The file, or "image".
        values: Each number by its name, in its own unit.
        intervals: The interval around each; empty where none is known.
        coverage: How often it holds the true number.
        notes: A sentence of what is unusual about the image.
        top: Empty.
    """

    name: str
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    coverage: float = COVERAGE
    notes: tuple[str, ...] = ()
    top: tuple[tuple[str, float], ...] = ()

    def sentence(self) -> str:
        """The numbers with their intervals."""
        sure = f"{percent_in_words(self.coverage)} sure: "
        each = zip(self.values, self._written(), strict=True)
        return ", ".join(f"{name} {value}{f' ({sure}{ends})' if ends else ''}" for name, (value, ends) in each)

    def brief(self) -> dict[str, Any]:
        """The numbers."""
        return {"values": dict(self.values)}

    def cells(self) -> tuple[str, ...]:
        """Each number, and its interval."""
        return self.name, *(f"{value} ({ends})" if ends else value for value, ends in self._written())

    def _written(self) -> list[tuple[str, str]]:
        """Each number, and its interval or nothing."""
        each = [(value, *self.intervals.get(name, ())) for name, value in self.values.items()]
        halves = [(ends[1] - ends[0]) / 2 if ends else None for _, *ends in each]
        rows = [[rounded(value, half) for value in row] for row, half in zip(each, halves, strict=True)]
        return [(value, " to ".join(ends)) for value, *ends in rows]

    def row(self) -> dict[str, Any]:
        """File, each number, and the ends of its interval."""
        cells: dict[str, Any] = {"file": self.name}
        for name, value in self.values.items():
            cells[name] = f"{value:.7g}"
            for end, limit in zip(("low", "high"), self.intervals.get(name, ()), strict=False):
                cells[f"{name}_{end}"] = f"{limit:.7g}"
        return cells

    def to_dict(self) -> dict[str, Any]:
        """The numbers, and their intervals where there are some."""
        ends = {"intervals": dict(self.intervals), "coverage": self.coverage} if self.intervals else {}
        return {"file": self.name, **self.brief(), **ends, **({"notes": self.notes} if self.notes else {})}


@typed
@final
@dataclass(frozen=True, repr=False)
class Standardized(ShortRepr, Codec):
    """Numbers, less their mean in training, by their standard deviation there.

    Args:
        names: What each is called, as the column of the data.
        means: Of the training split, in the unit of the data.
        deviations: Standard deviations there, above 0.
        calibration: With the limits of the absolute error of each, in the unit of the data; None where not known.
        coverage: How often an interval holds the true number, 0 to 1; None for the usual one. It is not stored.

    Raises:
        UsageError: There is not one of each for every name, a standard deviation is not above 0, or it is no coverage.
        DataError: There is a coverage, and no calibration for it.
    """

    names: tuple[str, ...]  # pyrefly: ignore[bad-override]  # a plain value
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    calibration: Calibration | None = field(default=None, repr=False)  # pyrefly: ignore[bad-override]
    coverage: float | None = field(default=None, compare=False, repr=False)  # pyrefly: ignore[bad-override]

    def __post_init__(self) -> None:
        """Refuse numbers that do not belong together."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        limits = self.calibration.limits if self.calibration else self.names
        sizes = {len(self.names), len(self.means), len(self.deviations), len(limits)}
        fits = len(sizes) == 1 and len({*self.names}) == len(self.names) > 0
        if not fits or not all(0 < value < math.inf for value in self.deviations):
            problem = f"{len(self.names)} names, {len(self.means)} means, deviations {self.deviations}"
            raise UsageError(problem, EXAMPLE)
        check_coverage(self.coverage)
        if self.coverage is not None:
            images = check_fitted(self.calibration, self.promises, FEWEST).images
            if math.inf in self.widths:
                problem = f"an interval of {percent(self.coverage, 1)} takes more than the {images} calibration images"
                raise DataError(problem, Hint({"coverage": COVERAGE}))

    hub = Hub("image-classification", "regression")
    promises = "intervals"
    is_wrong = False
    folds_calibrate = True
    beside_grey = True
    loss = staticmethod(squared_error)

    @property
    def outputs(self) -> int:
        """One for each number."""
        return len(self.names)

    def match(self, column: Column) -> Match:
        """The numbers by name; those that are not there are not known."""
        if not isinstance(column, Quantities):
            problem = f"numbers are learnt from a column of numbers, got {type(column).__name__}"
            raise UsageError(problem, "a column of Quantities")
        places = {name: place for place, name in enumerate(column.names)}
        if not {*places} & {*self.names}:
            problem = f"the data have {', '.join(column.names)}, and none of {', '.join(self.names)}"
            raise DataError(problem, Hint({"label_column": self.names[0]}))
        values = np.full((len(column), len(self.names)), np.nan)
        for own, name in enumerate(self.names):
            if name in places:
                values[:, own] = column.values[:, places[name]]
        found = Quantities(values, self.names)
        _check_finite(found)
        return Match(found)

    def targets(self, values: Float[np.ndarray, "b v"]) -> Tensor:
        """(b, v) standardised, NaN where nobody knows."""
        return torch.from_numpy((values - self._means.numpy()) / self._deviations.numpy()).float()

    @property
    def _means(self) -> Float[Tensor, " v"]:
        return torch.tensor(self.means, dtype=torch.float64)

    @property
    def _deviations(self) -> Float[Tensor, " v"]:
        return torch.tensor(self.deviations, dtype=torch.float64)

    def describe(self) -> tuple[str, str]:
        """Their names."""
        return "numbers", ", ".join(self.names)

    def to_dict(self) -> dict[str, Any]:
        """Names, means, standard deviations and half-widths."""
        of = {"numbers": list(self.names), "means": list(self.means), "deviations": list(self.deviations)}
        return of | stored(self.calibration)

    def portable(self) -> list[dict[str, Any]]:
        """Each number in its unit."""
        of = {"means": list(self.means), "deviations": list(self.deviations)}
        limits = [list(own) for own in self.calibration.limits] if self.calibration else []
        return [{"kind": "number", "names": list(self.names), **of, "limits": limits}]

    @property
    def widths(self) -> tuple[float, ...]:
        """Half the width of the interval of each number, in the unit of the data; empty where it is not known."""
        if self.calibration is None:
            return ()
        return tuple(self.calibration.limit(self.coverage or COVERAGE, place) for place in range(self.outputs))

    def in_unit(self, outputs: Outputs) -> Float[Tensor, "b v"]:
        """Outputs in the unit of the data."""
        return outputs.detach().double().cpu() * self._deviations + self._means

    def as_given(self, targets: Targets) -> Float[Tensor, "b v"]:
        """Targets in the unit of the data, without what 32 bits have added to them: as many decimals as these hold."""
        size = self._means.abs() + self._deviations
        added = 2**-23 * targets.double().abs() * self._deviations
        decimals = 10 ** -added.log10().ceil().maximum(size.log10().ceil() - 13)
        return (self.in_unit(targets) * decimals).round() / decimals + 0.0

    def answer(
        self, outputs: Outputs, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> "list[NumberPrediction]":
        """The numbers of each image."""
        answers = []
        for name, row in zip(names, self.in_unit(outputs).tolist(), strict=True):
            known = zip(self.names, row, self.widths, strict=False)  # no widths, no intervals
            ends = {each: (value - width, value + width) for each, value, width in known}
            values = dict(zip(self.names, row, strict=True))
            answers.append(NumberPrediction(name, values, ends, self.coverage or COVERAGE))
        return answers

    def error(self, outputs: Outputs, targets: Targets) -> Float[Tensor, " b"]:
        """The mean absolute error of what is known of each: in its unit, of several numbers in standard deviations.

        NaN where nothing is known.
        """
        gaps, known = (outputs.double() - targets.double()).abs(), ~targets.isnan()
        scale = self.deviations[0] if self.outputs == 1 else 1.0
        return scale * gaps.masked_fill(~known, 0.0).sum(dim=1) / known.sum(dim=1)

    def agree(self, outputs: Outputs, others: Outputs) -> Agreement:
        """Whether all are within a tenth of a standard deviation."""
        same = ((outputs - others).abs() <= NEAR).all(dim=1)
        return Agreement(same, torch.full(same.shape, math.nan, dtype=torch.float64, device=same.device))

    def divergence(self, outputs: Outputs, teacher: Outputs, kind: str, temperature: float) -> Float[Tensor, ""]:
        """The squared error against the teacher's numbers; of numbers there is no temperature."""
        return squared_error(outputs, teacher.detach(), "sum")

    def vote(self, targets: Float[Tensor, "n k v"], cosines: Float[Tensor, "n k"]) -> Float[Tensor, "n v"]:
        """The mean of the neighbours, of those that are known; the mean of training where none is."""
        return targets.double().nanmean(dim=1).nan_to_num(0.0)

    def among(self, cells: Sequence[Mapping[str, str]]) -> str:
        """The mean of each number, and its range."""
        known = {name: [float(each[name]) for each in cells if each.get(name)] for name in self.names}
        return ", ".join(
            f"{name} {number(sum(own) / len(own))} on average ({number(min(own))} to {number(max(own))})"
            for name, own in known.items()
            if own
        )

    def strata(self, targets: Targets) -> Tensor:
        """Tenths of the first number, so that each part has low and high ones."""
        return torch.from_numpy(Quantities(targets.double().numpy(), self.names).strata())

    def fit(self, features: Float[Tensor, "n d"], targets: Targets, loss: Any = None) -> "LinearFit":
        """Ridge regression of all numbers, with one penalty."""
        return super().fit(features, targets, loss)

    def calibrate(self, outputs: Outputs, targets: Targets, on: str) -> "Standardized":
        """The same with the limits of errors that these images ask for; see `vitrail.tasks.calibration`."""
        gaps = (outputs.double().cpu() - targets.double().cpu()).abs() * self._deviations
        every = [own[~own.isnan()] for own in gaps.unbind(dim=1)]
        if (least := min(map(len, every))) < FEWEST:
            return self
        return replace(self, calibration=Calibration(on, least, limits=tuple(map(limits_of, every))))

    @property
    def calibrated(self) -> str:
        """The intervals, in words."""
        if not self.widths:
            return f"there is no interval: that takes {FEWEST} images whose numbers are known"
        each = ", ".join(f"{name} ± {number(width)}" for name, width in zip(self.names, self.widths, strict=True))
        return f"nine of ten true numbers lie within {each} of what is predicted"

    @property
    def besides(self) -> str:
        """The numbers behind the first."""
        first, *rest = self.names
        return (
            f"this is why {first}; --target {rest[0]} explains {rest[0]}{', and so on' * (len(rest) > 1)}"
            if rest
            else ""
        )

    def choose(self, outputs: Outputs, wanted: Any = None) -> ChosenTarget:
        """A number of each image, the first when None: why it is above the mean of training, or below it."""
        at, against = indices_of(outputs, wanted, torch.zeros_like(outputs[:, 0], dtype=torch.long))
        if against is not None:
            raise UsageError("a contrast compares classes, but this model has none", Hint(drop=["contrast"]))
        widths = torch.tensor(self.widths or (math.nan,) * self.outputs, dtype=torch.float64)
        rows = at.cpu()
        found = NumberTarget(at, scale=self._deviations[rows].to(outputs), least=widths[rows], mean=self._means[rows])
        return found.on_side(outputs)


def _check_finite(column: Quantities) -> None:
    """Refuse infinite numbers.

    Raises:
        DataError: There is one; names its column.
    """
    if (infinite := np.isinf(column.values).any(axis=0)).any():
        problem = f"{column.names[int(infinite.argmax())]} is infinite in some image"
        raise DataError(problem, "finite numbers, or empty cells")


@final
@dataclass(frozen=True, eq=False)
class NumberTarget(ChosenTarget):
    """How far a number lies above the mean of training, in its unit; of a scale below 0 how far it lies below.

    There is evidence where it lies farther from the middle of images without evidence than these do, on either side;
    what is explained is the side on which it lies. Where a person names the side (`turned`), it is that one alone.
    """

    scale: Float[Tensor, "*b"] = field(kw_only=True)  # the standard deviation of training
    least: Float[Tensor, "*b"] = field(kw_only=True)  # pyrefly: ignore[bad-override]
    mean: Float[Tensor, "*b"] = field(kw_only=True)  # of training
    is_named: bool = False  # the side

    unit: ClassVar[Unit | None] = "data"

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """In the unit of the data."""
        return self.scale.to(outputs) * pick(outputs, self.target)

    def named(self, sample: int, name: Callable[[int], str]) -> str:
        """What raises the number; with a minus, what lowers it."""
        return f"{'-' * bool(self.scale[sample] < 0)}{super().named(sample, name)}"

    def in_data(self, sample: int, value: float) -> float:
        """The number itself."""
        return float(self.mean[sample] + self.scale[sample].sign() * value)

    def turned(self) -> "NumberTarget":
        """What lowers the number, on whichever side it lies."""
        return replace(self, scale=-self.scale.abs(), is_named=True)

    def on_side(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"] | None = None) -> "NumberTarget":
        """The same for the side of the middle of images without evidence, or of the mean of training."""
        if self.is_named:
            return self
        own, size = pick(outputs, self.target), self.scale.abs()
        middle = 0 if without is None else without[:, self.target].median(dim=0).values
        return replace(self, scale=torch.where(own < middle, -size, size))

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """How far it lies beyond the middle of images without evidence."""
        own, theirs = outputs.cpu().double(), without.cpu().double()
        middle = theirs[:, self.target.cpu()].median(dim=0).values
        return self.scale.cpu().double() * (pick(own, self.target.cpu()) - middle)

    def as_high_itself(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """Which images without evidence lie as far from their middle, on either side; of a named side on that one."""
        if self.is_named:
            return super().as_high_itself(outputs, without, distinct)
        theirs = without[:, self.target]
        middle = theirs.median(dim=0).values
        far, theirs = (pick(outputs, self.target) - middle).abs(), theirs - middle
        return reaches(far, theirs, distinct) | reaches(far, -theirs, distinct)

    def select(self, samples: slice | Tensor) -> "NumberTarget":
        """The targets of some of the samples."""
        some = samples.cpu() if isinstance(samples, Tensor) else samples
        own = {"target": self.target[samples], "scale": self.scale[samples]}
        return replace(self, **own, least=self.least[some], mean=self.mean[some])


@final
@dataclass(frozen=True)
class Regression(Task):
    """One or several numbers for each image; the whole image is read, since a crop changes what is counted."""

    name = "regression"
    column = NUMBER
    help = "numbers for each image"
    metric = MEAN_ERROR
    background = True

    def codec(self, raw: "RawDataset", splits: "Mapping[str, Samples]", separator: str = "") -> Standardized:
        """Names, means and standard deviations of the training split.

        Raises:
            DataError: A number is infinite, is known of no image, or is the same in all.
        """
        column = splits["train"].column(self.column)
        if not isinstance(column, Quantities):
            raise DataError(f"the column {self.column} contains no numbers", "Quantities, some for each image")
        _check_finite(column)
        alike = dict[str, str]()
        for name, values in zip(column.names, column.values.T, strict=True):
            known = values[~np.isnan(values)]
            if not len(known) or np.ptp(known) == 0:
                alike[name] = f"{number(float(known[0]))} in all training images" if len(known) else "known of no image"
        if alike:
            problem = ", and ".join(f"{name} is {has}" for name, has in alike.items())
            raise DataError(problem, other_columns(column.names, alike, "a number that differs from image to image"))
        means, deviations = np.nanmean(column.values, axis=0), np.nanstd(column.values, axis=0)
        return Standardized(column.names, tuple(means.tolist()), tuple(deviations.tolist()))

    def codec_from_dict(self, values: Mapping[str, Any]) -> Standardized:
        """Names, means, standard deviations and half-widths."""
        means, deviations = (tuple(map(float, values.get(name, ()))) for name in ("means", "deviations"))
        calibration = calibration_from(values.get("calibration"))
        return Standardized(tuple(map(str, values["numbers"])), means, deviations, calibration)

    def objective(self, augmentation: "Augmentation") -> Objective:
        """The squared error; what is mixed stands in the targets."""
        return summed_error

    def metrics(self, input: Input, output: Codec) -> NumberMetrics:
        """Absolute error and what belongs to it."""
        return NumberMetrics(expect_codec(output, Standardized, EXAMPLE))

    def chance_loss(self, output: Codec) -> float:
        """Of a network that says the mean of training of every image."""
        return 0.5
