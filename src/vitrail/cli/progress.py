"""How a training is shown while it runs: a live line on a terminal, plain lines everywhere else."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from vitrail.cli.output import count, duration, one_line
from vitrail.tasks import Metric
from vitrail.text import percent
from vitrail.training.events import EpochScored, Event, Finished, Reading, Started
from vitrail.training.loop import StepDone

EPOCH_LINES = 25  # of a longer run not every epoch gets a line; metrics.jsonl and the page have them all
PLAIN_SECONDS = 20.0
LIVE_SECONDS = 0.2
RATE = "{unit}s/s"
WIDTHS = {"train loss": 10, "validation: loss": 16, "{metric}": 11, RATE: 10, "waiting for data": 16}


class TrainingProgress:
    """Listens to a training and prints; a context manager, so that the live line is taken away at the end.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal and not console.is_dumb_terminal
        self.started: Started | None = None
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[says]}", markup=False),
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
                self.console.print(Text(one_line(event), style=style))
            case Reading():
                self._read(event)
            case Started():
                self._start(event)
            case StepDone():
                self._step(event)
            case EpochScored():
                self._epoch(event.row)
            case Finished():
                self.bar.update(self.task, visible=False)

    def _due(self) -> bool:
        """Whether it is time to say something again."""
        now = time.monotonic()
        if now - self.told < (LIVE_SECONDS if self.live else PLAIN_SECONDS):
            return False
        self.told = now
        return True

    def _read(self, event: Reading) -> None:
        says = f"{event.done:,} of {count(event.whole, 'image')}"
        if self._due():
            if self.live:
                self.bar.update(
                    self.task, visible=True, description=event.what, total=event.whole, completed=event.done, says=says
                )
            else:
                self.console.print(f"{event.what}: {says}")

    def _start(self, event: Started) -> None:
        self.started, self.began = event, time.monotonic()
        steps = event.steps_per_epoch * event.epochs
        self.console.print(
            f"{count(event.images, event.unit)}, {count(event.epochs, 'epoch')} of "
            f"{count(event.steps_per_epoch, 'step')}, about {duration(event.seconds)} (from timed steps)"
        )
        self.console.print(one_line(f"the run: {event.folder}"))
        if event.step < steps:
            words = {"unit": event.unit, "metric": event.metric.label}
            headings = [f"{name.format(**words):>{width}}" for name, width in WIDTHS.items()]
            self.console.print("  ".join([f"{'epoch':>{self._epoch_width()}}", *headings]), style="dim")
        self.bar.update(self.task, visible=True, total=steps, completed=event.step, description="training", says="")

    def _epoch_width(self) -> int:
        return max(5, 2 * len(str(self.started.epochs)) + 1) if self.started else 5

    def _step(self, event: StepDone) -> None:
        self.images, self.seconds = self.images + event.images, self.seconds + event.seconds
        self.waiting += event.waiting
        if self.started is None or not self._due():
            return
        left = self.started.steps_per_epoch * self.started.epochs - event.step
        done = event.step - self.started.step
        says = (
            f"epoch {event.epoch + 1}/{self.started.epochs}  loss {float(event.loss):.3f}  "
            f"{self.images / max(self.seconds, 1e-9):,.0f} {RATE.format(unit=self.started.unit)}  "
            f"{percent(self.waiting / max(self.seconds, 1e-9), 0)} waiting  "
            f"{duration((self.told - self.began) / max(done, 1) * left)} left"
        )
        self.images, self.seconds, self.waiting = 0, 0.0, 0.0
        if self.live:
            self.bar.update(self.task, completed=event.step, says=says)
        else:
            self.console.print(f"step {event.step}: {says}")

    def _epoch(self, row: dict) -> None:
        total = self.started.epochs if self.started else row["epoch"]
        metric = self.started.metric if self.started else Metric("accuracy", "accuracy")
        value = row[f"validation_{metric.key}"]
        if row["epoch"] % -(-total // EPOCH_LINES) and row["epoch"] not in (1, total):
            return
        cells = (
            f"{row['training_loss']:.4f}",
            f"{row['validation_loss']:.4f}",
            percent(value, 2) if metric.fraction else f"{value:.4g}",
            f"{row['images_per_second'] or 0.0:,.0f}",
            percent(row["waiting_share"] or 0.0, 0),
        )
        epoch = f"{row['epoch']}/{total}".rjust(self._epoch_width())
        widths = WIDTHS.values()
        self.console.print("  ".join([epoch, *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))]))
