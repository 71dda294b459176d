"""Several labels for each image, or none: binary cross-entropy, average precision of each label, fitted thresholds.

A label is there, not there, or unknown (NaN in the targets), which leaves loss and gradient. What is predicted are the
labels whose probability reaches a threshold. One threshold is fitted for all, on images that are not reported on: that
with the highest F1 over all pairs of image and label. A label with `OWN` positives or more there gets its own, half the
way from the common one to that of its highest F1 (in log-odds, and the more so the more positives it has).

The figure is the mean of the labels' average precisions (`tasks/ranking.py`). The error of one image needs no
threshold: 1 less the label ranking average precision (Tsoumakas, Katakis and Vlahavas, "Mining multi-label data",
2010).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.columns import LABELS, Column, Match
from vitrail.data.multiple import LabelSets
from vitrail.errors import DataError, Hint, UsageError, check_index, counted
from vitrail.tasks.calibration import FEWEST, Calibration, calibration_from, fit_temperature, stored
from vitrail.tasks.codec import NO_FACTS, Agreement, Codec, Hub, Outputs, tally
from vitrail.tasks.losses import SUREST, Loss, Weighing, binary_cross_entropy, blend_known, label_loss
from vitrail.tasks.ranking import PRECISION, MultiLabelMetrics, best_threshold
from vitrail.tasks.target import ChosenTarget, OddsTarget, indices_of
from vitrail.tasks.task import Input, Measures, Network, Objective, Task, at_least_fp32, expect_codec
from vitrail.text import ShortRepr, canonical_texts, percent

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.columns import RawDataset, Samples
    from vitrail.tasks.linear import LinearFit

TOP = 5  # labels that a prediction names
OWN = 20  # positives from which on a label has a threshold of its own
EVEN = 0.5  # the threshold before one is fitted
EXAMPLE = 'MultiLabels(("cat", "dog"))'

Targets = Float[Tensor, "b v"]


def summed_cross_entropy(
    network: Network, batch: "Batch", loss: Any = binary_cross_entropy
) -> tuple[Float[Tensor, ""], int, Measures]:
    """Binary cross-entropy; `hits` is the summed share of an image's known labels that are right at even odds."""
    outputs, known = at_least_fp32(network(batch.inputs)), ~batch.labels.isnan()
    right = (((outputs.detach() > 0) == (batch.labels > 0.5)) & known).sum(dim=1) / known.sum(dim=1).clamp(min=1)
    return loss(outputs, batch.targets, "sum"), len(batch), {"hits": right.sum().float()}


@dataclass(frozen=True, repr=False)
class MultiLabelPrediction(ShortRepr):
    """Which labels an image has.

    Attributes:
        name: The file, or "image".
        labels: Those whose probability reaches their threshold, with it, the most probable first.
        top: The most probable labels (five, or `MultiLabels.most`) and all that are predicted, with probabilities.
        notes: A sentence of what is unusual about the image.
    """

    name: str
    labels: tuple[tuple[str, float], ...]
    top: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The labels, or that there are none."""
        return ", ".join(name for name, _ in self.labels) or "no label"

    def brief(self) -> dict[str, Any]:
        """The names of the labels."""
        return {"labels": [name for name, _ in self.labels]}

    def cells(self) -> tuple[str, ...]:
        """The labels with their probabilities; without any, the most probable one."""
        said = "  ".join(f"{name} {percent(value, 1)}" for name, value in self.labels)
        return self.name, said or f"no label  ({self.top[0][0]} {percent(self.top[0][1], 1)})"

    def row(self) -> dict[str, Any]:
        """File, labels and probabilities, with bars between, as lists are read."""
        names, values = zip(*self.labels, strict=True) if self.labels else ((), ())
        return {
            "file": self.name,
            "labels": "|".join(names),
            "probabilities": "|".join(f"{value:.6f}" for value in values),
        }

    def to_dict(self) -> dict[str, Any]:
        """The labels with their probabilities, and the most probable ones."""
        notes = {"notes": self.notes} if self.notes else {}
        return {"file": self.name, **self.brief(), "probabilities": dict(self.labels), "top": self.top, **notes}


@typed
@final
@dataclass(frozen=True, repr=False)
class MultiLabels(ShortRepr, Codec):
    """The labels that an image may have, in the order of the outputs, which are log-odds.

    Args:
        names: The name of each label, all different.
        rates: The fraction of the training images that have each, of those where it is known; may be empty.
        thresholds: The probability from which on each is predicted; even odds when empty.
        calibration: By which outputs become probabilities.
        most: How many labels a prediction names beside those that are there; it is not stored.

    Raises:
        UsageError: A name occurs twice, or there are not as many rates or thresholds as names.
    """

    names: tuple[str, ...]  # pyrefly: ignore[bad-override]  # a plain value
    rates: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    calibration: Calibration | None = field(default=None, repr=False)  # pyrefly: ignore[bad-override]
    most: int = field(default=TOP, compare=False, repr=False)  # pyrefly: ignore[bad-override]

    def __post_init__(self) -> None:
        """Refuse names that are not all different, and fractions that are none or of other labels."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        if len({*self.names}) < len(self.names) or not self.names:
            raise UsageError(f"{len(self.names)} names of labels, not all different", "one name for each label")
        for what, values in (("rates", self.rates), ("thresholds", self.thresholds)):
            if values and (len(values) != len(self.names) or not all(0 <= value <= 1 for value in values)):
                raise UsageError(
                    f"{len(values)} {what} for {len(self.names)} labels", "one of 0 to 1 for each, or none"
                )

    hub = Hub("image-classification", "multi_label_classification")
    is_wrong = False
    loss = staticmethod(binary_cross_entropy)
    rare = ("class_weights", "asymmetric")

    def weighted(self, counts: Mapping[str, int], by: Weighing) -> Loss:
        """See `vitrail.tasks.losses.label_loss`; `counts`, `even` and `tau` are of classes."""
        return label_loss(self.names, self.rates, by)

    @property
    def outputs(self) -> int:
        """One number for each label."""
        return len(self.names)

    def match(self, column: Column) -> Match:
        """The labels that are known here; others are left out and counted, and no sample is."""
        if not isinstance(column, LabelSets):
            problem = f"several labels are learnt from sets of labels, got {type(column).__name__}"
            raise UsageError(problem, "a column of LabelSets")
        places = {name: place for place, name in enumerate(column.names)}
        values = np.zeros((len(column), len(self.names)), np.int8)
        for number, name in enumerate(self.names):
            if name in places:
                values[:, number] = column.values[:, places[name]]
        unknown = {name: count for name, count in column.counts().items() if name not in self.number_of}
        return Match(LabelSets(values, self.names), None, unknown)

    def targets(self, values: Int8[np.ndarray, "b v"]) -> Tensor:
        """(b, v): 1 where a label is there, 0 where not, NaN where nobody knows."""
        found = torch.from_numpy(values).float()
        return found.masked_fill(found < 0, torch.nan)

    def describe(self) -> tuple[str, str]:
        """The first twenty names."""
        return "labels", ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")

    def to_dict(self) -> dict[str, Any]:
        """Names, base rates and thresholds, and the calibration where there is one."""
        of = {"rates": list(self.rates), "thresholds": list(self.thresholds)}
        return {"labels": list(self.names), **of, **stored(self.calibration)}

    def portable(self) -> list[dict[str, Any]]:
        """Each label by itself."""
        of = {"temperature": self.temperature, "thresholds": self.limits.tolist()}
        return [{"kind": "sigmoid", "names": list(self.names), **of}]

    def probabilities(self, outputs: Outputs) -> Float[Tensor, "b v"]:
        """Of each label."""
        return (outputs / self.temperature).sigmoid()

    @property
    def limits(self) -> Float[Tensor, " v"]:  # pyrefly: ignore[bad-override]
        """The thresholds, as probabilities."""
        return torch.tensor(self.thresholds or (EVEN,) * self.outputs, dtype=torch.float64)

    def says(self, outputs: Outputs) -> Bool[Tensor, "b v"]:
        """Which labels are predicted."""
        return self.probabilities(outputs.double()) >= self.limits.to(outputs.device)

    def predicted(self, outputs: Outputs, most: int) -> list[list[int]]:
        """The labels that are predicted of each image, the most probable first, at most so many."""
        order = self.probabilities(outputs.float()).cpu().argsort(dim=-1, descending=True, stable=True)
        said = self.says(outputs).cpu().gather(1, order)
        return [labels[there][:most].tolist() for labels, there in zip(order, said, strict=True)]

    def answer(
        self, outputs: Outputs, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> "list[MultiLabelPrediction]":
        """The labels of each image."""
        values, order = self.probabilities(outputs.float()).cpu().sort(dim=-1, descending=True, stable=True)
        said = self.says(outputs).cpu().gather(1, order)
        rows = zip(names, values.tolist(), order.tolist(), said.tolist(), strict=True)
        answers = []
        for name, fractions, numbers, there in rows:
            named = [(self.names[number], fraction) for number, fraction in zip(numbers, fractions, strict=True)]
            labels = tuple(one for one, has in zip(named, there, strict=True) if has)
            top = tuple(
                one for rank, (one, has) in enumerate(zip(named, there, strict=True)) if has or rank < self.most
            )
            answers.append(MultiLabelPrediction(name, labels, top))
        return answers

    def error(self, outputs: Outputs, targets: Targets) -> Float[Tensor, " b"]:
        """1 less the label ranking average precision: 0 where every label that is there stands before all others.

        NaN where no label is known.
        """
        known, there = ~targets.isnan(), targets > 0.5
        before = (outputs[:, None, :] >= outputs[:, :, None]) & known[:, None, :]  # (b, v, w): w stands at or before v
        precision = (before & there[:, None, :]).sum(dim=2).double() / before.sum(dim=2).clamp(min=1)
        count = there.sum(dim=1)
        found = (precision * there).sum(dim=1) / count.clamp(min=1)
        return torch.where(count > 0, 1 - found, 0.0).masked_fill(~known.any(dim=1), torch.nan)

    def confidence(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The probability of the label that is nearest to even odds, or of its absence."""
        return self.probabilities(outputs.float().abs()).amin(dim=1)

    def agree(self, outputs: Outputs, others: Outputs) -> Agreement:
        """Whether the same labels are predicted; the margin is that of the label nearest to its threshold."""
        margin = (self.probabilities(outputs.double()) - self.limits.to(outputs.device)).abs().amin(dim=1)
        return Agreement((self.says(outputs) == self.says(others)).all(dim=1), margin)

    def divergence(self, outputs: Outputs, teacher: Outputs, kind: str, temperature: float) -> Float[Tensor, ""]:
        """The teacher's part of a student's loss: `binary_cross_entropy` against what it says of each label.

        Args:
            outputs: Of the student.
            teacher: Of the teacher, into which nothing flows back.
            kind: "hard" for the teacher's answer at even odds; "soft" for T^2 times the divergence of softened odds.
            temperature: T, above 0.
        """
        teacher = teacher.detach()
        if kind == "hard":
            return binary_cross_entropy(outputs, (teacher > 0).to(outputs), "sum")
        softened = (teacher / temperature).sigmoid()
        least = binary_cross_entropy(teacher / temperature, softened, "sum")  # of a student that says the same
        return (binary_cross_entropy(outputs / temperature, softened, "sum") - least) * temperature**2

    def vote(self, targets: Float[Tensor, "n k v"], cosines: Float[Tensor, "n k"]) -> Float[Tensor, "n v"]:
        """The log-odds of the fraction of neighbours that have a label, of those where it is known, and an even one."""
        known = ~targets.isnan()
        count, there = known.sum(dim=1).double(), targets.nan_to_num(0.0).double().sum(dim=1)
        return ((there + 0.5) / (count + 1)).logit()

    def among(self, cells: Sequence[Mapping[str, str]]) -> str:
        """How many samples have each label."""
        known = [words for each in cells for words in each.values()]
        return tally([word for words in known for word in words.split("|") if word], len(known))

    def strata(self, targets: Targets) -> Tensor:
        """The rarest label of each; images without any are of one more."""
        return torch.from_numpy(LabelSets((targets > 0.5).numpy(), self.names).strata())

    def fit(self, features: Float[Tensor, "n d"], targets: Targets, loss: Any = None) -> "LinearFit":
        """A logistic regression for each label, with one penalty.

        Raises:
            DataError: No label is there in some of the images alone.
        """
        if not ((targets > 0.5).any(dim=0) & (targets < 0.5).any(dim=0)).any():
            raise DataError("every label is in all training images, or in none", "images with a label, and without")
        return super().fit(features, targets, loss)

    def settle(self, outputs: Outputs, targets: Targets) -> "MultiLabels":
        """The same with thresholds that are fitted on these images; see the head of this file."""
        odds, there = outputs.double().cpu(), (targets > 0.5).cpu()
        known = ~targets.isnan().cpu()
        if not (there & known).any():
            return self
        common = best_threshold(odds[known], there[known])
        found = []
        for number in range(self.outputs):
            own, has = odds[known[:, number], number], there[known[:, number], number]
            positives, limit = int(has.sum()), common
            if positives >= OWN:
                part = positives / (positives + OWN)
                limit = part * best_threshold(own, has) + (1 - part) * common
            found.append(float((torch.tensor(limit, dtype=torch.float64) / self.temperature).sigmoid()))
        return replace(self, thresholds=tuple(found))

    @property
    def settled(self) -> str:
        """The thresholds, in words."""
        common = max({*self.thresholds}, key=self.thresholds.count) if self.thresholds else EVEN
        own = sum(value != common for value in self.thresholds)
        more = f", and another one for {counted(own, 'label')} with {OWN} images or more" if own else ""
        return f"a label is predicted from {percent(common, 1)} on{more}"

    def least(self, number: int) -> float:
        """From its base rate in training to even odds, in nats."""
        number = check_index("number", number, self.outputs)
        rate = min(1 - SUREST, max(SUREST, self.rates[number])) if self.rates else 1 / (1 + self.outputs)
        return abs(float(np.log(rate / (1 - rate))))

    def choose(self, outputs: Outputs, wanted: Any = None) -> ChosenTarget:
        """A label of each image, the most probable one when None: why it is there, or why it is not.

        Raises:
            UsageError: A contrast is wanted, which labels that do not exclude each other do not have; or no such label.
        """
        at, against = indices_of(outputs, wanted, outputs.argmax(dim=1))
        if against is not None:
            raise UsageError("labels do not exclude each other, so there is no contrast", Hint(drop=["contrast"]))
        least = torch.tensor([self.least(number) for number in range(self.outputs)], dtype=torch.float64)
        among = (outputs.argmax(dim=1) == at) & ~self.says(outputs).gather(1, at[:, None])[:, 0]
        return OddsTarget(at, temperature=self.temperature, least=least[at.cpu()], among=among.cpu())

    def calibrate(self, outputs: Outputs, targets: Targets, on: str) -> "MultiLabels":
        """The same with a temperature from ten images on, by all pairs of image and label; it predicts what it did."""
        known = ~targets.isnan().cpu()
        if (images := int(known.any(dim=1).sum())) < FEWEST:
            return self
        odds, there = outputs.double().cpu()[known], targets.double().cpu()[known]
        softened = there + (1 - 2 * there) / (len(there) + 2)  # one wrong answer more than there is

        def loss(temperature: Tensor) -> Tensor:
            return F.binary_cross_entropy_with_logits(odds / temperature, softened)

        temperature = fit_temperature(loss, images) / self.temperature
        moved = (self.limits.logit() / temperature).sigmoid().tolist()
        found = Calibration(on, images, temperature * self.temperature)
        return replace(self, thresholds=tuple(moved) if self.thresholds else (), calibration=found)


@final
@dataclass(frozen=True)
class MultiLabel(Task):
    """Several labels for each image, or none."""

    name = "multilabel"
    column = LABELS
    help = "several labels for each image"
    metric = PRECISION
    measures = {"hits": "label_accuracy"}  # noqa: RUF012  # never changed
    smooths = True
    blend = staticmethod(blend_known)
    invariant = True
    background = True

    def codec(self, raw: "RawDataset", splits: "Mapping[str, Samples]", separator: str = "") -> MultiLabels:
        """The labels that some training image has, with the fraction of those images.

        Raises:
            DataError: No training image has a label.
        """
        column = splits["train"].column(self.column)
        if not isinstance(column, LabelSets):
            raise DataError(f"the column {self.column} contains no sets of labels", "LabelSets, one for each image")
        there, known = (column.values > 0).sum(axis=0), (column.values >= 0).sum(axis=0)
        kept = np.flatnonzero(there).tolist()
        if not kept:
            raise DataError("no training image has a label", "labels in the training split")
        rates = tuple(float(there[number] / known[number]) for number in kept)
        return MultiLabels(tuple(column.names[number] for number in kept), rates)

    def codec_from_dict(self, values: Mapping[str, Any]) -> MultiLabels:
        """Names, base rates and thresholds."""
        rates, thresholds = (tuple(map(float, values.get(name, ()))) for name in ("rates", "thresholds"))
        calibration = calibration_from(values.get("calibration"))
        return MultiLabels(tuple(map(str, values["labels"])), rates, thresholds, calibration)

    def objective(self, augmentation: "Augmentation") -> Objective:
        """Binary cross-entropy; what is mixed or smoothed stands in the targets."""
        return summed_cross_entropy

    def metrics(self, input: Input, output: Codec) -> MultiLabelMetrics:
        """Average precision and what belongs to it."""
        return MultiLabelMetrics(expect_codec(output, MultiLabels, EXAMPLE))

    def chance_loss(self, output: Codec) -> float:
        """Of a network that finds every label as likely as not."""
        return float(np.log(2))
