"""What is wrong in data, or worth knowing, of what was seen of them: each with the images, what to do and what to type.

A *contradiction* is certain: images of one content with different labels, or with a copy in another split, or groups
that the data themselves name in two splits. All else may be right, and is for a person to look at.

Dark, blurred, empty, small and long are measured against the middle image, so that dark sets (cells) are not all dark.
Of 77,000 clean photographs, cells and digits, each holds for at most 0.3 % of a set.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from numpy.typing import NDArray

from vitrail.check.copies import Copies, chains_of, disagreeing, rows_of
from vitrail.check.groups import Grouping
from vitrail.check.survey import MODES, Survey
from vitrail.data.columns import ALL, TRAIN, Samples
from vitrail.data.images import DEEP, bits_of, convert_mode
from vitrail.data.layout import Layout
from vitrail.data.sources import outside
from vitrail.errors import DataError, counted, some_of
from vitrail.text import ShortRepr, capital

SHOWN = 6  # sets of images that are shown of a finding, and images of a set
SIDE = 112  # pixels of the longer side of an image that is shown
DARK, BLURRED, EMPTY, SMALL = 0.2, 0.125, 0.2, 0.25  # of the middle brightness, sharpness, contrast, shorter side
LONG = 3  # times as long as wide

Facts = Mapping[str, Any]
NO_FACTS: Mapping[Any, Any] = {}  # never changed


@dataclass(frozen=True, eq=False, repr=False)
class Picture(ShortRepr):
    """One image of a finding.

    Attributes:
        name: What it is called in its data.
        split: Where it is; `all` in data without splits.
        label: Its class or classes; empty where there is none.
        problem: Why it cannot be read; empty where it can.
        image: A small one; None where it is not shown.
        facts: What else is known of it, by name.
    """

    name: str
    split: str
    label: str = ""
    problem: str = ""
    image: UInt8[np.ndarray, "h w *c"] | None = None
    facts: Facts = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the image."""
        facts = {"file": self.name, "split": self.split, "label": self.label or None}
        return facts | ({"problem": self.problem} if self.problem else {}) | {**self.facts}


@dataclass(frozen=True, eq=False, repr=False)
class Finding(ShortRepr):
    """Something that a person should know, or do.

    Attributes:
        kind: In a word, such as `labels`, `leak`, `unreadable`.
        sentence: What was found.
        advice: What it means, and what to do.
        sets: The images: those that belong together, such as copies of each other, stand side by side.
        command: What to type; empty where nothing is to be typed.
        contradiction: Whether it is certain that the data contradict themselves.
    """

    kind: str
    sentence: str
    advice: str
    sets: tuple[tuple[Picture, ...], ...] = ()
    command: str = ""
    contradiction: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the names of all its images."""
        about = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "sets"}
        return {**about, "images": [[one.to_dict() for one in some] for some in self.sets]}


@dataclass(frozen=True, eq=False)
class Looked:
    """All that was seen of data, by which findings are made.

    Attributes:
        data: The word for them, as it may be typed.
        layout: How they are read.
        splits: Their samples.
        survey: Of n images.
        labels: (n,) classes; empty texts where there are none.
        classes: How many images of each class each split has.
        copies: Among the images.
        groupings: Given ones first.
        pictures: Whether findings have their images.
    """

    data: str
    layout: Layout
    splits: Mapping[str, Samples]
    survey: Survey
    labels: tuple[str, ...]
    classes: Mapping[str, Mapping[str, int]]
    copies: Copies
    groupings: tuple[Grouping, ...]
    pictures: bool = True

    @cached_property
    def sides(self) -> list[str]:
        """The split of each image."""
        return [self.survey.splits[number] for number in self.survey.rows["split"].tolist()]

    def command(self, verb: str, *more: str, layout: Layout | None = None) -> str:
        """A command on these data, read as they are here or by another layout."""
        return shlex.join(["vitrail", *verb.split(), self.data, *(layout or self.layout).words, *more])

    def listed(self, name: str) -> str:
        """Where a list goes, in a command: never into the folder of the data."""
        return str(outside(Path(name), self.data))

    def units(self, groupings: Iterable[Grouping]) -> Int64[np.ndarray, " n"]:
        """For each image the first of those that it belongs to: copies, and the groups of these groupings."""
        tied = [(rows[0], row) for each in groupings for rows in each.groups.values() for row in rows[1:]]
        pairs = np.array(tied, np.int64).reshape(-1, 2)
        return chains_of(len(self.survey), np.concatenate([self.copies.pairs, pairs]))

    def show(
        self, sets: Iterable[Sequence[int]], facts: Mapping[int, Facts] = NO_FACTS
    ) -> tuple[tuple[Picture, ...], ...]:
        """Sets of rows as images, of which the first are shown; with facts of some rows."""
        return tuple(
            tuple(self._picture(row, place < SHOWN and nth < SHOWN, facts) for nth, row in enumerate(rows))
            for place, rows in enumerate(sets)
        )

    def show_each(self, rows: Sequence[int], facts: Mapping[int, Facts] = NO_FACTS) -> tuple[tuple[Picture, ...], ...]:
        """Images that do not belong together, as one set; with facts of some rows."""
        return (tuple(self._picture(row, nth < 2 * SHOWN, facts) for nth, row in enumerate(rows)),) if rows else ()

    def _picture(self, row: int, shown: bool, facts: Mapping[int, Facts]) -> Picture:
        image, problem = None, self.survey.problems.get(row, "")
        if shown and self.pictures and not problem:
            images, index = self.splits[self.sides[row]].images, int(self.survey.rows["index"][row])
            try:
                image = thumbnail(images.open(index))
            except DataError as error:  # changed since
                problem = error.problem
        about = self.survey.names[row], self.sides[row], self.labels[row]
        return Picture(*about, problem, image, facts.get(row, NO_FACTS))

    def across(self, groups: Iterable[Sequence[int]]) -> list[list[int]]:
        """Those groups that are in more than one split, training first in each."""
        order = {split: place for place, split in enumerate(self.survey.splits)}
        several = [rows for rows in groups if len({self.sides[row] for row in rows}) > 1]
        return [sorted(rows, key=lambda row: order[self.sides[row]]) for rows in several]

    def in_another(self, groups: Iterable[Sequence[int]], words: str) -> str:
        """How many images of each split but the first are in groups, and what is said of them."""
        of, totals = Counter(self.sides[row] for rows in groups for row in rows), Counter(self.sides)
        parts = [f"{of[split]:,} of {totals[split]:,} images of {split}" for split in [*self.splits][1:] if of[split]]
        return said(sum(of[split] for split in [*self.splits][1:]), words, of=" and ".join(parts))


def thumbnail(image: Any, side: int = SIDE) -> UInt8[np.ndarray, "h w *c"]:
    """A decoded image, small, grey or in colour."""
    bits = 16 if DEEP in image.info else bits_of(image) or None
    image = convert_mode(image, 1 if image.mode in ("1", "L") else 3, bits=bits)
    image.thumbnail((side, side))
    return np.asarray(image)


_OF_ONE = {
    "are": "is",
    "have": "has",
    "use": "uses",
    "show": "shows",
    "stand": "stands",
    "seem": "seems",
    "belong": "belongs",
}


def said(count: int, words: str, unit: str = "image", of: str = "") -> str:
    """1 image is dark, 2 images are dark; of a split, where it is named."""
    first, _, rest = words.partition(" ")
    return f"{of or counted(count, unit)} {_OF_ONE.get(first, f'{first}s') if count == 1 else first} {rest}"


def find(seen: Looked, by_model: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """All that was found, with what a model found, in the order in which it is to be done: contradictions first."""
    parts = (
        _labels,
        _leaks,
        _unreadable,
        _missing_classes,
        _class_names,
        lambda seen: by_model,
        _copies,
        _groups,
        _files,
        _looks,
    )
    found = [each for part in parts for each in part(seen)]
    return tuple(sorted(found, key=lambda each: not each.contradiction))


# ---- images that are there more than once, and those that belong together


def _exact(seen: Looked) -> list[list[int]]:
    """The rows of each content that is there more than once."""
    chains = chains_of(len(seen.survey), seen.copies.pairs[seen.copies.kinds == 0])
    return rows_of(chains)


def _labels(seen: Looked) -> Iterator[Finding]:
    exact = disagreeing(_exact(seen), seen.labels)
    known = {row for rows in exact for row in rows}
    near = [rows for rows in disagreeing(seen.copies.groups(), seen.labels) if not known & {*rows}]
    for groups, what in ((exact, "the same content"), (near, "near copies")):
        if not groups:
            continue
        between = Counter(" and ".join(sorted({seen.labels[row] or "none" for row in rows})) for rows in groups)
        pairs = some_of([f"{labels} ({count})" for labels, count in between.most_common()], 3)
        sentence = f"{said(len(groups), 'stand under different labels', 'picture')} ({what}): {pairs}."
        either = between.most_common(1)[0][0].split(" and ")
        advice = "Look at each. Where one label is wrong, remove that copy. Where both are right, an image has several "
        advice += f"labels: list it once, with {'|'.join(either)} in a column labels."
        yield Finding("labels", sentence, advice, seen.show(groups), "", groups is exact)


def _leaks(seen: Looked) -> Iterator[Finding]:
    exact = seen.across(_exact(seen))
    known = {row for rows in exact for row in rows}
    near = [rows for rows in seen.across(seen.copies.groups()) if not known & {*rows}]
    keep = "Nearly the same was seen in training, so that accuracy on them says little. Keep each on one side."
    for across, what in ((exact, "an exact copy"), (near, "a near copy")):
        if across:
            command = seen.command("data check", "--fix-split", seen.listed("split.csv"))
            sentence = seen.in_another(across, f"have {what} in another split.")
            yield Finding("leak", sentence, keep, seen.show(across), command, across is exact)
    for grouping in seen.groupings:
        if across := seen.across(grouping.groups.values()):
            words = f"{'belong' if grouping.given else 'seem to belong'} to a group that is in another split, too"
            sentence = f"{seen.in_another(across, words)} ({_known_by(grouping, len(across))})."
            advice = (
                keep if grouping.given else f"{capital(grouping.reason)}. If they are of one recording, patient or "
            )
            advice += "" if grouping.given else f"scene: {keep[:1].lower()}{keep[1:]}"
            yield Finding("leak", sentence, advice, seen.show(across), _take_over(seen, grouping), grouping.given)


def _known_by(grouping: Grouping, count: int) -> str:
    """How many groups, by what they are known, and how sure that is."""
    sure = "" if grouping.given else f", how sure: {grouping.sure:.2f} of 1"
    return f"{counted(count, 'group')} by {grouping.kind}{sure}"


def _take_over(seen: Looked, grouping: Grouping, verb: str = "data check") -> str:
    """The command that reads the data with these groups, which are listed in a column first where no pattern says."""
    split = ["--fix-split", seen.listed("split.csv")] if verb == "data check" else []
    if grouping.layout is not None:
        return seen.command(verb, *split, layout=grouping.layout)
    listed = seen.command("data check", "--fix-split", seen.listed("groups.csv"))
    again = ["vitrail", *verb.split(), seen.listed("groups.csv"), "--group-column", grouping.kind, *split]
    return f"{listed} && {shlex.join(again)}"


def _copies(seen: Looked) -> Iterator[Finding]:
    inside = [rows for rows in seen.copies.groups() if len({seen.sides[row] for row in rows}) == 1]
    if inside:
        exact = {row for rows in _exact(seen) for row in rows}
        alike = sum({*rows} <= exact for rows in inside)
        sentence = said(len(inside), "are there more than once in a split", "picture")
        kinds = (alike, "with the same content"), (len(inside) - alike, "saved again, resized or mirrored")
        sentence += f": {', '.join(f'{count:,} {words}' for count, words in kinds if count)}."
        advice = "Each counts as often as it is there. One of each is enough."
        command = ""
        if ALL in seen.splits:
            advice += " A list keeps copies on one side when some are held out."
            command = seen.command("data check", "--fix-split", seen.listed("split.csv"))
        yield Finding("copies", sentence, advice, seen.show(inside), command)


def _groups(seen: Looked) -> Iterator[Finding]:
    for grouping in seen.groupings if ALL in seen.splits else ():
        if not grouping.given:
            known = _known_by(grouping, len(grouping.groups))
            sentence = f"{said(grouping.images, 'seem to belong together')} ({known})."
            advice = f"{capital(grouping.reason)}. If they are of one recording, patient or scene, hold out whole "
            advice += "groups: else accuracy is of pictures of which nearly the same was seen in training."
            shown = seen.show(grouping.groups.values())
            yield Finding("groups", sentence, advice, shown, _take_over(seen, grouping, "train"))


# ---- files and classes


def _unreadable(seen: Looked) -> Iterator[Finding]:
    if rows := [*seen.survey.problems]:
        empty = sum("0 bytes" in problem for problem in seen.survey.problems.values())
        sentence = f"{counted(len(rows), 'image')} cannot be read" + f", {empty:,} of them empty (0 bytes)" * bool(
            empty
        )
        names = some_of([seen.survey.names[row] for row in rows], 3)
        advice = "Left out of everything. Ask for such files again, or remove them."
        yield Finding("unreadable", f"{sentence}: {names}.", advice, seen.show_each(rows))


def _missing_classes(seen: Looked) -> Iterator[Finding]:
    if 5 * len(seen.classes) > len(seen.survey):  # counts or ages: each is a class of its own
        return
    for split in seen.splits if ALL not in seen.splits else ():
        missing = [name for name, of in seen.classes.items() if not of.get(split)]
        if not missing:
            continue
        advice = "Their accuracy is not measured there. Move some images of each into it."
        if split == TRAIN:
            advice = "A model cannot learn what it never sees: these images are left out of every figure."
        sentence = f"{split} has no image of {counted(len(missing), 'class', 'classes')}: {some_of(missing)}."
        yield Finding("missing class", sentence, advice)


def _class_names(seen: Looked) -> Iterator[Finding]:
    called = Counter(name.casefold().strip() for name in seen.classes)
    if alike := [name for name in seen.classes if called[name.casefold().strip()] > 1]:
        sentence = f"Classes are called alike but for capitals and blanks: {some_of(sorted(alike, key=str.casefold))}."
        yield Finding("class names", sentence, "If they are one class, give it one name: each is learnt apart.")


_Mask = Callable[[NDArray[Any]], Bool[np.ndarray, " n"]]
_FILES: tuple[tuple[str, str, str, tuple[str, ...], _Mask], ...] = (
    (
        "CMYK",
        "are stored for print (CMYK)",
        "Their colours are converted by a simple formula, without a colour profile. Save them as RGB.",
        (),
        lambda rows: rows["mode"] == MODES.index("CMYK"),
    ),
    (
        "transparent",
        "have transparent pixels",
        "These become mid grey. Lay them on the colour that they stood on.",
        (),
        lambda rows: rows["alpha"],
    ),
    (
        "animated",
        "are animated or of several pages",
        "Only the first page is read. Save the others as files of their own, of one group.",
        (),
        lambda rows: rows["frames"],
    ),
    (
        "turned",
        "are stored turned (EXIF)",
        "vitrail turns them upright. Other programs may not: check where boxes or masks were drawn.",
        (),
        lambda rows: rows["orientation"] > 1,
    ),
    (
        "long",
        f"are more than {LONG} times as long as wide: a centre crop cuts the ends away",
        "--resize pad fits them in whole, --resize squash stretches them.",
        ("--resize", "pad"),
        lambda rows: np.maximum(rows["width"], rows["height"]) > LONG * _shorter(rows),
    ),
)


def _shorter(rows: NDArray[Any]) -> NDArray[Any]:
    return np.minimum(rows["width"], rows["height"])


def _files(seen: Looked) -> Iterator[Finding]:
    rows, good = seen.survey.rows, seen.survey.readable
    deep = np.flatnonzero(good & (rows["bits"] > 0)).tolist()
    used = int(rows["bits"].max(initial=0))
    if deep and used < 16:
        sentence = f"{said(len(deep), 'use')}only {used} of 16 bits."
        advice = f"Read as if they used 16 they would be nearly black. A training measures it; --bits {used} says it."
        command = seen.command("train", "--bits", str(used))
        yield Finding("16 bits", sentence, advice, seen.show_each(deep), command)
    for kind, words, advice, options, mask in _FILES:
        if some := np.flatnonzero(good & mask(rows)).tolist():
            command = seen.command("train", *options) if options else ""
            yield Finding(kind, f"{said(len(some), words)}.", advice, seen.show_each(some), command)


def _looks(seen: Looked) -> Iterator[Finding]:
    rows, good = seen.survey.rows, seen.survey.readable
    if not good.any():
        return
    middle = {name: float(np.median(rows[name][good])) for name in ("brightness", "sharpness", "contrast")}
    short = _shorter(rows)
    light = np.clip(rows["brightness"] / (middle["brightness"] or 1), 0.01, 1)  # a dark image has less contrast
    empty = rows["contrast"] < EMPTY * middle["contrast"] * light
    told = {
        "empty": (empty, "show nearly nothing: one colour all over"),
        "dark": (~empty & (rows["brightness"] < DARK * middle["brightness"]), "are far darker than the others"),
        "blurred": (~empty & (rows["sharpness"] < BLURRED * middle["sharpness"]), "are far less sharp than the others"),
        "small": (short < SMALL * np.median(short[good]), "are far smaller than the others"),
    }
    for kind, (mask, words) in told.items():
        if some := np.flatnonzero(good & mask).tolist():
            sentence = f"{said(len(some), words)}."
            yield Finding(kind, sentence, "Remove what nobody could recognise.", seen.show_each(some))
