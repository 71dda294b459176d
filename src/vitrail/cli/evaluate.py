"""`vitrail evaluate RUN [DATA]`: how often a model is right, with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.parse import Positional, parse
from vitrail.errors import DataError

if TYPE_CHECKING:
    from vitrail.training.evaluation import Evaluated
    from vitrail.training.sequence_metrics import SequenceOutcome

NAMED_PROBLEMS = 5
SHOWN = 40  # classes in the table; --json has all


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """What can be typed after `vitrail evaluate`."""

    run: Positional[str]
    """A run or model folder"""
    data: Positional[str] = ""
    """A named set (digits, mnist, planted:2x3 ...), folder or manifest; the run's own data when left out"""
    split: str | None = None
    """train, validation, test or all; test when there is one."""
    data_root: Path | None = None
    """Where named sets lie."""
    strict: bool = False
    """Exit with 3 when the data has classes that the model does not know, or unreadable pictures."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    json: bool = False
    """Print the result as one JSON object."""


def run(words: Sequence[str]) -> int:
    """Evaluate, and print the counts."""
    says = "Count how often a model is right; each picture counts once. Example: vitrail evaluate runs/latest"
    typed = parse(Evaluate, "evaluate", words, says)

    from vitrail.cli.models_on import load_on
    from vitrail.jobs import evaluate
    from vitrail.training.evaluation import Evaluated
    from vitrail.training.sequence_metrics import SequenceOutcome

    model = load_on(typed.run, typed.device, typed.threads, batch_size=256)
    outcome = evaluate(model, typed.data or None, run=typed.run, data_root=typed.data_root, split=typed.split)
    match outcome:
        case Evaluated():
            _tell(outcome, typed)
        case SequenceOutcome():
            _tell_written(outcome, typed)
    return 0


def _tell(evaluated: "Evaluated", typed: Evaluate) -> None:
    """Print how often the class is right."""
    from vitrail.cli.output import console, count, print_json, warn
    from vitrail.jobs import CHANGED
    from vitrail.shares import percent

    result, scores = evaluated.to_dict(), evaluated.scores
    if typed.json:
        print_json({"model": typed.run, "data": evaluated.data, **result, "notes": list(evaluated.notes)})
    else:
        low, high = scores.interval
        screen, split = console(), "" if evaluated.split == "all" else f"{evaluated.split} "
        screen.print(f"{split}accuracy {percent(scores.accuracy, 2)}", style="bold", end="")
        interval = f"95 % interval {percent(low, 2)} to {percent(high, 2)}"
        screen.print(f" of {count(scores.images, 'picture')} ({interval}), loss {scores.loss:.4f}\n")
        _print_classes(result["per_class"])
    problems = [f"Left out: {problem}." for problem in result["unreadable"]]
    for sentence in (*evaluated.notes, *problems[:NAMED_PROBLEMS]):
        warn(sentence)
    if len(problems) > NAMED_PROBLEMS:
        warn(f"Left out: {count(len(problems) - NAMED_PROBLEMS, 'more picture')} (--json names them all).")
    if typed.strict and CHANGED in evaluated.notes:
        raise DataError("the data has changed since the training, and --strict does not allow it", "name other data")
    left_out = sum(evaluated.unknown.values()) + len(result["unreadable"])
    if typed.strict and left_out:
        raise DataError(
            f"{count(left_out, 'picture')} left out, and --strict allows none",
            "mend the data, or leave --strict out to count the others only",
        )


def _tell_written(outcome: "SequenceOutcome", typed: Evaluate) -> None:
    """The same for a model that writes: how often a text is right in every token."""
    from vitrail.cli.output import console, count, print_json, print_table, warn
    from vitrail.sequence_jobs import CHANGED
    from vitrail.shares import percent

    result = outcome.to_dict()
    if typed.json:
        print_json({"model": typed.run, "data": outcome.data, **result, "notes": list(outcome.notes)})
    else:
        screen, (name, value) = console(), outcome.headline
        screen.print(f"{name} {percent(value, 2)}", style="bold", end="")
        screen.print(f" {outcome.sentence()}, loss {outcome.loss:.4f}\n")
        rows = [
            (str(row["length"]), f"{row['sequences']:,}", percent(row["exact"] / row["sequences"], 1))
            for row in outcome.by_length()
        ]
        print_table(rows, ("length", "sequences", "exact"), left=0)
    for sentence in (*outcome.notes, *[f"Left out: {problem}." for problem in outcome.unreadable[:NAMED_PROBLEMS]]):
        warn(sentence)
    if typed.strict and CHANGED in outcome.notes:
        raise DataError("the data has changed since the training, and --strict does not allow it", "name other data")
    if typed.strict and outcome.unreadable:
        raise DataError(
            f"{count(len(outcome.unreadable), 'sample')} left out, and --strict allows none", "mend the data"
        )


def _print_classes(rows: list[dict]) -> None:
    """A table of the classes, the worst first."""
    from vitrail.cli.output import count, print_table
    from vitrail.shares import percent

    columns = ("precision", "recall", "f1")
    worst_first = sorted(rows, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
    cells = [
        (row["class"], f"{row['images']:,}", *("-" if row[key] is None else percent(row[key], 1) for key in columns))
        for row in worst_first[:SHOWN]
    ]
    print_table(cells, ("class (worst first)", "pictures", *columns))
    if len(rows) > SHOWN:
        print(f"and {count(len(rows) - SHOWN, 'better class', 'better classes')} (--json has all)")
