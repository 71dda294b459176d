"""What changed since an earlier audit: of shares, and of the parts that one of both named.

The interval of a difference is Newcombe's (1998, method 10), made of the intervals of both values.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.audit.rules import SHORTCUTS, Figure
from vitrail.errors import DataError, Hint
from vitrail.io import read_json


class Change(NamedTuple):
    """A figure of two audits: the earlier one, this one, and the difference with its 95 % interval."""

    name: str
    before: float
    now: float
    difference: float
    interval: tuple[float, float]

    @property
    def clear(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.interval[0] > 0 or self.interval[1] < 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**self._asdict(), "interval": list(self.interval), "clear": self.clear}


class PartTest(NamedTuple):
    """What an audit found of a part and a class: whether it is named, and how it moves the odds, in nats a move."""

    named: bool
    effect: float
    interval: tuple[float, float]

    @staticmethod
    def of(row: Mapping[str, Any]) -> "PartTest":
        """Of a shortcut that `to_dict` made plain.

        Raises:
            ValueError: A value is no number.
        """
        effect, low, high = (float(value) / int(row["moves"]) for value in (row["effect"], *row["interval"]))
        return PartTest(bool(row["named"]), effect, (low, high))


class PartChange(NamedTuple):
    """A part that was named in one of two audits: what each found, None where it was not tested, and the difference."""

    label: str
    words: str
    before: PartTest | None
    now: PartTest | None
    difference: float | None
    interval: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        before, now = (None if one is None else one._asdict() for one in (self.before, self.now))
        return {**self._asdict(), "before": before, "now": now}


def parts_since(
    now: Mapping[tuple[str, str], PartTest], before: Mapping[tuple[str, str], PartTest], classes: Collection[str]
) -> list[PartChange]:
    """What changed of the parts that one of two audits named.

    Args:
        now: What this one tested, by class and words.
        before: What the other tested.
        classes: That both searched.
    """
    found = list[PartChange]()
    for key in dict.fromkeys((*now, *before)):
        here, there = now.get(key), before.get(key)
        if key[0] not in classes or not any(one is not None and one.named for one in (here, there)):
            continue
        gap, ends = None, None
        if here is not None and there is not None:
            gap, ends = _difference(here[1:], there[1:])
        found.append(PartChange(*key, there, here, gap, ends))
    return found


def _difference(
    now: tuple[float, tuple[float, float]], before: tuple[float, tuple[float, float]]
) -> tuple[float, tuple[float, float]]:
    """Of two values with their intervals, and its own interval."""
    (value, (low, high)), (other, (below, above)) = now, before
    gap = value - other
    return gap, (gap - math.hypot(value - low, above - other), gap + math.hypot(high - value, other - below))


def changes_since(figures: Mapping[str, Figure], earlier: Mapping[str, Any]) -> list[Change]:
    """What changed, of each share that both audits have; the number of shortcuts is no share of images.

    Args:
        figures: Of this audit.
        earlier: Of the other, as its JSON has them.
    """
    found = list[Change]()
    for name, now in figures.items():
        if name == SHORTCUTS or (row := earlier.get(name)) is None:
            continue
        before = Figure.of(row)
        gap, ends = _difference((now.value, now.interval), (before.value, before.interval))
        found.append(Change(name, before.value, now.value, gap, ends))
    return found


def read_audit(file: Path) -> dict[str, Any]:
    """The JSON of an earlier audit.

    Raises:
        DataError: There is none, or it is something else.
    """
    beside = file.with_suffix(".json")
    if file.suffix in (".html", ".htm") and beside.is_file():
        raise DataError(f"{file} is the page of an audit; its figures are in {beside}", Hint({"against": str(beside)}))
    hint = "the audit.json beside an earlier audit.html"
    if not file.is_file():
        raise DataError(f"{file} is a folder" if file.is_dir() else f"there is no file {file}", hint)
    found, name = read_json(file, hint), ""
    try:
        for name, read in READ.items():
            read(found[name])
        name = "options"
        dict(**found.get("options", {}))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{file} is not the JSON of an audit: its {name} cannot be read", hint) from None
    return found


READ: dict[str, Callable[[Any], Any]] = {  # what is compared, and how it is read
    "figures": lambda rows: [Figure.of(row) for row in rows.values() or [{}]],
    "fingerprints": lambda known: dict(**known),
    "asked": lambda known: dict(**known),
    "shortcuts": lambda rows: [(str(row["label"] + row["words"]), PartTest.of(row)) for row in rows],
}
