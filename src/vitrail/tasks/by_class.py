"""Figures of classes that weigh alike, however many images each has; equal to those of scikit-learn.

    balanced accuracy   the mean recall of the classes that some image has
    macro F1            the mean F1 of the classes that some image has, or is taken for

Their intervals are made of images that are drawn anew, with replacement; where no draw
differs from the others, they are Wilson's. Beside them stand how often the true class is among the first five, how far
off probabilities are, and how often the sets of classes hold the true one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray

from vitrail.statistics import wilson_interval
from vitrail.tasks.calibration import COVERAGE, Reliability, reliability
from vitrail.text import number, percent, percent_in_words

if TYPE_CHECKING:
    from vitrail.pages.run_views import Section

FOR_DIAGRAM = 200  # images from which on a reliability diagram is drawn
FOR_POINT = 30  # answers from which on a range of sureness is a point of it
FIRST = 5
DRAWS = 200  # of images with replacement, for an interval

Interval = tuple[float, float]


def drawn_anew(count: int) -> Iterator[Int64[np.ndarray, " count"]]:
    """How often each of so many images counts when they are drawn with replacement, in 200 draws, always the same."""
    draw = np.random.default_rng(0)
    yield from (np.bincount(draw.integers(0, count, count), minlength=count) for _ in range(DRAWS))


def drawn_interval(value: float, drawn: Sequence[float], images: int | float) -> tuple[float, float]:
    """95 % interval of a fraction: how far it moves when images are drawn anew, beside the mean of all draws.

    Where all are right, or all wrong, no draw moves, which is no certainty: then it is Wilson's of as many images.
    """
    if np.ptp(drawn) < 1e-12:
        return wilson_interval(value * images, images)
    low, high = moved_interval(value, drawn)
    return max(0.0, low), min(1.0, high)


def moved_interval(value: float, drawn: Sequence[float]) -> tuple[float, float]:
    """95 % interval of any figure: how far it moves when images are drawn anew, beside the mean of all draws."""
    low, high = value + np.quantile(drawn, [0.025, 0.975]) - np.mean(drawn)
    return float(low), float(high)


class ByClass(NamedTuple):
    """Both figures, each with its 95 % interval."""

    balanced_accuracy: float
    balanced_interval: Interval
    macro_f1: float
    macro_interval: Interval


def by_class(confusion: Int64[np.ndarray, "k k"]) -> ByClass | None:
    """See the head of this file; None without any image.

    Args:
        confusion: Counts; rows are the true classes, columns the predicted ones.
    """
    if not confusion.any():
        return None
    cells = np.argwhere(confusion)
    counts = confusion[tuple(cells.T)]
    drawn = np.random.default_rng(0).multinomial(int(counts.sum()), counts / counts.sum(), size=DRAWS)
    (recall, f1), (recalls, f1s) = _figures(cells, counts[None])[0].tolist(), _figures(cells, drawn).T.tolist()
    images = confusion.sum(axis=1)[confusion.any(axis=1)]
    alike = len(images) ** 2 / float((1 / images).sum())  # as many, spread evenly, tell as much of a mean of classes
    return ByClass(recall, drawn_interval(recall, recalls, alike), f1, drawn_interval(f1, f1s, alike))


def _figures(cells: Int64[np.ndarray, "c 2"], counts: Int64[np.ndarray, "draws c"]) -> Float[np.ndarray, "draws 2"]:
    """Balanced accuracy and macro F1 of several confusions with counts in the same cells."""
    names, places = np.unique(cells, return_inverse=True)
    true, said = places.reshape(cells.shape).T
    of = [np.zeros((len(counts), len(names))) for _ in range(3)]
    right = true == said
    for sums, index, some in zip(of, (true, said, true[right]), (counts, counts, counts[:, right]), strict=True):
        np.add.at(sums.T, index, some.T)
    images, predicted, hits = of
    with np.errstate(invalid="ignore"):
        recall, f1 = hits / images, 2 * hits / (images + predicted)  # nan of what no image of a draw has
    return np.stack([np.nanmean(recall, axis=1), np.nanmean(f1, axis=1)], axis=1)


# ---- as details and tables of a result


def figures_of(
    confusion: Int64[np.ndarray, "k k"],
    among_first: Bool[np.ndarray, " n"],
    reliable: Reliability | None,
    sets: tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]] | None,
) -> tuple[dict[str, Any], "tuple[Section, ...]"]:
    """What stands beside the accuracy, for JSON and as tables.

    Args:
        confusion: As of `by_class`.
        among_first: Whether the true class is among the first five.
        reliable: How far off the probabilities of the top classes are.
        sets: Whether each set of classes holds the true one, and how many it has; None where there are no sets.
    """
    from vitrail import pages  # of an evaluation alone

    rows, found = list[tuple[str, ...]](), by_class(confusion)
    details = dict[str, Any].fromkeys(("balanced_accuracy", "macro_f1", "top5_accuracy", "sets"))
    named = list[tuple[str, str, float, Interval]]()
    if found is not None:
        named.append(("balanced_accuracy", "balanced accuracy", found.balanced_accuracy, found.balanced_interval))
        named.append(("macro_f1", "macro F1", found.macro_f1, found.macro_interval))
    if len(confusion) > FIRST and len(among_first):
        hits, count = int(among_first.sum()), len(among_first)
        named.append(("top5_accuracy", "top-5 accuracy", hits / count, wilson_interval(hits, count)))
    if sets is not None and len(sets[0]):
        held, size = int(sets[0].sum()), float(sets[1].mean())
        share, ends = held / len(sets[0]), wilson_interval(held, len(sets[0]))
        details["sets"] = {"coverage": COVERAGE, "value": share, "interval": list(ends), "mean_size": size}
        many = "class" if size == 1 else "classes"
        what = f"true class is in its set (made for {percent_in_words(COVERAGE)}; {number(size, 3)} {many} on average)"
        named.append(("", what, share, ends))
    for key, words, value, ends in named:
        details |= {key: {"value": value, "interval": list(ends)}} if key else {}
        rows.append((words, percent(value, 2), f"{percent(ends[0], 2)} to {percent(ends[1], 2)}"))
    calibration, charts = reliability_of(reliable, len(among_first))
    details |= calibration
    rows += [calibration_row(reliable)] if reliable is not None else []
    table = (pages.Table("Beside the accuracy", ("", "value", "95 % interval"), tuple(rows)),) if rows else ()
    return details, (*table, *charts)


def calibration_row(found: Reliability) -> tuple[str, str, str]:
    """The calibration error as a row of a table, with what chance alone makes of it."""
    chance = f"of a calibrated network {percent(found.by_chance, 1)}, at most {percent(found.at_most, 1)}"
    return "expected calibration error", percent(found.error, 2), chance


def reliability_of(found: Reliability | None, images: int) -> tuple[dict[str, Any], "tuple[Section, ...]"]:
    """The calibration error for JSON, and the reliability diagram where there are enough images and two points."""
    details: dict[str, Any] = {"calibration_error": None if found is None else found.to_dict()}
    rows = together(found) if found is not None and images >= FOR_DIAGRAM else []
    if len(rows) < 2:
        return details, ()
    from vitrail.pages.chart import Series, line_chart, linear_axis

    counts, sure, right = ([row[place] for row in rows] for place in range(3))
    lines = [Series("right", right), Series("as often right as sure", sure)]
    of = " to ".join(dict.fromkeys(f"{count:,}" for count in (min(counts), max(counts))))
    title = f"How sure it is, and how often right (each point of {of} answers)"
    chart, ends = line_chart(title, sure, lines, write=percent_in_words), linear_axis([0.0, 1.0])
    return details, (replace(chart, x=ends, y=ends, along="probability of an answer"),)


def of_pairs(
    of: str, sureness: Float[np.ndarray, "n k"], right: Bool[np.ndarray, "n k"], known: Bool[np.ndarray, "n k"]
) -> tuple[dict[str, Any], "tuple[Section, ...]", tuple[dict[str, Any], ...]]:
    """How far off probabilities are that an image has several of: for JSON, as tables, and for `Result.sureness`.

    Args:
        of: What they are of: "label".
        sureness: The probability of each, by image.
        right: Whether it is right.
        known: Which of them are counted.
    """
    from vitrail import pages  # of an evaluation alone

    found = reliability(sureness[known].astype(np.float64), right[known], known.nonzero()[0])
    details, charts = reliability_of(found, len(known))
    if found is None:
        return details, charts, ()
    header = (f"over all pairs of image and {of}", "value", "by chance alone")
    rows = [(*ends, count, round(share * count)) for *ends, count, _, share in found.rows]
    counts = tuple({**dict(zip(("from", "to", "images", "right"), row, strict=True)), "of": of} for row in rows)
    return details, (pages.Table("Are the probabilities right", header, (calibration_row(found),)), *charts), counts


def together(found: Reliability) -> list[tuple[int, float, float]]:
    """Of ranges of sureness their answers, mean sureness and fraction that is right; neighbours until there are 30."""
    points = list[NDArray[np.float64]]()
    for row in (np.array([count, count * sure, count * right]) for *_, count, sure, right in found.rows):
        points[-1:] = [points[-1] + row] if points and points[-1][0] < FOR_POINT else [*points[-1:], row]
    if len(points) > 1 and points[-1][0] < FOR_POINT:
        points[-2:] = [points[-2] + points[-1]]
    return [(round(count), sure / count, right / count) for count, sure, right in (each.tolist() for each in points)]
