"""How data are laid out, where a person says so: which columns hold what, what belongs together, what is held out.

A run stores it, so that its data are read alike whenever they are opened. Images of one *group* (a recording, a
patient, a scene) never stand on both sides of a split that is made here; see `vitrail.data.dataset.divide`.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from vitrail.arguments import typed
from vitrail.data.columns import GROUP, SPLITS, Lazy, RawDataset, Samples, Texts
from vitrail.errors import DataError, Hint, UsageError, counted

PREVIEW = 3  # images by which a note shows what a pattern takes for their groups


@typed
@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a person says of layout; what is left empty is found by what the data hold.

    Args:
        path_column: Of a list or table: the column of the images.
        label_column: What is learnt; several, separated by commas: of 0 and 1, of numbers, or of classes.
        split_column: The split of each image.
        group_column: The group of each image.
        group_pattern: A regular expression that is looked for in each name; its first group names the image's group.
        fractions: Of data in one piece, such as `80/10/10` for training, validation and test, or `80/20` without test.

    Raises:
        UsageError: The pattern is no regular expression or has no group; the fractions are no two or three numbers
            above 0; or column and pattern both name groups.
    """

    path_column: str = ""
    label_column: str = ""
    split_column: str = ""
    group_column: str = ""
    group_pattern: str = ""
    fractions: str = ""

    def __post_init__(self) -> None:
        """Refuse what no data could be read by."""
        try:
            has_group = not self.group_pattern or re.compile(self.group_pattern).groups > 0
        except re.error as error:
            problem = f"group_pattern must be a regular expression, got '{self.group_pattern}' ({error})"
            raise UsageError(problem, Hint({"group_pattern": r"(.+)_\d+"})) from error
        if not has_group:
            problem = f"group_pattern must have a group in brackets, which '{self.group_pattern}' does not have"
            raise UsageError(problem, Hint({"group_pattern": f"({self.group_pattern})"}))
        if self.group_pattern and self.group_column:
            raise UsageError("group_pattern and group_column both name the groups", Hint(drop=["group_pattern"]))
        if self.fractions and len(self.parts) not in (2, 3):
            problem = f"fractions must be two or three numbers above 0, such as 80/10/10, got '{self.fractions}'"
            share = round(100 * float(self.fractions)) if re.fullmatch(r"0?\.\d+", self.fractions) else 0  # held out
            raise UsageError(problem, Hint({"fractions": f"{100 - share}/{share}" if share else "80/10/10"}))

    @staticmethod
    def of(options: Any) -> "Layout":
        """That of options which have fields of these names; empty where one is missing or None."""
        return Layout(**{each.name: getattr(options, each.name, None) or "" for each in fields(Layout)})

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are named, by option."""
        named = {each.name: getattr(self, each.name) for each in fields(self) if each.name.endswith("_column")}
        return {name: column for name, column in named.items() if column}

    @property
    def words(self) -> list[str]:
        """All of it as options, as they are typed."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return [word for name, value in named.items() if value for word in (f"--{name.replace('_', '-')}", value)]

    @property
    def parts(self) -> tuple[float, ...]:
        """The fractions of training, validation and test, which sum to 1; empty where none are said."""
        if not re.fullmatch(r"\d+(\.\d+)?(/\d+(\.\d+)?)*", self.fractions):
            return ()
        numbers = [float(each) for each in self.fractions.split("/")]
        return tuple(number / sum(numbers) for number in numbers) if all(numbers) else ()

    def check_columns(self, what: str) -> None:
        """Refuse columns of data that have none.

        Raises:
            UsageError: One is named.
        """
        for name in self.columns:
            problem = f"{name} is for lists and tables, and {what} has no columns"
            raise UsageError(problem, Hint(drop=[name]))

    def apply(self, raw: RawDataset) -> RawDataset:
        """The data with the groups of the pattern, and the fractions by which they are divided.

        Raises:
            UsageError: They have splits, so that no fractions are left to choose.
            DataError: The pattern fits no name.
        """
        if self.fractions and {*raw.splits} & {*SPLITS}:
            problem = f"fractions are for data in one piece, but {raw.name or raw.root} has {', '.join(raw.splits)}"
            raise UsageError(problem, Hint(drop=["fractions"]))
        raw = replace(raw, fractions=self.parts)
        if not self.group_pattern:
            return raw
        pattern, splits, examples = re.compile(self.group_pattern), dict[str, Samples](), dict[str, str]()
        matched, every = 0, set[str]()
        for split, samples in raw.splits.items():
            names = samples.inputs.names()
            found = [(match and match[1]) or "" for match in map(pattern.search, names)]
            matched += sum(map(bool, found))
            every |= {*found} - {""}
            for name, group in zip(names, found, strict=True):
                if group and len(examples) < PREVIEW:
                    examples.setdefault(group, name)
            splits[split] = with_groups(samples, found)
        if not matched:
            first = next(iter(raw.splits.values())).name(0)
            problem = f"group_pattern '{self.group_pattern}' fits no name, such as {first}"
            raise DataError(problem, Hint(drop=["group_pattern"], text="or a pattern that fits such names"))
        shown = ", ".join(f"{group} ({name})" for group, name in examples.items())
        note = f"Groups by the pattern: {counted(matched, 'image')} in {counted(len(every), 'group')}, such as {shown}."
        return replace(raw, splits=splits, notes=(*raw.notes, note))


AS_FOUND = Layout()


def with_groups(samples: Samples, groups: list[str]) -> Samples:
    """Samples with a column of groups: an image whose group is empty is alone, under its name."""
    alone = tuple(group or name for group, name in zip(groups, samples.inputs.names(), strict=True))
    names = dict.fromkeys([*samples.columns, GROUP])
    return Samples(samples.inputs, Lazy(names, lambda name: Texts(alone) if name == GROUP else samples.columns[name]))
