"""The page of a run: how well it does, how it learnt, where it errs, and what it was told to do.

The order is that of a reader's questions. Everything is in the page without its script; the script adds reading of
values by pointer or arrow keys and the sorting of the class table.
"""

from collections.abc import Sequence
from pathlib import Path

from vitrail.pages.chart import Series, line_chart
from vitrail.pages.html import data_uri, document, escape, number, plural, write_page
from vitrail.pages.run_views import EvaluationSummary, Example, RunSummary, WrittenSummary
from vitrail.pages.tables import (
    class_table,
    confusion_table,
    confusions_list,
    finite,
    history_table,
    plain_table,
    settings_table,
)
from vitrail.shares import percent

__all__ = ["EvaluationSummary", "Example", "RunSummary", "WrittenSummary", "run_page", "write_run_page"]

_STATES = {
    "running": "Still running. This page is written anew after every epoch; reload it to see more.",
    "finished": "",
    "stopped": "Stopped before its end. What is shown is what was reached until then.",
}


def _headline(run: RunSummary) -> str:
    """The state, and the result in one sentence."""
    state = f'<p class="state {escape(run.state)}"><span>{escape(run.state)}</span> {_STATES[run.state]}</p>'
    found = run.evaluation
    if run.written is not None:
        said = _exactly(run.written)
    elif found is None:
        said = '<p class="lead">Not evaluated yet.</p>'
    elif found.images == 0:
        said = f'<p class="lead">The {escape(found.split)} split holds no picture that could be counted.</p>'
    else:
        low, high = found.interval
        said = (
            f'<p class="lead"><strong>{percent(found.accuracy, 2)}</strong> of {plural(found.images, "picture")} of '
            f"the {escape(found.split)} split {_are(found.images)} classified correctly.</p>"
            f'<p class="interval">With 95 % confidence the accuracy on pictures like these lies between '
            f"{percent(low, 2)} and {percent(high, 2)} (Wilson interval). Mean loss {number(found.loss)}.</p>"
        )
    facts = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in run.facts)
    facts = f'<dl class="facts">{facts}</dl>' if facts else ""
    evaluated = run.evaluation is not None or run.written is not None
    beside = f'<p class="interval">Beside it: {escape(run.beside)}.</p>' if run.beside and evaluated else ""
    return f"<header><h1>{escape(run.title)}</h1>{state}{said}{beside}{facts}</header>"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _exactly(found: WrittenSummary) -> str:
    """The result of a model that writes, in two sentences."""
    low, high = found.interval
    return (
        f'<p class="lead"><strong>{percent(found.exact, 2)}</strong> of {plural(found.sequences, "text")} of the '
        f"{escape(found.split)} split {_are(found.sequences)} written exactly right.</p>"
        f'<p class="interval">With 95 % confidence the share for sources like these lies between {percent(low, 2)} and '
        f"{percent(high, 2)} (Wilson interval). Token error rate "
        f"{percent(found.edit_distance / max(1, found.tokens), 2)} (edit distance / length: "
        f"{number(found.edit_distance)} / {number(found.tokens)}). Mean loss of a token {number(found.loss)}.</p>"
    )


def _written(found: WrittenSummary, about: str) -> str:
    """How well each length is written, and texts to look at."""
    parts = []
    if found.unreadable:
        named = "".join(f"<li>{escape(name)}</li>" for name in found.unreadable)
        said = f"Left out: {plural(len(found.unreadable), 'file')} that could not be read"
        parts.append(f'<details class="note"><summary>{said}</summary><ul>{named}</ul></details>')
    lengths = [
        (number(row["length"]), number(row["sequences"]), percent(row["exact"] / max(1, row["sequences"]), 1))
        for row in found.by_length
    ]
    parts.append(plain_table(("Length", "Texts", "Exactly right"), lengths))
    mistakes = [row for row in found.examples if row[1] != row[2]]
    for heading, rows in (
        ("Mistakes", mistakes),
        ("Right answers", [row for row in found.examples if row[1] == row[2]]),
    ):
        if rows:
            cells = [(source, right, text, percent(share, 1)) for source, right, text, share in rows]
            table = plain_table(("Source", "Right", "Written", "Probability"), cells)
            parts.append(f"<h3>{heading}, the surest first</h3>{table}")
    if found.examples and about:
        parts.append(f'<p class="note">{escape(about)}</p>')
    return f"<section><h2>What is written</h2>{''.join(parts)}</section>"


def _column(history: list[dict], key: str) -> list[float | None]:
    return [finite(row.get(key)) for row in history]


def _curves(history: list[dict], unit: str) -> str:
    """Loss, accuracy and learning rate over epochs, and the same as a table."""
    if not history:
        return '<section><h2>How it learnt</h2><p class="empty">No epoch has ended yet.</p></section>'
    epochs = [position + 1.0 if e is None else e for position, e in enumerate(_column(history, "epoch"))]
    training, validation = _column(history, "training_loss"), _column(history, "validation_loss")
    losses = [value for value in training + validation if value is not None and value > 0]
    tokens, validated = _column(history, "training_token_accuracy"), _column(history, "validation_accuracy")
    if any(value is not None for value in tokens):  # of sequences, which are right or wrong as a whole
        accuracies = [Series("training, single tokens", tokens), Series("validation, whole texts", validated)]
    else:
        accuracies = [Series("training", _column(history, "training_accuracy")), Series("validation", validated)]
    charts = (
        line_chart(
            "Loss",
            epochs,
            [Series("training", training), Series("validation", validation)],
            log=bool(losses) and max(losses) > 30 * min(losses),
        ),
        line_chart("Accuracy", epochs, accuracies, write=lambda share: f"{number(100 * share)} %"),
        line_chart("Learning rate", epochs, [Series("learning rate", _column(history, "learning_rate"))]),
    )
    return (
        f'<section><h2>How it learnt</h2><div class="charts">{"".join(charts)}</div>'
        f"<details><summary>The numbers of every epoch</summary>{history_table(history, unit)}</details></section>"
    )


def _evaluation(found: EvaluationSummary, classes: Sequence[str]) -> str:
    """Which classes are taken for which, and how well each one does."""
    left_out = ""
    if found.unknown:
        named = ", ".join(f"{escape(name)} ({number(count)})" for name, count in found.unknown.items())
        total = plural(sum(found.unknown.values()), "picture")
        left_out += f'<p class="note">Left out of the accuracy: {total} of classes unknown to the model: {named}.</p>'
    if found.unreadable:
        named = "".join(f"<li>{escape(name)}</li>" for name in found.unreadable)
        left_out += (
            f'<details class="note"><summary>Left out: {plural(len(found.unreadable), "file")} that could not be '
            f"read</summary><ul>{named}</ul></details>"
        )
    wide = " wide" if len(classes) > 14 else ""
    per_class = f"<section><h2>Class by class</h2>{class_table(found.per_class)}</section>" if found.per_class else ""
    return (
        f'<section><h2>What is taken for what</h2>{left_out}<div class="beside{wide}"><div>'
        f"{confusion_table(found.confusion, classes)}</div>{confusions_list(found.confusion, classes)}</div></section>"
        f"{per_class}"
    )


def _example(example: Example) -> str:
    """A picture with its true class and the model's answer."""
    right = example.label == example.predicted
    small = " small" if max(example.picture.shape[:2]) <= 96 else ""
    answer = f"{escape(example.predicted)} <small>{percent(example.probability)}</small>"
    truth = "" if right else f'<span class="truth">is {escape(example.label)}</span>'
    said = escape(f"{example.name}: is {example.label}, model says {example.predicted}")
    return (
        f'<figure class="example {"right" if right else "wrong"}"><img class="picture{small}" alt="{said}" '
        f'src="{data_uri(example.picture)}"><figcaption><span class="answer">{"✓" if right else "✗"} {answer}</span>'
        f'{truth}<span class="name" title="{escape(example.name)}">{escape(example.name)}</span></figcaption></figure>'
    )


def _examples(examples: tuple[Example, ...], about: str) -> str:
    """Mistakes, then right answers, the surest first in both."""
    groups = (
        ("Mistakes, the surest first", [e for e in examples if e.label != e.predicted]),
        ("Right answers, the surest first", [e for e in examples if e.label == e.predicted]),
    )
    parts = []
    for heading, members in groups:
        if members:
            shown = "".join(_example(e) for e in sorted(members, key=lambda e: -e.probability))
            parts.append(f'<h3>{heading}</h3><div class="examples">{shown}</div>')
    if parts and about:
        parts.append(f'<p class="note">{escape(about)}</p>')
    return f"<section><h2>Pictures to look at</h2>{''.join(parts)}</section>" if parts else ""


def _origin(run: RunSummary) -> str:
    """What the run was told, and on what it ran: what is needed to do it again."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
    parts = [f'<h3>Notes</h3><ul class="notes">{notes}</ul>' if notes else ""]
    if run.command:
        parts.append(f"<h3>Command</h3><pre>{escape(run.command)}</pre>")
    for heading, values in (("Settings", run.settings), ("Environment", run.environment)):
        if values:
            parts.append(f"<details><summary>{heading}</summary>{settings_table(values)}</details>")
    return f"<section><h2>How it was made</h2>{''.join(parts)}</section>" if any(parts) else ""


def run_page(run: RunSummary) -> str:
    """The page of a run as text; the same summary always gives the same text."""
    evaluation = "" if run.evaluation is None else _evaluation(run.evaluation, run.classes)
    evaluation += "" if run.written is None else _written(run.written, run.about_probabilities)
    shown = _examples(run.examples, run.about_probabilities)
    body = f"<main>{_headline(run)}{_curves(run.history, run.unit)}{evaluation}{shown}{_origin(run)}</main>"
    return document(f"{run.title} · run", body, "run")


def write_run_page(path: Path, run: RunSummary) -> None:
    """Write the page of a run, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        run: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_page(path, run_page(run))
