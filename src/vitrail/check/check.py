"""`vitrail data check`: what data hold, what belongs together in them, what is wrong, and what to do first."""

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from vitrail.arguments import typed
from vitrail.check.copies import KINDS as KINDS_OF_COPIES, find_copies, rows_of
from vitrail.check.findings import Finding, Looked, find
from vitrail.check.groups import Grouping, found_groups, given_groups
from vitrail.check.neighbours import groups_by_features, kept_features
from vitrail.check.survey import KINDS, MODES, Survey, quick_survey, survey
from vitrail.check.suspects import ByModel, look_by_model
from vitrail.data.columns import ALL, ATTRIBUTES, GROUP, LABEL, LABELS, NUMBER, SPLITS, TRAIN, RawDataset
from vitrail.data.dataset import divide
from vitrail.data.images import Images, convert_mode
from vitrail.data.layout import AS_FOUND, Layout, with_groups
from vitrail.data.sources import Data, check_outside, is_passed, read
from vitrail.errors import DataError, Hint, UsageError, counted, some_of
from vitrail.features.embed import Progress
from vitrail.io import check_writable, free_name, write_file
from vitrail.model import Model, load
from vitrail.pages.render import data_page, in_frame

MOST_EXAMPLES = 3
QUICK_KINDS = "labels", "leak", "unreadable", "missing class", "long"  # of findings that a quick check names; at most
QUICK_SAID = 3
KEPT = "1", "L", "LA", "P", "I", "I;16", "RGB", "RGBA"  # modes of images that a PNG keeps
WITHOUT_MODEL = (
    "Recordings were looked for by names, folders and cameras. Of others only frames that are near copies are found; "
    "a model (--model) finds more."
)
ONLY_EXACT = "Unrelated images look as much alike as copies here, so only exact copies were looked for."


@dataclass(frozen=True, eq=False)
class DataReport:
    """What was found in data.

    Attributes:
        data: What was checked.
        splits: How many images each has.
        classes: How many images of each class each split has; empty without classes.
        several: Whether an image may have several labels.
        files: Sizes, proportions, modes and formats of the images, in plain values.
        findings: What is wrong or worth knowing, in the order in which it is to be done.
        groupings: In which ways images belong together: those that are given, then those that were found.
        copies: How many pairs of copies there are of each kind, and whether near ones were looked for.
        by_model: What a model says of labels, of images unlike those in training, and of accuracy by the distance to
            these; None without a model.
        notes: How the data were read, and what was not looked at, one sentence each.
        fixed: What was written by `fix_split`: the list, the images of each split, how many changed theirs; None for
            nothing.
    """

    data: str
    splits: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]]
    several: bool
    files: Mapping[str, Any]
    findings: tuple[Finding, ...]
    groupings: tuple[Grouping, ...]
    copies: Mapping[str, Any]
    by_model: ByModel | None
    notes: tuple[str, ...]
    fixed: Mapping[str, Any] | None

    def __repr__(self) -> str:
        """In at most five lines: how many images, and what to do first."""
        first = [f"  {number}. {each.sentence[:110]}" for number, each in enumerate(self.findings[:4], 1)]
        return "\n".join([f"DataReport {self.data}: {self.count:,} images, {len(self.findings)} findings", *first])

    def _repr_html_(self) -> str:
        return in_frame(self.page())

    @property
    def count(self) -> int:
        """How many images there are in all splits."""
        return sum(self.splits.values())

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """Those findings in which data certainly contradict themselves."""
        return tuple(each for each in self.findings if each.contradiction)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without images."""
        return {
            "data": self.data,
            "images": self.count,
            "splits": dict(self.splits),
            "classes": {name: dict(of) for name, of in self.classes.items()},
            "several_labels": self.several,
            "files": dict(self.files),
            "contradictions": len(self.contradictions),
            "findings": [each.to_dict() for each in self.findings],
            "groups": [_about(each) for each in self.groupings],
            "copies": dict(self.copies),
            "by_model": None if self.by_model is None else self.by_model.to_dict(),
            "notes": list(self.notes),
            "fix_split": None if self.fixed is None else dict(self.fixed),
        }

    def page(self, command: str = "") -> str:
        """One HTML page with the images themselves, which loads nothing.

        Args:
            command: That made it.
        """
        return data_page(self, [_about(each) for each in self.groupings], command)


def _about(grouping: Grouping) -> dict[str, Any]:
    """A grouping in plain values, with the largest groups for examples."""
    largest = sorted(grouping.groups, key=lambda name: -len(grouping.groups[name]))[:MOST_EXAMPLES]
    layout = grouping.layout
    return {
        "kind": grouping.kind,
        "groups": len(grouping.groups),
        "images": grouping.images,
        "sure": grouping.sure,
        "reason": grouping.reason,
        "examples": {name: len(grouping.groups[name]) for name in largest},
        "group_pattern": (layout and layout.group_pattern) or None,
        "group_column": (layout and layout.group_column) or None,
    }


@typed
def check_data(
    data: Data,
    *,
    layout: Layout = AS_FOUND,
    data_root: str | Path | None = None,
    model: str | Path | Model | None = None,
    fix_split: str | Path | None = None,
    crops: bool = False,
    progress: Progress = lambda done, total: None,
) -> DataReport:
    """Look at all images of data, and say what is wrong and what to do first; no file of theirs is touched.

    Args:
        data: What `train` reads: a named set, a folder, a list, shards, an object.
        layout: Its columns and groups, where they are named.
        data_root: The folder of named sets.
        model: A ViT, or what `vitrail.load` opens, by which recordings are found that nothing else shows, labels that
            may be wrong, and images unlike all in training. Its features are kept in the user's cache.
        fix_split: A list (.csv) to be written: path, label, split and group of every image that can be read, where
            groups and copies stand on one side; images that lie in no files (of an archive, a table, an object) are
            copied into a folder of its name beside it. None for none.
        crops: Whether to look for images that are a part of another one, too, which takes minutes for some thousands.
        progress: Called with images that are done, and all: of reading, of comparing, and of their features.

    Raises:
        UsageError: There is no such set, or the list cannot be written.
        DataError: The data cannot be read, or hold texts.
    """
    raw = read(data, None if data_root is None else Path(data_root).expanduser(), layout=layout)
    name = raw.name if is_passed(data) else str(data)
    if not next(iter(raw.splits.values())).has_images:  # the first is enough: some make their splits
        raise DataError(f"{name} contains texts, but images are wanted", "name a folder or list of images")
    out = None if fix_split is None else Path(fix_split)
    if out is not None:
        _check_list(out, raw, name, data)
    of = survey(raw, progress)
    seen, judged = _look(raw, name, layout, of, progress, crops), None
    copies, given = seen.copies, any(each.given for each in seen.groupings)
    opened = model if model is None or isinstance(model, Model) else load(model)
    if opened is not None and of.readable.any():
        features = kept_features(opened, raw, of, progress)
        alike = groups_by_features(features, of, copies)
        seen = replace(seen, groupings=(*seen.groupings, *([] if alike is None else [alike])))
        judged = look_by_model(opened, seen, features)
    notes = [*raw.notes, *([] if copies.by_picture else [ONLY_EXACT]), *([] if given or model else [WITHOUT_MODEL])]
    notes += () if judged is None else judged.notes
    if out is not None and _in_no_files(raw):
        notes.append(f"The images of {name} lie in no files: they were copied to {out.with_suffix('')}.")
    fixed = None if out is None else _fix_split(out, raw, seen)
    notes += () if fixed is None else fixed.pop("emptied")
    return DataReport(
        name,
        {split: len(samples) for split, samples in raw.splits.items()},
        seen.classes,
        LABELS in raw.columns(),
        _files_of(of),
        find(seen, () if judged is None else judged.findings),
        seen.groupings,
        {
            **{kind: int((copies.kinds == number).sum()) for number, kind in enumerate(KINDS_OF_COPIES)},
            "near_looked_for": copies.by_picture,
        },
        judged,
        tuple(notes),
        fixed,
    )


def check_quickly(
    raw: RawDataset, data: str, layout: Layout, seconds: float, crop: bool, progress: Progress
) -> tuple[str, ...]:
    """What is wrong in data, as far as images show it that can be read in some seconds, in at most two lines.

    What was read is kept for `check_data`.

    Args:
        raw: The data, in the splits that are used.
        data: What they are called, for the command.
        layout: How they were read.
        seconds: In which images are read; to compare them takes a second more at most.
        crop: Whether a centre is cut out of each image.
        progress: Called with images that are read, and all.

    Returns:
        What was found in how many images, of how many; and what to type, if anything was.
    """
    of = quick_survey(raw, seconds, progress)
    seen = replace(_look(raw, data, layout, of, lambda done, total: None), pictures=False)
    kinds = QUICK_KINDS if crop else QUICK_KINDS[:-1]
    found = [each for each in (find(seen) if len(of) else ()) if each.kind in kinds]
    short = (each.sentence.rstrip(".").partition(":" if each.kind == "unreadable" else "\n")[0] for each in found)
    looked = f"a quick check of {f'{len(of):,} of ' * (of.left_out > 0)}{counted(raw.count, 'image')} found"
    if not found:
        return (f"{looked} nothing to do",)
    told = f"warning: {looked}: {'; '.join(islice(short, QUICK_SAID))}{'; ...' * (len(found) > QUICK_SAID)}"
    return told, f"all of it, with the images: {seen.command('data check')}"


def _look(raw: RawDataset, name: str, layout: Layout, of: Survey, progress: Progress, crops: bool = False) -> Looked:
    """What is known of data without a model."""
    labels, given = _labels_of(raw, of), given_groups(raw, of, layout)
    groupings = (given,) if given is not None else tuple(found_groups(of, labels))
    copies = find_copies(of, progress, crops=crops)
    return Looked(name, layout, raw.splits, of, labels, _classes_of(raw), copies, groupings)


def _labels_of(raw: RawDataset, of: Survey) -> tuple[str, ...]:
    """The class of each image, or its classes; of a column of numbers each that is known."""
    there = raw.columns()
    name = next((name for name in (LABEL, LABELS, ATTRIBUTES) if name in there), None)
    if name == LABEL and NUMBER in there:
        name = next(each for each in there if each in (LABEL, NUMBER))
    if name is None:
        return ("",) * len(of)
    columns = [samples.column(name) for samples in raw.splits.values()]
    return tuple(columns[split].word(index) for split, index in of.rows[["split", "index"]].tolist())


def _classes_of(raw: RawDataset) -> dict[str, dict[str, int]]:
    """How many images of each class each split has; none of numbers, which are no classes."""
    name = next((name for name in raw.columns() if name in (LABEL, LABELS, ATTRIBUTES, NUMBER)), None)
    name = None if name == NUMBER else name
    counts = {split: samples.column(name).counts() for split, samples in raw.splits.items()} if name else {}
    every = dict.fromkeys(sorted({label for of in counts.values() for label in of}))
    return {label: {split: of.get(label, 0) for split, of in counts.items()} for label in every}


def _files_of(of: Survey) -> dict[str, Any]:
    """Sizes, proportions, modes and formats, of the images that can be read."""
    rows = of.rows[of.readable]
    if not len(rows):
        return {"read": 0}
    wide = np.maximum(rows["width"], rows["height"]) / np.minimum(rows["width"], rows["height"])

    def range_of(values: np.ndarray) -> dict[str, float]:
        """The smallest, the middle and the largest."""
        return {
            name: round(float(np.quantile(values, q)), 2) for name, q in (("least", 0), ("middle", 0.5), ("most", 1))
        }

    def names(field: str, known: Sequence[str]) -> dict[str, int]:
        """How many there are of each, the most frequent first."""
        counts = np.bincount(rows[field], minlength=len(known))
        return {known[n]: int(counts[n]) for n in np.argsort(-counts, kind="stable") if counts[n]}

    sizes = {"width": range_of(rows["width"]), "height": range_of(rows["height"]), "aspect": range_of(wide)}
    bits = {str(bits): int((rows["bits"] == bits).sum()) for bits in np.unique(rows["bits"]) if bits}
    return {
        "read": len(rows),
        **sizes,
        "modes": names("mode", MODES),
        "formats": names("kind", KINDS),
        "bits_of_16": bits,
        "turned": int((rows["orientation"] > 1).sum()),
    }


# ---- a list whose groups and copies stand on one side


def _check_list(out: Path, raw: RawDataset, name: str, data: Data) -> None:
    """Refuse a place where no list can go, or no images where these lie in no files."""
    if out.suffix.lower() != ".csv":
        raise UsageError(f"fix_split must be a .csv file, got {out}", Hint({"fix_split": str(out.with_suffix(".csv"))}))
    if out.exists():
        raise UsageError(f"{out} exists", Hint({"fix_split": str(free_name(out))}))
    if _in_no_files(raw) and (folder := out.with_suffix("")).exists():
        problem = f"the images of {name} lie in no files, and {folder}, where they would be copied, exists"
        raise UsageError(problem, Hint({"fix_split": f"{free_name(folder)}.csv"}))
    check_outside(out, data, "fix_split")
    check_writable(out)


def _in_no_files(raw: RawDataset) -> bool:
    return any(len(samples) and samples.images.file(0) is None for samples in raw.splits.values())


def _copied(images: Images, index: int, folder: Path) -> Path:
    """An image that lies in no file, copied into a folder: its bytes, or its pixels as PNG."""
    file = folder.joinpath(*(part for part in PurePath(images.name(index)).parts if part not in ("/", "..")))
    if images.encoded:
        content = images.content(index)
    else:
        image, held = images.open(index), io.BytesIO()
        (image if image.mode in KEPT else convert_mode(image, 3)).save(held, "PNG")
        content, file = held.getvalue(), file.with_name(f"{file.name}.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def _fix_split(out: Path, raw: RawDataset, seen: Looked) -> dict[str, Any]:
    """Write the list; what was done."""
    units, of = seen.units([each for each in seen.groupings if each.given]), seen.survey
    if not of.readable.any():
        raise DataError(f"no image of {seen.data} can be read, so that there is none to list", Hint(drop=["fix_split"]))
    sides = _divided(raw, seen, units) if ALL in raw.splits else _as_given(seen, units)
    own = dict(zip(of.splits, raw.splits.values(), strict=True))
    same = [name for name in raw.columns() if name in (LABEL, ATTRIBUTES, NUMBER)]  # of one list, read in two ways
    columns = [name for name in raw.columns() if name not in (GROUP, *same[1:])]
    heads = [head for name in columns for head in next(iter(raw.splits.values())).column(name).cells(0, name)]
    found = {each.kind: each.members for each in seen.groupings if each.layout is None}
    text, count, folder = io.StringIO(), dict.fromkeys(SPLITS, 0), out.absolute().parent
    write = csv.writer(text, lineterminator="\n")
    write.writerow(["path", *heads, "split", GROUP, *found])
    sizes = np.bincount(units)
    names = _names_of_units(seen, units)
    for row in np.flatnonzero(of.readable).tolist():
        split, index = seen.sides[row], int(of.rows["index"][row])
        images = own[split].images
        file = images.file(index) or _copied(images, index, out.with_suffix(""))
        path = Path(os.path.relpath(file.absolute(), folder)).as_posix()
        values = [cell for name in columns for cell in own[split].column(name).cells(index, name).values()]
        group = names[units[row]] if sizes[units[row]] > 1 else ""
        write.writerow([path, *values, sides[row], group, *(each[row] for each in found.values())])
        count[sides[row]] += 1
    write_file(out, text.getvalue())
    moved = 0 if ALL in raw.splits else sum(seen.sides[row] != sides[row] for row in np.flatnonzero(of.readable))
    splits = {split: number for split, number in count.items() if number}
    emptied = [] if ALL in raw.splits else _emptied(seen, sides)
    return {"out": str(out), "splits": splits, "moved": moved, "left_out": len(of.problems), "emptied": emptied}


def _emptied(seen: Looked, sides: Sequence[str]) -> list[str]:
    """A sentence on each split that has lost all of its images, or all of a class."""
    rows = np.flatnonzero(seen.survey.readable).tolist()
    had, has = ({(each[row], seen.labels[row]) for row in rows} for each in (seen.sides, sides))
    left, notes = {split for split, _ in has}, list[str]()
    for split in sorted({split for split, _ in had - has}):
        gone = some_of(sorted(label for where, label in had - has if where == split and label in seen.classes), 5)
        lost = f"no image of {gone}" if split in left else "no image"
        if gone or split not in left:
            notes.append(f"The list has {lost} in {split} any more: most of each group there lies in another split.")
    return notes


def _names_of_units(seen: Looked, units: np.ndarray) -> dict[int, str]:
    """What each unit is called: its group, else its first image."""
    given = next((each.members for each in seen.groupings if each.given), ("",) * len(units))
    return {int(unit): given[unit] or seen.survey.names[unit] for unit in np.unique(units)}


def _as_given(seen: Looked, units: np.ndarray) -> list[str]:
    """The split of each image: where most of its unit are; of several, the one that has lost most of its images."""
    sides = list(seen.sides)
    here = [(rows, Counter(seen.sides[row] for row in rows)) for rows in rows_of(units)]
    most = [[split for split in of if of[split] == max(of.values())] for _, of in here]
    lost = sum((of for _, of in here), Counter[str]())
    for place in sorted(range(len(here)), key=lambda place: len(most[place])):  # those that leave no choice first
        rows, _ = here[place]
        where = max(sorted(most[place]), key=lambda split: (lost[split], split == TRAIN))
        lost[where] -= len(rows)
        for row in rows:
            sides[row] = where
    return sides


def _divided(raw: RawDataset, seen: Looked, units: np.ndarray) -> list[str]:
    """The split of each image of data in one piece, of which a tenth is held out, or the fractions of the layout."""
    samples = with_groups(raw.splits[ALL], [f"unit {unit}" for unit in units.tolist()])
    column = LABEL if LABEL in raw.columns() else None
    splits, _ = divide(replace(raw, splits={ALL: samples}), column, 0)
    of = {name: split for split, some in splits.items() for name in some.inputs.names()}
    return [of[name] for name in seen.survey.names]
