"""What a network that writes may write, and one that reads may read: tokens and their ids.

Three ids are no words: 0 fills rows up, 1 begins every target, 2 ends it. The tokens follow from 3 on. A token is one
character unless the vocabulary has a separator; then it is what stands between two of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.data.columns import Codec, Column, Match, Texts
from vitrail.errors import DataError, UsageError

PADDING, BEGIN, END = 0, 1, 2
FIRST = 3  # the id of the first token
SHOWN = 30  # tokens that an error names


@final
@dataclass(frozen=True)
class Vocabulary(Codec):
    """Tokens in the order of their ids.

    Args:
        tokens: The token with id 3, the one with id 4, and so on; all different, none empty.
        separator: What stands between two tokens of a text; with nothing between them, each is one character.

    Raises:
        UsageError: A token is empty, repeated, or cannot be told from others in a text.
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
                    f"a vocabulary cannot hold the token {token!r} (empty, twice, or not to be told from others)",
                    "different tokens of one character each, or a separator that is in none of them",
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
                    f"'{text}' has the unknown token '{token}' at place {place}", f"a text of {self.describe()[1]}"
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
