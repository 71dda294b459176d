"""From a name, a folder or a manifest to splits whose labels can be trusted.

Two questions are answered here, and only here. Training asks `open_source`: the training split decides the classes,
once, and every other split is matched to them by name. Using a model asks `open_evaluation`: the model's classes rule,
and the data is matched to them by name. A class that is not known is left out, counted and named; it is never another
class's number.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from vitrail.data.parts import ALL, TEST, TRAIN, VALIDATION, Found, Part, hold_out
from vitrail.data.pictures import Pictures
from vitrail.data.readers import find, is_named
from vitrail.errors import DataError, UsageError, nearest


@dataclass(frozen=True, eq=False)
class Split:
    """Pictures and what they show.

    Args:
        pictures: n pictures.
        labels: (n,), each the number of a class; never negative.
    """

    pictures: Pictures
    labels: Int64[np.ndarray, " n"]

    def __post_init__(self) -> None:
        """Check that every picture has a label."""
        assert len(self.pictures) == len(self.labels)
        assert not len(self.labels) or self.labels.min() >= 0

    def __len__(self) -> int:
        """How many pictures there are."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Source:
    """Data to train on.

    Args:
        name: The name of a known set (with its options), or the path as given.
        root: Where it was read from; with it `reopen_source` finds the data again from any folder.
        classes: The names of the classes, decided by the training split.
        train: What is learnt from.
        validation: What choices are made on.
        test: What is looked at once, at the end; None when there is none.
        notes: Everything ignored or odd, one sentence each.
        unknown: By split, the classes that training does not have, with the number of pictures left out.
        split_seed: The seed of a split made by vitrail; None when the data came split.
        fingerprint: Changes when names, labels, or sizes (or, in memory, pixels) of the pictures change.
    """

    name: str
    root: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split | None
    notes: tuple[str, ...]
    unknown: Mapping[str, Mapping[str, int]]
    split_seed: int | None
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Data to evaluate a model on.

    Args:
        split: The pictures, with labels that index into the *model's* classes.
        split_name: Which split this is: `test`, `validation`, `train`, or `all` of data that is not split.
        unknown: The classes that the model does not have, with the number of pictures left out.
        notes: Everything ignored or odd, one sentence each.
        name: The data, as it was given.
        root: Where it was read from.
    """

    split: Split
    split_name: str
    unknown: Mapping[str, int]
    notes: tuple[str, ...]
    name: str
    root: str


def open_source(what: str, data_root: Path | None = None, split_seed: int = 0) -> Source:
    """Open data to train on.

    Args:
        what: The name of a set or a path, see `vitrail.data.readers.table`. A folder that bears the name of a known
            set is written with a path, such as `./mnist`.
        data_root: Where the files of a named set are.
        split_seed: The seed of the validation split, where the data brings none.

    Returns:
        The splits, with labels that index into the classes of the training split.

    Raises:
        UsageError: There is no such named set, or an extra package is missing.
        DataError: The data is missing, damaged or not fit to train on.
    """
    found = find(what, data_root)
    parts, split_seed_used = _divide(found, split_seed)
    if TRAIN not in parts:
        raise DataError(
            f"{what} has no training pictures, only {', '.join(parts)}", "add a folder (or rows of the split) train"
        )
    present = parts[TRAIN].counts()
    classes = tuple(sorted(present)) if found.classes is None else found.classes
    if len(classes) < 2:
        raise DataError(f"{what} has one class only ({classes[0]})", "add a class folder (or label) for what it is not")
    if VALIDATION not in parts:
        raise DataError(f"{what} has too few pictures to hold some out for validation", "add pictures to each class")
    splits, unknown, notes = {}, {}, list(found.notes)
    for name, part in parts.items():
        splits[name], left_out = match_by_name(part, classes)
        if left_out:
            unknown[name] = left_out
            notes.append(f"{name}: left out {_list_counts(left_out)}, which training does not have.")
        if not len(splits[name]):
            raise DataError(
                f"the {name} split of {what} has no class of the training split",
                f"name its classes as in training: {_list_some(classes)}",
            )
    return Source(
        name=what,
        root=found.root,
        classes=classes,
        train=splits[TRAIN],
        validation=splits[VALIDATION],
        test=splits.get(TEST),
        notes=tuple(notes),
        unknown=unknown,
        split_seed=split_seed_used,
        fingerprint=_fingerprint(classes, splits),
    )


def reopen_source(name: str, root: str, split_seed: int | None) -> Source:
    """Open again what a run remembers, from whatever folder it is asked.

    Args:
        name: `Source.name` of the run.
        root: `Source.root` of the run.
        split_seed: `Source.split_seed` of the run.

    Returns:
        The source, under its old name; compare its fingerprint with the run's.

    Raises:
        DataError: The data is gone or damaged.
    """
    return replace(open_source(name if is_named(name) else root, Path(root), split_seed or 0), name=name)


def open_evaluation(
    what: str,
    classes: tuple[str, ...],
    data_root: Path | None = None,
    split: str | None = None,
    split_seed: int = 0,
) -> Evaluation:
    """Open data to evaluate a model that has classes of its own.

    Args:
        what: As for `open_source`.
        classes: The model's class names; labels of the result index into them.
        data_root: Where the files of a named set are.
        split: `train`, `validation`, `test` or `all` (of data that is not split); when not given, the test split if
            there is one, else the validation split, else everything.
        split_seed: The seed with which a run split the data, so that `train` and `validation` are the run's own.

    Returns:
        The pictures of the classes that the model knows, and what was left out.

    Raises:
        UsageError: The split or the named set does not exist.
        DataError: The data is missing or damaged, or shares no class with the model.
    """
    found = find(what, data_root)
    parts = found.parts  # some are made when they are asked for: only the one that is wanted is touched
    if TEST not in parts and VALIDATION not in parts:
        parts = {**parts, ALL: parts[ALL if ALL in parts else TRAIN]}
    if split is None:
        split = next(name for name in (TEST, VALIDATION, ALL) if name in parts)
    elif VALIDATION not in parts:
        parts = {**parts, **_divide(found, split_seed)[0]}
    if split not in parts:
        guess = nearest(split, parts) or next(iter(parts))
        raise UsageError(f"{what} has no split {split}, it has {', '.join(parts)}", f"--split {guess}")
    part = parts[split]
    matched, unknown = match_by_name(part, classes)
    if not len(matched):
        raise DataError(
            f"{what} has no class of the model: it has {_list_some(tuple(part.counts()))}",
            f"name its classes as the model does: {_list_some(classes)}",
        )
    notes = list(found.notes)
    if unknown:
        notes.append(f"{split}: left out {_list_counts(unknown)}, which the model does not have.")
    return Evaluation(matched, split, unknown, tuple(notes), what, found.root)


def match_by_name(part: Part, classes: tuple[str, ...]) -> tuple[Split, dict[str, int]]:
    """Give labels the numbers that their names have in `classes`.

    Args:
        part: Pictures with classes of their own.
        classes: The names that rule.

    Returns:
        The pictures whose class is among `classes`, and the number of pictures of each other class.
    """
    number_of = {name: number for number, name in enumerate(classes)}
    translation = np.array([number_of.get(name, -1) for name in part.classes], dtype=np.int64)
    labels = translation[part.labels] if len(part.labels) else part.labels
    unknown = {name: count for name, count in part.counts().items() if name not in number_of}
    if not unknown:
        return Split(part.pictures, labels), {}
    known = np.flatnonzero(labels >= 0)
    return Split(part.pictures.select(known.tolist()), labels[known]), unknown


def _divide(found: Found, split_seed: int) -> tuple[dict[str, Part], int | None]:
    """Hold out validation pictures where the data brings none; say the seed of the split if there is one."""
    parts = dict(found.parts)
    seed = found.split_seed
    if VALIDATION not in parts and (whole := parts.pop(ALL, parts.get(TRAIN))) is not None:
        tenth = round(len(whole.labels) / 10)
        kept, held = hold_out(whole, min(tenth, found.most_held_out or tenth), split_seed)
        parts[TRAIN] = kept
        if len(held.labels):
            parts[VALIDATION] = held
        seed = split_seed
    order = (TRAIN, VALIDATION, TEST)
    return {name: parts[name] for name in order if name in parts}, seed


def _fingerprint(classes: tuple[str, ...], splits: Mapping[str, Split]) -> str:
    state = hashlib.blake2b(os.fsencode("\0".join(classes)), digest_size=8)
    for name, split in splits.items():
        state.update(name.encode())
        state.update(split.pictures.digest())
        state.update(split.labels.astype("<i8").tobytes())
    return state.hexdigest()


def _list_counts(counts: Mapping[str, int]) -> str:
    pictures = sum(counts.values())
    named = _list_some(tuple(f"{name} ({count})" for name, count in counts.items()))
    return f"{pictures} picture{'s' if pictures != 1 else ''} of {named}"


def _list_some(names: tuple[str, ...], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
