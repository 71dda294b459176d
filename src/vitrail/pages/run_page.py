"""The page of a run: how well it does, how it learnt, where it errs, and how it was made.

The order is that of a reader's questions. Everything is in the page without its script; the script adds reading of
values by pointer or arrow keys and the sorting of the class table.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vitrail.io import write_file
from vitrail.pages.chart import Chart, Series, line_chart
from vitrail.pages.render import document
from vitrail.pages.views import EvaluationView, RunView
from vitrail.text import finite, number, percent

_HISTORY = {
    "epoch": ("Epoch", number),
    "training_loss": ("Training loss", number),
    "validation_loss": ("Validation loss", number),
    "training_accuracy": ("Training accuracy", lambda fraction: percent(fraction, 2)),
    "training_token_accuracy": ("Training, single tokens right", lambda fraction: percent(fraction, 2)),
    "validation_accuracy": ("Validation accuracy", lambda fraction: percent(fraction, 2)),
    "learning_rate": ("Learning rate", number),
    "seconds": ("Seconds", lambda seconds: number(seconds, 3)),
    "images_per_second": ("{unit} per second", lambda rate: number(round(rate) if rate and rate >= 10 else rate, 3)),
    "waiting_fraction": ("Waiting for data", percent),
}


def history_table(history: Sequence[Mapping], unit: str = "image") -> tuple[list[str], list[list[str]]]:
    """The numbers of every epoch, as titles and rows of the columns that occur.

    Args:
        history: One mapping per epoch.
        unit: What one sample is called.
    """
    there = dict.fromkeys(key for row in history for key in row if row[key] is not None)
    others = [key for key in there if key.startswith(("training_", "validation_")) and key not in _HISTORY]
    columns = [key for key in (*_HISTORY, *others) if key in there]
    writers = _HISTORY | {key: (key.replace("_", " ").capitalize(), number) for key in others}
    names = [writers[key][0].format(unit=f"{unit}s".capitalize()) for key in columns]
    return names, [[writers[key][1](finite(row.get(key))) for key in columns] for row in history]


def _leaves(settings: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested settings with their dotted names."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _setting(value: object) -> str:
    """A setting as a person would write it in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(item) for item in value) or "none"
    return str(value) if value not in ("", {}) else "none"


def settings_rows(settings: Mapping) -> list[tuple[str, str]]:
    """Nested settings, one dotted name a row, and its value in words."""
    return [(name, _setting(value)) for name, value in _leaves(settings)]


def _column(history: list[dict], key: str) -> list[float | None]:
    return [finite(row.get(key)) for row in history]


def _charts(run: RunView) -> list[Chart]:
    """Loss, metric and learning rate over epochs; none where there was no epoch."""
    history = run.history
    if not history:
        return []
    epochs = [position + 1.0 if e is None else e for position, e in enumerate(_column(history, "epoch"))]
    training, validation = _column(history, "training_loss"), _column(history, "validation_loss")
    losses = [value for value in training + validation if value is not None and value > 0]

    def write(value: float) -> str:
        return f"{number(100 * value)} %" if run.fraction else number(value)

    return [
        line_chart(
            "Loss",
            epochs,
            [Series("training", training), Series(run.scored, validation)],
            log=bool(losses) and max(losses) > 30 * min(losses),
        ),
        line_chart(
            run.metric.capitalize(),
            epochs,
            [Series(label, _column(history, key)) for label, key in run.curves]
            + ([Series(run.level[0], [run.level[1]] * len(epochs))] if run.level else []),
            write=write,
        ),
        line_chart("Learning rate", epochs, [Series("learning rate", _column(history, "learning_rate"))]),
    ]


def evaluation_page(found: EvaluationView) -> str:
    """The page of an evaluation by itself, as text: what came out, what was left out, and its tables."""
    return document("evaluation.html", f"{found.split} · evaluation", "evaluation", {"found": found})


def run_page(run: RunView) -> str:
    """The page of a run as text; the same values always give the same text."""
    surest = sorted(run.examples, key=lambda example: -(example.probability or 0.0))
    values = {
        "run": run,
        "charts": _charts(run),
        "epochs": history_table(run.history, run.unit),
        "wrong": [example for example in surest if example.truth != example.answer],
        "right": [example for example in surest if example.truth == example.answer],
        "settings": settings_rows(run.settings),
        "environment": settings_rows(run.environment),
    }
    return document("run.html", f"{run.title} · run", "run", values)


def write_run_page(path: Path, run: RunView) -> None:
    """Write the page of a run, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        run: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, run_page(run))
