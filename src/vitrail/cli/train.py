"""`vitrail train DATA`: from a set of pictures to a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from vitrail.cli.parse import Positional, parse
from vitrail.training.options import TrainOptions


@dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """What can be typed behind `vitrail train`."""

    data: Positional[str] = ""
    """digits, mnist, fashion-mnist, a folder of class folders, or a .csv or .jsonl with path,label[,split]"""
    out: Path | None = None
    """The run folder; a new one below runs/ when left out."""
    json: bool = False
    """Print the result as one JSON object."""


def run(words: Sequence[str]) -> int:
    """Train, and print where the result is."""
    typed = parse(Train, "train", words, "Train a Vision Transformer on a set of pictures.")
    options = TrainOptions(**{field.name: getattr(typed, field.name) for field in fields(TrainOptions)})
    if not typed.data and options.config is None:
        from vitrail.errors import UsageError

        raise UsageError("no data given: what should be trained on?", "vitrail train digits")

    from rich.console import Console

    from vitrail.cli.output import console, duration, print_json, share
    from vitrail.cli.progress import TrainingProgress
    from vitrail.jobs import train

    screen = Console(stderr=True, highlight=False) if typed.json else console()
    with TrainingProgress(screen) as progress:
        finished = train(typed.data, typed.out, options, progress)
    evaluated, scores = finished.evaluated, finished.evaluated.scores
    if typed.json:
        print_json(
            {
                "run": str(finished.folder),
                **evaluated.to_dict(),
                "seconds": finished.seconds,
                "weights": finished.weights,
            }
        )
        return 0
    low, high = scores.interval
    screen.print(
        f"\n[bold]{evaluated.split} accuracy {share(scores.accuracy)}[/bold] of {scores.images:,} pictures "
        f"(95 % interval {share(low)} to {share(high)}), after {duration(finished.seconds)}"
    )
    screen.print(f"the page      {finished.folder / 'run.html'}")
    screen.print(f"the model     {finished.folder / 'model'}")
    screen.print(f"next          vitrail explain {finished.folder} PICTURE", highlight=False, markup=False)
    return 0
