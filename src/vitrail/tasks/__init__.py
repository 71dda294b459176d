"""What can be learnt: one file a task, one table; `task.py` says what a task is."""

from vitrail.tasks.classify import Classification, ClassPrediction
from vitrail.tasks.sequences import Sequences, TextPrediction
from vitrail.tasks.table import TASKS, check_column, choose_task
from vitrail.tasks.task import Example, Metric, Metrics, Prediction, Result, Task

__all__ = [
    "TASKS",
    "ClassPrediction",
    "Classification",
    "Example",
    "Metric",
    "Metrics",
    "Prediction",
    "Result",
    "Sequences",
    "Task",
    "TextPrediction",
    "check_column",
    "choose_task",
]
