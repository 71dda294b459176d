"""One or several numbers for each image: squared error of standardised numbers, mean absolute error in their own unit.

Each number is standardised by the training split, so that numbers of any unit weigh alike. A number that is not known
(NaN) leaves loss and gradient. With each answer stands an interval that holds 90 % of the numbers of images like those
it is fitted on, which are not reported on: the middle of it is the answer, its half-width the quantile of the absolute
residuals at ceil(0.9 (n + 1)) / n (split conformal prediction: Papadopoulos, Proedrou, Vovk and Gammerman, "Inductive
confidence machines for regression", ECML 2002). It is the same for every image, and there is none from fewer than
`FEWEST` images. What is explained is why a number is high, or low, beside the mean of training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.data.columns import NUMBER, Column, Match
from vitrail.data.multiple import Quantities
from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.tasks.codec import NO_FACTS, Agreement, Codec, Outputs
from vitrail.tasks.target import ChosenTarget, Unit, indices_of, pick
from vitrail.tasks.task import (
    Z95,
    Example,
    Input,
    Measures,
    Metric,
    Metrics,
    Network,
    Objective,
    Result,
    Task,
    at_least_fp32,
    expect_codec,
)
from vitrail.text import ShortRepr, canonical_texts, number

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.columns import RawDataset, Samples
    from vitrail.tasks.linear import LinearFit

COVERAGE = 0.9  # of an interval beside an answer
FEWEST = 10  # images by which it is fitted: of fewer the largest residual is too small
NEAR = 0.1  # standard deviations within which two answers say the same
SHOWN = 12  # examples: the worst, and as many of the best
BINS = 10  # strata of a number
EXAMPLE = 'Standardized(("count",), (120.0,), (40.0,))'

MEAN_ERROR = Metric("mean_absolute_error", "mean absolute error", fraction=False, better="lower")
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
        intervals: The interval of 90 % around each; empty where none is known.
        notes: Empty.
        top: Empty.
    """

    name: str
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    top: tuple[tuple[str, float], ...] = ()

    def sentence(self) -> str:
        """The numbers with their intervals."""
        return ", ".join(f"{name} {words}" for name, words in zip(self.values, self.cells()[1:], strict=True))

    def brief(self) -> dict[str, Any]:
        """The numbers."""
        return {"values": dict(self.values)}

    def cells(self) -> tuple[str, ...]:
        """Each number, and its interval."""
        return self.name, *(
            number(value)
            + (f" ({number(self.intervals[name][0])} to {number(self.intervals[name][1])})") * (name in self.intervals)
            if name in self.intervals
            else number(value)
            for name, value in self.values.items()
        )

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
        ends = {"intervals": dict(self.intervals), "coverage": COVERAGE} if self.intervals else {}
        return {"file": self.name, **self.brief(), **ends}


@typed
@final
@dataclass(frozen=True, repr=False)
class Standardized(ShortRepr, Codec):
    """Numbers, less their mean in training, by their standard deviation there.

    Args:
        names: What each is called, as the column of the data.
        means: Of the training split, in the unit of the data.
        deviations: Standard deviations there, above 0.
        widths: Half the width of the 90 % interval of each, in the unit of the data; empty where it is not known.

    Raises:
        UsageError: There is not one of each for every name, or a standard deviation is not above 0.
    """

    names: tuple[str, ...]  # pyrefly: ignore[bad-override]  # a plain value
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    widths: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that do not belong together."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        sizes = {len(self.names), len(self.means), len(self.deviations), len(self.widths or self.names)}
        fits = len(sizes) == 1 and len({*self.names}) == len(self.names) > 0
        if not fits or not all(0 < value < math.inf for value in self.deviations):
            problem = f"{len(self.names)} names, {len(self.means)} means, deviations {self.deviations}"
            raise UsageError(problem, EXAMPLE)

    is_wrong = False
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
        return Match(Quantities(values, self.names))

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
        of = {"means": self.means, "deviations": self.deviations, "widths": self.widths}
        return {"numbers": list(self.names), **{name: list(values) for name, values in of.items()}}

    def in_unit(self, outputs: Outputs) -> Float[Tensor, "b v"]:
        """Outputs in the unit of the data."""
        return outputs.detach().double().cpu() * self._deviations + self._means

    def answer(
        self, outputs: Outputs, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> "list[NumberPrediction]":
        """The numbers of each image."""
        answers = []
        for name, row in zip(names, self.in_unit(outputs).tolist(), strict=True):
            known = zip(self.names, row, self.widths, strict=False)  # no widths, no intervals
            ends = {each: (value - width, value + width) for each, value, width in known}
            answers.append(NumberPrediction(name, dict(zip(self.names, row, strict=True)), ends))
        return answers

    def error(self, outputs: Outputs, targets: Targets) -> Float[Tensor, " b"]:
        """The mean absolute error of what is known of each: in its unit, of several numbers in standard deviations."""
        gaps, known = (outputs.double() - targets.double()).abs(), ~targets.isnan()
        scale = self.deviations[0] if self.outputs == 1 else 1.0
        return scale * gaps.masked_fill(~known, 0.0).sum(dim=1) / known.sum(dim=1).clamp(min=1)

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

    def strata(self, targets: Targets) -> Tensor:
        """Tenths of the first number, so that each part has low and high ones."""
        return torch.from_numpy(Quantities(targets.double().numpy(), self.names).strata())

    def fit(self, features: Float[Tensor, "n d"], targets: Targets, loss: Any = None) -> "LinearFit":
        """Ridge regression of all numbers, with one penalty."""
        return super().fit(features, targets, loss)

    def settle(self, outputs: Outputs, targets: Targets) -> "Standardized":
        """The same with the half-widths that these images ask for; see the head of this file."""
        gaps, widths = (outputs.double().cpu() - targets.double().cpu()).abs(), list[float]()
        for place in range(self.outputs):
            own = gaps[~gaps[:, place].isnan(), place].sort().values
            if len(own) < FEWEST:
                return self
            rank = math.ceil(COVERAGE * (len(own) + 1))
            widths.append(float(own[min(rank, len(own)) - 1]) * self.deviations[place])
        return replace(self, widths=tuple(widths))

    @property
    def settled(self) -> str:
        """The intervals, in words."""
        if not self.widths:
            return f"no interval: that takes {FEWEST} images whose numbers are known"
        each = ", ".join(f"{name} ± {number(width)}" for name, width in zip(self.names, self.widths, strict=True))
        return f"nine of ten true numbers lie within {each} of what is predicted"

    def choose(self, outputs: Outputs, wanted: Any = None) -> ChosenTarget:
        """A number of each image, the first when None: why it is above the mean of training, or below it."""
        at, against = indices_of(outputs, 0 if wanted is None else wanted)
        if against is not None:
            raise UsageError("a contrast compares classes, but this model has none", Hint(drop=["contrast"]))
        least = torch.full(at.shape, math.nan, dtype=torch.float64)
        if self.widths:
            least = torch.tensor([self.widths[n] / self.deviations[n] for n in at.tolist()], dtype=torch.float64)
        return NumberTarget(at, sign=torch.where(pick(outputs, at) < 0, -1, 1), least=least)


@final
@dataclass(frozen=True, eq=False)
class NumberTarget(ChosenTarget):
    """How far a number lies above the mean of training; with the sign -1 how far below."""

    sign: Tensor = field(kw_only=True)  # (b,)
    least: Float[Tensor, "*b"] = field(kw_only=True)  # pyrefly: ignore[bad-override]

    unit: ClassVar[Unit | None] = "deviations"

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """In standard deviations of training."""
        return self.sign * pick(outputs, self.target)

    def named(self, sample: int, name: Callable[[int], str]) -> str:
        """What raises the number; with a minus, what lowers it."""
        return f"{'-' * bool(self.sign[sample] < 0)}{super().named(sample, name)}"

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """How far it lies beyond the middle of images without evidence, in standard deviations."""
        theirs = without.cpu().double()[:, self.target.cpu()].median(dim=0).values
        return self(outputs).cpu().double() - self.sign.cpu() * theirs

    def select(self, samples: slice | Tensor) -> "NumberTarget":
        """The targets of some of the samples."""
        some = samples.cpu() if isinstance(samples, Tensor) else samples
        return replace(self, target=self.target[samples], sign=self.sign[samples], least=self.least[some])


# ---- evaluation


@dataclass(frozen=True)
class NumberMetrics(Metrics):
    """True and predicted numbers.

    Args:
        output: The model's codec.
    """

    output: Standardized

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The summed loss; of each image its number, targets (None where unknown) and outputs."""
        outputs, targets = at_least_fp32(network(batch.inputs)).detach().cpu().double(), batch.labels.cpu().double()
        known = [[None if value != value else value for value in row] for row in targets.tolist()]
        loss = float(squared_error(outputs, targets, "sum"))
        return {"loss": loss, "ids": batch.ids.tolist(), "targets": known, "outputs": outputs.tolist()}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """Errors of each number with their intervals, what they explain of the spread, and images to look at."""
        from vitrail import pages  # of an evaluation alone; a prediction needs none

        codec = self.output
        ids = np.array([row for each in answers for row in each["ids"]], np.int64)
        outputs, targets = (
            torch.tensor([row for each in answers for row in each[of]], dtype=torch.float64).reshape(-1, codec.outputs)
            for of in ("outputs", "targets")
        )
        errors = codec.error(outputs, targets).numpy()
        found, true = codec.in_unit(outputs).numpy(), codec.in_unit(targets).numpy()
        parts = zip(codec.names, found.T, true.T, codec.widths or (None,) * codec.outputs, strict=True)
        rows = [_figures(*part) for part in parts]
        first, one = rows[0], codec.outputs == 1
        value, ends = float(errors.mean()) if len(errors) else 0.0, (0.0, 0.0)
        if len(errors):
            half = Z95 * float(errors.std()) / math.sqrt(len(errors))
            ends = max(0.0, value - half), value + half
        loss = sum(each["loss"] for each in answers) / max(1, len(ids))
        shown = f"{number(ends[0])} to {number(ends[1])}"
        unit = "" if one else " standard deviations, mean of the numbers,"
        more = f"; R2 {number(first['r2'], 3)}, RMSE {number(first['rmse'])}" if one else ""
        order = np.argsort(-errors, kind="stable").tolist()
        some = order[:SHOWN] + order[SHOWN:][::-1][:SHOWN]
        truths, said = ([_words(codec.names, row) for row in each] for each in (true, found))
        return Result(
            metric=MEAN_ERROR,
            value=value,
            count=len(ids),
            loss=loss,
            interval=ends,
            details={
                "images": len(ids),
                MEAN_ERROR.key: value,
                "interval": list(ends),
                "loss": loss,
                **({} if not one else {key: first[key] for key in ("rmse", "r2")}),
                "numbers": rows,
            },
            sentence=f"of {counted(len(ids), 'image')},{unit} (95 % interval {shown}){more}".replace(", (", " ("),
            about=(
                "",
                f"By so much a prediction is wrong, on average. With 95 % confidence it lies, on images like these, "
                f"between {shown.replace(' to ', ' and ')}{more}.",
            ),
            tables=(pages.Table("Number by number", tuple(_HEADER.values()), tuple(map(_cells, rows))),),
            examples=tuple(Example(int(ids[row]), name(int(ids[row])), truths[row], said[row]) for row in some),
            ids=ids,
            truths=np.array(truths, object),
            answers=np.array(said, object),
            errors=errors,
        )


_HEADER = {
    "name": "number",
    "images": "images",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R2",
    "inside": "within the 90 % interval",
}


def _figures(name: str, found: np.ndarray, true: np.ndarray, width: float | None) -> dict[str, Any]:
    """What errors of a number come to, where it is known."""
    known = ~np.isnan(true)
    gaps, spread = found[known] - true[known], true[known] - true[known].mean() if known.any() else true[known]
    count = int(known.sum())
    return {
        "name": name,
        "images": count,
        "mae": float(np.abs(gaps).mean()) if count else None,
        "rmse": float(np.sqrt((gaps**2).mean())) if count else None,
        "r2": float(1 - (gaps**2).sum() / (spread**2).sum()) if (spread**2).sum() > 0 else None,
        "inside": float((np.abs(gaps) <= width).mean()) if count and width is not None else None,
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] if key == "name" else number(row[key]) for key in _HEADER)


def _words(names: Sequence[str], values: np.ndarray) -> str:
    if len(names) == 1:
        return number(float(values[0]))
    return ", ".join(f"{name} {number(float(value))}" for name, value in zip(names, values, strict=True))


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
        if np.isinf(column.values).any():
            name = column.names[int(np.isinf(column.values).any(axis=0).argmax())]
            raise DataError(f"{name} is infinite in some training image", "finite numbers, or empty cells")
        for name, values in zip(column.names, column.values.T, strict=True):
            known = values[~np.isnan(values)]
            if not len(known) or np.ptp(known) == 0:
                has = f"is {number(float(known[0]))} in all training images" if len(known) else "is known of no image"
                raise DataError(f"{name} {has}", "a number that differs from image to image")
        means, deviations = np.nanmean(column.values, axis=0), np.nanstd(column.values, axis=0)
        return Standardized(column.names, tuple(means.tolist()), tuple(deviations.tolist()))

    def codec_from_dict(self, values: Mapping[str, Any]) -> Standardized:
        """Names, means, standard deviations and half-widths."""
        of = [tuple(map(float, values.get(name, ()))) for name in ("means", "deviations", "widths")]
        return Standardized(tuple(map(str, values["numbers"])), of[0], of[1], of[2])

    def objective(self, augmentation: "Augmentation") -> Objective:
        """The squared error; what is mixed stands in the targets."""
        return summed_error

    def metrics(self, input: Input, output: Codec) -> NumberMetrics:
        """Absolute error and what belongs to it."""
        return NumberMetrics(expect_codec(output, Standardized, EXAMPLE))

    def chance_loss(self, output: Codec) -> float:
        """Of a network that says the mean of training of every image."""
        return 0.5
