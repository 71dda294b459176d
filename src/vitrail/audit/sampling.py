"""Which images an audit asks: those with a verdict, and the trios in which shortcuts are looked for.

Verdicts are drawn class by class in turn, so that a rare class is asked as often as a frequent one. For shortcuts the
images of each class are halved by their group; of a group, and of near copies, one image is asked, so that each is a
witness of its own. Where the passes do not reach, classes with fewer images are left out, and that is said.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image

from vitrail.audit.edits import Edit
from vitrail.check.copies import chains_of, near_pairs
from vitrail.data.columns import VALIDATION, Samples
from vitrail.data.layout import Layout
from vitrail.data.pictures import grey_thumbnail, picture_hashes
from vitrail.data.sources import Data, name_passed, read_images
from vitrail.errors import DataError, counted
from vitrail.model import Model
from vitrail.nn import evaluating
from vitrail.runs.data import open_for, open_run
from vitrail.text import canonical

FIRST, SECOND = 16, 64  # images of a class in each half, at most
FEWEST = 6  # in each: of fewer no sign test reaches 0.05 beside others
PASSES = 500  # for each image with a verdict, all in all, where no time is given
OF_VERDICT, OF_TEST = 210, 20  # passes of an image, with its areas; of a trio of the second half
SLACK = 0.85  # of the time that is given: the rest is for all that is no pass
NO_LABELS = "These images have no labels, so there are rates of predictions only, and no class was tried for shortcuts."


class Trio(NamedTuple):
    """Rows of the images of one swap: of a class, of another, and of another again; and these classes."""

    own: int
    other: int
    third: int
    label: int
    others: tuple[int, int]


def trio_of(values: Sequence[Any]) -> Trio:
    """A trio that was written as JSON."""
    own, other, third, label, others = values
    return Trio(own, other, third, label, tuple(others))


@dataclass(frozen=True, eq=False)
class ChosenImages:
    """The images of an audit.

    Attributes:
        explained: Rows with a verdict.
        halves: The trios of the first half and of the second.
        asked: How many images of each class, by its output, stand in each half.
        notes: What was left aside, in sentences.
    """

    explained: list[int]
    halves: tuple[list[Trio], list[Trio]]
    asked: dict[int, tuple[int, int]]
    notes: tuple[str, ...]


def open_samples(
    model: Model, data: Data | None, root: Path | None, split: str | None, layout: Layout
) -> tuple[str, Samples, tuple[str, ...]]:
    """What is audited: its name, the samples, and what to know of them; without a column of labels they have none."""
    run, reader = open_run(model.loaded_from or None), None
    if data is not None:
        data, reader = name_passed(data, None, layout)
    if data is not None and reader is None and not run.knows(data):
        raw = read_images([data], run.root_for(data, root), layout=layout)
        if model.task.column not in raw.columns():
            return data, raw.held_out, (*raw.notes, NO_LABELS)
    if split is None and reader is None and run.facts.get("parts"):  # of the run's own data all that did not teach it
        split = VALIDATION
    found = open_for(model, run, data, root, split, reader, layout)
    return found.name, found.samples, found.notes


def classes_of(model: Model, samples: Samples) -> Int64[np.ndarray, " n"]:
    """The class of each image, as an output of the model; -1 where an image has none, or may have several."""
    words = samples.labels
    if words is None or model.task.column not in samples.columns:
        return np.full(len(samples), -1, np.int64)
    return np.array([model.output.number_of.get(canonical(word), -1) for word in words], np.int64)


def passes_in(model: Model, samples: Samples, seconds: float | None) -> float:
    """How many forward passes fit into so much time, by some of one image; without a limit there is none."""
    if seconds is None:
        return float("inf")
    images = model.tensor([next(_opened(samples, range(len(samples))))[1]])
    with evaluating(model.network), torch.no_grad():
        model.network(images)
        begin = time.perf_counter()
        for _ in range(3):
            model.network(images)
    return seconds * SLACK * 3 / (time.perf_counter() - begin)


def choose_images(
    model: Model, samples: Samples, images: int, within: Callable[[], float], edits: Sequence[Edit]
) -> ChosenImages:
    """Which images are asked, within so many passes; half of them are for verdicts at most.

    Args:
        model: That is audited.
        samples: Its images.
        images: How many get a verdict, at most.
        within: How many passes of the network there may be; see `passes_in`.
        edits: Which are tried, all on the first half.
    """
    passes, labels = within(), classes_of(model, samples)
    order = np.random.default_rng(0).permutation(len(samples)).tolist()
    turn, drawn = dict[int, int](), Counter[int]()
    for row in order:
        turn[row] = drawn[labels[row]]
        drawn[labels[row]] += 1
    count = min(images, len(samples), max(1, int(passes / 2 / OF_VERDICT)) if passes < float("inf") else images)
    explained = sorted(sorted(order, key=turn.__getitem__)[:count])
    left = min(passes, PASSES * count) - OF_VERDICT * count
    tried = 2 + sum(3 * (1 + (edit.area is not None)) for edit in edits)
    classes = sorted(set(labels[labels >= 0].tolist()), key=lambda label: (-drawn[label], label))
    if len(classes) < 2:
        alone = "Parts of the image were not tried for shortcuts: that takes labelled images of two classes."
        return ChosenImages(explained, ([], []), {}, (alone,))
    fitting = list[int]()
    for label in classes:
        left -= min(FIRST, drawn[label] // 2) * tried + min(SECOND, drawn[label] // 2) * OF_TEST
        fitting += [label] * (left >= 0)
    first, second = _witnesses(samples, labels, order, (fitting + classes)[: max(2, len(fitting))])
    asked = dict[int, tuple[int, int]]()
    for label in fitting:
        counts = int((labels[first] == label).sum()), int((labels[second] == label).sum())
        if min(counts) >= FEWEST:
            asked[label] = counts
    notes = list[str]()
    if len(asked) < len(classes):
        some = f"{len(asked)} of {counted(len(classes), 'class', 'classes')}"
        few, late = sum(label not in asked for label in fitting), len(classes) - len(fitting)
        whys = [f"{few} have fewer than {FEWEST} images in a half"] * bool(few)
        whys += [f"{late} did not fit into the time or the passes (--count, --max-time)"] * bool(late)
        notes.append(f"Parts of the image were tried for {some}: {', '.join(whys)}.")
    trios = draw_trios(labels, first, list(asked), 1), draw_trios(labels, second, list(asked), 2)
    return ChosenImages(explained, trios, asked, tuple(notes))


def _witnesses(
    samples: Samples, labels: Int64[np.ndarray, " n"], order: Sequence[int], classes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Rows of each half, some of each class: of a group, and of near copies, one image; none that cannot be read."""
    units, taken, side = list(samples.units()), set[str](), halves(samples.units())
    rows, counts = list[int](), Counter[tuple[int, int]]()
    for row in order:
        place = labels[row], side[units[row]]
        if labels[row] in classes and units[row] not in taken and counts[place] < (FIRST, SECOND)[place[1]]:
            counts[place] += 1
            taken.add(units[row])
            rows.append(row)
    read = list(_opened(samples, rows))
    grey = np.stack([grey_thumbnail(image) for _, image in read])
    chains = chains_of(len(read), near_pairs(grey, picture_hashes(grey)).pairs)
    alone = [row for number, (row, _) in enumerate(read) if chains[number] == number]
    return tuple([row for row in alone if side[units[row]] == half] for half in (0, 1))  # pyrefly: ignore


def halves(units: Sequence[str]) -> dict[str, int]:
    """On which half each group is, 0 or 1: every second one, in an order that its name alone decides."""
    ranked = sorted(dict.fromkeys(units), key=lambda unit: hashlib.blake2b(unit.encode("utf-8", "replace")).digest())
    return {unit: place % 2 for place, unit in enumerate(ranked)}


def _opened(samples: Samples, rows: Sequence[int]) -> Iterator[tuple[int, Image.Image]]:
    """Those that can be read."""
    for row in rows:
        with suppress(DataError):
            yield row, samples.images.open(row)


def draw_trios(labels: Int64[np.ndarray, " n"], rows: Sequence[int], classes: Sequence[int], seed: int) -> list[Trio]:
    """A trio for each image of these classes; the others are drawn in turn, so that each serves about as often.

    Args:
        labels: Of all images.
        rows: Those of a half.
        classes: That are asked.
        seed: Of the draw.
    """
    rng, found = np.random.default_rng(seed), list[Trio]()
    for label in classes:
        own = [row for row in rows if labels[row] == label]
        others = rng.permutation([row for row in rows if labels[row] != label])
        for place, row in enumerate(own):
            other, third = (int(others[(2 * place + k) % len(others)]) for k in (0, 1))
            found.append(Trio(row, other, third, label, (int(labels[other]), int(labels[third]))))
    return found
