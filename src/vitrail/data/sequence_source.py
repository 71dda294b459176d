"""From a name or a file to pairs of a source and a target text: what a network learns that reads one and writes other.

sort-digits             strings of digits, and the same in order; made: `readers/sort_digits.py`
mnist-strings           pictures of one to five digits and what they show; made: `readers/mnist_strings.py`
a file                  pairs of texts, or pictures with texts: `readers/pairs.py`
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.data.parts import TEST, TRAIN, VALIDATION
from vitrail.data.pictures import ArrayPictures
from vitrail.data.readers import MANIFESTS, NAMED_SEQUENCES, PAIRS
from vitrail.data.readers.mnist_strings import MNIST_STRINGS, MadeSamples, string_makers
from vitrail.data.readers.pairs import read_parts, with_validation
from vitrail.data.readers.sort_digits import SORT_DIGITS, in_order, make_strings
from vitrail.data.samples import PictureSamples, Samples, TextSamples
from vitrail.errors import DataError, UsageError


@dataclass(frozen=True)
class Counts:
    """How many samples of each split are made, of a set that is made.

    Args:
        train: In every epoch.
        validation: Looked at after every epoch.
        test: Looked at once, at the end.
    """

    train: int = 20_000
    validation: int = 1_000
    test: int = 2_000

    def __post_init__(self) -> None:
        """Refuse a split without a sample."""
        for name, count in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise UsageError(f"counts.{name} must be a whole number, at least 1, got {count!r}", f"{name}: 2000")


@dataclass(frozen=True, eq=False)
class SequenceSource:
    """Sequences to train on.

    Args:
        name: `sort-digits`, `mnist-strings`, or the path as it was given.
        root: Where it was read from; `vitrail` for what is made of nothing.
        train: What is learnt from.
        validation: What choices are made on.
        test: What is looked at once, at the end; None when there is none.
        notes: Everything odd, one sentence each.
        split_seed: The seed of a split made by vitrail; None when the data came split.
        fingerprint: Changes when a sample changes.
    """

    name: str
    root: str
    train: Samples
    validation: Samples
    test: Samples | None
    notes: tuple[str, ...]
    split_seed: int | None
    fingerprint: str

    @property
    def splits(self) -> dict[str, Samples]:
        """The splits that there are, by name."""
        named = {TRAIN: self.train, VALIDATION: self.validation, TEST: self.test}
        return {name: samples for name, samples in named.items() if samples is not None}

    @property
    def reads_pictures(self) -> bool:
        """Whether the sources are pictures; else they are texts."""
        return not isinstance(self.train, TextSamples)


def is_sequences(what: str) -> bool:
    """Whether a name or a file holds sequences: by the name, the ending, or a column `text` beside `path`."""
    path = Path(what).expanduser()
    if what in NAMED_SEQUENCES or path.suffix.lower() in PAIRS:
        return True
    if path.suffix.lower() not in MANIFESTS or not path.is_file():
        return False
    with open(path, encoding="utf-8-sig", errors="replace") as handle:
        first = handle.readline()
    words = {word.strip(' "{}\r\n').partition('"')[0] for word in first.replace(":", ",").split(",")}
    words = {word.lower() for word in words} if path.suffix.lower() == ".csv" else words
    return "text" in words and "label" not in words


def open_sequences(
    what: str, data_root: Path | None = None, split_seed: int = 0, counts: Counts | None = None
) -> SequenceSource:
    """Open sequences to train on or to evaluate with.

    Args:
        what: A named set, a `.tsv` of pairs, or a `.csv` or `.jsonl` with `path,text`.
        data_root: Where MNIST lies, for `mnist-strings`.
        split_seed: The seed of the validation split, where the data brings none; of the strings that are made.
        counts: How many samples are made; nothing to files.

    Raises:
        DataError: The data is missing, damaged, or not fit to train on.
    """
    counts = counts or Counts()
    if what == SORT_DIGITS:
        splits: Mapping[str, Samples] = {
            name: TextSamples(strings, in_order(strings))
            for name, number in ((TRAIN, counts.train), (VALIDATION, counts.validation), (TEST, counts.test))
            for strings in (make_strings(number, name, split_seed),)
        }
        return _source(what, "vitrail", splits, split_seed)
    if what == MNIST_STRINGS:
        return _mnist_strings(data_root, split_seed, counts)
    path = Path(what).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {path}", f"a file of pairs, or one of {', '.join(NAMED_SEQUENCES)}")
    parts, notes = read_parts(path)
    seed = None
    if VALIDATION not in parts:
        parts, seed = with_validation(parts, split_seed, path), split_seed
    if TRAIN not in parts:
        raise DataError(f"{path} has no training samples, only {', '.join(parts)}", "lines whose split is train")
    return _source(what, str(path.resolve()), parts, seed, notes)


def reopen_sequences(
    name: str, root: str, data_root: Path | None, split_seed: int | None, counts: Counts
) -> SequenceSource:
    """Open again what a run remembers, from whatever folder it is asked.

    Args:
        name: `SequenceSource.name` of the run.
        root: `SequenceSource.root` of the run.
        data_root: Where a named set lies now; where it lay then when None.
        split_seed: The seed of the run.
        counts: How many samples the run made.

    Returns:
        The source, under its old name; compare its fingerprint with the run's.

    Raises:
        DataError: The data is gone or damaged.
    """
    if name in NAMED_SEQUENCES:
        return open_sequences(name, data_root or Path(root), split_seed or 0, counts)
    return replace(open_sequences(root, None, split_seed or 0, counts), name=name)


def _source(
    name: str, root: str, splits: Mapping[str, Samples], seed: int | None, notes: tuple[str, ...] = ()
) -> SequenceSource:
    state = hashlib.blake2b(digest_size=8)
    for split in (TRAIN, VALIDATION, TEST):
        state.update(split.encode() + (splits[split].digest() if split in splits else b""))
    return SequenceSource(
        name, root, splits[TRAIN], splits[VALIDATION], splits.get(TEST), notes, seed, state.hexdigest()
    )


def _mnist_strings(data_root: Path | None, seed: int, counts: Counts) -> SequenceSource:
    """Strings of MNIST's digits: new ones in every epoch for training, the same ones always for the rest."""
    makers, root, notes = string_makers(data_root, seed)
    splits: dict[str, Samples] = {TRAIN: MadeSamples(makers[TRAIN], counts.train)}
    for name, number in ((VALIDATION, counts.validation), (TEST, counts.test)):
        made = makers[name].make(np.arange(number, dtype=np.int64))
        splits[name] = PictureSamples(ArrayPictures(made.pixels, f"{MNIST_STRINGS}/{name}"), made.texts)
    return _source(MNIST_STRINGS, root, splits, seed, notes)
