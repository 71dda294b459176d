"""One run: it follows the training loop, saves, evaluates and logs, and ends with the evaluated model."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.data.batches import Batches
from vitrail.data.loader import check_readable
from vitrail.errors import RunError, UsageError, VitrailError, counted
from vitrail.explain.composites import with_composites
from vitrail.io import flush, other_out, read_json, write_file
from vitrail.model import CARD, card_of, save
from vitrail.nn.networks import NETWORKS, weights_hash
from vitrail.training.checkpoint import (
    Copied,
    Saver,
    keep_if_best,
    load_best,
    load_state,
    save_state,
    states,
    tidy_best,
)
from vitrail.training.contracts import guarded
from vitrail.training.distributed.follow import Lead, Loop
from vitrail.training.events import EpochScored, Finished, Rescheduled, Started, Stopped, StopRequest, stop_signals
from vitrail.training.loop import EpochDone, State, StepDone, start, steps_per_epoch, stuck
from vitrail.training.prepared import LEFT_OUT, Prepared, shortened, unreadable_notes
from vitrail.training.recipes import document_figure
from vitrail.training.report import MODEL, tested, write_page
from vitrail.training.request import Request
from vitrail.training.run import RunFolder, check_versions, environment, point_latest, versions
from vitrail.training.schedule import Budget, MicroBatches, Phase, Schedule, extension
from vitrail.training.selection import marked, out_of_patience
from vitrail.training.settings import Settings, settings_to_yaml
from vitrail.training.tuning.comparison import choose_model, sides_of, with_background
from vitrail.training.tuning.initial import write_start
from vitrail.training.tuning.lora import leave_adapter

SAVE_SECONDS = 20.0  # an epoch that ends sooner after the last save is not saved on its own
SAVE_WITHIN_EPOCH_SECONDS = 300.0
LOG_STEPS = 50
FIRST_STEPS = 200  # in which the loss may be that of guessing


@dataclass
class Job:
    """One run.

    Attributes:
        folder: Where it writes.
        prepared: Data, network and settings.
        request: Of the run.
        command: The command that started it.
        again: The command that resumes it.
        lead: Of the processes that train together.
        spent: Seconds that a resumed run took before.
    """

    folder: RunFolder
    prepared: Prepared
    request: Request
    command: str
    again: str
    lead: Lead
    spent: float = 0.0
    saver: Saver = field(default_factory=Saver)
    saved: float = field(default_factory=time.perf_counter)
    warned: bool = False

    def run(self, resumed: bool) -> Finished:
        """Train to the end; a resumed run from its last saved state, if there is one."""
        prepared, settings = self.prepared, self.prepared.settings
        state = start(prepared.network, settings.optimization)
        saved = resumed and states(self.folder.resume)
        if saved:
            manifest, notes = load_state(state, self.folder.resume, self.folder.metrics_bytes())
            anyway = self.request.options.resume == "anyway"
            notes += check_versions(self.folder, manifest.get("versions", {}), self.again, anyway)
            notes += self.folder.cut_metrics(manifest["metrics_bytes"])
            self.spent = manifest.get("seconds", 0.0)
            for sentence in (*notes, f"continuing {self.folder.path} from step {state.step}"):
                self._log(sentence)
        elif resumed:
            if self.folder.evaluation.is_file() and not settings.fits_head:  # its model would be replaced
                problem = "is finished and its checkpoints are missing, so continuing would train it again"
                raise UsageError(f"{self.folder.path} {problem}", other_out(self.folder.path))
            self._log("no saved state: starting from the beginning")
        budget = prepared.budget(self.request.began, self.spent)
        schedule = self._scheduled(state, budget)
        if not saved:
            self.folder.cut_metrics(0)
            self._write_first_files(schedule)
        try:
            self.lead.begin(self.folder, state, self.again)
        except VitrailError:  # the others cannot train with it
            if not resumed:
                self.folder.config.unlink()  # so that nothing is left of a run without a step
            raise
        point_latest(self.folder.path)
        if settings.fits_head:  # and nothing else is trained
            return self._finish(state)
        end = state.step if self._spent(schedule) else schedule.end
        per_epoch = steps_per_epoch(len(prepared.data), settings.optimization)
        self.prepared.listen(
            Started(
                folder=self.folder.path,
                images=len(prepared.data),
                steps_per_epoch=per_epoch,
                epochs=-(-end // per_epoch),
                steps=end,
                step=state.step,
                seconds=max(0, end - state.step) * prepared.step_seconds,
                unit=prepared.unit,
                metric=prepared.model.task.metric,
                scored=prepared.scored[0].split,
            )
        )
        with stop_signals() as stopping:
            loop = self.lead.steps(state, prepared, schedule, stopping)
            try:
                with guarded(settings.own, RunError), self.saver:
                    if not self._spent(schedule):
                        self._follow(loop, state, schedule, budget, stopping)
            except VitrailError:
                write_page(self.folder, self.prepared, "stopped")
                raise
        if state.step < schedule.end:
            self._log(f"ended: no improvement in {counted(settings.optimization.patience, 'epoch')}")
        with guarded(settings.own, RunError):
            return self._finish(state)

    def _scheduled(self, state: State, budget: Budget | None) -> Schedule:
        """The schedule: the stored one, else what there is time for, else that of the settings; longer if requested."""
        former, choices = self.prepared.former, self.prepared.settings.optimization
        initial = self.prepared.settings.initial is not None  # without a step there is the probe
        per_epoch = steps_per_epoch(len(self.prepared.data), choices)
        if self.folder.schedule.is_file():
            found = read_json(self.folder.schedule, "remove it, for the schedule of config.yaml")
            schedule = Schedule.from_dict(found)
        elif former is not None:
            schedule = Schedule.of(former.optimization, per_epoch)
        elif budget is not None:
            schedule = Schedule([budget.plan(choices, least=0 if initial else 1)])
        else:
            schedule = Schedule.of(choices, per_epoch)
        if former is not None and schedule.phases[-1].first != state.step:
            more = choices.epochs * per_epoch - state.step
            phase = extension(choices, state.step, more) if budget is None else budget.plan(choices, state.step)
            self._change(schedule, phase)
        if former is not None:
            self._settle(former, schedule.phases[-1].first)
        return schedule

    def _settle(self, former: Settings, step: int) -> None:
        """Write the new settings of a finished run that continues, before the first step by them."""
        halves, patience = self.prepared.halves, self.prepared.settings.optimization.patience
        if patience != former.optimization.patience:
            self._log(f"patience from step {step} on: {former.optimization.patience} -> {patience} epochs")
        if halves is not None and not former.chooses:
            self._note(
                f"from step {step} on {halves.note}; epochs before it were scored on all, and are not chosen from"
            )
        self.folder.add_command(self.command)
        self.folder.write_text("config.yaml", settings_to_yaml(self.prepared.settings))

    def _change(self, schedule: Schedule, change: Phase | MicroBatches) -> None:
        """Announce a change of the schedule, and write it before its first step, so that a killed run repeats it."""
        if isinstance(change, Phase):  # the loop adds smaller micro-batches itself
            schedule.phases.append(change)
        self.folder.write_json(self.folder.schedule.name, schedule.to_dict())
        words = f"from step {change.first} on: {change.why}"
        self.folder.append_log(words)
        self.prepared.notes.append(words)  # for the page
        self._write_data()
        self.prepared.listen(Rescheduled(schedule.end, change.why))

    def _write_first_files(self, schedule: Schedule) -> None:
        """Write what identifies this run; the settings come last, since with them the folder counts as a run."""
        self.folder.write_text("command.txt", self.command + "\n")
        self.folder.write_json("env.json", environment())
        limited, halves = bool(self.prepared.settings.optimization.max_time), self.prepared.halves
        self.prepared.note(*([] if halves is None else [halves.note]), *[schedule.phases[-1].why] * limited)
        self._write_data()
        for sentence in self.prepared.notes:
            self.folder.append_log(sentence)
        if self.prepared.probed is not None:
            write_start(self.folder, self.prepared.model, self.prepared.probed)
        if limited:
            self.folder.write_json(self.folder.schedule.name, schedule.to_dict())
        self.folder.write_text("config.yaml", settings_to_yaml(self.prepared.settings))

    def _write_data(self) -> None:
        notes = self.prepared.notes
        skipped = [note for note in notes if note.startswith(LEFT_OUT)]
        self.folder.write_json("data.json", {**self.prepared.data_facts(), "skipped": skipped, "notes": notes})

    def _name_unreadable(self, *sets: Batches) -> None:
        """Note each sample that cannot be read, once; too many of them end the run."""
        found = unreadable_notes(*(each.loader for each in sets))
        self._note(*[note for note in found if note not in self.prepared.notes])
        for each in sets:
            check_readable(each.loader, len(each))

    def _follow(
        self, loop: Loop, state: State, schedule: Schedule, budget: Budget | None, stopping: StopRequest
    ) -> None:
        seconds, waiting, images = 0.0, 0.0, 0
        for event in loop:
            self.saver.look()
            if isinstance(event, StepDone):
                seconds, waiting, images = seconds + event.seconds, waiting + event.waiting, images + event.images
                self.prepared.listen(event)
                if event.step % LOG_STEPS == 0:
                    self.folder.append_metrics(
                        {"kind": "step", "step": event.step, "loss": float(event.loss), "lr": event.learning_rate}
                    )
                if budget is not None:
                    budget.took(event.seconds)
                    if phase := budget.after(state.step, schedule, self.prepared.settings.optimization):
                        self._change(schedule, phase)
                if time.perf_counter() - self.saved > SAVE_WITHIN_EPOCH_SECONDS:
                    self._save(state)
            elif isinstance(event, MicroBatches):
                self._change(schedule, event)
            else:
                began = time.perf_counter()
                row = self._score(event, state, seconds, waiting, images)
                if budget is not None:
                    budget.scored(time.perf_counter() - began)
                self._name_unreadable(self.prepared.data, self.prepared.validation)
                seconds, waiting, images = 0.0, 0.0, 0
                if self.prepared.halves is not None:
                    keep_if_best(self.folder, state.averaged, row, self.prepared.model.task.metric, self.saver)
                self.folder.append_metrics(row)
                self.prepared.listen(EpochScored(row))
                self._watch(event, schedule)
                over = state.step >= schedule.end or self._spent(schedule)
                if over or time.perf_counter() - self.saved > SAVE_SECONDS:
                    self._save(state, over)
                    write_page(self.folder, self.prepared, "running")
            if stopping.stop:
                self._save(state, True)
                write_page(self.folder, self.prepared, "stopped")
                problem = f"stopped at step {state.step}; everything is saved in {self.folder.path}"
                raise Stopped(problem, self.again)
            if isinstance(event, EpochDone) and self._spent(schedule):
                return

    def _spent(self, schedule: Schedule) -> bool:
        """Whether the epochs without improvement are as many as the patience."""
        since = max(phase.origin for phase in schedule.phases if phase.shape != "linear")  # a late end is no new start
        metric, patience = self.prepared.model.task.metric, self.prepared.settings.optimization.patience
        return patience > 0 and out_of_patience(self.folder.history(), metric, patience, since)

    def _score(self, done: EpochDone, state: State, seconds: float, waiting: float, images: int) -> dict[str, Any]:
        prepared, task = self.prepared, self.prepared.model.task
        model = replace(prepared.model, network=state.best_network)
        result = self.lead.evaluate(model, *prepared.scored)
        return {
            "kind": "epoch",
            "epoch": done.epoch + 1,
            "step": done.step,
            "training_loss": done.loss,
            **{f"training_{task.measures.get(name, name)}": value for name, value in done.measures.items()},
            "validation_loss": result.loss,
            f"validation_{task.metric.key}": result.value,
            "learning_rate": done.learning_rate,
            "gradient_norm": done.gradient_norm,
            "samples": done.samples,
            task.counted: done.counted,
            **({} if prepared.halves is None else {"scored_on": result.split}),
            "seconds": seconds,
            "images_per_second": images / seconds if seconds else None,
            "waiting_fraction": waiting / seconds if seconds else None,
        }

    def _watch(self, done: EpochDone, schedule: Schedule) -> None:
        """Warn once if the loss is still that of guessing."""
        model, choices = self.prepared.model, self.prepared.settings.optimization
        chance = model.task.chance_loss(model.output)
        if chance is None or done.step < FIRST_STEPS or self.warned:
            return
        loss = done.measures.get("label_loss", done.loss)  # the teacher's term has another scale
        sentence = stuck(loss, chance, done.step / schedule.end, choices.learning_rate, done.gradient_norm)
        if sentence:
            self.warned = True
            self._log(f"warning: {sentence}")

    def _log(self, sentence: str) -> None:
        self.folder.append_log(sentence)
        self.prepared.listen(sentence)

    def _note(self, *sentences: str) -> None:
        """Log sentences, and keep them in `data.json` and on the page."""
        if not sentences:
            return
        self.prepared.notes += sentences
        self._write_data()
        for sentence in shortened(sentences):
            self._log(sentence)

    def _save(self, state: State, wait: bool = False) -> None:
        """Save the state as it is now, in a thread; first wait for the last save, and with `wait` also for this one."""
        taken = self.spent + time.perf_counter() - self.request.began
        extra = {"metrics_bytes": self.folder.metrics_bytes(), "versions": versions(), "seconds": taken}
        self.saver.wait()  # one copy at a time
        copy = self.lead.copied(state)
        if isinstance(copy, Copied) and not copy.apart:
            self._log(f"no memory for a copy of the state of step {copy.step}: the training waits while it is saved")

        def write() -> None:
            flush(self.folder.metrics)  # the state stores their length
            save_state(copy, self.folder.resume, extra)
            if self.prepared.halves is not None:
                tidy_best(self.folder, self.prepared.model.task.metric)

        if state.shards is None:
            self.saver.later(write)
        else:  # all processes write, and none trains meanwhile
            write()
        if wait or (isinstance(copy, Copied) and not copy.apart):
            self.saver.wait()
        self.saved = time.perf_counter()

    def _finish(self, state: State) -> Finished:
        """Model, evaluation, card, page; `evaluation.json` comes last: with it the run is finished."""
        prepared, metric, initial = self.prepared, self.prepared.model.task.metric, self.prepared.settings.initial
        chose = prepared.halves is not None and state.step > 0
        best = load_best(self.folder, state.averaged, metric, self._log) if chose else None
        epochs = state.step / steps_per_epoch(len(prepared.data), prepared.settings.optimization)
        facts = {**prepared.model.facts, "epochs": int(epochs) if epochs.is_integer() else round(epochs, 2)}
        trained = replace(prepared.model, network=state.best_network.eval(), facts=facts)
        chosen = choose_model(self.folder, prepared, trained, best, state.step, self._log)
        if initial is not None and prepared.settings.optimization.lora:
            tuned = chosen.found["kept"] == "tuned"
            leave_adapter(self.folder.adapter, state.averaged if tuned else None, initial.source, self._log)
        taken, limited = self.spent + time.perf_counter() - self.request.began, prepared.settings.optimization.max_time
        most = 1.0 if limited else max(1.0, taken / 10)  # seconds; else the first verdict computes them
        model = with_composites(with_background(chosen.model), self.folder.path, most)
        own = type(model.network) not in [known for _, known in NETWORKS.values()]
        save(model, self.folder.model, network=prepared.settings.own["network"] if own else "")
        # the model is saved: an evaluation that fails loses no training
        split, batches = prepared.final
        results = chosen.evaluate(model, split, batches, self._log, self.lead.evaluate)
        result = marked(next(iter(results.values())), chosen.halves)
        self._name_unreadable(batches)
        seconds, weights = self.spent + time.perf_counter() - self.request.began, weights_hash(model.network)
        write_file(self.folder.model / CARD, card_of(model, result))
        about, sides = chosen.words(result.split), sides_of(chosen, results, prepared)
        write_page(self.folder, self.prepared, "finished", result, sides, about)
        self.folder.append_log("finished: {} {:.4f}, weights {}".format(*result.headline, weights))
        evaluated = {**result.to_dict(), "weights": weights, **chosen.found}
        self.folder.write_json("evaluation.json", evaluated)
        found = tested(
            model, chosen.networks if sides else {}, split, prepared, self.request.options.verdicts, self._log
        )
        if found:
            if sides:
                sides = replace(sides, verdicts={name: one.rates.words for name, one in found.items()})
            own = found[sides.kept if sides else MODEL].view
            write_page(self.folder, prepared, "finished", result, sides, about, own)
            verdicts = {name: one.to_dict() for name, one in found.items()}
            self.folder.write_json("evaluation.json", {**evaluated, "verdicts": verdicts})
        recipe, document = prepared.settings.recipe, document_figure(prepared.settings)
        finished = Finished(self.folder.path, model, result, seconds, weights, recipe, document)
        self.prepared.listen(finished)
        return finished
