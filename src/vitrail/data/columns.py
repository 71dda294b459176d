"""The columns of samples, such as their labels, and the vocabulary of texts.

A reader gives every sample some columns: `label` (the name of a class), `text`, or one of its own. A codec
(`vitrail.tasks.codec`) is made from the column of the training split and stored with the model; other data is matched
to it.

A vocabulary has three ids that are no tokens: 0 fills rows up, 1 begins every target, 2 ends it. The tokens follow from
3 on. A token is one character unless the vocabulary has a separator; then it is what stands between two of them.
"""

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from vitrail.arguments import Numbered, typed
from vitrail.data.images import Images, evenly
from vitrail.errors import DataError, UsageError
from vitrail.text import ShortRepr, canonical, canonical_texts

LABEL, TEXT, GROUP = "label", "text", "group"  # the columns that readers of the library give
LABELS = "labels"  # several labels an image: see `multiple.LabelSets`
NUMBER = "number"  # numbers of an image: see `multiple.Quantities`
ATTRIBUTES = "attributes"  # a class of each of several columns: see `multiple.ClassColumns`
EVIDENCE = "evidence"  # where it is known, where the evidence lies: boxes (p, 4) of top, left, bottom, right in pixels
PADDING, BEGIN, END = 0, 1, 2
FIRST = 3  # the id of the first token
SHOWN = 30  # tokens that an error names


class Column(Numbered, ABC):
    """One value for each of n samples, such as its label."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def take(self, ids: Int64[np.ndarray, " m"], epoch: int = 0) -> Any:
        """The values of these samples in an epoch (counted from 0), as `Codec.targets` takes them."""

    @abstractmethod
    def select(self, ids: Int64[np.ndarray, " m"]) -> "Column":
        """The column of these samples, in this order."""

    def word(self, index: int) -> str:
        """The value of a sample, for people."""
        return str(self.take(np.array([index]))[0])

    def cells(self, index: int, name: str) -> dict[str, str]:
        """The value of a sample as a list has it, by its columns; `name` is what this column is called."""
        return {name: self.word(index)}

    def counts(self) -> dict[str, int]:
        """How many samples each class has; empty where there are none."""
        return {}

    def strata(self) -> Int64[np.ndarray, " n"] | None:
        """Which samples are alike, as numbers from 0, so that each split gets some of each; None where none are."""
        return None

    @abstractmethod
    def digest(self) -> bytes:
        """A short hash that changes with the values."""


UNMADE = object()


@final
class Lazy(UserDict[str, Any]):
    """Values by name, each made once, when it is first read: generated splits, columns that may hold errors, tasks.

    Args:
        names: In their order.
        make: Makes the value of a name.
    """

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        super().__init__(dict.fromkeys(names, UNMADE))
        self._make = make

    def __getitem__(self, key: str) -> Any:
        """The value; made now if it is not there yet."""
        if self.data[key] is UNMADE:
            self.data[key] = self._make(key)
        return self.data[key]


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Values(ShortRepr, Column):
    """A number, or an array of one shape, for each sample.

    Args:
        values: (n, ...), of any type.
    """

    values: NDArray[Any]

    @property
    def named(self) -> tuple[Any, ...]:
        """The names that belong to its values, as it takes them behind these; nothing where they have none."""
        return ()

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.values)

    def take(self, ids: Int64[np.ndarray, " m"], epoch: int = 0) -> NDArray[Any]:
        """The values of these samples, the same in every epoch."""
        return self.values[ids]

    def select(self, ids: Int64[np.ndarray, " m"]) -> "Values":
        """The values of these samples."""
        return replace(self, values=self.values[ids])

    def digest(self) -> bytes:
        """A hash of all values."""
        return hashlib.blake2b(np.ascontiguousarray(self.values).tobytes(), digest_size=16).digest()


@typed
@final
@dataclass(frozen=True, eq=False, repr=False)
class Labels(Values):
    """The class of each sample.

    Args:
        values: (n,), numbers of classes from 0 to len(names) - 1.
        names: The names of the classes, by number.

    Raises:
        UsageError: A number has no name.
    """

    values: Int64[np.ndarray, " n"]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that every value has a name, which is stored in its one form."""
        object.__setattr__(self, "names", canonical_texts(self.names))
        if len(self.values) and not (self.values.min() >= 0 and self.values.max() < len(self.names)):
            problem = f"labels from {self.values.min()} to {self.values.max()} for {len(self.names)} class names"
            raise UsageError(problem, f"labels from 0 to {len(self.names) - 1}")

    @property
    def named(self) -> tuple[Any, ...]:
        """The names of the classes."""
        return (self.names,)

    @staticmethod
    def of(names: Sequence[str]) -> "Labels":
        """The column that names a class for each sample; the classes are sorted by name."""
        forms = {name: canonical(name) for name in set(names)}
        classes = tuple(sorted(set(forms.values())))
        number_of = dict(zip(classes, range(len(classes)), strict=True))
        return Labels(np.array([number_of[forms[name]] for name in names], dtype=np.int64), classes)

    def word(self, index: int) -> str:
        """The name of the class."""
        return self.names[self.values[index]]

    def strata(self) -> Int64[np.ndarray, " n"]:
        """The numbers of the classes."""
        return self.values

    def digest(self) -> bytes:
        """The numbers themselves."""
        return self.values.astype("<i8").tobytes()

    def counts(self) -> dict[str, int]:
        """How many samples each class has, classes without any left out."""
        numbers = np.bincount(self.values, minlength=len(self.names))
        return {name: int(number) for name, number in zip(self.names, numbers, strict=True) if number}


@typed
@final
@dataclass(frozen=True, eq=False, repr=False)
class Texts(ShortRepr, Column):
    """A text for each sample: the target of a model that generates text, or the input of one that reads text."""

    values: tuple[str, ...]

    renewed = False  # as of `Images`

    def __post_init__(self) -> None:
        """Store every text in its one form."""
        object.__setattr__(self, "values", canonical_texts(self.values))

    def name(self, index: int) -> str:
        """What an input is called: the text itself."""
        return self.values[index]

    def names(self) -> tuple[str, ...]:
        """What all inputs are called."""
        return self.values

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.values)

    def take(self, ids: Int64[np.ndarray, " m"], epoch: int = 0) -> list[str]:
        """The texts, the same in every epoch."""
        return [self.values[number] for number in np.asarray(ids).tolist()]

    def select(self, ids: Int64[np.ndarray, " m"]) -> "Texts":
        """The texts of these samples."""
        return Texts(tuple(self.values[number] for number in np.asarray(ids).tolist()))

    def digest(self) -> bytes:
        """A hash of all texts."""
        return texts_digest(self.values)


def texts_digest(texts: Iterable[str]) -> bytes:
    """A short hash of texts, in order."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Match(NamedTuple):
    """A column in the terms of a codec.

    Attributes:
        column: Of the samples whose values the codec knows; labels have the codec's numbers.
        ids: (m,), the numbers of those samples; None for all of them.
        unknown: Values that the codec does not know, with the number of samples that were left out for each.
    """

    column: Column
    ids: Int64[np.ndarray, " m"] | None = None
    unknown: Mapping[str, int] = {}  # never changed


@typed
@final
@dataclass(frozen=True, repr=False)
class Vocabulary(ShortRepr):
    """The tokens of texts, in the order of their ids.

    Args:
        tokens: The token with id 3, the one with id 4, and so on; all different, none empty.
        separator: What stands between two tokens of a text; when it is empty, each token is one character.

    Raises:
        UsageError: A token is empty, repeated, longer than a character without a separator, or holds the separator.
    """

    tokens: tuple[str, ...]
    separator: str = ""

    def __post_init__(self) -> None:
        """Refuse tokens that a text could not be cut into."""
        object.__setattr__(self, "tokens", canonical_texts(self.tokens))
        for token, count in Counter(self.tokens).items():
            fits = self.separator not in token if self.separator else len(token) == 1
            if not token or not fits or count > 1:
                problem = f"a vocabulary cannot contain the token {token!r} (it is empty, a duplicate, or ambiguous)"
                hint = "distinct tokens of one character each, or a separator that occurs in none of them"
                raise UsageError(problem, hint)
        if not self.tokens:
            raise UsageError("a vocabulary without a token", "Vocabulary(tuple('0123456789'))")

    def split(self, text: str) -> list[str]:
        """The tokens of a text, whether they are known or not."""
        text = canonical(text)
        return text.split(self.separator) if self.separator else list(text)

    @typed
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin and end.

        Raises:
            DataError: The text is empty, or has a token that is not known; names it.
        """
        if not text:
            raise DataError("a text is empty", f"at least one of {self.describe()[1]}")
        ids = []
        for place, token in enumerate(self.split(text), start=1):
            if token not in self._numbers:
                problem = f"'{text}' has the unknown token '{token}' at position {place}"
                raise DataError(problem, f"a text of {self.describe()[1]}")
            ids.append(self._numbers[token])
        return ids

    def check(self, texts: Iterable[str]) -> None:
        """Refuse texts with unknown tokens; errors are those of `encode`."""
        for text in texts:
            self.encode(text)

    @typed
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the first end; padding and begin are left out.

        Raises:
            UsageError: An id is outside the vocabulary.
        """
        words = []
        for one in ids:
            try:
                each = index(one)
            except TypeError as error:
                raise UsageError(
                    f"an id is a whole number, got {type(one).__name__}", f"0 to {self.outputs - 1}"
                ) from error
            if not 0 <= each < self.outputs:
                problem = f"id {each} is outside a vocabulary of {self.outputs}"
                raise UsageError(problem, f"ids from 0 to {self.outputs - 1}")
            if each == END:
                break
            if each >= FIRST:
                words.append(self.tokens[each - FIRST])
        return self.separator.join(words)

    def rows(self, texts: Sequence[str], *, framed: bool) -> Int64[np.ndarray, "n t"]:
        """Texts as one array of ids, filled up with padding behind.

        Args:
            texts: At least one.
            framed: Whether begin stands before each text and end behind it.

        Raises:
            DataError: As for `encode`; an empty text is named by its place.
        """
        if "" in texts:
            place = f"text {list(texts).index('') + 1} of {len(texts)}"
            raise DataError(f"{place} is empty", f"at least one of {self.describe()[1]}")
        encoded = [[BEGIN, *self.encode(text), END] if framed else self.encode(text) for text in texts]
        ids = np.full((len(texts), max(map(len, encoded))), PADDING, np.int64)
        for row, numbers in zip(ids, encoded, strict=True):
            row[: len(numbers)] = numbers
        return ids

    @property
    def outputs(self) -> int:
        """The number of ids, also those of padding, begin and end."""
        return FIRST + len(self.tokens)

    def describe(self) -> tuple[str, str]:
        """The first thirty tokens."""
        more = f" and {len(self.tokens) - SHOWN} more" if len(self.tokens) > SHOWN else ""
        return "tokens", f"{' '.join(self.tokens[:SHOWN])}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"tokens": list(self.tokens), "separator": self.separator}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Vocabulary":
        """The way back from `to_dict`.

        Raises:
            UsageError: A key is missing or unknown, or a value is not possible.
        """
        tokens, separator = values.get("tokens"), values.get("separator", "")
        if set(values) - {"tokens", "separator"} or not isinstance(tokens, list) or not isinstance(separator, str):
            problem = f"a vocabulary has the keys {', '.join(values) or 'none'}"
            raise UsageError(problem, '"tokens": [..], "separator": ""')
        return Vocabulary(tuple(str(token) for token in tokens), separator)

    @staticmethod
    def of(texts: Iterable[str], separator: str = "") -> "Vocabulary":
        """The tokens of some texts, sorted."""
        found = {token for text in map(canonical, texts) for token in (text.split(separator) if separator else text)}
        return Vocabulary(tuple(sorted(found)), separator)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens, start=FIRST)}


# ---- samples

SPLITS = TRAIN, VALIDATION, TEST = "train", "validation", "test"
ALL = "all"  # the split of data that are not divided

OF_SPLIT = "set|data|dataset|split|images?|imgs?|samples|files"
SPLIT_WORD = re.compile(  # what people call a split, also in one word with what it holds
    rf"(?:(?P<{TRAIN}>train|training)|(?P<{VALIDATION}>val|valid|validation|dev)|(?P<{TEST}>test|testing))(?:{OF_SPLIT})?"
)


def split_of(name: str, among: bool = False) -> str | None:
    """The split that people call so, such as `Val`, `training_set` or `test images`; None for any other name.

    Args:
        name: Of a folder, or in a column.
        among: Whether other words may stand beside, as in `seg_train` or `val2017`.
    """
    words = re.findall(r"\d+|[^\W\d_]+", name.lower())
    found = [match.lastgroup for match in map(SPLIT_WORD.fullmatch, words) if match]
    others = len(words) - len(found) - sum(bool(re.fullmatch(OF_SPLIT, word)) for word in words)
    return found[0] if len(found) == 1 and (among or not others) else None


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Samples(ShortRepr, Numbered):
    """Inputs with their columns.

    Args:
        inputs: n images or texts.
        columns: By name, a `Column` of n values each; one that is made when it is first read may raise then.
    """

    inputs: Images | Texts
    columns: Mapping[str, Any]  # not Column: to check the type of one would make it (`Lazy`)

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.inputs)

    @property
    def has_images(self) -> bool:
        """Whether the inputs are images; else they are texts."""
        return isinstance(self.inputs, Images)

    @property
    def images(self) -> Images:
        """The inputs, which are images."""
        assert isinstance(self.inputs, Images)
        return self.inputs

    @property
    def texts(self) -> Texts:
        """The inputs, which are texts."""
        assert isinstance(self.inputs, Texts)
        return self.inputs

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The class of each sample; None where no class is known."""
        column = self.column(LABEL) if LABEL in self.columns else None
        return tuple(map(column.word, range(len(self)))) if isinstance(column, Labels) else None

    def name(self, index: int) -> str:
        """The name of a sample: that of its input."""
        return self.inputs.name(index)

    def units(self) -> Sequence[str]:
        """Of each sample what never stands on both sides of a split: its group; where none is known, its name."""
        if GROUP not in self.columns:
            return self.inputs.names()
        groups = self.column(GROUP)
        return groups.values if isinstance(groups, Texts) else [groups.word(row) for row in range(len(self))]

    def column(self, name: str | None) -> Column:
        """One of the columns; one without values for None.

        Raises:
            DataError: It is not there, or has another length.
        """
        if name is None:
            return Values(np.zeros((len(self), 0), np.float32))
        if name not in self.columns:
            problem = f"there is no column {name}; there is {', '.join(self.columns) or 'none'}"
            raise DataError(problem, f"data with a column {name}, or --task to match the columns")
        column = self.columns[name]
        if len(column) != len(self):
            raise DataError(f"the column {name} has {len(column)} values for {len(self)} samples", "one for each")
        return column

    def select(self, ids: Int64[np.ndarray, " m"]) -> "Samples":
        """These samples, in this order."""
        return Samples(self.inputs.select(ids), Lazy(self.columns, lambda name: self.columns[name].select(ids)))

    def holding(self, name: str, column: Column) -> "Samples":
        """The same samples with this column under that name; the others are as they were, and not read."""
        names = dict.fromkeys([*self.columns, name])
        return Samples(self.inputs, Lazy(names, lambda each: column if each == name else self.columns[each]))


@typed
@dataclass(frozen=True, eq=False)
class RawDataset:
    """Data as a reader found them.

    Args:
        root: Where they are, as an absolute path (or the name of the package that has them).
        splits: `train`, `validation` and `test` as far as they are there, or one split `all` when nothing is split.
        notes: What was ignored or is unusual, one sentence each.
        classes: The published order of the classes (or tokens) of a named set; None for the sorted names.
        split_seed: The seed, when the reader itself made the splits of data that came in one piece.
        facts: How the data were made, in plain values that a run stores.
        name: By what they are found again from any folder: the name of a set, else their root.
        fractions: Of training, validation and test, where data in one piece are divided by them; else a tenth is held
            out for validation.
    """

    root: str
    splits: Mapping[str, Samples]
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    split_seed: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    fractions: tuple[float, ...] = ()

    def __repr__(self) -> str:
        """In three lines: where the data are, how many samples each split has, and the columns."""
        splits = ", ".join(f"{name} {len(samples):,}" for name, samples in self.splits.items())
        return f"RawDataset {self.root}\n  splits   {splits}\n  columns  {', '.join(self.columns()) or 'none'}"

    def columns(self) -> tuple[str, ...]:
        """The names of the columns, which are those of every split."""
        return tuple(next(iter(self.splits.values())).columns) if len(self.splits) else ()

    @property
    def count(self) -> int:
        """How many samples there are in all splits."""
        return sum(len(samples) for samples in self.splits.values())

    @property
    def held_out(self) -> Samples:
        """The samples that a training used least: those to test on, else those to validate on, else all."""
        return self.splits[next(name for name in (TEST, VALIDATION, *self.splits) if name in self.splits)]

    def only(self, names: Iterable[str]) -> "RawDataset":
        """These splits, as far as they are there, in the order that they have here."""
        wanted = set(names)
        return replace(self, splits={name: self.splits[name] for name in self.splits if name in wanted})

    def spread(self, most: int) -> "RawDataset":
        """At most so many samples, evenly spread over all splits."""
        chosen, first, splits = evenly(range(self.count), most), 0, dict[str, Samples]()
        for name, samples in self.splits.items():
            own = [row - first for row in chosen if first <= row < first + len(samples)]
            first += len(samples)
            if own:
                splits[name] = samples.select(np.array(own, dtype=np.int64))
        return replace(self, splits=splits)

    def digest(self) -> str:
        """Changes when an image is added, removed, renamed, moved to another split or class, or changed in size."""
        state = hashlib.blake2b(digest_size=12)
        for name, samples in self.splits.items():
            state.update(name.encode() + samples.images.digest())
            state.update(os.fsencode("\0".join(samples.labels or ())))
        return state.hexdigest()
