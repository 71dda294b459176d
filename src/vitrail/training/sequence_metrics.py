"""What an evaluation of a network that writes counts: texts that are exactly right, and the token error rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.data.feed import Feed
from vitrail.errors import counted
from vitrail.sequence_model import Written
from vitrail.training.metrics import wilson_interval

SHOWN = 12  # examples of each kind that are kept


def edits(written: Sequence[str], wanted: Sequence[str]) -> int:
    """Fewest tokens to insert, remove or replace until `written` is `wanted` (Levenshtein, 1966)."""
    before = list(range(len(wanted) + 1))
    for row, one in enumerate(written, start=1):
        here = [row]
        for column, other in enumerate(wanted, start=1):
            here.append(min(before[column] + 1, here[-1] + 1, before[column - 1] + (one != other)))
        before = here
    return before[-1]


@dataclass(frozen=True, eq=False)
class Reading:
    """One sample of an evaluation.

    Attributes:
        index: Its number in the split.
        wanted: What is right.
        written: What the model wrote.
        edits: Tokens between the two.
    """

    index: int
    wanted: str
    written: Written
    edits: int

    @property
    def right(self) -> bool:
        """Whether every token is right."""
        return self.wanted == self.written.text

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "source": self.written.name,
            "wanted": self.wanted,
            "written": self.written.text,
            "probability": self.written.probability,
        }


@dataclass(frozen=True, eq=False)
class SequenceOutcome:
    """One evaluation of a model that writes, complete.

    Attributes:
        split: Name of the split.
        readings: One for each sample that could be read, in order.
        tokens: Tokens of all the right texts.
        loss: Mean cross-entropy of an id in nats, given the true ids before it.
        unreadable: What could not be read, one line each.
        pictures: The feed of pictures behind it, with how many it should hold; empty for texts.
        data: The data, as it is called; empty within a training.
        notes: Everything odd about it, one sentence each.
    """

    split: str
    readings: tuple[Reading, ...]
    tokens: int
    loss: float
    unreadable: tuple[str, ...] = ()
    pictures: tuple[tuple[Feed, int], ...] = ()
    data: str = ""
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Samples counted."""
        return len(self.readings)

    @property
    def exact(self) -> int:
        """Samples whose text is right in every token."""
        return sum(reading.right for reading in self.readings)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share that is exactly right (Wilson)."""
        return wilson_interval(self.exact, self.count)

    @property
    def edits(self) -> int:
        """Tokens to insert, remove or replace until all is right."""
        return sum(reading.edits for reading in self.readings)

    @property
    def headline(self) -> tuple[str, float]:
        """The share that is exactly right."""
        return f"{self.split} exact match", self.exact / self.count if self.count else 0.0

    @property
    def token_error_rate(self) -> float:
        """Edit distance / length: tokens to insert, remove or replace, over the tokens of the right texts."""
        return self.edits / max(1, self.tokens)

    def sentence(self) -> str:
        """Of how many, the interval, and the token error rate."""
        low, high = self.interval
        return (
            f"of {counted(self.count, 'sequence')} (95 % interval {100 * low:.2f} % to {100 * high:.2f} %), token "
            f"error rate {100 * self.token_error_rate:.2f} % (edit distance / length: {self.edits:,} / {self.tokens:,})"
        )

    def feeds(self) -> Sequence[tuple[Feed, int]]:
        """The feed of pictures that was read."""
        return self.pictures

    def examples(self) -> tuple[list[Reading], list[Reading]]:
        """Mistakes and right answers, the surest first in both; a dozen of each at most."""
        surest = sorted(self.readings, key=lambda reading: -reading.written.probability)
        wrong = [reading for reading in surest if not reading.right]
        return wrong[:SHOWN], [reading for reading in surest if reading.right][:SHOWN]

    def by_length(self) -> list[dict[str, int]]:
        """Samples and exact ones for each length of the right text, in tokens as the text has characters."""
        lengths = sorted({len(reading.wanted) for reading in self.readings})
        rows = []
        for length in lengths:
            some = [reading for reading in self.readings if len(reading.wanted) == length]
            rows.append({"length": length, "sequences": len(some), "exact": sum(reading.right for reading in some)})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """What `vitrail evaluate --json` prints."""
        wrong, right = self.examples()
        return {
            "split": self.split,
            "sequences": self.count,
            "exact": self.exact,
            "exact_match": self.headline[1],
            "interval": list(self.interval),
            "tokens": self.tokens,
            "edit_distance": self.edits,
            "token_error_rate": self.token_error_rate,
            "loss": self.loss,
            "by_length": self.by_length(),
            "mistakes": [reading.to_dict() for reading in wrong],
            "right_answers": [reading.to_dict() for reading in right],
            "unreadable": list(self.unreadable),
        }
