"""`vitrail train DATA`: from a set of pictures to a run folder."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from vitrail.cli.args import Train
from vitrail.cli.parse import parse
from vitrail.errors import UsageError
from vitrail.training.options import TrainOptions

if TYPE_CHECKING:
    from rich.console import Console

    from vitrail.training.events import Finished

SAYS = (
    "Train a Vision Transformer on a set of pictures. What is left out is decided by a recipe, and said. "
    "Example: vitrail train digits"
)


def run(words: Sequence[str]) -> int:
    """Train, and print where the result is."""
    typed = parse(Train, "train", words, SAYS)
    options = TrainOptions(**{field.name: getattr(typed, field.name) for field in fields(TrainOptions)})
    if not typed.data and options.config is None:
        raise UsageError("no data given: what should be trained on?", "vitrail train digits")
    if options.resume == "auto" and typed.out is None:
        raise UsageError("--resume auto needs the run to go on with", "--out with the folder of the run")

    from vitrail.cli.output import console
    from vitrail.cli.progress import TrainingProgress
    from vitrail.training.job import train

    screen = console(to_stderr=typed.json)
    with TrainingProgress(screen) as progress:
        finished = train(typed.data, typed.out, options, progress, shlex.join(["vitrail", "train", *words]))
    return show(finished, screen, typed.json)


def show(finished: "Finished", screen: "Console", as_json: bool) -> int:
    """Print how well it went, and where the result is."""
    from vitrail.cli.output import duration, print_json, say
    from vitrail.text import percent

    evaluated = finished.evaluated
    if as_json:
        result = {"seconds": finished.seconds, "weights": finished.weights}
        print_json({"run": str(finished.folder), **evaluated.to_dict(), **result})
        return 0
    name, value = evaluated.headline
    shown = percent(value, 2) if evaluated.metric.fraction else f"{value:.4g}"
    screen.print(f"\n{name} {shown}", style="bold", end="")
    screen.print(f" {evaluated.sentence}, after {duration(finished.seconds)}")
    if finished.document:
        say(f"beside it  {finished.document}")
    say(f"the page   {finished.folder / 'run.html'}")
    say(f"the model  {finished.folder / 'model'}")
    say(f"next       {shlex.join(_next(finished))}")
    return 0


def _next(finished: "Finished") -> list[str]:
    """What to type next: see through what reads pictures, let write what reads texts."""
    from vitrail.training.evaluate import remembered_data

    run, model = str(finished.folder), finished.model
    if model.reads_text:
        return ["vitrail", "predict", run, model.example]
    return ["vitrail", "explain", run, remembered_data(finished.folder)["name"]]
