"""Rules for a pipeline, such as "supported>=0.7,border<0.1"; the worse end of an interval decides whether one holds."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vitrail.errors import Hint, UsageError, counted, nearest

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
SIGN, NUMBER = "(>=|<=|=>|=<|==?|>|<)", r"([0-9]+\.?[0-9]*|\.[0-9]+)"  # also signs that are none
RULE = re.compile(rf"(.+?)\s*{SIGN}\s*{NUMBER}\s*(%?)")
END = rf"({SIGN}\s*{NUMBER}\s*%?)\s*"  # of a rule; names of classes may hold commas and digits
SEPARATED, JOINED = re.compile(rf"{END}(?:,|;)"), re.compile(rf"{END}(?:and\b|&+|\s)\s*(?=[A-Za-z])")
COMMA = re.compile(rf"({SIGN}\s*[0-9]+),([0-9]+\s*%?\s*(?:[,;]|$))")  # of a number
EXAMPLE = "supported>=0.7,border<0.1"
SUPPORTED, SHORTCUTS, OF_CLASS = "supported", "shortcuts", "supported:"
MASKED = ("mask", "background")  # measured where there are masks
NAMES = (SUPPORTED, "weak", "no better than random", "cannot tell", "border", *MASKED, SHORTCUTS)


class Figure(NamedTuple):
    """A figure of an audit: its value, its 95 % interval, and of how many images.

    Of shortcuts it is their number in so many classes, and the interval ends where every class in which none could be
    found would have one.
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

    @property
    def words(self) -> str:
        """As it is typed."""
        return f"{self.name}{self.sign}{self.limit:g}"

    @property
    def of_class(self) -> str:
        """The class that it is of; empty of any other figure."""
        return self.name.removeprefix(OF_CLASS) if self.name.startswith(OF_CLASS) else ""

    def failure(self, figures: Mapping[str, Figure]) -> str:
        """Why it does not hold, in a line; empty where it does."""
        if self.name not in figures:
            return f"{self.words}: there is no figure for it in this audit"
        found = figures[self.name]
        worse = found.interval[0 if self.sign[0] == ">" else 1]
        if COMPARE[self.sign](worse, self.limit):
            return ""
        low, high = found.interval
        words = f", and its 95 % interval {low:.3g} to {high:.3g}"
        if self.name == SHORTCUTS:
            words = f" in {counted(found.images, 'class', 'classes')}"
            blind = counted(round(high - low), "class", "classes")
            words += f"; not searched, or by too few images: {blind}" * (high > low)
        return f"{self.words}: {self.name} is {found.value:.3g}{words}"


class Fault(NamedTuple):
    """What is wrong with a rule, in a line, and the rule as it was probably meant; empty where nobody knows."""

    problem: str
    meant: str = ""


def refuse(rules: Sequence[str], faults: Sequence[Fault | None]) -> None:
    """Refuse the first rule with a fault; the hint keeps those without one, and mends the others where it is known how.

    Raises:
        UsageError: There is one with a fault.
    """
    kept = [rule if fault is None else fault.meant for rule, fault in zip(rules, faults, strict=True)]
    for fault in filter(None, faults):
        raise UsageError(fault.problem, Hint({"fail_under": ",".join(filter(None, kept)) or EXAMPLE}))


def read_rules(text: str, masks: bool = True) -> list[Rule]:
    """The rules of a text.

    Args:
        text: Rules with commas or semicolons between them.
        masks: Whether there are masks, of which figures are measured.

    Raises:
        UsageError: One cannot be read, or is of a figure that no audit has, or not one without masks, or of a class
            without a name, or of a share that none can be.
    """
    parts = [part.strip() for part in SEPARATED.sub(r"\1\n", COMMA.sub(r"\1.\3", text)).split("\n")]
    read = [_read_rule(part, masks) for part in parts]
    refuse(parts, [fault for _, fault in read])
    return [rule for rule, _ in read]


def _read_rule(part: str, masks: bool) -> tuple[Rule, Fault | None]:
    """A rule and what is wrong with it; the first thing of several, and all of them mended."""
    if fault := _several(part, masks):
        return Rule("", ">", 0), fault
    if (match := RULE.fullmatch(part)) is None:
        signs = f"one of the signs {', '.join(COMPARE)}"
        return Rule("", ">", 0), Fault(f"'{part}' is no rule: a rule is a name, {signs} and a number")
    name, sign, number, hundredth = match.groups()
    limit, problems, known = float(number) / (100 if hundredth else 1), list[str](), True
    if name.startswith(OF_CLASS):
        name = OF_CLASS + name.removeprefix(OF_CLASS).strip()
    if sign not in COMPARE:
        problems.append(f"'{sign}' in the rule '{part}' is no sign; the signs are {', '.join(COMPARE)}")
        sign, known = sign[::-1], sign[::-1] in COMPARE
    if name not in NAMES and not name.startswith(OF_CLASS):
        problems.append(f"no audit has a figure '{name}'; there are {', '.join(NAMES)}, {OF_CLASS}CLASS")
        near = nearest(name, NAMES)
        name, known = near or name, known and near is not None
    if name == OF_CLASS:
        problems.append(f"the rule '{part}' is of a class and does not name it")
        known = False
    if name in MASKED and not masks:
        problems.append(f"'{name}' is measured where there are masks, and none were given")
        known = False
    if name != SHORTCUTS and limit > 1:
        problems.append(f"the rule '{part}' asks for a share above 1, which is all of them")
        limit, known = limit / 100, known and 2 <= limit <= 100 and not hundredth
    if (sign, limit) in (("<", 0), (">", 1)) and not (name == SHORTCUTS and limit):
        problems.append(f"the rule '{part}' can never hold: nothing is {'below 0' if limit == 0 else 'above 1'}")
        sign += "="
    rule = Rule(name, sign, limit)
    return rule, Fault(problems[0], rule.words if known else "") if problems else None


def _several(part: str, masks: bool) -> Fault | None:
    """What is wrong where a word or a blank stands between rules, which are mended; None where no two are known."""
    pieces = JOINED.sub(r"\1\n", part).split("\n")
    read = [_read_rule(piece, masks) for piece in pieces] if len(pieces) > 1 else []
    meant = [words for rule, fault in read if (words := rule.words if fault is None else fault.meant)]
    if not meant or not all(map(RULE.fullmatch, pieces)):
        return None
    return Fault(f"'{part}' is more than one rule: a comma stands between two", ",".join(meant))


def check_rules_of_classes(rules: Sequence[Rule], classes: Sequence[str], where: str = "the model") -> None:
    """Refuse a rule of a class that is not there.

    Args:
        rules: All.
        classes: That are there.
        where: What has these classes: the model, or the data, which have images of them.

    Raises:
        UsageError: The hint has the name that is like it.
    """
    faults = list[Fault | None]()
    for rule in rules:
        name, fault = rule.of_class, None
        if name and name not in classes:
            near = nearest(name, classes)
            meant = rule._replace(name=f"{OF_CLASS}{near}").words if near else ""
            fault = Fault(f"the rule '{rule.words}' is of '{name}', no class of {where}", meant)
        faults.append(fault)
    refuse([rule.words for rule in rules], faults)
