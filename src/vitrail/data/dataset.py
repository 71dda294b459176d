"""From what a reader found to splits that are matched to a codec.

A reader (`vitrail.data.readers`) returns a `RawDataset`: inputs with columns, by split. For a training `make_dataset`
makes the codec from the training split and matches every other split to it. To use a model `match_split` matches the
data to the codec of the model. Values that a codec does not know are left out, counted and named; they are never taken
for something else.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from vitrail.data.columns import (
    ALL,
    GROUP,
    LABEL,
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    Labels,
    RawDataset,
    Samples,
    Texts,
    Vocabulary,
    split_of,
    texts_digest,
)
from vitrail.data.images import ArrayImages, Images
from vitrail.data.multiple import LabelSets
from vitrail.errors import DataError, Hint, UsageError, check_fields, counted, located, nearest, some_of
from vitrail.text import ShortRepr

DIGITS = tuple("0123456789")  # the classes, or tokens, of sets of digits
LONG = 300  # characters of a list of names, in a message
CLOSE = 0.8  # how like a name of the model an unknown one must be; of photographs, apple is to airplane as 0.62
NEAREST = 3  # classes that are unknown and whose nearest is named
MOST_HELD_OUT = 5000  # samples that are held out for validation, where a tenth would be more


@dataclass(frozen=True)
class Counts:
    """How many samples each split of a generated set has.

    Args:
        train: In every epoch.
        validation: Evaluated after every epoch.
        test: Evaluated once, at the end.

    Raises:
        UsageError: A number is below 1, or not a whole one.
    """

    train: int = 20_000
    validation: int = 1_000
    test: int = 2_000

    def __post_init__(self) -> None:
        """Refuse a split without a sample."""
        with located("counts"):
            check_fields(self)


def label_inputs(inputs: Images | Texts, values: Int64[np.ndarray, " n"], names: tuple[str, ...]) -> Samples:
    """Inputs with a class each; see `Labels`."""
    return Samples(inputs, {LABEL: Labels(values, names)})


def labels_of(samples: Samples) -> Int64[np.ndarray, " n"]:
    """The numbers of the classes of labelled samples."""
    return samples.column(LABEL).take(np.arange(len(samples)))


def pixels_of(samples: Samples) -> UInt8[np.ndarray, "n h w *c"]:
    """The values 0..255 of images in memory."""
    assert isinstance(samples.inputs, ArrayImages)
    return samples.inputs.pixels


@dataclass(frozen=True, eq=False)
class Dataset:
    """Data to train on.

    Args:
        name: A named set, or a path.
        root: Where it was read from; with it the data is found again from any folder.
        column: The name of the column that is learnt.
        codec: Made from that column of the training split.
        splits: `train`, `validation` and, where there is one, `test`; their column is matched to the codec.
        notes: What was ignored or is unusual, one sentence each.
        split_seed: The seed of a split made by vitrail; None when the data came split.
        fingerprint: Changes when names, columns, or sizes (or, in memory, pixels) of the inputs change.
        unknown: By split, values that the training split does not have, with the number of samples left out.
        given: By split, all its samples as they were found, where some values of theirs are unknown.
        published: The order of classes or tokens of a named set; None where there is none.
        facts: How the data were made, in plain values that a run stores.
    """

    name: str
    root: str
    column: str | None
    codec: Any  # of `vitrail.tasks`, which stand above data
    splits: Mapping[str, Samples]
    notes: tuple[str, ...]
    split_seed: int | None
    fingerprint: str
    unknown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    given: Mapping[str, Samples] = field(default_factory=dict)
    published: tuple[str, ...] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def train(self) -> Samples:
        """The split that is learnt from."""
        return self.splits[TRAIN]

    @property
    def validation(self) -> Samples:
        """The split that choices are made on."""
        return self.splits[VALIDATION]

    @property
    def test(self) -> Samples | None:
        """The split that is evaluated once, at the end; None when there is none."""
        return self.splits.get(TEST)

    @property
    def reads_text(self) -> bool:
        """Whether the inputs are texts; else they are images."""
        return not self.train.has_images


@dataclass(frozen=True, eq=False, repr=False)
class Split(ShortRepr):
    """One split to evaluate or explain a model on.

    Args:
        samples: With a column that is matched to the model's codec.
        split: Which one this is: `test`, `validation`, `train`, or `all` of data that is not split.
        unknown: Values that the model does not know, with the number of samples left out.
        notes: What was ignored or is unusual, one sentence each.
        name: The data: a named set, or a path.
        given: All samples as they were found, where some values of theirs are unknown.
    """

    samples: Samples
    split: str
    unknown: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    name: str = ""
    given: Samples | None = None


def make_dataset(
    name: str,
    raw: RawDataset,
    column: str | None,
    learn: Callable[[RawDataset, Mapping[str, Samples]], Any],
    seed: int = 0,
) -> Dataset:
    """Divide raw data, let the training split decide the codec, and match every split to it.

    Args:
        name: Of the data.
        raw: What a reader found.
        column: What is learnt.
        learn: Makes the codec, of the raw data and its divided splits.
        seed: Of the validation split, where the data have none.

    Raises:
        DataError: The data is not fit to train on.
    """
    divided, seed_used = divide(raw, column, seed)
    if TRAIN not in divided:
        raise DataError(
            f"{name} has no training samples, only {', '.join(divided)}", "add a folder (or rows of the split) train"
        )
    codec = learn(raw, divided)
    if VALIDATION not in divided:
        raise DataError(f"{name} has too few samples to hold some out for validation", "add samples to each class")
    splits, unknown, given, notes = {}, {}, {}, list(raw.notes)
    if VALIDATION not in raw.splits:
        held, whole = len(divided[VALIDATION]), len(divided[TRAIN]) + len(divided[VALIDATION])
        unit = "image" if divided[TRAIN].has_images else "text"
        notes.append(
            f"validation: {held:,} of {counted(whole, unit)} are held out from training, by a hash of their names."
        )
    for split, samples in divided.items():
        splits[split], left_out = _match(samples, column, codec, f"the {split} split")
        if left_out:
            unknown[split], given[split] = left_out, samples
            counts = _list_counts(left_out, len(splits[split]) < len(samples))
            notes.append(f"{split}: left out {counts}, which the training split does not have.")
        if not len(splits[split]):
            problem = f"the {split} split of {name} has no class of the training split"
            raise DataError(problem, f"name its classes as in training: {_short(codec.describe()[1])}")
    labels, elsewhere = divided[TRAIN].column(column), {name for each in unknown.values() for name in each}
    if isinstance(labels, LabelSets) and (
        never := [name for name in labels.names if name not in {*codec.number_of, *elsewhere}]
    ):
        notes.append(f"Left out {_short(some_of(never))}: no training image has {'it' if len(never) == 1 else 'them'}.")
    hashed = _fingerprint(column, splits)
    return Dataset(
        name, raw.root, column, codec, splits, tuple(notes), seed_used, hashed, unknown, given, raw.classes, raw.facts
    )


def read_vocabulary(dataset: Dataset, separator: str = "") -> Vocabulary | None:
    """The vocabulary of the texts that are read: the tokens of the training split; None where images are.

    Raises:
        DataError: Another split has a token that training does not have; names it.
    """
    if not dataset.reads_text:
        return None
    if dataset.published is not None:
        return Vocabulary(dataset.published)
    vocabulary = Vocabulary.of(dataset.train.texts.values, separator)
    for name, samples in dataset.splits.items():
        try:
            vocabulary.check(samples.texts.values)
        except DataError as error:
            problem = f"the {name} split: {error.problem}, which the training split does not have"
            raise DataError(problem, "add a training sample with that token, or remove this sample") from error
    return vocabulary


def choose_split(
    name: str, raw: RawDataset, column: str | None, split: str | None = None, seed: int = 0
) -> tuple[str, Samples]:
    """The name of a split and its samples, as they were found.

    Args:
        name: Of the data.
        raw: What a reader found.
        column: By whose values data in one piece are divided, where a part of them is asked for.
        split: As in `match_split`.
        seed: As in `match_split`.

    Raises:
        UsageError: The split does not exist.
    """
    splits = raw.splits  # some are made when they are read: only the one that is wanted is touched
    if TEST not in splits and VALIDATION not in splits:
        splits = {**splits, ALL: splits[ALL if ALL in splits else TRAIN]}
    usual = next(each for each in (TEST, VALIDATION, ALL) if each in splits)
    if split is None:
        split = usual
    elif VALIDATION not in splits:
        splits = {**splits, **divide(raw, column, seed)[0]}
    split = split if split in splits else split_of(split) or split
    if split not in splits:
        guess = nearest(split, splits) or usual
        raise UsageError(f"{name} has no split {split}, it has {', '.join(splits)}", Hint({"split": guess}))
    return split, splits[split]


def match_split(
    name: str, raw: RawDataset, column: str | None, codec: Any, split: str | None = None, seed: int = 0
) -> Split:
    """One split of raw data, matched to the codec of a model.

    Args:
        name: Of the data.
        raw: What a reader found.
        column: What the model predicts.
        codec: The model's.
        split: `train`, `validation`, `test` or `all` (of data that is not split); by default the test split if
            there is one, else the validation split, else everything.
        seed: The seed with which a run split the data, so that `train` and `validation` are the run's own.

    Raises:
        UsageError: The split does not exist.
        DataError: The data has nothing that the model knows.
    """
    split, samples = choose_split(name, raw, column, split, seed)
    known, notes = codec.number_of, list(raw.notes)
    given = _by_number(samples, column, known, notes)
    samples, unknown = _match(given, column, codec, name)
    pairs = [(one, nearest(one, _alike(one, known), CLOSE)) for one in list(unknown)[:NEAREST]]
    meant = ", ".join(f"'{close}' in place of '{one}'" for one, close in pairs if close)
    if not len(samples):
        counts = given.column(column).counts()
        has = f": it has {_short(some_of(list(counts)))}" if counts else ""
        hint = meant or f"name its classes as the model does, or by number from 0: {_short(codec.describe()[1])}"
        raise DataError(f"{name} has no class of the model{has}", hint)
    if unknown:
        counts = _list_counts(unknown, len(samples) < len(given))
        notes.append(f"{split}: left out {counts}, which the model does not have.")
    if meant:
        notes.append(f"Did you mean {meant}?")
    return Split(samples, split, unknown, tuple(notes), name, given if unknown else None)


def _by_number(samples: Samples, column: str | None, known: Mapping[str, int], notes: list[str]) -> Samples:
    """Samples whose labels are the numbers of classes, from 0, with the names of these; others as they are."""
    found, names = samples.column(column), {number: name for name, number in reversed([*known.items()])}
    if (
        column is None
        or not known
        or not isinstance(found, Labels)
        or any(one in known or not one.isdecimal() for one in found.names)
    ):
        return samples
    numbers = [int(name) for name in found.names]
    if max(numbers) not in names:
        problem = f"{some_of(found.names)}: no classes of the model, and {max(numbers)} is above {max(names)}, its last"
        raise DataError(problem, f"name the classes as the model does, or by numbers from 0 to {max(names)}")
    pairs = [f"{name} is {names[int(name)]}" for name in found.names]
    notes.append(f"Read the labels as the numbers of classes, from 0: {some_of(pairs, 3)}.")
    return samples.holding(column, Labels(found.values, tuple(names[n] for n in numbers)))


def _alike(name: str, known: Iterable[str]) -> list[str]:
    """The names that may be meant by a misspelt one: with its numbers, since another number is another class."""
    return [each for each in known if re.findall(r"\d+", each) == re.findall(r"\d+", name)]


def _match(samples: Samples, column: str | None, codec: Any, where: str) -> tuple[Samples, Mapping[str, int]]:
    """Samples whose column is in the codec's terms, and what was left out."""
    with located(where):
        found, ids, unknown = codec.match(samples.column(column))
    rest = samples if ids is None else samples.select(ids)
    return rest if column is None else rest.holding(column, found), unknown


def divide(raw: RawDataset, column: str | None, seed: int) -> tuple[dict[str, Samples], int | None]:
    """The splits, and the seed of those that are made here, if there are any.

    Of data in one piece, and of training samples without others to validate on, a tenth is held out for validation, or
    the fractions of the data for validation and test.
    """
    splits, used = dict(raw.splits), raw.split_seed
    if VALIDATION not in splits and (whole := splits.pop(ALL, splits.get(TRAIN))) is not None:
        count, rest = len(whole), whole
        wanted = {name: round(count * part) for name, part in zip(SPLITS, raw.fractions, strict=False)}
        wanted = wanted or {VALIDATION: min(MOST_HELD_OUT, round(count / 10))}
        for name in (TEST, VALIDATION):
            if name in wanted:
                rest, held = hold_out(rest, wanted[name], seed, column)
                splits |= {name: held} if len(held) else {}
        splits[TRAIN], used = rest, seed
    return {name: splits[name] for name in SPLITS if name in splits}, used


def hold_out(samples: Samples, count: int, seed: int, column: str | None = LABEL) -> tuple[Samples, Samples]:
    """Split samples in two so that every class, or other stratum, is shared out in the same proportion.

    Class c with n_c of the n samples gives count * n_c / n of them, rounded by the method of largest remainders so
    that the sum is `count`; then every class with two or more samples gives at least one and keeps at least one, and
    a class with one sample keeps it. Which samples go is decided by a hash of seed and name, so that a sample stays
    on its side when others are added, on every machine and with every version of numpy.

    Groups go as a whole, in the order of their hashes: each that brings the classes nearer to these numbers, unless
    training would lose a class; then, for a class of which none went, the first group that has it. Samples without
    classes count as of one class, and equal names among them as a group.

    Args:
        samples: With the column.
        count: How many to hold out, 0..n.
        seed: The seed of the choice.
        column: The name of that column.

    Returns:
        The samples kept and the samples held out, both in their old order.
    """
    strata, units = samples.column(column).strata(), samples.units()
    if strata is None or GROUP in samples.columns:
        held = _hold_groups(np.zeros(len(samples), np.int64) if strata is None else strata, units, count, seed)
        return samples.select(np.flatnonzero(~held)), samples.select(np.flatnonzero(held))
    sizes = np.bincount(strata, minlength=1)
    by_class = np.split(np.argsort(strata, kind="stable"), np.cumsum(sizes)[:-1])
    held = np.zeros(len(strata), dtype=bool)
    ranks = np.array([_rank(seed, name).hex() for name in units])
    for members, quota in zip(by_class, _quotas(sizes, count), strict=True):
        held[members[np.argsort(ranks[members], kind="stable")[:quota]]] = True
    return samples.select(np.flatnonzero(~held)), samples.select(np.flatnonzero(held))


def _hold_groups(
    strata: Int64[np.ndarray, " n"], units: Sequence[str], count: int, seed: int
) -> Bool[np.ndarray, " n"]:
    """Which samples go, with all of their group."""
    names, group_of = np.unique(np.array(units, dtype=object), return_inverse=True)
    sizes = np.bincount(strata, minlength=1)
    table = np.zeros((len(names), len(sizes)), np.int64)
    np.add.at(table, (group_of, strata), 1)
    wanted, gone, chosen = np.array(_quotas(sizes, count)), np.zeros(len(sizes), np.int64), np.zeros(len(names), bool)
    order = sorted(range(len(names)), key=lambda number: _rank(seed, names[number]))

    def go(number: int, nearer: bool) -> bool:
        """Whether a group went: training keeps a sample of each class."""
        more = gone + table[number]
        kept = not ((more == sizes) & (table[number] > 0)).any()
        if chosen[number] or not kept or (nearer and abs(more - wanted).sum() >= abs(gone - wanted).sum()):
            return False
        chosen[number], gone[:] = True, more
        return True

    for number in order:
        go(number, nearer=True)
        if gone.sum() >= wanted.sum():
            break
    for label in np.flatnonzero((gone == 0) & (wanted > 0)):
        next((number for number in order if table[number, label] and go(number, nearer=False)), None)
    return chosen[group_of]


def _quotas(sizes: Int64[np.ndarray, " classes"], count: int) -> list[int]:
    total = int(sizes.sum())
    assert 0 <= count <= total
    exact = [count * int(size) / max(total, 1) for size in sizes]
    quotas = [int(quota) for quota in exact]
    by_remainder = sorted(range(len(exact)), key=lambda label: quotas[label] - exact[label])
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1
    return [min(max(quota, 1), int(size) - 1) if size else 0 for quota, size in zip(quotas, sizes, strict=True)]


def _rank(seed: int, name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(f"{seed}:{name}"), digest_size=8).digest()


def _fingerprint(column: str | None, splits: Mapping[str, Samples]) -> str:
    """A hash of names, columns and inputs; of labels with the classes in front."""
    state = hashlib.blake2b(digest_size=8)
    labels = found if isinstance(found := splits[TRAIN].column(column), Labels) else None
    if labels is not None:
        state.update(os.fsencode("\0".join(labels.names)))
    for name in SPLITS:
        if name in splits or labels is None:
            state.update(name.encode())
        if name in splits:
            values = splits[name].column(column)
            if isinstance(values, Texts) and not splits[name].has_images:
                state.update(texts_digest((*splits[name].texts.values, *values.values)))
            else:
                state.update(splits[name].inputs.digest() + values.digest())
    return state.hexdigest()


def _list_counts(counts: Mapping[str, int], samples: bool) -> str:
    """What was left out: samples, or labels alone of samples that may have others."""
    named = _short(some_of([f"{name} ({count})" for name, count in counts.items()]))
    return f"{counted(sum(counts.values()), 'sample' if samples else 'label')} of {named}"


def _short(names: str) -> str:
    """A list of names, cut where they are long, as where a column of what are no names is read."""
    return shorten(names, LONG, placeholder=" ...")
