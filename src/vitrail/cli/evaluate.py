"""`vitrail evaluate RUN [DATA]`: how well a model does, in a line and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.cli.args import Evaluate
from vitrail.cli.inputs import load_model
from vitrail.cli.output import check_strict, console, print_json, print_line, print_table, warn, warn_left_out
from vitrail.data.columns import TRAIN
from vitrail.data.layout import Layout
from vitrail.errors import DataError, counted
from vitrail.io import evaluation_place
from vitrail.pages.run_views import ClassTable, Table
from vitrail.runs.data import CHANGED, check_objects, open_run
from vitrail.runs.evaluate import BATCH, evaluate
from vitrail.tasks import Result
from vitrail.text import percent

CLASSES = 40  # rows of a table of classes; --json has all


def run(options: Evaluate, command: str) -> int:
    """Evaluate, and print the metric and its tables."""
    check_objects(open_run(options.run), options.data or None, None)
    model = load_model(options.run, options, BATCH, [options.data] if options.data else [])
    page = None if options.out is None else evaluation_place(options.out)
    result = evaluate(
        model,
        options.data or None,
        data_root=options.data_root,
        layout=Layout.of(options),
        split=options.split,
        neighbours=options.neighbours,
        precision=options.precision,
        out=page,
        command=command,
    )
    if options.json:
        print_json({"model": options.run, "data": result.data, **result.to_dict(), "notes": list(result.notes)})
    else:
        _print_evaluation(result)
        if page is not None:
            print_line(f"the page  {page}")
    for sentence in result.notes:
        warn(sentence)
    warn_left_out(result.unreadable, "sample")
    check_strict(options.strict, sum((result.unknown or {}).values()) + len(result.unreadable), "sample")
    learnt = 0 if result.split == TRAIN else result.details.get("trained_on", {}).get("images", 0)
    if options.strict and (learnt or CHANGED in result.notes):
        trained = f"the model was trained on {counted(learnt, 'image')} of these"
        what = trained if learnt else "the data have changed since the training"
        raise DataError(f"{what} (refused by --strict)", "name other data")
    return 0


def _print_evaluation(result: Result) -> None:
    """The metric, and the tables that a terminal can show."""
    screen, (name, value) = console(), result.headline
    name = name if result.split != "all" else result.metric.label
    screen.print(f"{name} {result.metric.shown(value)}", style="bold", end="")
    screen.print(f" {result.sentence}, loss {result.loss:.4f}\n")
    for table in result.tables:
        match table:
            case ClassTable():
                print_classes(table.rows, table.title)
            case Table():
                print_table(table.rows, table.header, left=0)
                if table.left:
                    print_line(f"{table.left} more, in --json")


def print_classes(rows: Sequence[Mapping[str, Any]], title: str = "class") -> None:
    """A table of the classes that have images, the worst first."""
    columns, held = ("precision", "recall", "f1"), [row for row in rows if row["images"]]
    worst_first = sorted(held, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
    cells = [
        (row["class"], f"{row['images']:,}", *("-" if row[key] is None else percent(row[key], 1) for key in columns))
        for row in worst_first[:CLASSES]
    ]
    print_table(cells, (f"{title} (worst first)", "images", *columns))
    if len(held) > CLASSES:
        print(f"and {counted(len(held) - CLASSES, 'better class', 'better classes')} (--json has all)")
    if len(rows) > len(held):
        print(f"and {counted(len(rows) - len(held), 'class', 'classes')} without images (--json has all)")
