"""How far predicted numbers are off: errors of each number in its unit, their interval, and images to look at."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from vitrail.errors import counted
from vitrail.statistics import Z95, wilson_interval
from vitrail.tasks.by_class import drawn_anew, moved_interval
from vitrail.tasks.task import Example, Metric, Metrics, Result, answers_in_rows, known_alone
from vitrail.text import number, percent

if TYPE_CHECKING:
    from vitrail.data.batches import Batch
    from vitrail.tasks.regression import Standardized

SHOWN = 12  # examples: the worst, and as many of the best
MEAN_ERROR = Metric("mean_absolute_error", "mean absolute error", fraction=False, better="lower")


@dataclass(frozen=True)
class NumberMetrics(Metrics):
    """True and predicted numbers.

    Args:
        output: The model's codec.
    """

    output: "Standardized"

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The summed loss; of each image its number, targets (None where unknown) and outputs."""
        return answers_in_rows(self.output, network, batch)

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """Errors of each number with their intervals, what they explain of the spread, and images to look at."""
        from vitrail import pages  # of an evaluation alone; a prediction needs none

        codec = self.output
        ids = np.array([row for each in answers for row in each["ids"]], np.int64)
        outputs, targets = (
            torch.from_numpy(np.array([row for each in answers for row in each[of]], float).reshape(-1, codec.outputs))
            for of in ("outputs", "labels")
        )
        loss = sum(each["loss"] for each in answers) / max(1, len(ids))
        errors = codec.error(outputs, targets).numpy()
        ids, errors, (outputs, targets), left = known_alone(ids, errors, outputs, targets)
        found, true = codec.in_unit(outputs).numpy(), codec.as_given(targets).numpy()
        parts = zip(codec.names, found.T, true.T, codec.widths or (None,) * codec.outputs, strict=True)
        rows = [_figures(*part) for part in parts]
        first, one = rows[0], codec.outputs == 1
        value, ends = float(errors.mean()) if len(errors) else 0.0, (0.0, 0.0)
        if len(errors):
            half = Z95 * float(errors.std()) / math.sqrt(len(errors))
            ends = max(0.0, value - half), value + half
        shown = f"{number(ends[0])} to {number(ends[1])}"
        unit = "" if one else " standard deviations, mean of the numbers,"
        more = f"; R2 {with_ends(first, 'r2')}, RMSE {with_ends(first, 'rmse')}" if one else ""
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
            sentence=f"of {counted(len(ids), 'image')}{left},{unit} (95 % interval {shown}){more}".replace(", (", " ("),
            about=(
                "",
                f"By so much a prediction is wrong, on average. With 95 % confidence it lies, on images like these, "
                f"between {shown.replace(' to ', ' and ')}.{more and f' {more[2:]}.'}",
            ),
            tables=(pages.Table("Number by number", tuple(_HEADER.values()), tuple(map(_cells, rows))),),
            examples=tuple(Example(int(ids[row]), name(int(ids[row])), truths[row], said[row]) for row in some),
            ids=ids,
            truths=np.array(truths, object),
            answers=np.array(said, object),
            errors=errors,
            sureness=tuple(_within(row) for row in rows if row["inside"] is not None),
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
    gaps, count = found[known] - true[known], int(known.sum())
    of = np.stack(
        [np.abs(gaps), gaps**2, true[known] - (true[known].mean() if count else 0.0), np.zeros(count)], axis=1
    )
    of[:, 3] = of[:, 2] ** 2
    figures = _sums(of.mean(axis=0)) if count else dict.fromkeys(("mae", "rmse", "r2"))
    drawn = [_sums(weights @ of / count) for weights in drawn_anew(count)] if count > 1 else []
    ends = dict[str, Any]()
    for key, value in figures.items():
        moved = [own for each in drawn if (own := each[key]) is not None]
        least, most = (-math.inf, 1.0) if key == "r2" else (0.0, math.inf)
        ends[key] = np.clip(moved_interval(value, moved), least, most).tolist() if value is not None and moved else None
    right = int((of[:, 0] <= width).sum()) if count and width is not None else None
    figures["inside"] = None if right is None else right / count
    ends["inside"] = None if right is None else list(wilson_interval(right, count))
    return {"name": name, "images": count, **figures, "intervals": ends}


def _sums(of: Float[np.ndarray, " 4"]) -> dict[str, Any]:
    """The figures by the means of absolute and squared errors, and of numbers (from their middle) and their squares."""
    mae, squared, mean, square = of.tolist()
    spread = square - mean**2
    return {"mae": mae, "rmse": math.sqrt(squared), "r2": 1 - squared / spread if spread > 1e-12 * square else None}


def _within(row: Mapping[str, Any]) -> dict[str, Any]:
    """How often a number lay within its interval, which is what makes it right."""
    counts = {"from": 0.0, "to": 1.0, "images": row["images"], "right": round(row["inside"] * row["images"])}
    return {**counts, "of": "number", "name": row["name"], "off": row["mae"]}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["name"], f"{row['images']:,}", *(with_ends(row, key) for key in list(_HEADER)[2:])


def with_ends(row: Mapping[str, Any], key: str) -> str:
    """A figure of a number, with its interval where it has one."""
    write, ends = percent if key == "inside" else partial(number, digits=3 if key == "r2" else 4), row["intervals"][key]
    return write(row[key]) + (f" ({' to '.join(map(write, ends))})" if ends else "")


def _words(names: Sequence[str], values: np.ndarray) -> str:
    if len(names) == 1:
        return number(float(values[0]))
    return ", ".join(f"{name} {number(float(value))}" for name, value in zip(names, values, strict=True))
