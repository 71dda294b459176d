"""The tasks of the library by name, and which of them is learnt from some data."""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from vitrail.data.columns import ATTRIBUTES, LABEL, NUMBER, Lazy
from vitrail.data.sources import UNLABELLED
from vitrail.errors import DataError, Hint, UsageError, check_task, look_into
from vitrail.tasks.task import Task

if TYPE_CHECKING:
    from vitrail.data.columns import Samples

CLASS_OF = {
    "classify": "Classification",
    "multilabel": "MultiLabel",
    "attributes": "AttributeClassification",
    "regression": "Regression",
    "sequences": "Sequences",
    "features": "Features",
}


DIGITS = 10  # classes, up to which numbers that stand at one image each may be classes of small data
NUMBERED = ({LABEL, NUMBER}, {ATTRIBUTES, NUMBER})  # columns of a list whose labels may be classes or amounts


TASKS: MutableMapping[str, Task] = Lazy(CLASS_OF, lambda name: resolve_name(f"vitrail.tasks.{name}:{CLASS_OF[name]}")())
"""The tasks of the library by name; each is imported when it is first read, so that a model costs no other task."""


def trainable_tasks() -> dict[str, Task]:
    """The tasks that can be learnt: what `--task` takes."""
    return {name: task for name, task in TASKS.items() if task.trains}


def choose_task(data: str, columns: Sequence[str], name: str = "auto") -> Task:
    """What is learnt from data with these columns; decided here, and only here.

    Args:
        data: What it is called, for messages.
        columns: Of the data.
        name: A name, or "auto" for the one task that the columns allow.

    Raises:
        UsageError: The name is unknown, or the columns allow more than one task.
        DataError: The column of the task is missing.
    """
    known = trainable_tasks()
    check_task(name, known)
    if name != "auto":
        return check_column(data, columns, known[name], choosing=True)
    fitting = [known[name] for name in known if known[name].column in columns]
    if {task.column for task in fitting} in NUMBERED:  # of one list: the reader names first what they are
        fitting = [min(fitting, key=lambda task: [*columns].index(str(task.column)))]
    if len(fitting) > 1:
        problem = f"{data} has the columns {', '.join(columns)}, from which more than one task can be learnt"
        others = " or ".join(f"{task.name}: {task.help}" for task in fitting)
        raise UsageError(problem, Hint({"task": fitting[0].name}, text=others))
    if not fitting:
        wanted = ", ".join(f"{task.column} ({task.help})" for task in known.values() if task.column)
        if not columns:
            raise DataError(f"{data} has no labels", unlabelled(data))
        named = {"label_column": [*columns][-1]} if Path(data).exists() else {}
        text = "or another column, by its name" if named else f"one of the columns {wanted}"
        has = f"the column{'s' * (len(columns) > 1)} {', '.join(columns)}, and no name says which are labels or numbers"
        raise DataError(f"{data} has {has}", Hint(named, text=text))
    return fitting[0]


def read_as(learnt: Task, columns: Sequence[str]) -> str:
    """What whole numbers are taken for, which may be amounts or classes, and what takes them for the other.

    Args:
        learnt: The task that was chosen.
        columns: Of the data; if they are of no such numbers, nothing is said.
    """
    either = next((each for each in NUMBERED if each <= {*columns}), {learnt.column})
    if either == {learnt.column}:
        return ""
    other = next(task for task in TASKS.values() if task.column in either - {learnt.column})
    amounts = learnt.column == NUMBER
    read, else_read = ("amounts", "classes, of several images each") if amounts else ("classes", "amounts")
    return f"The numbers of the labels are read as {read}; --task {other.name} reads them as {else_read}."


def unlabelled(data: str, wanted: str = "a column label", otherwise: str = UNLABELLED) -> str | Hint:
    """A hint for data without what is wanted: what shows the first lines of a list; something else of other data."""
    if data.lower().endswith(".tar") and otherwise == UNLABELLED:
        return f"in the tar {otherwise}; or key.cls beside each key.jpg"
    is_list = Path(data).is_file() and Path(data).suffix.lower() in (".csv", ".tsv", ".txt", ".jsonl")
    return look_into(data, then=f"wanted: {wanted}") if is_list else otherwise


def check_column(data: str, columns: Sequence[str], task: Task, *, choosing: bool = False) -> Task:
    """The task, whose column must be there, if it has one.

    Args:
        data: What it is called, for messages.
        columns: Of the data.
        task: The task.
        choosing: Whether it was named, so that another one may be.

    Raises:
        UsageError: The task cannot be learnt.
        DataError: The column is not there.
    """
    if not task.trains:
        problem = f"the task {task.name} gives {task.help}, and no data contain the true values"
        raise UsageError(problem, "predict or embed, which need no true values")
    if task.column is not None and task.column not in columns:
        of = {each.column: each for each in trainable_tasks().values()}
        there = next((of[name] for name in columns if name in of), None)  # of a list: what it is first
        has = there.help if there else f"the columns {', '.join(columns)}" if columns else "no labels"
        wanted = task.help if task.name in CLASS_OF else f"a column {task.column}"
        look = unlabelled(data, wanted, f"data with {wanted}") if columns else unlabelled(data)
        hint = Hint({"task": there.name}) if there and choosing else look
        raise DataError(f"{data} has {has}, and the task {task.name} needs {wanted}", hint)
    return task


def check_classes(data: str, samples: "Samples", counts: Mapping[str, int], classes: Sequence[str]) -> None:
    """Refuse a single class, and amounts in place of classes.

    Args:
        data: What it is called, for messages.
        samples: To learn from; where their labels are numbers, they have a column of these, too.
        counts: How many samples each class has.
        classes: Their names.

    Raises:
        DataError: There are fewer than two; or they are numbers, of which most stand at a single image.
    """
    alone = [*counts.values()].count(1)
    if NUMBER in samples.columns and 2 * alone > len(classes) > DIGITS:
        problem = f"{alone} of {len(classes)} classes stand at a single training image: numbers, and no names"
        raise DataError(problem, Hint({"task": "regression"}))
    if len(classes) < 2:
        raise DataError(f"there is only one class ({', '.join(classes)})", unlabelled(data, "two classes"))


def other_columns(names: Sequence[str], useless: Collection[str], otherwise: str) -> Hint | str:
    """A hint to learn the other columns; where there are none, what else would be needed."""
    rest = [name for name in names if name not in useless]
    return Hint({"label_column": ",".join(rest)}) if rest else otherwise
