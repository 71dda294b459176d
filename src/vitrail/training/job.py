"""One run: it follows the training loop, saves, evaluates and logs, and ends with the evaluated model."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.data.batches import Batches
from vitrail.data.loader import check_readable
from vitrail.errors import RunError, UsageError, VitrailError, counted
from vitrail.explain.evidence import with_composites
from vitrail.io import flush, other_out, write_file
from vitrail.model import CARD, card_of, save
from vitrail.nn.networks import NETWORKS, weights_hash
from vitrail.runs.contracts import guarded
from vitrail.runs.folder import RunFolder, check_versions, environment, point_latest, versions, write_samples
from vitrail.runs.halves import marked
from vitrail.runs.settings import Settings, settings_to_dict, settings_to_yaml
from vitrail.training.checkpoint import (
    Saver,
    keep_if_best,
    load_best,
    load_state,
    out_of_patience,
    save_state,
    states,
    tidy_best,
)
from vitrail.training.configuration.request import Request
from vitrail.training.events import EpochScored, Finished, Rescheduled, Started, Stopped, StopRequest, stop_signals
from vitrail.training.follow import Lead, Loop
from vitrail.training.loop import EpochDone, State, StepDone, start, stuck
from vitrail.training.lora import write_adapter
from vitrail.training.optimizer import Budget, MicroBatches, Phase, Schedule, extension
from vitrail.training.prepared import Prepared, shortened, unreadable_notes
from vitrail.training.report import MODEL, RunState, tested, write_page
from vitrail.training.transfer.comparison import NO_STEP, choose_model, sides_of, with_background
from vitrail.training.transfer.initial import write_start

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
    state: State = field(init=False)
    budget: Budget | None = field(init=False)
    schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        """Take the settings and the metric from the prepared run."""
        self.settings, self.optimization = self.prepared.settings, self.prepared.settings.optimization
        self.metric = self.prepared.model.task.metric
        self.per_epoch = self.prepared.per_epoch

    @property
    def seconds(self) -> float:
        """Of the run so far."""
        return self.spent + time.perf_counter() - self.request.began

    def run(self, resumed: bool) -> Finished:
        """Train to the end; a resumed run from its last saved state, if there is one."""
        prepared = self.prepared
        self.state = state = start(prepared.network, self.optimization)
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
            if self.folder.evaluation.is_file() and not self.settings.fits_head:  # its model would be replaced
                problem = "is finished and its checkpoints are missing, so continuing would train it again"
                raise UsageError(f"{self.folder.path} {problem}", other_out(self.folder.path))
            self._log("no saved state: starting from the beginning")
        self.budget = prepared.budget(lambda: self.seconds)
        self._plan_steps()
        if not saved:
            self.folder.cut_metrics(0)
            self._write_first_files()
        try:
            self.lead.begin(self.folder, state, self.again)
        except VitrailError:  # the others cannot train with it
            if not resumed:
                self.folder.config.unlink()  # so that nothing is left of a run without a step
            raise
        point_latest(self.folder.path)
        if self.settings.fits_head:  # and nothing else is trained
            return self._finish()
        ended = self._out_of_patience()
        end = state.step if ended else self.schedule.end
        prepared.listen(
            Started(
                folder=self.folder.path,
                images=len(prepared.data),
                steps_per_epoch=self.per_epoch,
                epochs=-(-end // self.per_epoch),
                steps=end,
                step=state.step,
                seconds=max(0, end - state.step) * prepared.step_seconds,
                unit=prepared.unit,
                metric=self.metric,
                scored=prepared.scored[0].split,
            )
        )
        with stop_signals() as stopping:
            loop = self.lead.steps(state, prepared, self.schedule, stopping)
            try:
                with guarded(self.settings.own, RunError), self.saver:
                    if not ended:
                        self._follow(loop, stopping)
            except VitrailError:
                write_page(self.folder, prepared, "stopped")
                raise
        if state.step < self.schedule.end:
            self._log(f"ended: no improvement in {counted(self.optimization.patience, 'epoch')}")
        with guarded(self.settings.own, RunError):
            return self._finish()

    def _plan_steps(self) -> None:
        """Set the schedule: the stored one, else what there is time for, else that of the settings; or a longer one."""
        former, optimization, step, budget = self.prepared.former, self.optimization, self.state.step, self.budget
        if self.folder.schedule.is_file():
            self.schedule = Schedule.read(self.folder.schedule, "remove it, for the schedule of config.yaml")
        elif former is None and budget is not None:
            self.schedule = Schedule([budget.plan(optimization, least=self.settings.least_steps)])
        else:
            self.schedule = Schedule.of((former or self.settings).optimization, self.per_epoch)
        if former is None:
            return
        if self.schedule.phases[-1].first != step:
            more = optimization.epochs * self.per_epoch - step
            self._change(extension(optimization, step, more) if budget is None else budget.plan(optimization, step))
        self._write_new_settings(former, self.schedule.phases[-1].first)

    def _write_new_settings(self, former: Settings, step: int) -> None:
        """Write the new settings of a finished run that continues, before the first step by them."""
        halves, patience = self.prepared.halves, self.optimization.patience
        if patience != former.optimization.patience:
            self._log(f"patience from step {step} on: {former.optimization.patience} -> {patience} epochs")
        if halves is not None and not former.chooses:
            self._note(
                f"from step {step} on {halves.note}; epochs before it were scored on all, and are not chosen from"
            )
        self.folder.add_command(self.command)
        self.folder.write_text("config.yaml", settings_to_yaml(self.settings))

    def _change(self, change: Phase | MicroBatches) -> None:
        """Announce a change of the schedule, and write it before its first step, so that a killed run repeats it."""
        if isinstance(change, Phase):  # the loop adds smaller micro-batches itself
            self.schedule.phases.append(change)
        self.folder.write_json(self.folder.schedule.name, self.schedule.to_dict())
        words = f"from step {change.first} on: {change.why}"
        self.folder.append_log(words)
        self.prepared.notes.append(words)  # for the page
        self._write_data()
        self.prepared.listen(Rescheduled(self.schedule.end, change.why))

    def _write_first_files(self) -> None:
        """Write what identifies this run; the settings come last, since with them the folder counts as a run."""
        self.folder.write_text("command.txt", self.command + "\n")
        self.folder.write_json("env.json", environment())
        limited, halves = self.optimization.max_time > 0, self.prepared.halves
        self.prepared.note(*([] if halves is None else [halves.note]), *[self.schedule.phases[-1].why] * limited)
        self._write_data()
        write_samples(self.folder, self.prepared.dataset)
        for sentence in self.prepared.notes:
            self.folder.append_log(sentence)
        if self.prepared.probed is not None:
            write_start(self.folder, self.prepared.model, self.prepared.probed)
        if limited:
            self.folder.write_json(self.folder.schedule.name, self.schedule.to_dict())
        self.folder.write_text("config.yaml", settings_to_yaml(self.settings))

    def _write_data(self) -> None:
        self.folder.write_json("data.json", self.prepared.data_facts())

    def _name_unreadable(self, *sets: Batches) -> None:
        """Note each sample that cannot be read, once; too many of them end the run."""
        found = unreadable_notes(*(each.unreadable for each in sets))
        if new := [note for note in found if note not in self.prepared.notes]:
            self._note(*new)
        # they are other data then, for another run
        hint = f"{other_out(self.folder.path)}, when they are repaired or moved"
        for each in sets:
            check_readable(each.unreadable, len(each), hint)

    def _follow(self, loop: Loop, stopping: StopRequest) -> None:
        seconds, waiting, images, budget, state, ended = 0.0, 0.0, 0, self.budget, self.state, False
        for event in loop:
            self.saver.look()
            if isinstance(event, StepDone):
                seconds, waiting, images = seconds + event.seconds, waiting + event.waiting, images + event.images
                self.prepared.listen(event)
                if event.step % LOG_STEPS == 0:
                    row = {"kind": "step", "step": event.step, "loss": float(event.loss), "lr": event.learning_rate}
                    self.folder.append_metrics(row)
                if budget is not None:
                    budget.took(event.seconds)
                    if phase := budget.after(state.step, self.schedule, self.optimization):
                        self._change(phase)
                if time.perf_counter() - self.saved > SAVE_WITHIN_EPOCH_SECONDS:
                    self._save()
            elif isinstance(event, MicroBatches):
                self._change(event)
            else:
                began = time.perf_counter()
                row = self._score(event, seconds, waiting, images)
                if budget is not None:
                    budget.scoring = time.perf_counter() - began
                self._name_unreadable(self.prepared.data, self.prepared.validation)
                seconds, waiting, images = 0.0, 0.0, 0
                if self.prepared.halves is not None:
                    keep_if_best(self.folder, state.averaged, row, self.metric, self.saver)
                self.folder.append_metrics(row)
                self.prepared.listen(EpochScored(row))
                self._watch(event)
                ended = self._out_of_patience()
                over = ended or state.step >= self.schedule.end
                if over or time.perf_counter() - self.saved > SAVE_SECONDS:
                    self._save(over)
                    write_page(self.folder, self.prepared, "running")
            if stopping.stop:
                self._save(True)
                problem = f"stopped at step {state.step}; everything is saved in {self.folder.path}"
                raise Stopped(problem, self.again)
            if ended:
                return

    def _out_of_patience(self) -> bool:
        """Whether the epochs without improvement are as many as the patience."""
        since = max(phase.origin for phase in self.schedule.phases if phase.shape != "linear")  # not since it was late
        patience = self.optimization.patience
        return patience > 0 and out_of_patience(self.folder.history(), self.metric, patience, since)

    def _score(self, done: EpochDone, seconds: float, waiting: float, images: int) -> dict[str, Any]:
        prepared, task = self.prepared, self.prepared.model.task
        model = replace(prepared.model, network=self.state.best_network)
        result = self.lead.evaluate(model, *prepared.scored)
        return {
            "kind": "epoch",
            "epoch": done.epoch + 1,
            "step": done.step,
            "training_loss": done.loss,
            **{f"training_{task.measures.get(name, name)}": value for name, value in done.measures.items()},
            "validation_loss": result.loss,
            f"validation_{self.metric.key}": result.value,
            "learning_rate": done.learning_rate,
            "gradient_norm": done.gradient_norm,
            "samples": done.samples,
            task.counted: done.counted,
            **({} if prepared.halves is None else {"scored_on": result.split}),
            "seconds": seconds,
            "images_per_second": images / seconds if seconds else None,
            "waiting_fraction": waiting / seconds if seconds else None,
        }

    def _watch(self, done: EpochDone) -> None:
        """Warn once if the loss is still that of guessing."""
        model, rate, fraction = self.prepared.model, self.optimization.learning_rate, done.step / self.schedule.end
        chance = None if self.warned or done.step < FIRST_STEPS else model.task.chance_loss(model.output)
        loss = done.measures.get("label_loss", done.loss)  # the teacher's term has another scale
        if chance is not None and (words := stuck(loss, chance, fraction, rate, done.gradient_norm)):
            self.warned = True
            self._log(f"warning: {words}")

    def _log(self, sentence: str) -> None:
        self.folder.append_log(sentence)
        self.prepared.listen(sentence)

    def _note(self, *sentences: str) -> None:
        """Log sentences, and keep them in `data.json` and on the page."""
        self.prepared.notes += sentences
        self._write_data()
        for sentence in shortened(sentences):
            self._log(sentence)

    def _save(self, wait: bool = False) -> None:
        """Save the state as it is now, in a thread; first wait for the last save, and with `wait` also for this one."""
        extra = {"metrics_bytes": self.folder.metrics_bytes(), "versions": versions(), "seconds": self.seconds}
        extra["settings"] = settings_to_dict(self.settings)  # a resume holds config.yaml against them
        self.saver.wait()  # one copy at a time
        copy = self.lead.copied(self.state)
        if not copy.apart and self.state.shards is None:
            self._log(f"no memory for a copy of the state of step {copy.step}: the training waits while it is saved")

        def write() -> None:
            flush(self.folder.metrics)  # the state stores their length
            save_state(copy, self.folder.resume, extra)
            if self.prepared.halves is not None:
                tidy_best(self.folder, self.metric)

        if copy.apart:
            self.saver.later(write)
        else:  # the next step would change it
            write()
        if wait:
            self.saver.wait()
        self.saved = time.perf_counter()

    def _finish(self) -> Finished:
        """Model, evaluation, card, page; `evaluation.json` comes last: with it the run is finished."""
        prepared, state, initial = self.prepared, self.state, self.settings.initial
        chose = prepared.halves is not None and state.step > 0
        best = load_best(self.folder, state.averaged, self.metric, self._log) if chose else None
        epochs = state.step / self.per_epoch
        facts = {**prepared.model.facts, "epochs": int(epochs) if epochs.is_integer() else round(epochs, 2)}
        trained = replace(prepared.model, network=state.best_network.eval(), facts=facts)
        chosen = choose_model(self.folder, prepared, trained, best, state.step, self._log)
        if initial is not None and self.optimization.lora:
            if chosen.found["kept"] == "tuned":
                write_adapter(self.folder.adapter, state.averaged, initial.source)
            else:
                self._log("no adapter is saved, since the model is the probe; --keep tuned would save one")
        samples = 0 if self.optimization.max_time else state.step * self.optimization.batch_size
        model = with_composites(with_background(chosen.model), self.folder.path, samples)
        own = type(model.network) not in [known for _, known in NETWORKS.values()]
        save(model, self.folder.model, network=self.settings.own["network"] if own else "")
        # the model is saved: an evaluation that fails loses no training
        split, batches = prepared.final
        results = chosen.evaluate(model, split, batches, self._log, self.lead.evaluate)
        result = marked(next(iter(results.values())), chosen.halves)
        page: RunState = "finished"
        if not (state.step or self.settings.fits_head):
            page, result = "untrained", replace(result, notes=(*result.notes, NO_STEP))
        self._name_unreadable(batches)
        seconds, weights = self.seconds, weights_hash(model.network)
        write_file(self.folder.model / CARD, card_of(model, result))
        about, sides = chosen.words(result.split), sides_of(chosen, results, prepared)
        write_page(self.folder, prepared, page, result, sides, about)
        self.folder.append_log("finished: {} {:.4f}, weights {}".format(*result.headline, weights))
        evaluated = {**result.to_dict(), "weights": weights, **chosen.found}
        self.folder.write_json("evaluation.json", evaluated)
        networks, verdicts = chosen.networks if sides else {}, self.request.options.verdicts
        if found := tested(model, networks, split, prepared, verdicts, self._log):
            if sides:
                sides = replace(sides, verdicts={name: one.rates.words for name, one in found.items()})
            own = found[sides.kept if sides else MODEL]
            write_page(self.folder, prepared, page, result, sides, about, own)
            evaluated["verdicts"] = {name: one.to_dict() for name, one in found.items()}
            self.folder.write_json("evaluation.json", evaluated)
        finished = Finished(self.folder.path, model, result, seconds, weights)
        prepared.listen(finished)
        return finished
