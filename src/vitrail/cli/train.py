"""`vitrail train DATA` and `distill DATA --teacher T`: from data to a run."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from vitrail.cli.args import Distill, Train
from vitrail.cli.inputs import assumptions_of
from vitrail.cli.output import console, duration, one_line, print_json, print_line, print_table, warn
from vitrail.errors import Hint, UsageError, byte_size, counted
from vitrail.options import DistillOptions, TrainOptions
from vitrail.runs.data import Run
from vitrail.text import percent
from vitrail.training.distributed.launch import is_launched, launch, script
from vitrail.training.events import EpochScored, Event, Finished, Reading, Rescheduled, Started
from vitrail.training.loop import StepDone
from vitrail.training.train import Plan, distill, plan_training, train

EPOCH_LINES = 25  # of a longer run not every epoch gets a line; metrics.jsonl and the page have them all
PLAIN_SECONDS = 20.0
LIVE_SECONDS = 0.2
RATE = "{unit}s/s"
WIDTHS = {"train loss": 10, "{scored}: loss": 16, "{metric}": 11, RATE: 10, "waiting for data": 16}


def run(options: Train | Distill, command: str) -> int:
    """Train, and print how well it went and where the result is; of many processes the first one prints."""
    devices = 1 if options.devices is None else options.devices
    if options.print_launch is not None:
        print(script(options.print_launch, devices, command, options.device), end="")
        return 0
    if options.devices is not None and not options.dry_run and not is_launched(devices):
        return launch(devices, options.device, command)
    if options.dry_run and options.shard and devices <= 1:
        raise UsageError("--shard divides a network among processes, but there is only one", Hint({"devices": 2}))
    first = os.environ.get("RANK", "0") == "0"
    screen = console(to_stderr=options.json, silent=not first)
    progress = TrainingProgress(screen)
    with progress.bar:  # it is removed at the end, whatever happens
        found = _train(options, progress, command)
    if isinstance(found, Plan):
        _print_plan(found, options)
    elif first:
        _print_result(found, screen, options.json, progress.said)
    return 0


def _train(options: Train | Distill, progress: "TrainingProgress", command: str) -> Finished | Plan:
    """The finished training; with --dry-run what would be trained."""
    data, out, assumed = options.data, options.out, assumptions_of(options)
    kind = DistillOptions if isinstance(options, Distill) else TrainOptions
    chosen = kind(**{field.name: getattr(options, field.name) for field in fields(kind)})
    if isinstance(options, Distill) and isinstance(chosen, DistillOptions):
        chosen = replace(chosen, size=options.student)
        if not options.dry_run:
            return distill(data, options.teacher, out, chosen, progress, command, **assumed)
        assumed["teacher"] = options.teacher
    if options.dry_run:
        return plan_training(data, out, chosen, progress, **assumed)
    return train(data, out, chosen, progress, command, **assumed)


def _print_result(finished: Finished, screen: Console, as_json: bool, said: set[str]) -> None:
    """How well it went, where the result is, a command that uses it, and notes that were not printed before."""
    evaluated, folder, model = finished.evaluated, str(finished.folder), finished.model
    if as_json:
        result = {"seconds": finished.seconds, "weights": finished.weights}
        print_json({"run": folder, **evaluated.to_dict(), **result, "notes": list(evaluated.notes)})
        return
    name, value = evaluated.headline
    screen.print(f"\n{name} {evaluated.metric.shown(value)}", style="bold", end="")
    screen.print(f" {evaluated.sentence}, after {duration(finished.seconds)}")
    for sentence in (note for note in evaluated.notes if note not in said):
        warn(sentence)
    print_line(f"the page   {finished.folder / 'run.html'}")
    print_line(f"the model  {finished.folder / 'model'}")
    if model.reads_text:
        following = ["vitrail", "predict", folder, model.example]
    else:
        following = ["vitrail", "explain", folder, Run(folder).facts["name"]]
    print_line(f"next       {shlex.join(following)}")


def _print_plan(found: Plan, options: Train | Distill) -> None:
    """What would be trained."""
    if options.json:
        print_json(found.to_dict())
        return
    sizes = ", ".join(f"{count:,} {name}" for name, count in found.samples.items())
    print_line(f"{found.settings.data}: {found.unit}s {sizes}")
    columns = ["parameters", "numbers", "", "learning rate", "decay"]
    rows = [
        [rule.where, f"{rule.numbers:,}", rule.kind, f"{found.rate(rule):.3g}", f"{rule.weight_decay:g}"]
        for rule in found.rules
    ]
    wide = 3 if found.settings.fits_head else len(columns)  # the head is fitted, by no steps
    print_table([row[:wide] for row in rows], columns[:wide])
    if found.settings.optimization.max_time and found.steps:
        print_line(found.notes[-1])
    if found.timed is not None:
        rate, memory = RATE.format(unit=found.unit), found.timed.memory
        taken = "" if memory is None else f", {byte_size(memory)} of memory"
        print_line(f"{counted(found.timed.steps, 'step')} timed: {1 / found.timed.sample:,.0f} {rate}{taken}")
    if (options.devices or 1) > 1:
        print_line(f"with one process; {options.devices} processes divide every batch, all else stays the same")
    how = f"{counted(found.steps, 'step')} of {found.settings.optimization.batch_size}" if found.steps else "no steps"
    print_line(f"{how}; the whole run would take about {duration(found.seconds)}; nothing was written")


class TrainingProgress:
    """Listens to a training and prints: a live line (`bar`) on a terminal, plain lines everywhere else.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal and not console.is_dumb_terminal
        self.started: Started | None = None
        self.said = set[str]()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[message]}", markup=False),
            console=console,
            transient=True,
            expand=True,
            disable=not self.live,
        )
        self.task = self.bar.add_task("", total=None, message="", visible=False)
        self.shown = self.began = time.monotonic()
        self.width = 5  # of the column of epochs
        self.images = 0
        self.seconds = self.waiting = 0.0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case str():
                self.said.add(event)
                style = "yellow" if event.startswith(("warning", "left out")) else "dim"
                self.bar.update(self.task, visible=False)  # what it showed is over
                self.console.print(Text(one_line(event), style=style))
            case Reading():
                if event.done >= event.whole:
                    self.bar.update(self.task, visible=False)
                elif self._due():
                    message = f"{event.done:,} of {counted(event.whole, 'image')}"
                    bar = {"description": event.what, "total": event.whole, "completed": event.done}
                    self._show(event.what, message, **bar)
            case Started():
                self._start(event)
            case Rescheduled():
                if event.why:
                    self.console.print(Text(one_line(event.why), style="dim"))
                if self.started is not None:
                    self.started = replace(self.started, steps=event.steps)
                    self.bar.update(self.task, total=event.steps)
            case StepDone():
                self._step(event)
            case EpochScored():
                self._epoch(event.row)
            case Finished():
                self.bar.update(self.task, visible=False)

    def _due(self) -> bool:
        """Whether it is time for another message."""
        now = time.monotonic()
        if now - self.shown < (LIVE_SECONDS if self.live else PLAIN_SECONDS):
            return False
        self.shown = now
        return True

    def _show(self, what: str, message: str, **bar: Any) -> None:
        """A message in the live line, or as a line of its own."""
        if self.live:
            self.bar.update(self.task, message=message, visible=True, refresh=True, **bar)
        else:
            self.console.print(f"{what}: {message}")

    def _start(self, event: Started) -> None:
        self.started, self.began = event, time.monotonic()
        self.width = max(5, 2 * len(str(event.epochs)) + 1)
        steps = event.steps
        these = "" if steps == event.steps_per_epoch * event.epochs else f"{counted(steps, 'step')} of "
        left = f", about {duration(event.seconds)} (from timed steps)"
        if event.step >= steps:
            left = ": nothing is left to train"
        self.console.print(
            f"{counted(event.images, event.unit)}, {these}{counted(event.epochs, 'epoch')} of "
            f"{counted(event.steps_per_epoch, 'step')}{left}"
        )
        self.console.print(one_line(f"the run: {event.folder}"))
        if event.step < steps:
            words = {"scored": event.scored, "unit": event.unit, "metric": event.metric.label}
            self._print_row("epoch", [name.format(**words) for name in WIDTHS], style="dim")
        bar = {"total": steps, "completed": event.step, "description": "training", "message": ""}
        self.bar.update(self.task, visible=event.step < steps, **bar)

    def _print_row(self, epoch: str, cells: Sequence[str], style: str | None = None) -> None:
        """A row of the table of epochs."""
        columns = [f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS.values(), strict=True)]
        self.console.print("  ".join([f"{epoch:>{self.width}}", *columns]), style=style)

    def _step(self, event: StepDone) -> None:
        self.images, self.seconds = self.images + event.images, self.seconds + event.seconds
        self.waiting += event.waiting
        over = self.started is not None and event.step >= self.started.steps
        if over:  # an evaluation follows
            self.bar.update(self.task, visible=False)
        if self.started is None or over or not self._due():
            return
        left = self.started.steps - event.step
        done = event.step - self.started.step
        message = (
            f"epoch {event.epoch + 1}/{self.started.epochs}  loss {float(event.loss):.3f}  "
            f"{self.images / max(self.seconds, 1e-9):,.0f} {RATE.format(unit=self.started.unit)}  "
            f"{percent(self.waiting / max(self.seconds, 1e-9), 0)} waiting  "
            f"{duration((self.shown - self.began) / max(done, 1) * left)} left"
        )
        self.images, self.seconds, self.waiting = 0, 0.0, 0.0
        self._show(f"step {event.step}", message, completed=event.step)

    def _epoch(self, row: dict) -> None:
        assert self.started is not None
        total, metric = self.started.epochs, self.started.metric
        if row["epoch"] % -(-total // EPOCH_LINES) and row["epoch"] not in (1, total):
            return
        rate, waiting = row["images_per_second"], row["waiting_fraction"]  # None where no step was left of the epoch
        cells = (
            f"{row['training_loss']:.4f}",
            f"{row['validation_loss']:.4f}",
            metric.shown(row[f"validation_{metric.key}"]),
            "" if rate is None else f"{rate:,.0f}",
            "" if waiting is None else percent(waiting, 0),
        )
        self._print_row(f"{row['epoch']}/{total}", cells)
