"""`vitrail evaluate RUN [DATA]`: how often a model is right, with an interval."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.cli.args import Evaluate
from vitrail.cli.output import console, print_json, print_table, warn
from vitrail.cli.sources import load_on
from vitrail.errors import DataError, counted
from vitrail.pages.views import ClassTable, Table
from vitrail.tasks import Result
from vitrail.text import percent
from vitrail.training.evaluate import CHANGED, check_objects, evaluate

NAMED_PROBLEMS = 5
SHOWN = 40  # classes in the table; --json has all


def run(typed: Evaluate, command: str) -> int:
    """Evaluate, and print the counts."""
    check_objects(typed.run, typed.data or None, {})
    asked = [typed.data] if typed.data else []
    model = load_on(typed.run, typed.device, typed.threads, 256, typed, asked, typed.data_root)
    result = evaluate(
        model,
        typed.data or None,
        run=typed.run,
        data_root=typed.data_root,
        split=typed.split,
        neighbours=typed.neighbours,
        precision=typed.precision,
    )
    if typed.json:
        print_json({"model": typed.run, "data": result.data, **result.to_dict(), "notes": list(result.notes)})
    else:
        _print(result)
    problems = [f"Left out: {problem}." for problem in result.unreadable]
    for sentence in (*result.notes, *problems[:NAMED_PROBLEMS]):
        warn(sentence)
    if len(problems) > NAMED_PROBLEMS:
        warn(f"Left out: {counted(len(problems) - NAMED_PROBLEMS, 'more sample')} (--json names them all).")
    if typed.strict and CHANGED in result.notes:
        raise DataError("the data has changed since the training, and --strict does not allow it", "name other data")
    left_out = sum((result.unknown or {}).values()) + len(problems)
    if typed.strict and left_out:
        problem = f"{counted(left_out, 'sample')} left out, and --strict allows none"
        raise DataError(problem, "mend the data, or leave --strict out to count the others only")
    return 0


def _print(result: Result) -> None:
    """The metric, and the tables that a terminal can show."""
    screen, (name, value) = console(), result.headline
    name = name if result.split != "all" else result.metric.label
    screen.print(f"{name} {result.metric.shown(value)}", style="bold", end="")
    screen.print(f" {result.sentence}, loss {result.loss:.4f}\n")
    for table in result.tables:
        match table:
            case ClassTable():
                _print_classes(table.rows)
            case Table():
                print_table(table.rows, table.header, left=0)


def _print_classes(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of the classes, the worst first."""
    columns = ("precision", "recall", "f1")
    worst_first = sorted(rows, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
    cells = [
        (row["class"], f"{row['images']:,}", *("-" if row[key] is None else percent(row[key], 1) for key in columns))
        for row in worst_first[:SHOWN]
    ]
    print_table(cells, ("class (worst first)", "images", *columns))
    if len(rows) > SHOWN:
        print(f"and {counted(len(rows) - SHOWN, 'better class', 'better classes')} (--json has all)")
