"""How well outputs order images: average precision of each label, its interval, where to cut, and an evaluation of it.

Average precision is the mean of the precisions at each positive, in the order of the outputs (equal outputs as one),
as in scikit-learn; a label without a positive has none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.errors import counted
from vitrail.tasks.by_class import DRAWS, drawn_anew, drawn_interval, of_pairs
from vitrail.tasks.task import Example, Metric, Metrics, Result, answers_in_rows, known_alone
from vitrail.text import percent

if TYPE_CHECKING:
    from vitrail.data.batches import Batch
    from vitrail.tasks.multilabel import MultiLabels

SHOWN = 12  # examples of each kind
LISTED = 30  # labels in a table
PRECISION = Metric("mean_average_precision", "mean average precision")


def average_precisions(
    outputs: Float[np.ndarray, "n v"], targets: Float[np.ndarray, "n v"], weights: Int64[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, " v"]:
    """The average precision of each label, NaN where no image has it; images whose label is unknown do not count.

    Args:
        outputs: What images are ordered by.
        targets: 1 where a label is there, 0 where not, NaN where nobody knows.
        weights: How often each image counts; once when None.
    """
    found = np.full(outputs.shape[1], np.nan)
    for number in range(outputs.shape[1]):
        order = np.argsort(-outputs[:, number], kind="stable")
        order = order[~np.isnan(targets[order, number])]
        weight = np.ones(len(order)) if weights is None else weights[order]
        values, hits = outputs[order, number], weight * targets[order, number]
        last = np.append(np.flatnonzero(np.diff(values)), len(values) - 1) if len(values) else order  # of equal ones
        seen, right = np.cumsum(weight)[last], np.cumsum(hits)[last]
        if len(last) and right[-1] > 0:
            found[number] = (np.diff(right, prepend=0) * right / np.maximum(seen, 1e-12)).sum() / right[-1]
    return found


def figures_by_label(
    names: Sequence[str],
    outputs: Float[np.ndarray, "n v"],
    targets: Float[np.ndarray, "n v"],
    said: Bool[np.ndarray, "n v"],
) -> tuple[list[dict[str, Any]], float, float]:
    """A row for each label, F1 over all pairs of image and label, and the mean F1 of labels that an image has.

    Args:
        names: Of the labels.
        outputs: What images are ordered by.
        targets: As of `average_precisions`.
        said: Which labels are predicted.
    """
    precisions, rows = average_precisions(outputs, targets), list[dict[str, Any]]()
    each = counted_pairs(targets, said).sum(axis=1)
    for name, precision, (hits, images, predicted) in zip(names, precisions.tolist(), each.T.tolist(), strict=True):
        row = {"label": name, "images": images, "average_precision": precision if images else None}
        row |= {"precision": hits / predicted if predicted else None, "recall": hits / images if images else None}
        rows.append({**row, "f1": 2 * hits / (images + predicted) if images + predicted else None})
    return rows, *f1_of(each.astype(np.float64))


def interval_of_mean(outputs: Float[np.ndarray, "n v"], targets: Float[np.ndarray, "n v"]) -> tuple[float, float]:
    """95 % interval of the mean average precision: how far it moves when images are drawn anew, with replacement.

    An image that is drawn twice stands beside itself, which raises precisions: what is taken is the distance from the
    mean of all draws.
    """
    count, means = len(outputs), list[float]()
    for weights in drawn_anew(count):
        found = average_precisions(outputs, targets, weights)
        if not np.isnan(found).all():
            means.append(float(np.nanmean(found)))
    return drawn_interval(float(np.nanmean(average_precisions(outputs, targets))), means, count)


def f1_of(each: Float[np.ndarray, "3 v"]) -> tuple[float, float]:
    """F1 over all pairs of image and label, and the mean F1 of labels that an image has, of `counted_pairs`."""
    hits, images, predicted = each
    own = 2 * hits[images > 0] / (images + predicted)[images > 0]
    return float(2 * hits.sum() / max(1.0, images.sum() + predicted.sum())), float(own.sum() / max(1, len(own)))


def intervals_of_f1(
    targets: Float[np.ndarray, "n v"], said: Bool[np.ndarray, "n v"]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """95 % intervals of both figures of `f1_of`: how far they move when images are drawn anew."""
    pairs = counted_pairs(targets, said).astype(np.float64)
    drawn = zip(*(f1_of(weights @ pairs) for weights in drawn_anew(len(targets))), strict=True)
    each = zip(f1_of(pairs.sum(axis=1)), drawn, strict=True)
    micro, macro = (drawn_interval(value, some, len(targets)) for value, some in each)
    return micro, macro


def counted_pairs(targets: Float[np.ndarray, "n v"], said: Bool[np.ndarray, "n v"]) -> Bool[np.ndarray, "3 n v"]:
    """Which labels of each image are there and predicted, are there, and are predicted where they are known."""
    there = targets > 0.5
    return np.stack([there & said, there, said & ~np.isnan(targets)])


def best_threshold(odds: Float[Tensor, " n"], there: Bool[Tensor, " n"]) -> float:
    """The log-odds from which on predictions have the highest F1: between two that are there, the middle."""
    values, order = odds.sort(descending=True)
    hits, place = there[order].double().cumsum(dim=0), torch.arange(1, len(odds) + 1, dtype=torch.float64)
    score = 2 * hits / (place + there.sum())
    score[:-1][values[:-1] == values[1:]] = -1  # equal outputs cannot be told apart
    best = int(score.argmax())
    below = values[best + 1] if best + 1 < len(values) else values[best] - 1
    return float((values[best] + below) / 2)


# ---- evaluation


@dataclass(frozen=True)
class MultiLabelMetrics(Metrics):
    """Labels and outputs of every image.

    Args:
        output: The model's codec.
    """

    output: "MultiLabels"

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The summed loss; of each image its number, its labels (None where unknown) and the outputs."""
        return answers_in_rows(self.output, network, batch)

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """Mean average precision, F1 over all pairs and by label, a row for each label, and images to look at."""
        from vitrail import pages  # of an evaluation alone; a prediction needs none

        codec, wide = self.output, self.output.outputs
        ids = np.array([row for each in answers for row in each["ids"]], np.int64)
        outputs, targets = (
            np.array([row for each in answers for row in each[name]], np.float64).reshape(-1, wide)
            for name in ("outputs", "labels")
        )
        loss = sum(each["loss"] for each in answers) / max(1, len(ids))
        errors = codec.error(*map(torch.from_numpy, (outputs, targets))).numpy()
        ids, errors, (outputs, targets), unknown = known_alone(ids, errors, outputs, targets)
        found, there = torch.from_numpy(outputs), targets > 0.5
        said, known = codec.says(found).numpy(), ~np.isnan(targets)
        rows, micro, macro = figures_by_label(codec.names, outputs, targets, said)
        rows = [{**row, "threshold": limit} for row, limit in zip(rows, codec.limits.tolist(), strict=True)]
        counts = [row["average_precision"] for row in rows if row["images"]]
        value = float(np.mean(counts)) if counts else 0.0
        low, high = interval_of_mean(outputs, targets) if counts else (0.0, 1.0)
        sure = codec.confidence(found).numpy()
        calibration, charts, sureness = of_pairs("label", codec.probabilities(found).numpy(), there, known)
        truths, answered = (
            np.array([", ".join(codec.names[n] for n in np.flatnonzero(row)) or "no label" for row in each], object)
            for each in (there, said)
        )
        left = unknown + f"; {counted(wide - len(counts), 'label')} without an image left out" * (wide > len(counts))
        often = sorted(rows, key=lambda row: -row["images"])
        most = f" (the {LISTED} most frequent of {len(rows)}; JSON has all)" if len(rows) > LISTED else ""
        ends = f"{percent(low, 2)} to {percent(high, 2)}"
        f1s = dict(
            zip(("micro_f1", "macro_f1"), intervals_of_f1(targets, said) if counts else [(0.0, 1.0)] * 2, strict=True)
        )
        each = zip(("micro F1", "macro F1"), (micro, macro), f1s.values(), strict=True)
        at = ", ".join(f"{of} {percent(at, 1)} ({' to '.join(percent(end, 1) for end in own)})" for of, at, own in each)
        return Result(
            metric=PRECISION,
            value=value,
            count=len(ids),
            loss=loss,
            interval=(low, high),
            details={
                "images": len(ids),
                PRECISION.key: value,
                "interval": [low, high],
                "loss": loss,
                "micro_f1": micro,
                "macro_f1": macro,
                "intervals": {of: list(own) for of, own in f1s.items()},
                "labels_counted": len(counts),
                **calibration,
                "per_label": rows,
            },
            sentence=f"of {counted(len(ids), 'image')}, {counted(len(counts), 'label')}{left} "
            f"(95 % interval {ends}); {at}",
            about=(
                "",
                "It is the mean over labels of how well images that have a label stand before those that do not. "
                f"With 95 % confidence it lies, on images like these, between {ends.replace(' to ', ' and ')} (images "
                f"drawn anew {DRAWS} times). With the thresholds: {at}{left}.",
            ),
            tables=(
                pages.Table(
                    f"Label by label{most}", LABEL_HEADER, tuple(map(_cells, often[:LISTED])), len(often[LISTED:])
                ),
                *charts,
                _confusion(there, said, known, codec.names),
            ),
            examples=tuple(
                Example(int(ids[row]), name(int(ids[row])), truths[row], answered[row], float(sure[row]))
                for row in worth_a_look(sure, truths == answered)
            ),
            percentage="The percentage is of the label of which the model is least sure: how probable its answer is, "
            "that the label is there or that it is not.",
            ids=ids,
            truths=truths,
            answers=answered,
            errors=errors,
            sureness=sureness,
            unknown={},
        )


def _confusion(
    there: Bool[np.ndarray, "n v"], said: Bool[np.ndarray, "n v"], known: Bool[np.ndarray, "n v"], names: Sequence[str]
) -> Any:
    """Which labels are predicted where they are, and which where they are not, by the labels that are there."""
    from vitrail import pages  # of an evaluation alone

    wrong, lacking = said & known & ~there, known & ~there
    counts = there.T.astype(np.int64) @ wrong.astype(np.int64) + np.diag((there & said).sum(axis=0))
    labels = np.stack([there.sum(axis=0), lacking.sum(axis=0), wrong.sum(axis=0)], axis=1)
    return pages.Confusion("Labels that are predicted, right and wrong", counts, tuple(names), labels)


LABEL_HEADER = ("label", "images", "average precision", "precision", "recall", "F1", "threshold")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table of labels, as it is read."""
    figures = [percent(row[name], 1) for name in ("average_precision", "precision", "recall", "f1", "threshold")]
    return row["label"], f"{row['images']:,}", *figures


def worth_a_look(sure: NDArray[np.floating], right: NDArray[np.bool_]) -> list[int]:
    """Images of which something is wrong, the most confident first; then some that are right, the least sure first."""
    order = np.argsort(sure, kind="stable")
    return order[~right[order]][::-1][:SHOWN].tolist() + order[right[order]][:SHOWN].tolist()
