"""The tables of a run's page: epochs, the confusion matrix, the classes, and nested settings."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from vitrail.pages.html import bar, escape, number
from vitrail.text import percent

MOST_CLASSES = 30

_HISTORY = {
    "epoch": ("Epoch", number),
    "training_loss": ("Training loss", number),
    "validation_loss": ("Validation loss", number),
    "training_accuracy": ("Training accuracy", lambda share: percent(share, 2)),
    "training_token_accuracy": ("Training, single tokens right", lambda share: percent(share, 2)),
    "validation_accuracy": ("Validation accuracy", lambda share: percent(share, 2)),
    "learning_rate": ("Learning rate", number),
    "seconds": ("Seconds", lambda seconds: number(seconds, 3)),
    "images_per_second": ("{unit} per second", lambda rate: number(round(rate) if rate and rate >= 10 else rate, 3)),
    "waiting_fraction": ("Waiting for data", percent),
}


def finite(value: object) -> float | None:
    """A number when the value is a finite one, else None."""
    try:
        shown = float(str(value))
    except ValueError:
        return None
    return shown if math.isfinite(shown) else None


def history_table(history: Sequence[Mapping], unit: str = "image") -> str:
    """The numbers of every epoch, in the columns that occur; `unit` is what one sample is called."""
    there = dict.fromkeys(key for row in history for key in row if row[key] is not None)
    others = [key for key in there if key.startswith(("training_", "validation_")) and key not in _HISTORY]
    columns = [key for key in (*_HISTORY, *others) if key in there]
    writers = _HISTORY | {key: (key.replace("_", " ").capitalize(), number) for key in others}
    names = [writers[key][0].format(unit=f"{unit}s".capitalize()) for key in columns]
    return plain_table(names, [[writers[key][1](finite(row.get(key))) for key in columns] for row in history])


def most_confused(confusion: Int64[np.ndarray, "k k"], most: int = MOST_CLASSES) -> np.ndarray:
    """The classes with most mistakes, counted as true class and as answer, in their own order.

    Args:
        confusion: Counts; rows are the true classes.
        most: How many classes to keep.
    """
    mistakes = confusion.sum(0) + confusion.sum(1) - 2 * np.diag(confusion)
    return np.sort(np.argsort(-mistakes, kind="stable")[:most])


def _confusion_cell(count: int, of: int, true: str, predicted: str, right: bool) -> str:
    """One cell: the count, its share of the row, a colour step and the sentence that says it in words."""
    share = count / of if of else 0.0
    step = 0 if count == 0 else 1 + min(8, math.floor(9 * math.sqrt(share)))
    kind = "right" if right else "wrong"
    told = escape(f"{true} was taken for {predicted} {number(count)} of {number(of)} times ({percent(share)})")
    body = f"{number(count)}<small>{escape(percent(share))}</small>" if count else "0"
    return f'<td class="{kind} step-{step}" tabindex="-1" data-told="{told}" title="{told}">{body}</td>'


def confusion_table(confusion: Int64[np.ndarray, "k k"], classes: Sequence[str]) -> str:
    """The confusion matrix as a table of counts with row percentages, coloured by the share of the row.

    Args:
        confusion: Counts; rows are the true classes.
        classes: Their names. Of more than `MOST_CLASSES` only the most confused are shown, and the page says so; the
            answers that fall outside stand in a column of their own, so that every row still adds up.
    """
    assert confusion.shape == (len(classes), len(classes)), f"{confusion.shape} counts for {len(classes)} classes"
    if not classes:
        return '<p class="empty">No classes.</p>'
    kept = most_confused(confusion)
    some = len(kept) < len(classes)
    upright = " upright" if len(kept) > 6 and max(len(classes[k]) for k in kept) > 4 else ""
    head = "".join(f'<th scope="col"><span title="{escape(classes[k])}">{escape(classes[k])}</span></th>' for k in kept)
    rows = []
    for true in kept:
        total = int(confusion[true].sum())
        cells = [
            _confusion_cell(int(confusion[true, k]), total, classes[true], classes[k], bool(k == true)) for k in kept
        ]
        if some:
            rest = total - int(confusion[true, kept].sum())
            cells.append(_confusion_cell(rest, total, classes[true], "a class not shown here", False))
        name = escape(classes[true])
        rows.append(f'<tr><th scope="row"><span title="{name}">{name}</span></th>{"".join(cells)}</tr>')
    said = (
        f'<p class="note">Only the {len(kept)} classes with most mistakes are shown, of {len(classes)}; '
        "the column <em>others</em> counts answers outside them.</p>"
        if some
        else ""
    )
    last = '<th scope="col"><span>others</span></th>' if some else ""
    body = "".join(rows).replace('tabindex="-1"', 'tabindex="0"', 1)
    return (
        f'{said}<div class="scroll"><table class="confusion{upright}"><caption>Rows: true class. Columns: the '
        "model's answer. Each cell: pictures, and their share of the row.</caption>"
        f'<thead><tr><td class="corner">true \\ answer</td>{head}{last}</tr></thead><tbody>{body}</tbody></table></div>'
        '<p class="readout" data-hint="Point at a cell or use arrow keys to read it in words." hidden></p>'
    )


def confusions_list(confusion: Int64[np.ndarray, "k k"], classes: Sequence[str]) -> str:
    """The eight most frequent mistakes in words, most frequent first."""
    wrong = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:8]
    items = [
        f"<li><b>{escape(classes[true])}</b> taken for <b>{escape(classes[answer])}</b>: "
        f"{number(int(wrong[true, answer]))} of {number(int(confusion[true].sum()))}</li>"
        for true, answer in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, answer] > 0
    ]
    if not items:
        return '<p class="note">No picture was given a wrong class.</p>'
    return f'<div><h3>Most frequent mistakes</h3><ol class="notes">{"".join(items)}</ol></div>'


def _bar(share: float | None) -> str:
    """A share as a figure with a bar behind it."""
    if share is None:
        return '<td data-value="-1">–</td>'
    return f'<td data-value="{share:.6g}"><span class="figure">{escape(percent(share))}</span>{bar(share)}</td>'


def class_table(per_class: Sequence[Mapping]) -> str:
    """Pictures, precision, recall and F1 of every class; the page's script lets the columns be sorted."""
    rows = []
    for row in per_class:
        images = finite(row.get("images")) or 0
        bars = "".join(_bar(finite(row.get(key))) for key in ("precision", "recall", "f1"))
        name = escape(row.get("class", ""))
        head = f'<th scope="row" data-value="{name}">{name}</th>'
        rows.append(f'<tr>{head}<td data-value="{images:.0f}">{number(images)}</td>{bars}</tr>')
    titles = {
        "Class": "",
        "Pictures": "pictures whose true class this is",
        "Precision": "of the pictures given this class, the share that have it",
        "Recall": "of the pictures that have this class, the share that were given it",
        "F1": "harmonic mean of precision and recall",
    }
    head = "".join(f'<th scope="col" title="{said}">{name}</th>' for name, said in titles.items())
    return (
        f'<div class="scroll tall"><table class="classes" data-sortable><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


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


def settings_table(settings: Mapping) -> str:
    """Nested settings, one dotted name a row."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_setting(value))}</td></tr>'
        for name, value in _leaves(settings)
    )
    return f'<div class="scroll"><table class="settings"><tbody>{rows}</tbody></table></div>'


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts in columns.

    Args:
        header: One title for each column.
        rows: Cells, as many as there are titles.
    """
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
