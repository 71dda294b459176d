"""`vitrail evaluate RUN [DATA]`: how often a model is right, with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.cli.parse import Positional, parse
from vitrail.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """What can be typed behind `vitrail evaluate`."""

    run: Positional[str]
    """A run or model folder"""
    data: Positional[str] = ""
    """A named set, folder or manifest; the run's own data when left out"""
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
    typed = parse(Evaluate, "evaluate", words, "Count how often a model is right; each picture counts once.")

    from vitrail.cli.models_on import load_on
    from vitrail.cli.output import console, print_json, share, warn
    from vitrail.jobs import evaluate, open_for

    model = load_on(typed.run, typed.device, typed.threads, batch_size=256)
    found = open_for(model, typed.run, typed.data or None, typed.data_root, typed.split)
    evaluated = evaluate(model, found)
    result, scores = evaluated.to_dict(), evaluated.scores
    left_out = [f"{count} of class '{name}', which the model does not know" for name, count in found.unknown.items()]
    left_out += [f"unreadable: {problem}" for problem in result["unreadable"]]
    if typed.json:
        print_json({"model": typed.run, "data": found.name, **result})
    else:
        screen = console()
        for note in found.notes:
            warn(note)
        low, high = scores.interval
        screen.print(
            f"[bold]{evaluated.split} accuracy {share(scores.accuracy)}[/bold] of {scores.images:,} pictures "
            f"(95 % interval {share(low)} to {share(high)}), loss {scores.loss:.4f}"
        )
        screen.print(_table(result["per_class"]))
    for sentence in left_out:
        warn(f"left out: {sentence}")
    if typed.strict and left_out:
        raise DataError(
            f"{len(left_out)} kinds of pictures were left out, and --strict allows none", "without --strict"
        )
    return 0


def _table(rows: list[dict]) -> object:
    from rich.table import Table

    from vitrail.cli.output import share

    table = Table("class", box=None, header_style="dim")
    for name in ("images", "precision", "recall", "f1"):
        table.add_column(name, justify="right")
    worst_first = sorted(rows, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
    for row in worst_first[:40]:
        shares = ["-" if row[key] is None else share(row[key], 1) for key in ("precision", "recall", "f1")]
        table.add_row(row["class"], f"{row['images']:,}", *shares)
    if len(rows) > 40:
        table.add_row(f"and {len(rows) - 40} better ones")
    return table
