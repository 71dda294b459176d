"""What a network's features speak against: labels, and images far from all in training.

    labels     a linear head on the features, fitted on the images of other folds (copies and groups are in one), gives
               each label a probability p. Labels are held to be drawn by p, sharpened to a power, but for a fraction r
               of slips, which may be any of k classes; power and r are those under which the labels are most probable.
               Named are those that are more probably a slip: r / k > (1 - r) p, the most suspicious first. Of labels
               without slips r is near 0, and hardly one is named. Nothing is said where the head avoids less than 60 %
               of the mistakes that the most frequent class makes as the answer to all
    unlike     the distance (1 less the cosine) of each image outside training to the nearest in training is held
               against that of each training image to the nearest of another group. The farthest are named, as many as
               are at least five times what these distances give (Benjamini and Hochberg, 1995, on the conformal
               p-values of Bates et al., "Testing for outliers with conformal p-values", 2023)
    curve      accuracy outside training, by that distance

What is named is a suspicion, and no contradiction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitrail.check.findings import Facts, Finding, Looked, Picture, said
from vitrail.check.neighbours import KeptFeatures, Vectors
from vitrail.data.columns import LABEL, NUMBER, TRAIN
from vitrail.data.images import evenly
from vitrail.data.loader import CONTENT, no_contents
from vitrail.features.poolings import check_vit
from vitrail.features.similar import nearest_rows
from vitrail.model import Model
from vitrail.nn import evaluating
from vitrail.runs.data import run_of
from vitrail.runs.known import TrainedOn
from vitrail.tasks.classify import Classes
from vitrail.tasks.linear import FOLDS, held_out_outputs, map_features
from vitrail.tasks.task import wilson_interval
from vitrail.text import ShortRepr, percent_in_words

POWERS, RATES = np.geomspace(0.5, 8, 17), np.append(0, np.geomspace(1e-4, 0.5, 60))  # that are tried
SLIP = 0.5  # how probable it is that a label that is named is one, at least
SKILL = 0.6  # of the mistakes of always naming the most frequent class, those that a head avoids, at least
CHANCE = 0.2  # of the images that are named as unlike all in training, what chance gives, at most
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
    any_class, fits = RATES[:, None] / codec.outputs, list[tuple[float, float, float]]()
    for power in POWERS.tolist():
        own = torch.exp(-codec.loss(power * outputs, targets, reduction="none")).numpy()
        logs = np.log(np.maximum((1 - RATES[:, None]) * own + any_class, 1e-300)).sum(axis=1)
        fits.append((*max(zip(logs.tolist(), RATES.tolist(), strict=True)), power))
    _, rate, power = max(fits)
    own = torch.exp(-codec.loss(power * outputs, targets, reduction="none")).numpy()
    slips = rate / np.maximum(rate + (1 - rate) * codec.outputs * own, 1e-300)
    order = np.argsort(own, kind="stable")[: (slips > SLIP).sum()]
    answers = zip(order.tolist(), codec.answer(power * outputs[order], [""] * len(order)), strict=True)
    facts: dict[int, Facts] = {int(places[row]): {"suggested": each.label, "probability": each.probability,
                 "label_probability": float(own[row]), "slip": float(slips[row])} for row, each in answers}  # fmt: skip
    return accuracy, (accuracy - usual) / (1 - usual), facts


def unlike(distances: Float[np.ndarray, " n"], among: Float[np.ndarray, " m"]) -> Int64[np.ndarray, " k"]:
    """The places of those that are too far, the farthest first.

    Args:
        distances: Of images outside training to the nearest in it.
        among: Of training images to the nearest other.
    """
    order = np.argsort(-distances, kind="stable")
    beyond = len(among) - np.searchsorted(np.sort(among), distances[order])
    expected = len(order) * (1 + beyond) / (1 + len(among))
    return order[: np.flatnonzero(expected <= CHANCE * np.arange(1, len(order) + 1)).max(initial=-1) + 1]


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
    means = [name for name in next(iter(seen.splits.values())).columns if name in (LABEL, NUMBER)]  # amounts are first
    if means[:1] == [LABEL] and (told := suspected_labels(labels, features.read, units)):
        accuracy, skill, suspects = told
        contents = no_contents(len(rows))
        contents[:, CONTENT] = seen.survey.rows["content"][rows]
        if learnt := int(TrainedOn(run_of(model).trained_on).has(contents).sum()):
            notes.append(f"The model was trained on {learnt:,} of these images, so that its features agree with wrong "
                         "labels, too: a model that was not finds more.")  # fmt: skip
        facts = {rows[place]: each for place, each in suspects.items()}
        agrees = f"A linear head on the features of other images agrees with {percent_in_words(accuracy)} of all labels"
        if skill < SKILL:
            notes.append(f"{agrees}: too few to suspect any.")
        elif facts:
            sentence = f"{said(len(facts), 'have a label that the features speak against')}. {agrees}."
            findings.append(Finding("suspect label", sentence, SUSPECT, seen.show_each([*facts], facts)))
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
