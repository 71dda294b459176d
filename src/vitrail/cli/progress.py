"""How a training is shown while it runs: a live line on a terminal, plain lines everywhere else."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from vitrail.cli.output import duration, share
from vitrail.training.job import EpochScored, Event, Finished, Reading, Started
from vitrail.training.loop import StepDone

PLAIN_SECONDS = 20.0


class TrainingProgress:
    """Listens to a training and prints; a context manager, so that the live line is taken away at the end.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.started: Started | None = None
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[says]}"),
            console=console,
            transient=True,
            expand=True,
            disable=not self.live,
        )
        self.task = self.bar.add_task("", total=None, says="", visible=False)
        self.told = self.began = time.monotonic()
        self.images = 0
        self.seconds = self.waiting = 0.0

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case str():
                style = "yellow" if event.startswith(("warning", "left out")) else "dim"
                self.console.print(Text(event, style=style))
            case Reading():
                self.bar.update(
                    self.task,
                    visible=True,
                    description=event.what,
                    total=event.whole,
                    completed=event.done,
                    says=f"{event.done:,} of {event.whole:,} pictures",
                )
            case Started():
                self._start(event)
            case StepDone():
                self._step(event)
            case EpochScored():
                self._epoch(event.row)
            case Finished():
                self.bar.update(self.task, visible=False)

    def _start(self, event: Started) -> None:
        self.started, self.began = event, time.monotonic()
        steps = event.steps_per_epoch * event.epochs
        self.console.print(
            f"{event.images:,} pictures, {event.epochs} epochs of {event.steps_per_epoch} steps, "
            f"about {duration(event.seconds)} (from timed steps); the run: {event.folder}"
        )
        self.bar.update(self.task, visible=True, total=steps, completed=event.step, description="training", says="")

    def _step(self, event: StepDone) -> None:
        self.images, self.seconds = self.images + event.images, self.seconds + event.seconds
        self.waiting += event.waiting
        now = time.monotonic()
        due = now - self.told > (0.2 if self.live else PLAIN_SECONDS)
        if not due or self.started is None:
            return
        self.told = now
        left = self.started.steps_per_epoch * self.started.epochs - event.step
        done = event.step - self.started.step
        says = (
            f"epoch {event.epoch + 1}/{self.started.epochs}  loss {float(event.loss):.3f}  "
            f"{self.images / max(self.seconds, 1e-9):,.0f} img/s  "
            f"{share(self.waiting / max(self.seconds, 1e-9), 0)} waiting  "
            f"{duration((now - self.began) / max(done, 1) * left)} left"
        )
        self.images, self.seconds, self.waiting = 0, 0.0, 0.0
        if self.live:
            self.bar.update(self.task, completed=event.step, says=says)
        else:
            self.console.print(f"step {event.step}: {says}")

    def _epoch(self, row: dict) -> None:
        speed = row["images_per_second"] or 0.0
        self.console.print(
            f"epoch {row['epoch']:>3}  train loss {row['training_loss']:.4f}  "
            f"validation loss {row['validation_loss']:.4f}  accuracy {share(row['validation_accuracy'])}  "
            f"{speed:,.0f} img/s  {share(row['waiting_share'] or 0.0, 0)} waiting for data"
        )
