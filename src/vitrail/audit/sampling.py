"""Which images an audit asks: those with a verdict, and the trios in which shortcuts are looked for.

Verdicts are drawn class by class in turn, so that a rare class is asked as often as a frequent one. For shortcuts the
images of each class are halved by their group; of a group, and of near copies, one image is asked, so that each is a
witness of its own. Where the passes do not reach, fewer images of each class are asked; where that is not enough,
classes with fewer images are left out, and it is said which.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int8, Int64
from PIL import Image

from vitrail.audit.edits import Edit, passes_of
from vitrail.check.copies import chains_of, near_pairs
from vitrail.data.columns import ALL, GROUP, TEST, TRAIN, VALIDATION, Samples
from vitrail.data.dataset import Split, choose_split
from vitrail.data.layout import Layout
from vitrail.data.pictures import are_told_apart, grey_thumbnail, picture_hashes
from vitrail.data.sources import Data, name_passed, read_images
from vitrail.errors import DataError, some_of
from vitrail.model import Model
from vitrail.nn import evaluating
from vitrail.runs.data import open_for, open_run

SIZES = ((16, 64), (12, 40), (8, 20), (6, 12))  # of halves, images of a class at most: the first that fits for all
TRIED = 10  # times as many images as get a verdict, of which some cannot be read
SPARE = 8  # more of each class and half are read, of which some may be copies, or cannot be read
LEAST_SIZE = 6  # of a half: of fewer no sign test reaches 0.05 beside others
STRANGERS = 30  # images, of which it is known how much alike strangers look
PASSES = 500  # for each image with a verdict, all in all, where no time is given
OF_VERDICT, OF_TEST = 210, 26  # passes of an image, with its areas; of a trio of the second half
BLOCK = 1024  # images of which it is known at a time what each class is
TOGETHER = 16  # images of a pass that is timed
SLACK = 0.85  # of the time that is given: the rest is for all that is no pass
NO_CLASSES = "Parts of the image were not tried for shortcuts: that takes labelled images of two classes."
TAUGHT = (
    "The model learnt from images of this split. It knows these, so that its answers, and what they rest on, say "
    "little of other images; --split test or validation asks others."
)
NO_LABELS = "so there are rates of predictions only, and no class was tried for shortcuts."


class Trio(NamedTuple):
    """Rows of the images of one swap: of a class, and two without it; and all classes of these two."""

    own: int
    other: int
    third: int
    label: int
    others: tuple[int, ...]


def trio_of(values: Sequence[Any]) -> Trio:
    """A trio that was written as JSON."""
    own, other, third, label, others = values
    return Trio(own, other, third, label, tuple(others))


@dataclass(frozen=True, eq=False)
class SearchedImages:
    """The images in which shortcuts are looked for.

    Attributes:
        halves: The trios of the first half and of the second.
        asked: How many trios of each class, by its output, stand in each half.
        left: Which classes are not searched for shortcuts.
        notes: What was left aside, in sentences.
    """

    halves: tuple[list[Trio], list[Trio]]
    asked: dict[int, tuple[int, int]]
    left: tuple[int, ...]
    notes: tuple[str, ...]

    @staticmethod
    def of(row: Mapping[str, Any]) -> "SearchedImages":
        """Those that were written as JSON."""
        first, second = ([trio_of(trio) for trio in half] for half in row["halves"])
        asked = {int(label): (own, others) for label, (own, others) in row["asked"].items()}
        return SearchedImages((first, second), asked, tuple(row["left"]), tuple(row["notes"]))


def open_split(model: Model, data: Data | None, root: Path | None, split: str | None, layout: Layout) -> Split:
    """What is audited; without a column of labels its samples have none."""
    run, reader = open_run(model.loaded_from or None), None
    if data is not None:
        data, reader = name_passed(data, None, layout)
    own = data is None or run.knows(data)
    if data is not None and reader is None and not own:
        raw = read_images([data], run.root_for(data, root), layout=layout)
        if model.task.column not in raw.columns():
            split, samples = choose_split(data, raw, None, split)
            there = sorted({*raw.columns()} - {GROUP})
            what = f"{model.task.column}, which the model answers (they have {', '.join(there)})" if there else "labels"
            return Split(samples, split, {}, (*raw.notes, f"These images have no {what}, {NO_LABELS}"), data)
    if split is None and own and run.facts.get("parts") and TEST not in run.facts["images"]:
        split = VALIDATION  # all that did not teach it
    found = open_for(model, run, data, root, split, reader, layout)
    taught = found.split in (TRAIN, ALL) and own and bool(run.facts)
    return replace(found, notes=(*found.notes, TAUGHT)) if taught else found


def known_labels(model: Model, samples: Samples) -> Int8[np.ndarray, "n v"]:
    """Of each image and each output of the model whether that class or label is there: 1, 0, or -1 where not known.

    Of models of numbers or of several columns nothing is: what they say is not there or absent.
    """
    output, name = model.output, model.task.column
    found = np.full((len(samples), output.outputs), -1, np.int8)
    if name not in samples.columns:
        return found
    match = output.match(samples.column(name))
    targets = output.targets(match.column.take(np.arange(len(match.column))))
    if output.limits is None and (targets.ndim > 1 or targets.is_floating_point()):
        return found
    rows = np.arange(len(found)) if match.ids is None else match.ids
    if targets.ndim == 1:
        found[rows] = 0
        found[rows, targets.numpy()] = 1
    else:
        found[rows] = targets.nan_to_num(-1).numpy()
    return found


def kinds_in(known: Int8[np.ndarray, "n v"]) -> list[tuple[int, ...]]:
    """The classes or labels of each image; where it is known to have none of them, one more stands for that."""
    there = np.concatenate([known > 0, ((known == 0).any(axis=1) & ~(known > 0).any(axis=1))[:, None]], axis=1)
    return [tuple(np.flatnonzero(own).tolist()) for own in there]


def kinds_of(model: Model, samples: Samples) -> list[tuple[int, ...]]:
    """The same of all images, some at a time: of millions a byte for each class would not fit into memory."""
    found, same = list[tuple[int, ...]](), dict[tuple[int, ...], tuple[int, ...]]()
    for first in range(0, len(samples), BLOCK):
        block = samples.select(np.arange(first, min(first + BLOCK, len(samples))))
        found += [same.setdefault(kinds, kinds) for kinds in kinds_in(known_labels(model, block))]
    return found


def passes_in(model: Model, samples: Samples, seconds: float | None) -> float:
    """How many forward passes fit into so much time, by one of several images; without a limit there is none.

    Raises:
        DataError: No image can be read.
    """
    if seconds is None:
        return float("inf")
    readable = (image for _, image in readable_images(samples, range(len(samples))))
    images = model.tensor([next(readable, None) or samples.images.open(0)] * TOGETHER)
    with evaluating(model.network), torch.no_grad():
        model.network(images)
        begin = time.perf_counter()
        model.network(images)
    return seconds * SLACK * TOGETHER / (time.perf_counter() - begin)


def choose_explained(model: Model, samples: Samples, images: int, passes: float) -> list[int]:
    """Rows of the images that get a verdict, at most so many, and what takes at most half of these passes.

    Those that cannot be read stand among them, each beside another of its turn, so that they are told.
    """
    kinds, order = kinds_of(model, samples), _order_of(samples)
    count = min(images, len(samples))
    if passes < float("inf"):
        count = min(count, max(1, int(passes / 2 / OF_VERDICT)))
    found, readable = list[int](), 0
    for row in in_turn(kinds, order)[: TRIED * count]:
        if readable == count:
            break
        found.append(row)
        readable += len([*readable_images(samples, [row])])
    return sorted(found)


def choose_searched(
    model: Model, samples: Samples, explained: int, passes: float, edits: Sequence[Edit]
) -> SearchedImages:
    """Which images are searched for shortcuts.

    Args:
        model: That is audited.
        samples: Its images.
        explained: How many got a verdict.
        passes: Of the network that are left, see `passes_in`; without a limit there are so many for each verdict.
        edits: Which are tried, all on the first half.
    """
    kinds, order = kinds_of(model, samples), _order_of(samples)
    units = zip(samples.units(), kinds, strict=True)
    count_of = Counter(kind for kind, _ in {(kind, unit) for unit, own in units for kind in own})
    if len(count_of) < 2:
        notes = (NO_CLASSES,) * (model.task.column in samples.columns)  # without labels it is said already
        return SearchedImages(([], []), {}, (), notes)
    classes = sorted((kind for kind in count_of if kind < model.output.outputs), key=lambda one: (-count_of[one], one))
    left = min(passes, (PASSES - OF_VERDICT) * explained)
    counts = [count_of[label] for label in classes]
    plans = [(most, fitting_classes(counts, left, edits, most)) for most in SIZES]
    most, fitting = next((plan for plan in plans if plan[1] == len(classes)), plans[-1])
    beside = np.cumsum([min(count // 2, most[1]) for count in counts[1:]])  # others of the largest class: two a trio
    some = classes[: max(fitting, 2 + int(np.searchsorted(beside, 2 * most[1])))]
    each = 1 if (beside >= 2 * most[1]).any() else 2
    read = each * most[0] + SPARE, each * most[1] + SPARE
    sides = _witnesses(samples, kinds, order, [*some, model.output.outputs], read)
    asked, every = dict[int, tuple[int, int]](), np.array([*sides[0], *sides[1]], np.int64)
    known = np.split(known_labels(model, samples.select(every)), [len(sides[0])])
    for label in classes[:fitting]:
        there, others = ([int((half[:, label] == value).sum()) for half in known] for value in (1, 0))
        first, second = (min(there[half], others[half] // 2, most[half]) for half in (0, 1))
        if min(first, second) >= LEAST_SIZE:
            asked[label] = first, second
    trios = draw_trios(known[0], sides[0], asked, most[0], 1), draw_trios(known[1], sides[1], asked, most[1], 2)
    late = [label for label in classes[fitting:] if count_of[label] >= 2 * LEAST_SIZE]
    few = [label for label in classes if label not in asked and label not in late]
    notes = _left_aside([*map(model.output.name, few)], [*map(model.output.name, late)])
    return SearchedImages(trios, asked, (*few, *late), notes)


def _order_of(samples: Samples) -> list[int]:
    """All rows at random, the same each time."""
    return np.random.default_rng(0).permutation(len(samples)).tolist()


def in_turn(kinds: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Rows so that each class comes once before any comes again; of several labels an image stands for its rarest.

    Args:
        kinds: The classes or labels of each image.
        order: Of the rows, at random, in which those of a class come.
    """
    count_of, turn, drawn = Counter(kind for own in kinds for kind in own), dict[int, int](), Counter[int]()
    for row in order:
        rarest = min(kinds[row], key=lambda kind: (count_of[kind], kind), default=-1)
        turn[row] = drawn[rarest]
        drawn[rarest] += 1
    return sorted(order, key=turn.__getitem__)


def fitting_classes(counts: Sequence[int], passes: float | int, edits: Sequence[Edit], most: tuple[int, int]) -> int:
    """How many classes can be searched for shortcuts, those with the most images first.

    Args:
        counts: Of the images of each class, in falling order.
        passes: Of the network that there may be.
        edits: Which are tried, all on the first half.
        most: Images of a class in each half, at most.
    """
    halved, tried = [count // 2 for count in counts], passes_of(edits)
    passes -= min(most[0], halved[0]) * tried  # which the patches of a named area may take
    costs = np.cumsum([min(most[0], half) * tried + min(most[1], half) * OF_TEST for half in halved])
    return int((costs <= passes).sum())


def _left_aside(few: Sequence[str], late: Sequence[str]) -> tuple[str, ...]:
    """Of which classes no part of the image was tried, and why."""
    few, late = ([f"“{name}”" for name in names] for names in (few, late))
    why = (
        f"that takes {LEAST_SIZE} images of a class and {2 * LEAST_SIZE} others in each half, where copies and images "
        "of one group count once"
    )
    notes = [f"No part of the image was tried for {some_of(few)}: {why}."] * bool(few)
    why = "they did not fit into the time or the passes (--count, --max-time)"
    return (*notes, *[f"No part of the image was tried for {some_of(late)}: {why}."] * bool(late))


def _witnesses(
    samples: Samples,
    kinds: Sequence[Sequence[int]],
    order: Sequence[int],
    classes: Sequence[int],
    most: tuple[int, int],
) -> tuple[list[int], list[int]]:
    """Rows of each half, some of each class: of a group, and of near copies, one image; none that cannot be read."""
    units, taken = list(samples.units()), set[str]()
    side = halves(units, kinds)
    rows, counts, wanted = list[int](), Counter[tuple[int, int]](), {*classes}
    for row in order:
        places = [(kind, side[units[row]]) for kind in kinds[row] if kind in wanted]
        if units[row] not in taken and any(counts[place] < most[place[1]] for place in places):
            counts.update(places)
            taken.add(units[row])
            rows.append(row)
    read = list(readable_images(samples, rows))
    chains = chains_of(len(read), pairs_of_copies([image for _, image in read]))
    alone = [row for number, (row, _) in enumerate(read) if chains[number] == number]
    return tuple([row for row in alone if side[units[row]] == half] for half in (0, 1))  # pyrefly: ignore


def pairs_of_copies(images: Sequence[Image.Image]) -> Int64[np.ndarray, "m 2"]:
    """Pairs of near copies; where strangers look as much alike, as digits do, only those with the same pixels.

    Of too few images to know that, what looks like a copy is taken for one.
    """
    if not images:
        return np.zeros((0, 2), np.int64)
    grey = np.stack([grey_thumbnail(image) for image in images])
    if are_told_apart(hashes := picture_hashes(grey)) or len(images) < STRANGERS:
        return near_pairs(grey, hashes).pairs
    first = dict[tuple[Any, bytes], int]()
    same = [first.setdefault((image.size, image.tobytes()), number) for number, image in enumerate(images)]
    return np.stack([same, np.arange(len(images))], axis=1)


def halves(units: Sequence[str], kinds: Sequence[Sequence[int]]) -> dict[str, int]:
    """On which half each group is, 0 or 1: every second one of each class, in an order that its name alone decides.

    Args:
        units: The group of each image.
        kinds: The classes or labels of each; a group counts for its rarest.
    """
    counts, rarest, place = Counter(kind for own in kinds for kind in own), dict[str, int](), Counter[int]()
    for unit, own in zip(units, kinds, strict=True):
        each = [*own, rarest[unit]] if unit in rarest else own
        rarest[unit] = min(each, key=lambda kind: (counts[kind], kind), default=-1)
    side = dict.fromkeys(units, 0)
    for unit in sorted(side, key=lambda each: hashlib.blake2b(each.encode("utf-8", "replace")).digest()):
        side[unit] = place[rarest[unit]] % 2
        place[rarest[unit]] += 1
    return side


def readable_images(samples: Samples, rows: Sequence[int]) -> Iterator[tuple[int, Image.Image]]:
    """Those that can be read."""
    for row in rows:
        with suppress(DataError):
            yield row, samples.images.open(row)


def draw_trios(
    known: Int8[np.ndarray, "m v"], rows: Sequence[int], classes: Iterable[int], most: int, seed: int
) -> list[Trio]:
    """A trio for each image of these classes; of a class each image serves once, so that its trios are independent.

    Args:
        known: Of the images of a half whether each class is there.
        rows: Of these images.
        classes: That are asked.
        most: Trios of a class, at most.
        seed: Of the draw.
    """
    rng, found = np.random.default_rng(seed), list[Trio]()
    for label in classes:
        own, others = (np.flatnonzero(known[:, label] == value) for value in (1, 0))
        others = rng.permutation(others).tolist()
        for at, other, third in zip(own[:most].tolist(), others[::2], others[1::2], strict=False):
            kinds = kinds_in(known[[other, third]])
            found.append(Trio(rows[at], rows[other], rows[third], label, kinds[0] + kinds[1]))
    return found
