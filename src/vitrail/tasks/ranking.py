"""How well outputs order images: average precision of each label, its interval, and where to cut.

Average precision is the mean of the precisions at each positive, in the order of the outputs (equal outputs as one),
as in scikit-learn; a label without a positive has none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

DRAWS = 200  # of images with replacement, for an interval


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
    there, precisions, rows = targets > 0.5, average_precisions(outputs, targets), list[dict[str, Any]]()
    each = np.stack([there & said, there, said & ~np.isnan(targets)]).sum(axis=1).T.tolist()
    for name, precision, (hits, images, predicted) in zip(names, precisions.tolist(), each, strict=True):
        row = {"label": name, "images": images, "average_precision": precision if images else None}
        row |= {"precision": hits / predicted if predicted else None, "recall": hits / images if images else None}
        rows.append({**row, "f1": 2 * hits / (images + predicted) if images + predicted else None})
    hits, images, predicted = np.sum(each, axis=0).tolist()
    of = [row["f1"] for row in rows if row["images"]]
    return rows, 2 * hits / max(1, images + predicted), sum(of) / max(1, len(of))


def interval_of_mean(outputs: Float[np.ndarray, "n v"], targets: Float[np.ndarray, "n v"]) -> tuple[float, float]:
    """95 % interval of the mean average precision: how far it moves when images are drawn anew, with replacement.

    An image that is drawn twice stands beside itself, which raises precisions: what is taken is the distance from the
    mean of all draws.
    """
    draw, count = np.random.default_rng(0), len(outputs)
    means = list[float]()
    for _ in range(DRAWS):
        found = average_precisions(outputs, targets, np.bincount(draw.integers(0, count, count), minlength=count))
        if not np.isnan(found).all():
            means.append(float(np.nanmean(found)))
    value = float(np.nanmean(average_precisions(outputs, targets)))
    low, high = value + np.quantile(means, [0.025, 0.975]) - np.mean(means)
    return max(0.0, float(low)), min(1.0, float(high))


def best_threshold(odds: Float[Tensor, " n"], there: Bool[Tensor, " n"]) -> float:
    """The log-odds from which on predictions have the highest F1: between two that are there, the middle."""
    values, order = odds.sort(descending=True)
    hits, place = there[order].double().cumsum(dim=0), torch.arange(1, len(odds) + 1, dtype=torch.float64)
    score = 2 * hits / (place + there.sum())
    score[:-1][values[:-1] == values[1:]] = -1  # equal outputs cannot be told apart
    best = int(score.argmax())
    below = values[best + 1] if best + 1 < len(values) else values[best] - 1
    return float((values[best] + below) / 2)
