"""One training from beginning to end: prepare, train, evaluate once, leave a run folder.

Whoever wants to watch passes `listen`, which gets every event of `events.py`: bars, logs and pages listen.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.data.feed import Feed, check_readable
from vitrail.errors import RunError, UsageError, VitrailError
from vitrail.training.beginning import threads_set, time_part
from vitrail.training.checkpoint import load_state, save_state, states, weights_hash
from vitrail.training.distilling import Lesson
from vitrail.training.events import (
    Asked,
    EpochScored,
    Finished,
    Listen,
    Reported,
    RunState,
    Started,
    Stopped,
    stop_signals,
)
from vitrail.training.loop import EpochDone, State, StepDone, start, steps_per_epoch, train_loop
from vitrail.training.options import TrainOptions
from vitrail.training.preparation import Outcome, Preparation
from vitrail.training.prepare import LEFT_OUT, shortened, unreadable_notes
from vitrail.training.recipes import document_figure
from vitrail.training.run import RunFolder, default_folder, environment, open_folder, owned, point_latest
from vitrail.training.settings import settings_to_yaml
from vitrail.training.starting import prepare_run, read_configuration
from vitrail.training.watchdog import stuck

SAVE_SECONDS = 20.0  # an epoch that ends sooner after the last save is not saved on its own
SAVE_WITHIN_EPOCH_SECONDS = 300.0
LOG_STEPS = 50
PATIENT_STEPS = 200  # before so many steps a loss that is still that of guessing says nothing


def train(
    data: str,
    out: str | Path | None,
    options: TrainOptions,
    listen: Listen,
    command: str,
    lesson: Lesson | None = None,
) -> Finished:
    """`vitrail.train` or `distill` but for its page: `listen` hears when there is something to show."""
    given = read_configuration(options.config, data)
    data = str(data or given.get("data", ""))
    if not data:
        raise UsageError("no data given: what should be trained on?", "vitrail train digits")
    path = Path(out) if out is not None else default_folder(data)
    if path.exists():
        folder, going_on = open_folder(path, options.resume == "auto")
    else:
        folder, going_on = RunFolder(path), False
    prepared = prepare_run(folder if going_on else None, data, options, given, listen, lesson)
    folder, _ = open_folder(path, options.resume == "auto")
    command = command or f"vitrail.train({data!r}, {str(path)!r}, {options!r})"
    try:
        with owned(folder), threads_set(prepared.settings.execution.threads):
            return _Job(folder, prepared, listen, command).run(going_on)
    finally:
        if not any(path.iterdir()):  # stopped before anything was written
            path.rmdir()


@dataclass
class _Job:
    """One run under way."""

    folder: RunFolder
    prepared: Preparation
    listen: Listen
    command: str
    began: float = field(default_factory=time.perf_counter)
    saved: float = field(default_factory=time.perf_counter)
    warned: bool = False

    def run(self, going_on: bool) -> Finished:
        prepared, settings = self.prepared, self.prepared.settings
        state = start(prepared.network, settings.optimization)
        if going_on and states(self.folder.resume):
            manifest, notes = load_state(state, self.folder.resume)
            self.folder.cut_metrics(manifest["metrics_bytes"])
            for sentence in notes:
                self._say(sentence)
            self._say(f"going on with {self.folder.path} from step {state.step}")
        else:
            if going_on:
                self._refuse_to_repeat()
            self.folder.cut_metrics(0)
            self._write_beginning()
        point_latest(self.folder.path)
        per_epoch = steps_per_epoch(len(prepared.data), settings.optimization)
        self._announce(state, per_epoch)
        with stop_signals() as asked:
            loop = train_loop(state, prepared.data, prepared.objective, settings.optimization, settings.execution)
            try:
                self._follow(loop, state, asked)
            except VitrailError:
                self._report(state="stopped")
                raise
        return self._finish(state)

    def _refuse_to_repeat(self) -> None:
        """A run that has no saved state begins again, unless it was finished: then that would replace its model."""
        if self.folder.evaluation.is_file():
            raise UsageError(
                f"{self.folder.path} is finished, and its saved states are gone: going on would train it again",
                f"another --out than {self.folder.path}",
            )
        self._say("no saved state: beginning again")

    def _write_beginning(self) -> None:
        """All that says what this run is; the settings come last, since with them the folder counts as a run."""
        self.folder.write_text("command.txt", self.command + "\n")
        self.folder.write_json("env.json", environment())
        self._write_data()
        for sentence in self.prepared.notes:
            self.folder.append_log(sentence)
        self.folder.write_text("config.yaml", settings_to_yaml(self.prepared.settings))

    def _write_data(self) -> None:
        notes = self.prepared.notes
        skipped = [note for note in notes if note.startswith(LEFT_OUT)]
        facts = self.prepared.data_facts()
        self.folder.write_json("data.json", {**facts, "skipped": skipped, "notes": list(notes)})

    def _name_unreadable(self, feeds: Sequence[tuple[Feed, int]]) -> None:
        """Say of each picture that could not be read that it is left out, once; too many of them end the run."""
        new = [note for note in unreadable_notes(*(feed for feed, _ in feeds)) if note not in self.prepared.notes]
        if new:
            self.prepared = replace(self.prepared, notes=(*self.prepared.notes, *new))
            self._write_data()
            for note in shortened(new):
                self._say(note)
        for feed, count in feeds:
            check_readable(feed, count)

    def _announce(self, state: State, per_epoch: int) -> None:
        """Time a few steps on a copy, and say how long the rest will take."""
        choices = self.prepared.settings.optimization
        left = per_epoch * choices.epochs - state.step
        seconds = 0.0
        if left > 0:
            part = self.prepared.part_seconds or time_part(self.prepared, state.network)
            seconds = left * part * choices.accumulate * 1.15  # augmentation, optimizer and validation
        images, unit = len(self.prepared.data), self.prepared.unit
        self.listen(Started(self.folder.path, images, per_epoch, choices.epochs, state.step, seconds, unit))

    def _follow(self, loop: Iterator[StepDone | EpochDone], state: State, asked: Asked) -> None:
        seconds, waiting, images = 0.0, 0.0, 0
        for event in loop:
            if isinstance(event, StepDone):
                seconds, waiting = seconds + event.seconds, waiting + event.waiting
                images += event.images
                self.listen(event)
                if event.step % LOG_STEPS == 0:
                    self.folder.append_metrics(
                        {"kind": "step", "step": event.step, "loss": float(event.loss), "lr": event.learning_rate}
                    )
                if time.perf_counter() - self.saved > SAVE_WITHIN_EPOCH_SECONDS:
                    self._save(state)
            else:
                row = self._score(event, state, seconds, waiting, images)
                self._name_unreadable(self.prepared.feeds())
                seconds, waiting, images = 0.0, 0.0, 0
                self.folder.append_metrics(row)
                self.listen(EpochScored(row))
                self._watch(event)
                last = state.epoch >= self.prepared.settings.optimization.epochs
                if last or time.perf_counter() - self.saved > SAVE_SECONDS:
                    self._save(state)
                    self._report()
            if asked.stop:
                self._save(state)
                self._report(state="stopped")
                raise Stopped(
                    f"stopped at step {state.step}; everything is saved in {self.folder.path}",
                    f"the same command with --out {self.folder.path} --resume auto",
                )

    def _score(self, done: EpochDone, state: State, seconds: float, waiting: float, images: int) -> dict[str, Any]:
        return {
            "kind": "epoch",
            "epoch": done.epoch + 1,
            "step": done.step,
            "training_loss": done.loss,
            "training_accuracy": done.measures.get("correct"),
            "training_token_accuracy": done.measures.get("correct_tokens"),
            **self.prepared.score(state.best_network),
            "learning_rate": done.learning_rate,
            "gradient_norm": done.gradient_norm,
            "samples": done.samples,
            self.prepared.counted: done.counted,
            "seconds": seconds,
            "images_per_second": images / seconds if seconds else None,
            "waiting_share": waiting / seconds if seconds else None,
        }

    def _watch(self, done: EpochDone) -> None:
        choices = self.prepared.settings.optimization
        sentence = stuck(
            done.measures.get("label_loss", done.loss),  # what a teacher adds is on another scale
            self.prepared.guesses,
            (done.epoch + 1) / choices.epochs,
            choices.learning_rate,
            done.gradient_norm,
        )
        if sentence and done.step >= PATIENT_STEPS and not self.warned:
            self.warned = True
            self._say(f"warning: {sentence}")

    def _say(self, sentence: str) -> None:
        self.folder.append_log(sentence)
        self.listen(sentence)

    def _save(self, state: State) -> None:
        try:
            save_state(state, self.folder.resume, {"metrics_bytes": self.folder.metrics_bytes(), **self._versions()})
        except OSError as error:
            raise RunError(
                f"step {state.step} cannot be saved in {self.folder.resume} ({error.strerror or error})",
                "make room there, then the same command with --resume auto; the state before is whole",
            ) from error
        self.saved = time.perf_counter()

    def _versions(self) -> dict[str, Any]:
        return {"torch": torch.__version__, "threads": torch.get_num_threads()}

    def _report(self, state: RunState = "running", evaluated: Outcome | None = None) -> None:
        self.listen(Reported(self.folder, self.prepared, state, evaluated))

    def _finish(self, state: State) -> Finished:
        prepared = self.prepared
        network = state.best_network.eval()
        model = prepared.save(network, self.folder.model)  # first of all: an evaluation that fails loses no training
        outcome = prepared.evaluate(model)
        self._name_unreadable(outcome.feeds())
        seconds, weights = time.perf_counter() - self.began, weights_hash(network)
        model = prepared.save(network, self.folder.model, outcome)
        self.folder.write_json("evaluation.json", {**outcome.to_dict(), "weights": weights})
        self._report("finished", outcome)
        name, value = outcome.headline
        self.folder.append_log(f"finished: {name} {value:.4f}, weights {weights}")
        recipe, beside = prepared.settings.recipe, document_figure(prepared.settings)
        finished = Finished(self.folder.path, model, outcome, seconds, weights, recipe, beside)
        self.listen(finished)
        return finished
