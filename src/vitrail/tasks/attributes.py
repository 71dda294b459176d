"""A class of each of several columns, such as colour and shape: a softmax within each, one head beside the other.

The loss is the sum over columns of their cross-entropies. A class that is not known (an empty cell) leaves loss and
gradient. Targets (b, columns, v) say which outputs belong to a column: a row has the probabilities of its classes, NaN
for the outputs of other columns, and NaN everywhere where its class is not known.

The figure is the mean of the columns' accuracies. The error of an image is the fraction of its columns that are wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.columns import ATTRIBUTES, Column, Match
from vitrail.data.multiple import ClassColumns, LabelSets, flat_names
from vitrail.errors import DataError, Hint, UsageError
from vitrail.tasks.by_column import MEAN_ACCURACY, AttributesMetrics
from vitrail.tasks.calibration import FEWEST, Calibration, calibration_from, fit_temperature, stored
from vitrail.tasks.choice import other_columns
from vitrail.tasks.classify import divergence
from vitrail.tasks.codec import NO_FACTS, Agreement, Codec, Outputs, softmax_head
from vitrail.tasks.losses import Loss, Weighing, blend_known, class_loss
from vitrail.tasks.target import ChosenTarget, ClassTarget, indices_of, pick
from vitrail.tasks.task import Input, Measures, Network, Objective, Task, at_least_fp32, expect_codec
from vitrail.text import ShortRepr, canonical_texts, percent

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.columns import RawDataset, Samples

TOP = 2  # classes of each column that a prediction names
EXAMPLE = 'Attributes(("colour", "shape"), (("blue", "red"), ("round", "square")))'

Targets = Float[Tensor, "b columns v"]


def columns_cross_entropy(outputs: Outputs, targets: Targets, reduction: str = "mean") -> Float[Tensor, ""]:
    """The sum over an image's columns of their cross-entropies, in nats; the sum or mean over images.

    Args:
        outputs: Logits (b, v) of all columns.
        targets: As at the head of this file.
        reduction: "mean" or "sum".
    """
    outside = targets.isnan()
    away = outside & ~outside.all(dim=2, keepdim=True)  # a softmax of nothing would have no gradient
    logs = outputs[:, None].masked_fill(away, -torch.inf).log_softmax(dim=2).masked_fill(outside, 0.0)
    whole = -(targets.masked_fill(outside, 0.0).to(outputs) * logs).sum()
    return whole / max(1, len(outputs)) if reduction == "mean" else whole


def wrong_columns(outputs: Outputs, targets: Targets) -> tuple[Bool[Tensor, "b columns"], Bool[Tensor, "b columns"]]:
    """Whether the most probable class of each column is another one than the true one, and whether that is known."""
    outside = targets.isnan()
    said = outputs[:, None].masked_fill(outside, -torch.inf).argmax(dim=2)
    known = ~outside.all(dim=2)
    return (said != targets.masked_fill(outside, -1.0).argmax(dim=2)) & known, known


def summed_over_columns(
    network: Network, batch: "Batch", loss: Any = columns_cross_entropy
) -> tuple[Float[Tensor, ""], int, Measures]:
    """The loss; `hits` is the summed fraction of an image's known columns that are right."""
    outputs = at_least_fp32(network(batch.inputs))
    wrong, known = wrong_columns(outputs.detach(), batch.labels)
    hits = (known & ~wrong).sum(dim=1) / known.sum(dim=1).clamp(min=1)
    return loss(outputs, batch.targets, "sum"), len(batch), {"hits": hits.sum().float()}


@dataclass(frozen=True, repr=False)
class AttributesPrediction(ShortRepr):
    """The class of each column for one image.

    Attributes:
        name: The file, or "image".
        classes: Of each column its most probable class, and its probability.
        top: The most probable classes of each column (two, or `Attributes.most`), such as `colour=red`, in one order.
        notes: A sentence of what is unusual about the image.
    """

    name: str
    classes: Mapping[str, tuple[str, float]]
    top: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The class of each column."""
        return ", ".join(self.brief()["attributes"])

    def brief(self) -> dict[str, Any]:
        """The same as a list."""
        return {"attributes": [f"{column}={name}" for column, (name, _) in self.classes.items()]}

    def cells(self) -> tuple[str, ...]:
        """Each with its probability."""
        return self.name, *(f"{column}={name} {percent(value, 1)}" for column, (name, value) in self.classes.items())

    def row(self) -> dict[str, Any]:
        """File, and of each column its class and probability: a list, as it is read."""
        row: dict[str, Any] = {"file": self.name}
        for column, (name, value) in self.classes.items():
            row |= {column: name, f"p_{column}": f"{value:.6f}"}
        return row

    def to_dict(self) -> dict[str, Any]:
        """The class of each column with its probability, and the most probable ones."""
        columns = {column: {"class": name, "probability": value} for column, (name, value) in self.classes.items()}
        return {
            "file": self.name,
            **self.brief(),
            "columns": columns,
            "top": self.top,
            **({"notes": self.notes} if self.notes else {}),
        }


@typed
@final
@dataclass(frozen=True, repr=False)
class Attributes(ShortRepr, Codec):
    """The classes of several columns, in the order of the logits: all of the first, all of the second.

    Args:
        columns: The name of each column, all different.
        classes: The names of the classes of each, all different.
        calibration: By which logits become probabilities: one temperature for all columns.
        most: How many classes of each column a prediction names; it is not stored.

    Raises:
        UsageError: A name occurs twice, or there are not as many lists of classes as columns.
    """

    columns: tuple[str, ...]
    classes: tuple[tuple[str, ...], ...]
    calibration: Calibration | None = field(default=None, repr=False)  # pyrefly: ignore[bad-override]
    most: int = field(default=TOP, compare=False, repr=False)  # pyrefly: ignore[bad-override]

    def __post_init__(self) -> None:
        """Refuse names that are not all different."""
        object.__setattr__(self, "columns", canonical_texts(self.columns))
        object.__setattr__(self, "classes", tuple(map(canonical_texts, self.classes)))
        differ = all(0 < len(names) == len({*names}) for names in (self.columns, *self.classes))
        if len(self.columns) != len(self.classes) or not differ or len({*self.names}) < len(self.names):
            raise UsageError(f"{len(self.classes)} lists of classes for {len(self.columns)} columns", EXAMPLE)

    is_wrong = False
    loss = staticmethod(columns_cross_entropy)
    rare = ("class_weights", "logit_adjustment")

    def weighted(self, counts: Mapping[str, int], by: Weighing) -> Loss:
        """The sum over columns of `vitrail.tasks.losses.class_loss`, each over the images whose class is known."""
        words = [self.names[part] for part in self.parts]
        each = [class_loss([counts.get(name, 0) for name in own], own, by) for own in words]

        def loss(outputs: Outputs, targets: Targets, reduction: str = "mean") -> Float[Tensor, ""]:
            whole = outputs.sum() * 0
            for number, (part, own) in enumerate(zip(self.parts, each, strict=True)):
                known = ~targets[:, number, part.start].isnan().to(outputs.device)
                whole = whole + own(outputs[known, part], targets[known.to(targets.device), number, part], "sum")
            return whole / max(1, len(outputs)) if reduction == "mean" else whole

        return loss

    @property
    def names(self) -> tuple[str, ...]:  # pyrefly: ignore[bad-override]
        """Each class with its column, such as `colour=red`."""
        return flat_names(self.columns, self.classes)

    @property
    def parts(self) -> tuple[slice, ...]:
        """Where the outputs of each column lie."""
        ends = np.cumsum([len(own) for own in self.classes]).tolist()
        return tuple(slice(end - len(own), end) for end, own in zip(ends, self.classes, strict=True))

    @property
    def outputs(self) -> int:
        """One logit for each class of each column."""
        return sum(map(len, self.classes))

    def match(self, column: Column) -> Match:
        """The columns by name; classes that are not here are not known, and counted."""
        if not isinstance(column, ClassColumns):
            problem = f"classes of several columns are learnt from such columns, got {type(column).__name__}"
            raise UsageError(problem, "a column of ClassColumns")
        if not {*column.names} & {*self.columns}:
            problem = f"the data have {', '.join(column.names)}, and none of {', '.join(self.columns)}"
            raise DataError(problem, Hint({"label_column": ",".join(self.columns)}))
        values, unknown = np.full((len(column), len(self.columns)), -1, np.int64), dict[str, int]()
        for own, (name, classes) in enumerate(zip(self.columns, self.classes, strict=True)):
            if name in column.names:
                place = column.names.index(name)
                given, there = column.values[:, place], column.classes[place]
                number_of = {each: number for number, each in enumerate(classes)}
                values[:, own] = np.array([*(number_of.get(each, -1) for each in there), -1], np.int64)[given]
                counts = {each: int((given == number).sum()) for number, each in enumerate(there)}
                new = (each for each in there if each not in number_of and counts[each])
                unknown |= {f"{name}={each}": counts[each] for each in new}
        return Match(ClassColumns(values, self.columns, self.classes), None, unknown)

    def targets(self, values: Int64[np.ndarray, "b columns"]) -> Targets:
        """(b, columns, v); see the head of this file."""
        found, known = torch.full((*values.shape, self.outputs), torch.nan), torch.from_numpy(values)
        for number, part in enumerate(self.parts):
            rows = (known[:, number] >= 0).nonzero()[:, 0]
            found[rows, number, part] = F.one_hot(known[rows, number], part.stop - part.start).float()
        return found

    def describe(self) -> tuple[str, str]:
        """The classes of each column, the first twenty."""
        shown = (f"{name} ({', '.join(own[:20])})" for name, own in zip(self.columns, self.classes, strict=True))
        return "attributes", ", ".join(shown)

    @property
    def size(self) -> str:
        """Of how many columns, and how many classes."""
        return f"{len(self.columns)} columns, {self.outputs} classes"

    def to_dict(self) -> dict[str, Any]:
        """Columns and classes, and the calibration where there is one."""
        of = {name: list(own) for name, own in zip(self.columns, self.classes, strict=True)}
        return {"attributes": of, **stored(self.calibration)}

    def portable(self) -> list[dict[str, Any]]:
        """A softmax for each column."""
        each = zip(self.columns, self.classes, strict=True)
        return [softmax_head(name, own, self.calibration) for name, own in each]

    def probabilities(self, outputs: Outputs) -> Float[Tensor, "b v"]:
        """Of each class within its column, in at least fp32."""
        warm = at_least_fp32(outputs) / self.temperature
        return torch.cat([warm[:, part].softmax(dim=1) for part in self.parts], dim=1)

    def best(self, outputs: Outputs) -> tuple[Int[Tensor, "b columns"], Float[Tensor, "b columns"]]:
        """The most probable output of each column, of equals the first, and its probability."""
        every = self.probabilities(outputs)
        found = torch.stack([part.start + outputs[:, part].argmax(dim=1) for part in self.parts], dim=1)
        return found, every.gather(1, found)

    def predicted(self, outputs: Outputs, most: int) -> list[list[int]]:
        """The class of each column, the most probable first, at most so many."""
        found, sure = (each.cpu() for each in self.best(outputs.float()))
        return found.gather(1, sure.argsort(dim=1, descending=True, stable=True))[:, :most].tolist()

    def answer(
        self, outputs: Outputs, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> "list[AttributesPrediction]":
        """The classes of each image."""
        words, (best, sure) = self.names, self.best(outputs.float())
        every = self.probabilities(outputs.float()).cpu()
        high = [every[:, part].argsort(dim=1, descending=True, stable=True)[:, : self.most] for part in self.parts]
        order = torch.cat([part.start + own for part, own in zip(self.parts, high, strict=True)], dim=1)
        order = order.gather(1, every.gather(1, order).argsort(dim=1, descending=True, stable=True))
        plain = every.gather(1, order).tolist(), order.tolist()
        answers = []
        for name, own, fractions, some, numbers in zip(names, best.tolist(), sure.tolist(), *plain, strict=True):
            said = (words[number].removeprefix(f"{column}=") for number, column in zip(own, self.columns, strict=True))
            classes = dict(zip(self.columns, zip(said, fractions, strict=True), strict=True))
            top = tuple((words[number], value) for number, value in zip(numbers, some, strict=True))
            answers.append(AttributesPrediction(name, classes, top))
        return answers

    def error(self, outputs: Outputs, targets: Targets) -> Float[Tensor, " b"]:
        """The fraction of the columns whose class is known that are wrong; NaN where none is."""
        wrong, known = wrong_columns(outputs, targets)
        return wrong.sum(dim=1).double() / known.sum(dim=1)

    def confidence(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The probability of the class that is least sure."""
        return self.best(outputs.float())[1].amin(dim=1)

    def agree(self, outputs: Outputs, others: Outputs) -> Agreement:
        """Whether the classes of all columns are the same; the margin is the least to a second most probable class."""
        every = self.probabilities(outputs)
        two = torch.stack([every[:, part].topk(2, dim=1).values for part in self.parts], dim=2)
        same = (self.best(outputs)[0] == self.best(others)[0]).all(dim=1)
        return Agreement(same, (two[:, 0] - two[:, 1]).amin(dim=1))

    def divergence(self, outputs: Outputs, teacher: Outputs, kind: str, temperature: float) -> Float[Tensor, ""]:
        """The sum over columns of what it is for classes: see `vitrail.tasks.classify.divergence`."""
        each = (divergence(outputs[:, part], teacher[:, part], kind, temperature) for part in self.parts)
        return torch.stack(list(each)).sum()

    def vote(self, targets: Float[Tensor, "n k columns v"], cosines: Float[Tensor, "n k"]) -> Float[Tensor, "n v"]:
        """The votes for each class, as `Classes.vote` has them."""
        return (targets.nan_to_num(0.0).double().sum(dim=2) * (1 + 1e-3 * cosines.double())[..., None]).sum(dim=1)

    def strata(self, targets: Targets) -> Tensor:
        """The rarest class of each among those of all columns."""
        return torch.from_numpy(
            LabelSets((targets.nan_to_num(0.0).sum(dim=1) > 0.5).cpu().numpy(), self.names).strata()
        )

    def choose(self, outputs: Outputs, wanted: Any = None) -> ChosenTarget:
        """A class of each image, that of the first column when None; or one rather than another of its column.

        Raises:
            UsageError: There is no such class, or the two are of different columns.
        """
        first = self.parts[0]
        at, against = indices_of(outputs, wanted, outputs[:, first].argmax(dim=1))
        columns = [number for number, part in enumerate(self.parts) for _ in range(part.start, part.stop)]
        column = torch.tensor(columns, device=at.device)
        if against is not None and bool((odd := column[at] != column[against]).any()):
            pair = " and ".join(self.names[int(each[odd][0])] for each in (at, against))
            name = self.columns[int(column[against][odd][0])]
            problem = f"{pair} are of different columns, and one does not exclude the other"
            raise UsageError(problem, Hint(drop=["contrast"], text=f"or two classes of {name}"))
        return ColumnTarget(at, against, self.temperature, parts=self.parts, column=column[at])

    def calibrate(self, outputs: Outputs, targets: Targets, on: str) -> "Attributes":
        """The same with a temperature, one for all columns, from ten images on."""
        images = int((~targets.isnan()).any(dim=(1, 2)).sum())
        if images < FEWEST:
            return self
        logits, targets = outputs.double().cpu(), targets.double().cpu()
        known = (~targets.isnan().all(dim=2)).sum()
        rest = 1 / (known + 2)  # one wrong answer more than there is
        inside = (~targets.isnan()).sum(dim=2, keepdim=True)
        softened = targets + rest * (1 - inside * targets) / (inside - 1).clamp(min=1)
        temperature = fit_temperature(lambda t: columns_cross_entropy(logits / t, softened), images)
        return replace(self, calibration=Calibration(on, images, temperature))


@final
@dataclass(frozen=True, eq=False)
class ColumnTarget(ChosenTarget):
    """One class among those of its column, of which softmax makes probabilities; or one rather than another."""

    temperature: float = 1.0  # of probabilities alone
    parts: tuple[slice, ...] = field(kw_only=True)
    column: Int[Tensor, "*b"] = field(kw_only=True)

    kind: ClassVar[Any] = None
    unit: ClassVar[Any] = "nats"
    has_probability: ClassVar[bool] = True

    @property
    def least(self) -> Float[Tensor, "*b"]:  # pyrefly: ignore[bad-override]
        """The log of the number of classes of the column."""
        return torch.tensor([part.stop - part.start for part in self.parts]).double()[self.column.cpu()].log()

    @property
    def plain(self) -> Any:
        """Indices, or a pair of them."""
        return self.target if self.contrast is None else (self.target, self.contrast)

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The logit of the class, or the difference of two."""
        chosen = pick(outputs, self.target)
        return chosen if self.contrast is None else chosen - pick(outputs, self.contrast)

    def _columns(self) -> Iterator[tuple[Tensor, slice, ClassTarget]]:
        """For each column that is explained: of which samples, its outputs, and the target among these."""
        for number in self.column.unique().tolist():
            rows, part = (self.column == number).nonzero()[:, 0], self.parts[number]
            against = None if self.contrast is None else self.contrast[rows] - part.start
            own = ClassTarget(self.target[rows] - part.start, against, self.temperature, classes=part.stop - part.start)
            yield rows, part, own

    def _by_column(self, ask: Callable[[ClassTarget, Tensor, slice], Tensor]) -> Tensor:
        """What the targets of the columns answer, in the order of the samples."""
        rows, found = zip(*((rows, ask(one, rows, part)) for rows, part, one in self._columns()), strict=True)
        order = torch.cat(rows).argsort()
        found = torch.cat(found, dim=-1)
        return found[..., order.to(found.device)]

    def counted(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """As of a class, within its column."""
        return self._by_column(lambda one, rows, part: one.counted(outputs[..., rows, :][..., part]))

    def probability(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """Of the class within its column; of a contrast that of the first class among the two."""
        return self._by_column(lambda one, rows, part: one.probability(outputs[..., rows, :][..., part]))

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """Log-odds of the class against the others of its column."""
        return self._by_column(lambda one, rows, part: one.effect(outputs[rows, part], without[:, part]))

    def as_high(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """As of a class, within its column."""
        return self._by_column(lambda one, rows, part: one.as_high(outputs[rows, part], without[:, part], distinct))

    def select(self, samples: slice | Tensor) -> "ColumnTarget":
        """The targets of some of the samples."""
        against = None if self.contrast is None else self.contrast[samples]
        return replace(self, target=self.target[samples], contrast=against, column=self.column[samples])


@final
@dataclass(frozen=True)
class AttributeClassification(Task):
    """A class of each of several columns for each image."""

    name = "attributes"
    column = ATTRIBUTES
    help = "a class of each of several columns for each image"
    metric = MEAN_ACCURACY
    measures = {"hits": MEAN_ACCURACY.key}  # noqa: RUF012  # never changed
    smooths = True
    blend = staticmethod(blend_known)
    invariant = True
    background = True

    def codec(self, raw: "RawDataset", splits: "Mapping[str, Samples]", separator: str = "") -> Attributes:
        """The columns, and their classes that some training image has.

        Raises:
            DataError: A column has fewer than two.
        """
        column = splits["train"].column(self.column)
        if not isinstance(column, ClassColumns):
            raise DataError(f"the column {self.column} contains no classes of several columns", "ClassColumns")
        there = {*column.counts()}
        classes = tuple(
            tuple(own for own in of if f"{name}={own}" in there)
            for name, of in zip(column.names, column.classes, strict=True)
        )
        few = [name for name, own in zip(column.names, classes, strict=True) if len(own) < 2]
        if few:
            problem = f"the training images have fewer than two classes in {', '.join(few)}"
            raise DataError(problem, other_columns(column.names, few, "columns of two classes or more"))
        return Attributes(column.names, classes)

    def codec_from_dict(self, values: Mapping[str, Any]) -> Attributes:
        """Columns and classes."""
        of = {str(name): tuple(map(str, own)) for name, own in values["attributes"].items()}
        return Attributes(tuple(of), tuple(of.values()), calibration_from(values.get("calibration")))

    def objective(self, augmentation: "Augmentation") -> Objective:
        """The summed cross-entropy; what is mixed or smoothed stands in the targets."""
        return summed_over_columns

    def metrics(self, input: Input, output: Codec) -> AttributesMetrics:
        """Accuracies and what belongs to them."""
        return AttributesMetrics(expect_codec(output, Attributes, EXAMPLE))

    def chance_loss(self, output: Codec) -> float:
        """Of a network that finds every class of a column as likely as the others."""
        return float(np.log([len(own) for own in expect_codec(output, Attributes, EXAMPLE).classes]).sum())
