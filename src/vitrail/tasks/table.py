"""The table of tasks, and the one place where it is decided which of them is learnt from some data."""

from collections.abc import Sequence

from vitrail.errors import DataError, UsageError, nearest
from vitrail.tasks.classify import Classification
from vitrail.tasks.features import Features
from vitrail.tasks.sequences import Sequences
from vitrail.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Sequences(), Features())}
"""The tasks of the library, by name."""


def learnt() -> dict[str, Task]:
    """Those that are learnt from a column: what `--task` takes."""
    return {name: task for name, task in TASKS.items() if task.column}


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
    known = learnt()
    if name != "auto":
        if name not in known:
            raise UsageError(f"there is no task '{name}'", f"--task {nearest(name, known) or ', '.join(known)}")
        return check_column(data, columns, known[name])
    fitting = [task for task in known.values() if task.column in columns]
    if len(fitting) > 1:
        problem = f"{data} has the columns {', '.join(columns)}, from which more than one task can be learnt"
        raise UsageError(problem, " or ".join(f"--task {task.name} ({task.help})" for task in fitting))
    if not fitting:
        wanted = ", ".join(f"{task.column} ({task.help})" for task in known.values())
        raise DataError(f"{data} has the columns {', '.join(columns) or 'none'}", f"one of the columns {wanted}")
    return fitting[0]


def check_column(data: str, columns: Sequence[str], task: Task) -> Task:
    """The task, whose column must be there.

    Raises:
        DataError: It is not.
    """
    if not task.column:
        raise UsageError(
            f"the task {task.name} gives {task.help}, and no data contain the true values", "vitrail predict"
        )
    if task.column not in columns:
        raise DataError(
            f"{data} has no column {task.column}, which the task {task.name} needs; its columns are "
            f"{', '.join(columns) or 'none'}",
            f"data with a column {task.column}",
        )
    return task
