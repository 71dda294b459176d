"""How far predicted numbers are off: errors of each number in its unit, their interval, and images to look at."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.errors import counted
from vitrail.tasks.task import Z95, Example, Metric, Metrics, Result, answers_in_rows, known_alone
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


def _within(row: Mapping[str, Any]) -> dict[str, Any]:
    """How often a number lay within its interval, which is what makes it right."""
    counts = {"from": 0.0, "to": 1.0, "images": row["images"], "right": round(row["inside"] * row["images"])}
    return {**counts, "of": "number", "name": row["name"], "off": row["mae"]}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shown = {"name": str, "inside": percent}
    return tuple(shown.get(key, number)(row[key]) for key in _HEADER)


def _words(names: Sequence[str], values: np.ndarray) -> str:
    if len(names) == 1:
        return number(float(values[0]))
    return ", ".join(f"{name} {number(float(value))}" for name, value in zip(names, values, strict=True))
