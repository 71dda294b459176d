"""From a name or a file to pairs of a source and a target text: what a network learns that reads one and writes other.

sort-digits             strings of digits, and the same in order; made
mnist-strings           pictures of one to five digits side by side, and what they show; made of MNIST
pairs.tsv               source<TAB>target[<TAB>split], one pair a line; a first line of just these names is a header
labels.csv, .jsonl      path,text[,split]: pictures, and what stands on them
"""

import hashlib
import os
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int64

from vitrail.data.idx import read_idx
from vitrail.data.manifest import part_named, read_rows, read_text
from vitrail.data.mnist_strings import SIDE, StringMaker
from vitrail.data.parts import ALL, TEST, TRAIN, VALIDATION, hold_out
from vitrail.data.pictures import ArrayPictures, FilePictures, Pictures
from vitrail.data.sort_digits import in_order, make_strings
from vitrail.errors import DataError, UsageError, counted

SORT_DIGITS, MNIST_STRINGS = "sort-digits", "mnist-strings"
NAMED_SEQUENCES = (SORT_DIGITS, MNIST_STRINGS)
"""The sets of sequences that are known by name."""

PAIRS = ".tsv"
MOST_HELD_OUT = 5000
_COLUMNS = ("source", "target", "split")


class Samples(ABC):
    """Sources with their target texts, counted and named by number."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What one is called, for messages and pages."""

    @abstractmethod
    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """What is to be written for each of these, in an epoch."""

    @abstractmethod
    def digest(self) -> bytes:
        """A short hash that changes with the samples."""


@final
@dataclass(frozen=True, eq=False)
class TextSamples(Samples):
    """Texts, and what is to be written for each.

    Args:
        sources: What is read.
        targets: What is written.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.targets)

    def name(self, index: int) -> str:
        """The source itself."""
        return self.sources[index]

    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """The targets, the same in every epoch."""
        return [self.targets[number] for number in ids.tolist()]

    def digest(self) -> bytes:
        """A hash of all texts."""
        return _digest((*self.sources, *self.targets))


@final
@dataclass(frozen=True, eq=False)
class PictureSamples(Samples):
    """Pictures, and what stands on each.

    Args:
        pictures: What is read.
        targets: What is written.
    """

    pictures: Pictures
    targets: tuple[str, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.targets)

    def name(self, index: int) -> str:
        """The picture's name."""
        return self.pictures.name(index)

    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """The targets, the same in every epoch."""
        return [self.targets[number] for number in ids.tolist()]

    def digest(self) -> bytes:
        """A hash of pictures and texts."""
        return self.pictures.digest() + _digest(self.targets)


@final
@dataclass(frozen=True, eq=False)
class MadeSamples(Samples):
    """Pictures of digit strings that are made anew in every epoch.

    Args:
        maker: Makes them.
        count: Of an epoch.
    """

    maker: StringMaker
    count: int

    def __len__(self) -> int:
        """How many there are in an epoch."""
        return self.count

    def name(self, index: int) -> str:
        """The number of one."""
        return f"{MNIST_STRINGS}/{index}"

    def texts(self, ids: Int64[np.ndarray, " n"], epoch: int = 0) -> list[str]:
        """What the pictures of this epoch show."""
        return list(self.maker.make(ids, epoch).texts)

    def digest(self) -> bytes:
        """A hash of the digits that they are made of, and of their number."""
        state = hashlib.blake2b(f"{self.count} {self.maker.seed}".encode(), digest_size=16)
        state.update(np.ascontiguousarray(self.maker.pixels).data)
        state.update(self.maker.labels.astype("<i8").tobytes())
        return state.digest()


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
    if what in NAMED_SEQUENCES or path.suffix.lower() == PAIRS:
        return True
    if path.suffix.lower() not in (".csv", ".jsonl") or not path.is_file():
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
    parts, notes = _pairs(path) if path.suffix.lower() == PAIRS else _labelled(path)
    seed = None
    if VALIDATION not in parts:
        parts, seed = _with_validation(parts, split_seed, path), split_seed
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


def string_makers(data_root: Path | None, seed: int) -> tuple[dict[str, StringMaker], str, tuple[str, ...]]:
    """What makes the strings of each split: no two of them have a digit in common.

    Args:
        data_root: Where MNIST lies.
        seed: Of the training strings; the others are always the same.

    Returns:
        A maker for each split: `train` and `validation` share out MNIST's training digits, `test` has its test digits.
        Then the place that MNIST was read from, and what was odd there.

    Raises:
        DataError: MNIST is missing, damaged, or of another size.
    """
    found = read_idx("mnist", data_root)
    kept, held = hold_out(found.parts[TRAIN], MOST_HELD_OUT, 0)
    makers = {}
    for number, (name, part) in enumerate(((TRAIN, kept), (VALIDATION, held), (TEST, found.parts[TEST]))):
        pictures = part.pictures
        assert isinstance(pictures, ArrayPictures)
        makers[name] = StringMaker(pictures.pixels, part.labels, seed if name == TRAIN else 0, number)
    sides = makers[TRAIN].pixels.shape[1:]
    if sides != (SIDE, SIDE):
        raise DataError(f"the pictures in {found.root} have {sides} pixels", "MNIST's files, of 28 x 28")
    return makers, found.root, found.notes


def _mnist_strings(data_root: Path | None, seed: int, counts: Counts) -> SequenceSource:
    """Strings of MNIST's digits: new ones in every epoch for training, the same ones always for the rest."""
    makers, root, notes = string_makers(data_root, seed)
    splits: dict[str, Samples] = {TRAIN: MadeSamples(makers[TRAIN], counts.train)}
    for name, number in ((VALIDATION, counts.validation), (TEST, counts.test)):
        made = makers[name].make(np.arange(number, dtype=np.int64))
        splits[name] = PictureSamples(ArrayPictures(made.pixels, f"{MNIST_STRINGS}/{name}"), made.texts)
    return _source(MNIST_STRINGS, root, splits, seed, notes)


def _pairs(path: Path) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """The parts of a file with a pair of texts on each line."""
    rows: list[tuple[str, str, str]] = []
    lines = enumerate(read_text(path).split("\n"), start=1)
    filled = [(number, line.rstrip("\r")) for number, line in lines if line.strip() or "\t" in line]
    header = bool(filled) and _is_header(filled[0][1])
    for number, line in filled[header:]:
        cells = [unicodedata.normalize("NFC", cell.strip()) for cell in line.split("\t")]
        where = f"{path}, line {number}"
        if len(cells) not in (2, 3):
            raise DataError(
                f"{where} has {counted(len(cells), 'column')}", "source<TAB>target or source<TAB>target<TAB>split"
            )
        for name, cell in zip(_COLUMNS, cells, strict=False):
            if not cell:
                raise DataError(f"{where}: the {name} is empty", f"give it a {name} or remove the line")
        rows.append((cells[0], cells[1], part_named(cells[2], where) if len(cells) == 3 else ALL))
    if not rows:
        raise DataError(f"{path} holds no pairs", "one pair a line: source<TAB>target")
    if len({part == ALL for _, _, part in rows}) > 1:
        raise DataError(f"{path} has a split in some lines only", "give every line a split, or none")
    parts: dict[str, Samples] = {}
    for part in dict.fromkeys(part for _, _, part in rows):
        some = [row for row in rows if row[2] == part]
        parts[part] = TextSamples(tuple(row[0] for row in some), tuple(row[1] for row in some))
    return parts, _repeated(parts)


def _is_header(line: str) -> bool:
    """Whether a line names the columns, in small letters or capitals, and nothing else."""
    return tuple(cell.strip().lower() for cell in line.split("\t")) in (_COLUMNS[:2], _COLUMNS)


def _labelled(path: Path) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """The parts of a manifest with the columns path and text."""
    rows = read_rows(path, "text")
    parts: dict[str, Samples] = {}
    for part in dict.fromkeys(row.part for row in rows):
        some = [row for row in rows if row.part == part]
        pictures = FilePictures([row.path for row in some], path.parent)
        parts[part] = PictureSamples(pictures, tuple(row.label for row in some))
    return parts, _repeated(parts)


def _repeated(parts: Mapping[str, Samples]) -> tuple[str, ...]:
    """A note on sources that stand in more than one split: what was learnt is then tested."""
    names = [{samples.name(index) for index in range(len(samples))} for samples in parts.values()]
    shared = sum(len(names[a] & names[b]) for a in range(len(names)) for b in range(a))
    return (f"In more than one split: {counted(shared, 'source')}.",) if shared else ()


def _with_validation(parts: Mapping[str, Samples], seed: int, path: Path) -> dict[str, Samples]:
    """A tenth of the training samples held out, chosen by a hash of seed and source: the same source, the same side."""
    name = ALL if ALL in parts else TRAIN
    whole = parts.get(name)
    if whole is None:
        return dict(parts)
    ranks = [hashlib.blake2b(os.fsencode(f"{seed}:{whole.name(i)}"), digest_size=8).digest() for i in range(len(whole))]
    distinct = sorted(set(ranks))
    if len(distinct) < 2:
        raise DataError(f"{path} has too few samples to hold some out for validation", "add samples to it")
    most = max(1, min(MOST_HELD_OUT, round(len(distinct) / 10)))
    held = set(distinct[:most])
    chosen = np.array([rank in held for rank in ranks])
    rest = {key: samples for key, samples in parts.items() if key != name}
    return {TRAIN: _chosen(whole, np.flatnonzero(~chosen)), VALIDATION: _chosen(whole, np.flatnonzero(chosen)), **rest}


def _chosen(samples: Samples, ids: Int64[np.ndarray, " n"]) -> Samples:
    targets = tuple(samples.texts(ids))
    if isinstance(samples, TextSamples):
        return TextSamples(tuple(samples.sources[number] for number in ids.tolist()), targets)
    assert isinstance(samples, PictureSamples)
    return PictureSamples(samples.pictures.select(ids.tolist()), targets)


def _digest(texts: Iterable[str] | Sequence[str]) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
