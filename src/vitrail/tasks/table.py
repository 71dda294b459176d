"""The table of tasks, and the one place where it is decided which of them is learnt from some data."""

from collections.abc import Sequence

from vitrail.errors import DataError, UsageError, nearest
from vitrail.tasks.classify import Classification
from vitrail.tasks.sequences import Sequences
from vitrail.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Sequences())}
"""The tasks of the library, by name: what `--task` takes."""


def choose_task(data: str, columns: Sequence[str], asked: str = "auto") -> Task:
    """What is learnt from data with these columns; decided here, and only here.

    Args:
        data: What it is called, for messages.
        columns: Of the data.
        asked: A name, or "auto" for the one task that the columns allow.

    Raises:
        UsageError: The name is unknown, or the columns allow more than one task.
        DataError: The column of the task is missing.
    """
    if asked != "auto":
        if asked not in TASKS:
            raise UsageError(f"there is no task '{asked}'", f"--task {nearest(asked, TASKS) or ', '.join(TASKS)}")
        return check_column(data, columns, TASKS[asked])
    fitting = [task for task in TASKS.values() if task.column in columns]
    if len(fitting) > 1:
        problem = f"{data} has the columns {', '.join(columns)}, from which more than one task can be learnt"
        raise UsageError(problem, " or ".join(f"--task {task.name} ({task.help})" for task in fitting))
    if not fitting:
        wanted = ", ".join(f"{task.column} ({task.help})" for task in TASKS.values())
        raise DataError(f"{data} has the columns {', '.join(columns) or 'none'}", f"one of the columns {wanted}")
    return fitting[0]


def check_column(data: str, columns: Sequence[str], task: Task) -> Task:
    """The task, whose column must be there.

    Raises:
        DataError: It is not.
    """
    if task.column not in columns:
        raise DataError(
            f"{data} has no column {task.column}, which the task {task.name} learns; it has "
            f"{', '.join(columns) or 'none'}",
            f"data with a column {task.column}",
        )
    return task
