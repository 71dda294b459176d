"""The page of a run: how well it does, how it learnt, where it errs, and what it was told to do.

The order is that of a reader's questions. Everything is in the page without its script; the script adds reading of
values by pointer or arrow keys and the sorting of the class table.
"""

from pathlib import Path

from vitrail.io import write_file
from vitrail.pages.chart import Series, line_chart
from vitrail.pages.html import data_uri, document, escape, number, plural, small
from vitrail.pages.tables import (
    class_table,
    confusion_table,
    confusions_list,
    finite,
    history_table,
    plain_table,
    settings_table,
)
from vitrail.pages.views import ClassTable, Confusion, EvaluationView, Example, Pair, RunView, Section, SidesView, Table
from vitrail.text import percent

_STATES = {
    "running": "Still running. This page is written anew after every epoch; reload it to see more.",
    "finished": "",
    "stopped": "Stopped before its end. What is shown is what was reached until then.",
}


def _lead(found: EvaluationView | None) -> str:
    """The result in one sentence, and how sure it is."""
    if found is None:
        return '<p class="lead">Not evaluated yet.</p>'
    if found.count == 0:
        return (
            f'<p class="lead">The {escape(found.split)} split holds no {escape(found.unit)} that could be counted.</p>'
        )
    of = f"{plural(found.count, found.unit)} of the {escape(found.split)} split"
    value = f"<strong>{escape(found.value)}</strong>"
    sentence = f"{value} of {of} {escape(found.statement)}." if found.statement else ""
    sentence = sentence or f"{escape(found.metric.capitalize())} {value} on {of}."
    return (
        f'<p class="lead">{sentence}</p><p class="interval">{escape(found.about)} Mean loss {number(found.loss)}.</p>'
    )


def _headline(run: RunView) -> str:
    """The state, the result and the facts."""
    state = f'<p class="state {escape(run.state)}"><span>{escape(run.state)}</span> {_STATES[run.state]}</p>'
    facts = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in run.facts)
    facts = f'<dl class="facts">{facts}</dl>' if facts else ""
    about = f'<p class="interval">{escape(run.about)}</p>' if run.about else ""
    beside = f'<p class="interval">Beside it: {escape(run.document)}.</p>' if run.document and run.evaluation else ""
    return f"<header><h1>{escape(run.title)}</h1>{state}{_lead(run.evaluation)}{about}{beside}{facts}</header>"


def _column(history: list[dict], key: str) -> list[float | None]:
    return [finite(row.get(key)) for row in history]


def _curves(run: RunView) -> str:
    """Loss, metric and learning rate over epochs, and the same as a table."""
    history = run.history
    if not history:
        so_far = "No epoch was trained." if run.state == "finished" else "No epoch has ended yet."
        return f'<section><h2>How it learnt</h2><p class="empty">{so_far}</p></section>'
    epochs = [position + 1.0 if e is None else e for position, e in enumerate(_column(history, "epoch"))]
    training, validation = _column(history, "training_loss"), _column(history, "validation_loss")
    losses = [value for value in training + validation if value is not None and value > 0]

    def write(value: float) -> str:
        return f"{number(100 * value)} %" if run.fraction else number(value)

    charts = (
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
    )
    rates = f'<p class="note">{escape(run.rates)}</p>' if run.rates else ""
    return (
        f'<section><h2>How it learnt</h2><div class="charts">{"".join(charts)}</div>{rates}'
        f"<details><summary>The numbers of every epoch</summary>{history_table(history, run.unit)}</details></section>"
    )


def _evaluation(found: EvaluationView) -> str:
    """What was left out, then the tables of the evaluation."""
    left_out = ""
    if found.unknown:
        named = ", ".join(f"{escape(name)} ({number(count)})" for name, count in found.unknown.items())
        total = plural(sum(found.unknown.values()), found.unit)
        left_out += f'<p class="note">Left out: {total} of what the model does not know: {named}.</p>'
    if found.unreadable:
        named = "".join(f"<li>{escape(name)}</li>" for name in found.unreadable)
        left_out += (
            f'<details class="note"><summary>Left out: {plural(len(found.unreadable), "file")} that could not be '
            f"read</summary><ul>{named}</ul></details>"
        )
    parts = [f"<section><h2>{escape(each.title)}</h2>{_section(each)}</section>" for each in found.sections]
    return (f"<section><h2>What is not counted</h2>{left_out}</section>" if left_out else "") + "".join(parts)


def _section(section: Section) -> str:
    match section:
        case Table():
            return plain_table(section.header, section.rows)
        case ClassTable():
            return class_table(list(section.rows))
        case Confusion(counts=counts, names=names):
            wide = " wide" if len(names) > 14 else ""
            return (
                f'<div class="beside{wide}"><div>{confusion_table(counts, names)}</div>'
                f"{confusions_list(counts, names)}</div>"
            )


def _example(example: Example) -> str:
    """A picture with its true class and the model's answer."""
    right = example.truth == example.answer
    answer = f"{escape(example.answer)} <small>{escape(percent(example.probability))}</small>"
    truth = "" if right else f'<span class="truth">is {escape(example.truth)}</span>'
    said = escape(f"{example.name}: is {example.truth}, model says {example.answer}")
    return (
        f'<figure class="example {"right" if right else "wrong"}">'
        f'<img class="picture{small(example.picture)}" alt="{said}" src="{data_uri(example.picture)}">'
        f'<figcaption><span class="answer">{"✓" if right else "✗"} {answer}</span>'
        f'{truth}<span class="name" title="{escape(example.name)}">{escape(example.name)}</span></figcaption></figure>'
    )


def _pair(pair: Pair) -> str:
    """A picture with what is right and both answers."""
    said = f"{pair.name}: is {pair.truth}, the probe says {pair.probe}, the tuned network {pair.tuned}"
    return (
        f'<figure class="example {"right" if pair.tuned == pair.truth else "wrong"}">'
        f'<img class="picture{small(pair.picture)}" alt="{escape(said)}" src="{data_uri(pair.picture)}">'
        f'<figcaption><span class="answer">probe: {escape(pair.probe)}</span>'
        f'<span class="answer">tuned: {escape(pair.tuned)}</span>'
        f'<span class="name" title="{escape(pair.name)}">{escape(pair.name)}</span></figcaption></figure>'
    )


def _sides(sides: SidesView) -> str:
    """The probe and the tuned network: their figures, their confusions, and the images that tell them apart."""
    parts = [f"<p>{escape(sides.sentence[:1].upper() + sides.sentence[1:])}.</p>"]
    wide = " wide" if any(len(each.names) > 7 for each in sides.confusions.values()) else ""
    tables = []
    for name, value in sides.values.items():
        found, kept = sides.confusions.get(name), " (kept)" if name == sides.kept else ""
        table = "" if found is None else confusion_table(found.counts, found.names)
        looks = sides.verdicts.get(name)
        looks = "" if looks is None else f'<p class="note">Does it look at the thing? {escape(looks)}.</p>'
        tables.append(f"<div><h3>{escape(name)}{kept}: {escape(value)}</h3>{looks}{table}</div>")
    parts.append(f'<div class="beside{wide}">{"".join(tables)}</div>')
    both = (
        ("Images that tuning won", sides.won, sides.counts[0]),
        ("Images that tuning lost", sides.lost, sides.counts[1]),
    )
    for heading, pairs, whole in both:
        if pairs:
            shown = f"{len(pairs)} of {whole:,}" if whole > len(pairs) else f"{len(pairs)}"
            parts.append(f'<h3>{heading}: {shown}</h3><div class="examples">{"".join(map(_pair, pairs))}</div>')
    return f"<section><h2>Probe and tuned</h2>{''.join(parts)}</section>"


def _examples(examples: tuple[Example, ...], about: str) -> str:
    """Mistakes, then right answers, the surest first in both."""
    groups = (
        ("Mistakes, the surest first", [e for e in examples if e.truth != e.answer]),
        ("Right answers, the surest first", [e for e in examples if e.truth == e.answer]),
    )
    parts = []
    for heading, members in groups:
        if members:
            shown = "".join(_example(e) for e in sorted(members, key=lambda e: -(e.probability or 0.0)))
            parts.append(f'<h3>{heading}</h3><div class="examples">{shown}</div>')
    if parts and about:
        parts.append(f'<p class="note">{escape(about)}</p>')
    return f"<section><h2>Images to look at</h2>{''.join(parts)}</section>" if parts else ""


def _origin(run: RunView) -> str:
    """What the run was told, and on what it ran: what is needed to do it again."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
    parts = [f'<h3>Notes</h3><ul class="notes">{notes}</ul>' if notes else ""]
    if run.command:
        parts.append(f"<h3>Command</h3><pre>{escape(run.command)}</pre>")
    for heading, values in (("Settings", run.settings), ("Environment", run.environment)):
        if values:
            parts.append(f"<details><summary>{heading}</summary>{settings_table(values)}</details>")
    return f"<section><h2>How it was made</h2>{''.join(parts)}</section>" if any(parts) else ""


def evaluation_page(found: EvaluationView) -> str:
    """The page of an evaluation by itself, as text: what came out, what was left out, and its tables."""
    body = f"<main><header>{_lead(found)}</header>{_evaluation(found)}</main>"
    return document(f"{found.split} · evaluation", body, "evaluation")


def run_page(run: RunView) -> str:
    """The page of a run as text; the same values always give the same text."""
    evaluation = "" if run.evaluation is None else _evaluation(run.evaluation)
    shown = _examples(run.examples, run.about_probabilities)
    if run.evaluation is not None and not run.examples and run.about_probabilities:
        evaluation += f'<p class="note">{escape(run.about_probabilities)}</p>'
    sides = "" if run.sides is None else _sides(run.sides)
    body = f"<main>{_headline(run)}{_curves(run)}{sides}{evaluation}{shown}{_origin(run)}</main>"
    return document(f"{run.title} · run", body, "run")


def write_run_page(path: Path, run: RunView) -> None:
    """Write the page of a run, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        run: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, run_page(run))
