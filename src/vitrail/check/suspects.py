"""What a network's features speak against: labels, and images far from all in training.

    labels     a linear head on the features, fitted on the images of other folds (copies and groups are in one), gives
               each label a probability p. Labels are held to be drawn by p, sharpened to a power, but for a fraction r
               of slips, which may be any of k classes; power and r are those under which the labels are most probable.
               Named are those that are more probably a slip: r / k > (1 - r) p, the most suspicious first. Of labels
               without slips r is near 0, and hardly one is named. Nothing is said where the head avoids less than 60 %
               of the mistakes that the most frequent class makes as the answer to all. Of several labels an image each
               cell, there or not there, is judged so, by a head for each label that `SEEN` images have and lack
    numbers    the same by ridge regression: named are those whose residual is more than 3.5 standard deviations, 1.4826
               times the middle one, from 0 (Iglewicz and Hoaglin, "How to detect and handle outliers", 1993)
    unlike     the distance (1 less the cosine) of each image outside training to the nearest in training is held
               against that of each training image to the nearest of another group. The farthest are named, as many as
               are at least five times what these distances give (Benjamini and Hochberg, 1995, on the conformal
               p-values of Bates et al., "Testing for outliers with conformal p-values", 2023)
    curve      accuracy outside training, by that distance

What is named is a suspicion, and no contradiction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from vitrail.check.findings import Facts, Finding, Looked, Picture, said
from vitrail.check.neighbours import KeptFeatures, Vectors
from vitrail.data.columns import ATTRIBUTES, LABEL, LABELS, NUMBER, TRAIN
from vitrail.data.images import evenly
from vitrail.data.loader import CONTENT, no_contents
from vitrail.features.poolings import check_vit
from vitrail.features.similar import nearest_rows
from vitrail.model import Model
from vitrail.model.familiar import unlike
from vitrail.nn import evaluating
from vitrail.runs.data import run_of
from vitrail.runs.known import TrainedOn
from vitrail.statistics import wilson_interval
from vitrail.tasks.classify import Classes
from vitrail.tasks.linear import FOLDS, held_out_outputs, map_features
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.regression import Standardized
from vitrail.text import ShortRepr, percent_in_words

POWERS, RATES = np.geomspace(0.5, 8, 17), np.append(0, np.geomspace(1e-4, 0.5, 60))  # that are tried
SLIP = 0.5  # how probable it is that a label that is named is one, at least
SKILL = 0.6  # of the mistakes of always naming the most frequent class, those that a head avoids, at least
SKILL_OF_CELLS = 0.1  # the same of labels of which an image has several, most of them rare
SEEN = 10  # images that have a label, and that lack it, from which on its cells are judged
RESIDUAL = 3.5  # standard deviations, from which on a number is named
FEWEST = 20  # training images of different groups by which distances are judged, and images of a bin, at least
MOST = 5000  # of these training images that are compared with all others
BINS = 5
WHO = {"model": "the model", "probe": "a linear head on its features of the training images"}
SUSPECT = (
    "Suspicions, no proof, the strongest first: look at each. A label may be right, of an image that is hard to tell."
)
UNLIKE = "They may not belong here, or training lacks what they show. What looks like a class of training is not found."


def suspected_labels(
    labels: np.ndarray, features: Vectors, units: Int64[np.ndarray, " n"]
) -> tuple[float, float, dict[int, Facts]] | None:
    """The labels that features speak against; None where no two classes have an image in each fold.

    Args:
        labels: (n,) the class of each image.
        features: (n, d) what a head reads.
        units: Images of one number are in one fold.

    Returns:
        The fraction of labels that the head on features of other folds agrees with; of the mistakes of always naming
        the most frequent class, the fraction that it avoids; and the suspects by their places, the most suspicious
        first: what they may be (`suggested`), how probable that is, how probable their label is, and a slip.
    """
    names, classes = np.unique(labels, return_inverse=True)
    known = np.bincount(np.unique(np.stack([classes, units]), axis=1)[0]) >= FOLDS
    places, codec = np.flatnonzero(known[classes]), Classes(tuple(names[known].tolist()))
    if codec.outputs < 2:
        return None
    targets = torch.from_numpy((known.cumsum() - 1)[classes[places]])
    outputs = held_out_outputs(codec, torch.from_numpy(features[places]), targets, units[places])
    accuracy, usual = codec.score(codec.error(outputs, targets)), float(targets.bincount().max()) / len(targets)
    by_power = (torch.exp(-codec.loss(power * outputs, targets, reduction="none")).numpy() for power in POWERS.tolist())
    power, own, slips = _slips(by_power, codec.outputs)
    order = np.argsort(own, kind="stable")[: (slips > SLIP).sum()]
    answers = zip(order.tolist(), codec.answer(power * outputs[order], [""] * len(order)), strict=True)
    facts: dict[int, Facts] = {int(places[row]): {"suggested": each.label, "probability": each.probability,
                 "label_probability": float(own[row]), "slip": float(slips[row])} for row, each in answers}  # fmt: skip
    return accuracy, (accuracy - usual) / (1 - usual), facts


def _slips(
    by_power: Iterable[Float[np.ndarray, " n"]], states: int
) -> tuple[float, Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The most probable power, how probable under it each label is, and how probable that it is a slip.

    Args:
        by_power: For each of `POWERS` how probable each label is.
        states: That a slip may give it.
    """
    fits = list[tuple[float, float, int]]()
    every = [*by_power]
    for place, own in enumerate(every):
        logs = np.log(np.maximum((1 - RATES[:, None]) * own + RATES[:, None] / states, 1e-300)).sum(axis=1)
        fits.append((*max(zip(logs.tolist(), RATES.tolist(), strict=True)), place))
    _, rate, place = max(fits)
    own = every[place]
    return float(POWERS[place]), own, rate / np.maximum(rate + (1 - rate) * states * own, 1e-300)


def suspected_cells(
    values: Int8[np.ndarray, "n k"], names: Sequence[str], features: Vectors, units: Int64[np.ndarray, " n"]
) -> tuple[float, dict[tuple[int, int], float]] | None:
    """The cells of a table of several labels that features speak against; None where no label is there often enough.

    Args:
        values: 1 where an image has a label, 0 where not, -1 where nobody knows.
        names: (k,) of the labels.
        features: (n, d) what a head reads.
        units: Images of one number are in one fold.

    Returns:
        Of the mistakes of giving each label to all images or none, the fraction that the heads avoid; and the suspects
        by image and label, the most suspicious first, with how probable a slip is.
    """
    there, lacking = ((values == state).sum(axis=0) for state in (1, 0))
    judged = np.flatnonzero(np.minimum(there, lacking) >= SEEN)
    if not len(judged):
        return None
    codec = MultiLabels(tuple(names[number] for number in judged.tolist()))
    outputs = held_out_outputs(codec, torch.from_numpy(features), codec.targets(values[:, judged]), units).numpy()
    rows, labels = np.nonzero(values[:, judged] >= 0)
    given = values[rows, judged[labels]]
    support = outputs[rows, labels] * np.where(given > 0, 1, -1)
    skill = 1 - float((support < 0).sum() / np.minimum(there, lacking)[judged].sum())
    _, own, slips = _slips((1 / (1 + np.exp(-power * support)) for power in POWERS), 2)
    order = np.argsort(own, kind="stable")[: (slips > SLIP).sum()]
    return skill, {(int(rows[one]), int(judged[labels[one]])): float(slips[one]) for one in order}


def suspected_numbers(
    values: Float[np.ndarray, "n k"], names: Sequence[str], features: Vectors, units: Int64[np.ndarray, " n"]
) -> tuple[float, dict[tuple[int, int], tuple[float, float]]] | None:
    """The numbers that features speak against; None where none varies.

    Args:
        values: In their unit, NaN where nobody knows.
        names: (k,) of the numbers.
        features: (n, d) what ridge regression reads.
        units: Images of one number are in one fold.

    Returns:
        The fraction of the variance that is explained of images of other folds, the mean over the numbers; and the
        suspects by image and number, the largest standardised residual first, with the residual and what the features
        say.
    """
    means, deviations = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    if not (deviations > 0).all():
        return None
    codec = Standardized(tuple(names), tuple(means.tolist()), tuple(deviations.tolist()))
    targets = codec.targets(values)
    outputs = held_out_outputs(codec, torch.from_numpy(features), targets, units)
    gaps, known = (targets.double() - outputs).numpy(), ~np.isnan(values)
    scale = 1.4826 * np.nanmedian(np.abs(gaps), axis=0)  # of a normal distribution its standard deviation
    far, said = np.where(known, np.abs(gaps) / scale, 0), codec.in_unit(outputs).numpy()
    rows, numbers = np.nonzero(far > RESIDUAL)
    order = np.argsort(-far[rows, numbers], kind="stable").tolist()
    cells = [(int(rows[one]), int(numbers[one])) for one in order]
    return 1 - float(np.nanmean(gaps**2)), {cell: (float(far[cell]), float(said[cell])) for cell in cells}


def curve_of(distances: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"]) -> list[dict[str, Any]]:
    """Accuracy by distance, in bins of as many images each, the nearest first; none where there are too few images."""
    bins, order = min(BINS, len(right) // FEWEST), np.argsort(distances, kind="stable")
    return [{"from": float(distances[some[0]]), "to": float(distances[some[-1]]), "images": len(some),
             "middle": float(np.median(distances[some])),
             "accuracy": float(right[some].mean()), "interval": [*wilson_interval(int(right[some].sum()), len(some))]}
            for some in (np.array_split(order, bins) if bins > 1 else ())]  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class ByModel(ShortRepr):
    """What a model says of data.

    Attributes:
        findings: Labels that its features speak against, and images unlike all in training.
        label_accuracy: The fraction of labels that a head on its features of other images agrees with; None where none
            was fitted.
        answers_by: Whose answers the curve is of: `model`, or `probe` where the model has other classes: a linear head,
            fitted on its features of the training images. None where nobody's.
        curve: Accuracy outside training by the distance to the nearest training image; see `curve_of`.
        nearest: Each image outside training, with this `distance` and whether the answer was `right`, and its nearest
            training image; the most alike first.
        notes: What was found of all, and what was not judged, one sentence each.
    """

    findings: Sequence[Finding]
    label_accuracy: float | None = None
    answers_by: str | None = None
    curve: Sequence[Facts] = ()
    nearest: tuple[tuple[Picture, ...], ...] = ()
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without findings and notes."""
        nearest = [[one.to_dict() for one in pair] for pair in self.nearest]
        about = {"label_accuracy": self.label_accuracy, "answers_by": self.answers_by}
        return {**about, "curve": list(self.curve), "nearest": nearest}


class Judged(NamedTuple):
    """What features say of a column.

    Attributes:
        knows: Whether they know enough of it to speak against any.
        agrees: How far they agree with it, a sentence.
        what: What is suspected: `label` or `number`.
        facts: Of the suspects by place, the most suspicious first.
        accuracy: The fraction of images whose one class they agree with.
    """

    knows: bool
    agrees: str
    what: str
    facts: Mapping[int, Facts]
    accuracy: float | None = None


def _judge_classes(seen: Looked, features: KeptFeatures, units: Int64[np.ndarray, " n"]) -> Judged | None:
    told = suspected_labels(np.array([seen.labels[row] for row in features.rows], dtype=str), features.read, units)
    if told is None:
        return None
    agrees = f"A linear head on the features of other images agrees with {percent_in_words(told[0])} of all labels"
    return Judged(told[1] >= SKILL, agrees, "label", told[2], told[0])


def _judge_cells(
    seen: Looked, features: KeptFeatures, units: Int64[np.ndarray, " n"], column: str = LABELS
) -> Judged | None:
    values, names = _joined(seen, column)
    if (told := suspected_cells(values[features.rows], names, features.read, units)) is None:
        return None
    agrees = f"Linear heads on the features of other images avoid {percent_in_words(told[0])} of the mistakes"
    facts, own = dict[int, dict[str, Any]](), values[features.rows]
    for (row, number), slip in told[1].items():
        each = facts.setdefault(row, {"missing": [], "unseen": [], "slip": slip})
        each["unseen" if own[row, number] else "missing"].append(names[number])
    about = f"{agrees} of giving each label that {SEEN} have to all or none"
    return Judged(told[0] >= SKILL_OF_CELLS, about, "label", facts)


def _judge_numbers(seen: Looked, features: KeptFeatures, units: Int64[np.ndarray, " n"]) -> Judged | None:
    values, names = _joined(seen, NUMBER)
    if (told := suspected_numbers(values[features.rows], names, features.read, units)) is None:
        return None
    agrees = f"A linear map of the features of other images explains {percent_in_words(told[0])} of the variance"
    facts = dict[int, dict[str, Any]]()
    for (row, number), (far, by_features) in told[1].items():
        facts.setdefault(row, {"features_say": {}, "deviations": far})["features_say"][names[number]] = by_features
    return Judged(told[0] >= SKILL, agrees, "number", facts)


JUDGED = {
    LABEL: _judge_classes,
    LABELS: _judge_cells,
    ATTRIBUTES: partial(_judge_cells, column=ATTRIBUTES),  # each class of each column is a label, such as colour=red
    NUMBER: _judge_numbers,
}


def _joined(seen: Looked, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of all splits with one value for each of its names, which splits may have in part, or not at all."""
    found: list[Any] = [(samples.columns.get(name), len(samples)) for samples in seen.splits.values()]
    if name == ATTRIBUTES:
        found = [(None if column is None else column.flags(), count) for column, count in found]
    names = tuple(dict.fromkeys(each for column, _ in found if column is not None for each in column.names))
    none = (0.0,) * len(names), (1.0,) * len(names)
    codec: Any = MultiLabels(names) if name != NUMBER else Standardized(names, *none)
    unknown = np.int8(-1) if name != NUMBER else np.nan
    values = [np.full((count, len(names)), unknown) if column is None else codec.match(column).column.values
              for column, count in found]  # fmt: skip
    return np.concatenate(values), names


def look_by_model(model: Model, seen: Looked, features: KeptFeatures) -> ByModel:
    """What a model says of labels, of images unlike those in training, and of what accuracy depends on.

    Args:
        model: A ViT.
        seen: Of the data.
        features: The model's.
    """
    rows, read, findings, notes = features.rows.tolist(), torch.from_numpy(features.read), list[Finding](), list[str]()
    labels, units = np.array([seen.labels[row] for row in rows], dtype=str), seen.units(seen.groupings)[rows]
    accuracy, answers_by, curve = None, None, list[Facts]()
    column = next(
        (name for name in next(iter(seen.splits.values())).columns if name in JUDGED), ""
    )  # amounts are first
    if column and (judged := JUDGED[column](seen, features, units)):
        accuracy = judged.accuracy
        contents = no_contents(len(rows))
        contents[:, CONTENT] = seen.survey.rows["content"][rows]
        if learnt := int(TrainedOn(run_of(model).trained_on).has(contents).sum()):
            notes.append(f"The model was trained on {learnt:,} of these images, so that its features agree with wrong "
                         "labels, too: a model that was not finds more.")  # fmt: skip
        facts = {rows[place]: each for place, each in judged.facts.items()}
        if not judged.knows:
            notes.append(f"{judged.agrees}: too few to suspect any.")
        elif facts:
            sentence = f"{said(len(facts), f'have a {judged.what} that the features speak against')}. {judged.agrees}."
            findings.append(Finding(f"suspect {judged.what}", sentence, SUSPECT, seen.show_each([*facts], facts)))
    train = np.array([seen.sides[row] == TRAIN for row in rows], dtype=bool)
    inside, outside = np.flatnonzero(train), np.flatnonzero(~train)
    if not len(inside) or not len(outside):
        return ByModel(findings, accuracy, notes=notes)
    cosines, near = (each[:, 0].numpy() for each in nearest_rows(read[inside], read[outside], 1))
    distances, pairs = np.maximum(0, 1 - cosines), features.rows[np.stack([outside, inside[near]], axis=1)]
    facts = {row: {"distance": far} for row, far in zip(pairs[:, 0].tolist(), distances.tolist(), strict=True)}
    alone = inside[np.unique(units[inside], return_index=True)[1]]  # one of each group
    if len(alone) >= FEWEST:
        among = 1 - nearest_rows(read[alone], read[evenly(alone.tolist(), MOST)], 2)[0][:, 1].numpy()
        if far := pairs[unlike(distances, among)].tolist():
            sentence = said(len(far), "are unlike anything in training.")
            findings.append(Finding("unlike training", sentence, UNLIKE, seen.show(far, facts)))
    if accuracy is not None and len({*labels[inside].tolist()}) > 1:
        answers_by, right = _answers(model, read, labels, inside, outside)
        curve = curve_of(distances, right)
        facts = {row: {**facts[row], "right": each} for row, each in zip(facts, right.tolist(), strict=True)}
    if curve and answers_by:
        first, last = (percent_in_words(each["accuracy"]) for each in (curve[0], curve[-1]))
        notes.append(f"Outside training, {WHO[answers_by]} is right on {first} of the images nearest to one in "
                     f"training, and on {last} of the farthest.")  # fmt: skip
    nearest = seen.show(pairs[np.argsort(distances, kind="stable")].tolist(), facts)
    return ByModel(findings, accuracy, answers_by, curve, nearest, notes)


def _answers(
    model: Model, read: Tensor, labels: np.ndarray, inside: np.ndarray, outside: np.ndarray
) -> tuple[str, Bool[np.ndarray, " n"]]:
    """Whose answers are looked at, and whether each outside training is right."""
    network, codec, who = check_vit(model.network), model.output, "model"
    if model.task.column == LABEL and network.head_dist is None and {*labels.tolist()} <= codec.number_of.keys():
        with evaluating(network), torch.no_grad():
            outputs = network.head(read[outside].to(model.device)).cpu()
    else:
        codec, who = Classes(tuple(np.unique(labels[inside]).tolist())), "probe"
        fitted = codec.fit(read[inside], torch.tensor([codec.number_of[each] for each in labels[inside].tolist()]))
        outputs = map_features(read[outside], fitted.weights)
    targets = torch.tensor([codec.number_of.get(each, -1) for each in labels[outside].tolist()])  # -1: not in training
    return who, (codec.error(outputs, targets) == 0).numpy()
