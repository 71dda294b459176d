"""How often the class of each of several columns is right: figures of each column, their mean, images to look at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int64
from torch import nn

from vitrail.errors import counted
from vitrail.statistics import wilson_interval
from vitrail.tasks.by_class import DRAWS, by_class, drawn_interval, of_pairs
from vitrail.tasks.classify import per_class
from vitrail.tasks.ranking import worth_a_look
from vitrail.tasks.task import Example, Metric, Metrics, Result, at_least_fp32, known_alone
from vitrail.text import percent

if TYPE_CHECKING:
    from vitrail.data.batches import Batch
    from vitrail.tasks.attributes import Attributes

MEAN_ACCURACY = Metric("mean_accuracy", "mean accuracy")


@dataclass(frozen=True)
class AttributesMetrics(Metrics):
    """Images by true and predicted class of each column.

    Args:
        output: The model's codec.
    """

    output: "Attributes"

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The summed loss; of each image its number, and of each column the true output (-1: unknown) and the best."""
        outputs, targets = at_least_fp32(network(batch.inputs)).detach().cpu().double(), batch.labels.cpu()
        best, sure = self.output.best(outputs)
        unknown = targets.isnan().all(dim=2)
        true = targets.nan_to_num(0.0).argmax(dim=2).masked_fill(unknown, -1)
        rows = {"true": true, "best": best, "sure": sure}
        loss = float(self.output.loss(outputs, targets, "sum"))
        return {"loss": loss, "ids": batch.ids.tolist(), **{name: each.tolist() for name, each in rows.items()}}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """The mean of the columns' accuracies, the figures of each column, its confusion, and images to look at."""
        from vitrail import pages  # of an evaluation alone; a prediction needs none

        codec, words = self.output, np.array([*self.output.names, "unknown"], object)
        ids = np.array([row for each in answers for row in each["ids"]], np.int64)
        true, best, sure = (
            np.array([row for each in answers for row in each[of]], kind).reshape(-1, len(codec.columns))
            for of, kind in (("true", np.int64), ("best", np.int64), ("sure", np.float64))
        )
        loss = sum(each["loss"] for each in answers) / max(1, len(ids))
        with np.errstate(invalid="ignore"):
            errors = ((true >= 0) & (true != best)).sum(axis=1) / (true >= 0).sum(axis=1)
        ids, errors, (true, best, sure), left = known_alone(ids, errors, true, best, sure)
        known, right = true >= 0, true == best
        rows, tables = list[dict[str, Any]](), list[Any]()
        for number, (column, classes, part) in enumerate(zip(codec.columns, codec.classes, codec.parts, strict=True)):
            some, confusion = known[:, number], np.zeros((len(classes),) * 2, np.int64)
            np.add.at(confusion, (true[some, number] - part.start, best[some, number] - part.start), 1)
            rows.append({"column": column, **_figures(confusion), "per_class": per_class(confusion, classes)})
            tables.append(pages.Confusion(f"{column}: confusion matrix", confusion, classes))
            tables.append(pages.ClassTable(f"{column}: class by class", tuple(rows[-1]["per_class"])))
        value, (low, high) = _mean_accuracy(right, known)
        calibration, charts, sureness = of_pairs("class", sure, right, known)
        truths, said = (
            np.array([", ".join(words[row[there]]) for row, there in zip(each, known, strict=True)], object)
            for each in (true, best)
        )
        ends = f"{percent(low, 2)} to {percent(high, 2)}"
        each = ", ".join(f"{row['column']} {percent(row['accuracy'], 2)}" for row in rows)
        least = sure.min(axis=1, initial=1.0)
        figures = {MEAN_ACCURACY.key: value, "interval": [low, high], "loss": loss}
        return Result(
            metric=MEAN_ACCURACY,
            value=value,
            count=len(ids),
            loss=loss,
            interval=(low, high),
            details={"images": len(ids), **figures, **calibration, "columns": rows},
            sentence=f"of {counted(len(ids), 'image')}{left} (95 % interval {ends}); {each}",
            about=(
                "",
                f"It is the mean of the accuracies of the columns: {each}. With 95 % confidence it lies, on images like"
                f" these, between {ends.replace(' to ', ' and ')} (images drawn anew {DRAWS} times).",
            ),
            tables=(pages.Table("Column by column", _HEADER, tuple(map(_cells, rows))), *charts, *tables),
            examples=tuple(
                Example(int(ids[row]), name(int(ids[row])), truths[row], said[row], float(least[row]))
                for row in worth_a_look(least, errors == 0)
            ),
            percentage="The percentage is the probability of the class of which the model is least sure.",
            ids=ids,
            truths=truths,
            answers=said,
            errors=errors,
            sureness=sureness,
            unknown={},
        )


def _mean_accuracy(right: Bool[np.ndarray, "n c"], known: Bool[np.ndarray, "n c"]) -> tuple[float, tuple[float, float]]:
    """The mean over columns of how many known classes are right, and how far it moves when images are drawn anew."""
    if not known.any():
        return 0.0, (0.0, 1.0)
    draws = np.random.default_rng(0).multinomial(len(right), np.full(len(right), 1 / len(right)), size=DRAWS)
    value, *means = (
        _mean_of_columns(weight @ (right & known), weight @ known) for weight in (1 + 0 * draws[0], *draws)
    )
    return value, drawn_interval(value, means, len(right))


def _mean_of_columns(hits: Int64[np.ndarray, " c"], images: Int64[np.ndarray, " c"]) -> float:
    return float((hits[images > 0] / images[images > 0]).mean()) if images.any() else 0.0


_HEADER = ("column", "images", "accuracy", "balanced accuracy", "macro F1")


def _figures(confusion: Int64[np.ndarray, "k k"]) -> dict[str, Any]:
    """Of a column, each figure with its interval; None without any image."""
    images, hits, found = int(confusion.sum()), int(confusion.trace()), by_class(confusion)
    row: dict[str, Any] = dict.fromkeys(("accuracy", "interval", "balanced_accuracy", "macro_f1"))
    if found is not None:
        row = {"accuracy": hits / images, "interval": list(wilson_interval(hits, images))}
        row["balanced_accuracy"] = {"value": found.balanced_accuracy, "interval": list(found.balanced_interval)}
        row["macro_f1"] = {"value": found.macro_f1, "interval": list(found.macro_interval)}
    return {"images": images, **row}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table of columns, as it is read."""
    if row["accuracy"] is None:
        return row["column"], "0", "", "", ""
    figures = [(row["accuracy"], row["interval"]), *(row[key].values() for key in ("balanced_accuracy", "macro_f1"))]
    shown = (f"{percent(value, 2)} ({' to '.join(percent(end, 1) for end in ends)})" for value, ends in figures)
    return row["column"], f"{row['images']:,}", *shown
