"""What stands beside an input, column by column, and the codec that turns a column into what a network learns.

A reader gives every sample some columns: `label` (the name of a class), `text`, or one of its own. A codec is learnt
from the column of the training split, is stored with the model, and from then on rules: other data is matched to it.

    Labels, Texts, Values      columns
    Classes, Vocabulary        codecs

A vocabulary has three ids that are no tokens: 0 fills rows up, 1 begins every target, 2 ends it. The tokens follow from
3 on. A token is one character unless the vocabulary has a separator; then it is what stands between two of them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import DataError, UsageError

LABEL, TEXT = "label", "text"  # the columns that readers of the library give
EVIDENCE = "evidence"  # where it is known, where the evidence lies: boxes (p, 4) of top, left, bottom, right in pixels
PADDING, BEGIN, END = 0, 1, 2
FIRST = 3  # the id of the first token
SHOWN = 30  # tokens that an error names


class Column(ABC):
    """One value for each of n samples."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples it has a value for."""

    @abstractmethod
    def take(self, ids: Int64[np.ndarray, " m"], epoch: int = 0) -> Any:
        """The values of these samples, in an epoch: as the codec of the column wants them."""

    @abstractmethod
    def select(self, ids: Int64[np.ndarray, " m"]) -> "Column":
        """The column of these samples, in this order."""

    @abstractmethod
    def digest(self) -> bytes:
        """A short hash that changes with the values."""


@final
class Lazy(Mapping[str, Any]):
    """Values by name, each made once, when it is first read: splits of a set that is made, columns that may be wrong.

    Args:
        names: In their order.
        make: Makes the value of a name.
    """

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        self._names, self._make = tuple(names), cache(make)

    def __getitem__(self, name: str) -> Any:
        """The value; made now if it is not there yet."""
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a value, which is not made for that."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._names)


@dataclass(frozen=True, eq=False)
class Values(Column):
    """A number, or an array of one shape, for each sample.

    Args:
        values: (n, ...).
    """

    values: NDArray[Any]

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


@final
@dataclass(frozen=True, eq=False)
class Labels(Values):
    """The class of each sample.

    Args:
        values: (n,), each 0..len(names)-1.
        names: The names of the classes.
    """

    values: Int64[np.ndarray, " n"]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that every value has a name."""
        if len(self.values) and not (self.values.min() >= 0 and self.values.max() < len(self.names)):
            problem = f"labels from {self.values.min()} to {self.values.max()} for {len(self.names)} class names"
            raise UsageError(problem, f"labels from 0 to {len(self.names) - 1}")

    @staticmethod
    def of(names: Sequence[str]) -> "Labels":
        """The column that names a class for each sample; the classes are sorted by name."""
        classes = tuple(sorted(set(names)))
        number_of = {name: number for number, name in enumerate(classes)}
        return Labels(np.array([number_of[name] for name in names], dtype=np.int64), classes)

    def digest(self) -> bytes:
        """The numbers themselves."""
        return self.values.astype("<i8").tobytes()

    def counts(self) -> dict[str, int]:
        """How many samples each class has, classes without any left out."""
        numbers = np.bincount(self.values, minlength=len(self.names))
        return {name: int(number) for name, number in zip(self.names, numbers, strict=True) if number}


@final
@dataclass(frozen=True, eq=False)
class Texts(Column):
    """A text for each sample: what is to be written, or, as an input, what is read."""

    values: tuple[str, ...]

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
        return [self.values[number] for number in ids.tolist()]

    def select(self, ids: Int64[np.ndarray, " m"]) -> "Texts":
        """The texts of these samples."""
        return Texts(tuple(self.values[number] for number in ids.tolist()))

    def digest(self) -> bytes:
        """A hash of all texts."""
        return texts_digest(self.values)


def texts_digest(texts: Iterable[str]) -> bytes:
    """A short hash of texts, in order."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Match(NamedTuple):
    """A column held against a codec.

    Attributes:
        column: With what the codec knows, as it calls it.
        kept: (m,), the samples that are kept; None for all of them.
        unknown: What the codec does not know, with the number of samples that were left out.
    """

    column: Column
    kept: Int64[np.ndarray, " m"] | None = None
    unknown: Mapping[str, int] = {}  # never changed


class Codec(ABC):
    """From the values of a column to what a network learns, and from its outputs to words. A plain, stored value."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a network gives: logits of a sample, or of a token."""

    @abstractmethod
    def match(self, column: Column) -> Match:
        """A column of other data, in this codec's terms.

        Raises:
            DataError: A value cannot be used.
            UsageError: The column is of another kind.
        """

    @abstractmethod
    def targets(self, values: Any) -> Tensor:
        """What is learnt from values that `Column.take` gave: (b, ...), on the CPU."""

    @abstractmethod
    def describe(self) -> tuple[str, str]:
        """What it is called and what it holds, in words: ("classes", "cat, dog")."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which the task makes it again."""


@final
@dataclass(frozen=True)
class Classes(Codec):
    """Class names, in the order of the logits.

    Args:
        names: Of the classes.
        ids: What else each is called, such as WordNet's ids of ImageNet's classes, in the same order; none when empty.
            Classes with ids go by each of the synonyms, too, that a name lists with commas between.

    Raises:
        UsageError: A name stands there twice, or there are not as many ids.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that are not all different."""
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise UsageError(f"the class name '{twice[0]}' occurs twice", "one name for each class")
        if self.ids and len(self.ids) != len(self.names):
            raise UsageError(f"{len(self.ids)} ids for {len(self.names)} class names", "one id for each class, or none")

    @property
    def number_of(self) -> dict[str, int]:
        """The number of a class by what it is called: its name, its id, or a synonym that no other class has."""
        found = dict[str, int]()
        if self.ids:
            synonyms = [(word.strip(), index) for index, name in enumerate(self.names) for word in name.split(",")]
            shared = Counter(word for word, _ in synonyms)
            found = {word: index for word, index in synonyms if shared[word] == 1}
        return {**found, **{name: index for many in (self.ids, self.names) for index, name in enumerate(many)}}

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return len(self.names)

    def match(self, column: Column) -> Match:
        """Labels get the numbers that their names have here; a class that is not here is left out and counted."""
        if not isinstance(column, Labels):
            raise UsageError(f"classes are learnt from labels, got {type(column).__name__}", "a column of Labels")
        number_of = self.number_of
        translation = np.array([number_of.get(name, -1) for name in column.names], dtype=np.int64)
        values = translation[column.values] if len(column.values) else column.values
        unknown = {name: count for name, count in column.counts().items() if name not in number_of}
        kept = np.flatnonzero(values >= 0) if unknown else None
        return Match(Labels(values if kept is None else values[kept], self.names), kept, unknown)

    def targets(self, values: Int64[np.ndarray, " b"]) -> Tensor:
        """(b,) class indices."""
        return torch.from_numpy(values)

    def describe(self) -> tuple[str, str]:
        """The first twenty names."""
        return "classes", ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")

    def to_dict(self) -> dict[str, Any]:
        """The names, and the ids where there are any."""
        return {"classes": list(self.names), **({"ids": list(self.ids)} if self.ids else {})}


@final
@dataclass(frozen=True)
class Vocabulary(Codec):
    """Tokens in the order of their ids.

    Args:
        tokens: The token with id 3, the one with id 4, and so on; all different, none empty.
        separator: What stands between two tokens of a text; with nothing between them, each is one character.

    Raises:
        UsageError: A token is empty, repeated, or cannot be distinguished from others in a text.
    """

    tokens: tuple[str, ...]
    separator: str = ""

    def __post_init__(self) -> None:
        """Refuse tokens that a text could not be cut into."""
        seen: set[str] = set()
        for token in self.tokens:
            fits = self.separator not in token if self.separator else len(token) == 1
            if not token or not fits or token in seen:
                raise UsageError(
                    f"a vocabulary cannot contain the token {token!r} (it is empty, a duplicate, or ambiguous)",
                    "distinct tokens of one character each, or a separator that occurs in none of them",
                )
            seen.add(token)
        if not self.tokens:
            raise UsageError("a vocabulary without a token", "Vocabulary(tuple('0123456789'))")

    def __len__(self) -> int:
        """Number of ids, the three that are no words included."""
        return FIRST + len(self.tokens)

    def split(self, text: str) -> list[str]:
        """The text cut into tokens, known or not."""
        return text.split(self.separator) if self.separator else list(text)

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
                raise DataError(
                    f"'{text}' has the unknown token '{token}' at position {place}", f"a text of {self.describe()[1]}"
                )
            ids.append(self._numbers[token])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the first end; padding and begin are left out.

        Raises:
            UsageError: An id is outside the vocabulary.
        """
        words = []
        for each in ids:
            if not 0 <= each < len(self):
                raise UsageError(f"id {each} is outside a vocabulary of {len(self)}", f"ids from 0 to {len(self) - 1}")
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
        """One logit for each id."""
        return len(self)

    def match(self, column: Column) -> Match:
        """Texts as they are; every token must be known.

        Raises:
            DataError: A token is not known; names it.
        """
        if isinstance(column, Texts):
            for text in column.values:
                self.encode(text)
        return Match(column)

    def targets(self, values: Sequence[str]) -> Tensor:
        """(b, t) ids: begin, the text, end, filled up with padding."""
        return torch.from_numpy(self.rows(values, framed=True))

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
            raise UsageError(
                f"a vocabulary has the keys {', '.join(values) or 'none'}", '"tokens": [..], "separator": ""'
            )
        return Vocabulary(tuple(str(token) for token in tokens), separator)

    @staticmethod
    def of(texts: Iterable[str], separator: str = "") -> "Vocabulary":
        """The tokens of some texts, sorted."""
        found = {token for text in texts for token in (text.split(separator) if separator else text)}
        return Vocabulary(tuple(sorted(found)), separator)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens, start=FIRST)}
