"""Rules for a pipeline, such as "supported>=0.7,border<0.1", and what changed since an earlier audit.

The worse end of an interval decides whether a rule holds. The interval of a difference is Newcombe's (1998, method 10),
made of the intervals of both figures.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.errors import DataError, Hint, UsageError, counted, nearest
from vitrail.io import read_json

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
RULE = re.compile(r"\s*(.+?)\s*(>=|<=|>|<)\s*([0-9.]+)\s*(%?)\s*")
EXAMPLE = "supported>=0.7,border<0.1"
SUPPORTED, SHORTCUTS = "supported", "shortcuts"
NAMES = (SUPPORTED, "weak", "no better than random", "cannot tell", "border", "mask", "background", SHORTCUTS)


class Figure(NamedTuple):
    """A figure of an audit: its value, its 95 % interval, and of how many images.

    Of shortcuts it is their number in so many classes, and the interval ends where every class that was not searched
    would have one.
    """

    value: float
    interval: tuple[float, float]
    images: int

    @staticmethod
    def of(row: Mapping[str, Any]) -> "Figure":
        """The figure that `to_dict` made plain.

        Raises:
            ValueError: It does not lie in its interval.
        """
        value, low, high = (float(number) for number in (row["value"], *row["interval"]))
        if not -math.inf < low <= value <= high < math.inf:
            raise ValueError(f"{value} does not lie between {low} and {high}")
        return Figure(value, (low, high), int(row["images"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"value": self.value, "interval": list(self.interval), "images": self.images}


class Rule(NamedTuple):
    """A figure that must be above or below a limit."""

    name: str
    sign: str
    limit: float

    def failure(self, figures: Mapping[str, Figure]) -> str:
        """Why it does not hold, in a line; empty where it does."""
        said = f"{self.name}{self.sign}{self.limit:g}"
        if self.name not in figures:
            return f"{said}: there is no figure for it in this audit"
        found = figures[self.name]
        worse = found.interval[0 if self.sign[0] == ">" else 1]
        if COMPARE[self.sign](worse, self.limit):
            return ""
        low, high = found.interval
        words = f", and its 95 % interval {low:.3g} to {high:.3g}"
        if self.name == SHORTCUTS:
            words = f" in {counted(found.images, 'class', 'classes')}"
            words += f"; not searched: {counted(round(high - low), 'class', 'classes')}" * (high > low)
        return f"{said}: {self.name} is {found.value:.3g}{words}"


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
        gap = now.value - before.value
        low = gap - math.hypot(now.value - now.interval[0], before.interval[1] - before.value)
        high = gap + math.hypot(now.interval[1] - now.value, before.value - before.interval[0])
        found.append(Change(name, before.value, now.value, gap, (low, high)))
    return found


def read_audit(file: Path) -> dict[str, Any]:
    """The JSON of an earlier audit.

    Raises:
        DataError: There is none, or it is something else.
    """
    hint = "the audit.json beside an earlier audit.html"
    if not file.is_file():
        raise DataError(f"there is no file {file}", hint)
    found = read_json(file, hint)
    try:
        for row in found["figures"].values() or [{}]:
            Figure.of(row)
        dict(found["fingerprints"], **found["asked"])
        for row in found["shortcuts"]:
            str(row["label"] + row["words"]), bool(row["named"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{file} is not the JSON of an audit: it has no figures", hint) from None
    return found


def read_rules(text: str) -> list[Rule]:
    """The rules of a text.

    Raises:
        UsageError: One cannot be read.
    """
    found = list[Rule]()
    for part in re.split(r"(?<=[0-9.%])\s*,", text):  # names of classes may hold commas
        if (match := RULE.fullmatch(part)) is None:
            raise UsageError(f"'{part.strip()}' is no rule: NAME>=NUMBER or NAME<NUMBER", Hint({"fail_under": EXAMPLE}))
        name, sign, limit, hundredth = match.groups()
        try:
            found.append(Rule(name, sign, float(limit) / (100 if hundredth else 1)))
        except ValueError:
            raise UsageError(
                f"'{limit}' in the rule '{part.strip()}' is no number", Hint({"fail_under": EXAMPLE})
            ) from None
    return found


def check_rules_of_classes(rules: Sequence[Rule], classes: Sequence[str]) -> None:
    """Refuse a rule of a class that the model does not have.

    Raises:
        UsageError: Names one that is like it.
    """
    for name in (rule.name.removeprefix(f"{SUPPORTED}:") for rule in rules if rule.name.startswith(f"{SUPPORTED}:")):
        if classes and name not in classes:
            meant = f"{SUPPORTED}:{nearest(name, classes) or classes[0]}>=0.7"
            raise UsageError(f"the rule '{SUPPORTED}:{name}' is of no class of the model", Hint({"fail_under": meant}))


def check_rules(rules: Sequence[Rule], masks: bool = True) -> None:
    """Refuse a rule of a figure that no audit has, or not one without masks, or of a share that none can be.

    Raises:
        UsageError: Names those that there are.
    """
    for rule in rules:
        if rule.name not in NAMES and not rule.name.startswith(f"{SUPPORTED}:"):
            problem = f"no audit has a figure '{rule.name}'; there are {', '.join(NAMES)}, {SUPPORTED}:CLASS"
            raise UsageError(problem, Hint({"fail_under": EXAMPLE}))
        if rule.name != SHORTCUTS and not rule.limit <= 1:
            problem = f"the rule '{rule.name}{rule.sign}{rule.limit:g}' asks for a share above 1, which is all of them"
            raise UsageError(problem, Hint({"fail_under": EXAMPLE}))
        if rule.name in ("mask", "background") and not masks:
            raise UsageError(
                f"'{rule.name}' is measured where there are masks, and none were given", Hint({"fail_under": EXAMPLE})
            )
