"""One run: it follows the training loop, evaluates each epoch, saves and logs; how it ends stands in `finish.py`."""

import time
from dataclasses import replace
from typing import Any

from vitrail.errors import RunError, UsageError, VitrailError, counted
from vitrail.io import flush, other_out
from vitrail.runs.contracts import guard
from vitrail.runs.data import Run
from vitrail.runs.folder import check_versions, environment_of_run, point_latest, versions, write_samples
from vitrail.runs.settings import Settings, settings_to_dict, settings_to_yaml
from vitrail.training.checkpoint import Saver, keep_if_best, load_state, out_of_patience, save_state, states, tidy_best
from vitrail.training.configuration.request import Request
from vitrail.training.events import EpochScored, Finished, Rescheduled, Started, Stopped, StopRequest, stop_signals
from vitrail.training.finish import finish
from vitrail.training.follow import Lead, Loop
from vitrail.training.loop import EpochDone, StepDone, start, stuck
from vitrail.training.optimizer import MicroBatches, Phase, Schedule, extension
from vitrail.training.report import Journal, verdict_passes, write_page
from vitrail.training.transfer.initial import write_start

SAVE_SECONDS = 20.0  # an epoch that ends sooner after the last save is not saved on its own
SAVE_WITHIN_EPOCH_SECONDS = 300.0
LOG_STEPS = 50
FIRST_STEPS = 200  # in which the loss may be that of guessing
SUMS = ("seconds", "waiting", "images")  # of a step, added up over an epoch


class Job:
    """One run, which follows the loop.

    Args:
        journal: Of the run, with its folder and what is prepared.
        request: Of the run.
        command: The command that started it.
        again: The command that resumes it.
        lead: Of the processes that train together.
    """

    def __init__(self, journal: Journal, request: Request, command: str, again: str, lead: Lead) -> None:
        self.journal, self.folder, self.prepared = journal, journal.folder, journal.prepared
        self.request, self.command, self.again, self.lead = request, command, again, lead
        self.settings, self.optimization = self.prepared.settings, self.prepared.settings.optimization
        self.metric, self.per_epoch = self.prepared.model.task.metric, self.prepared.per_epoch
        self.state = start(self.prepared.network, self.optimization)
        verdicts = verdict_passes(self.prepared, request.options.verdicts)
        self.schedule, self.budget = Schedule([]), self.prepared.budget(lambda: self.seconds, verdicts)
        self.spent = 0.0  # seconds before a resumed run was resumed
        self.saver, self.saved = Saver(), time.perf_counter()
        self.sums = dict.fromkeys(SUMS, 0.0)  # of the steps of this epoch
        self.warned = False

    @property
    def seconds(self) -> float:
        """Seconds of the run so far, without those between its parts."""
        return self.spent + self.request.seconds()

    def run(self, resumed: bool) -> Finished:
        """Train to the end; a resumed run from its last saved state, if there is one."""
        if resumed:
            self.prepared.seen.recall(Run(self.folder.path).contents)
        restored = resumed and self._restore()
        self._plan_steps()
        if not restored:
            self.folder.cut_metrics(0)
            self._write_first_files()
        try:
            self.lead.begin(self.folder, self.state, self.again)
        except VitrailError:  # the others cannot train with it
            if not resumed:
                self.folder.config.unlink()  # so that nothing is left of a run without a step
            raise
        point_latest(self.folder.path)
        if not self.settings.fits_head:  # else nothing more is trained
            self._train()
        with guard(self.settings.own, RunError):
            return finish(self.journal, self.state, self.lead, self.request.options.verdicts, lambda: self.seconds)

    def _restore(self) -> bool:
        """Go back to the last saved state; False if there is none.

        Raises:
            UsageError: Its versions are others, or a finished run has lost it.
        """
        log = self.prepared.listen
        if not states(self.folder.resume):
            if self.folder.evaluation.is_file() and not self.settings.fits_head:  # its model would be replaced
                problem = "is finished and its checkpoints are missing, so continuing would train it again"
                raise UsageError(f"{self.folder.path} {problem}", other_out(self.folder.path))
            log("no saved state: starting from the beginning")
            return False
        manifest, notes = load_state(self.state, self.folder.resume)
        anyway = self.request.options.resume == "anyway"
        notes += check_versions(self.folder, manifest.get("versions", {}), anyway)
        notes += self.folder.cut_metrics(manifest["metrics_bytes"])
        self.spent = manifest.get("seconds", 0.0)
        for sentence in (*notes, f"continuing {self.folder.path} from step {self.state.step}"):
            log(sentence)
        return True

    def _train(self) -> None:
        """Make the steps that are left; the page of a run that fails says that it was stopped."""
        prepared, state, ended = self.prepared, self.state, self._out_of_patience()
        end = state.step if ended else self.schedule.end
        counts = len(prepared.data), self.per_epoch, end, state.step
        seconds = max(0, end - state.step) * prepared.step_seconds
        how = prepared.unit, self.metric, prepared.scored[0].split
        prepared.listen(Started(self.folder.path, *counts, seconds, *how))
        with stop_signals() as stopping:
            loop = self.lead.steps(state, prepared, self.schedule, stopping)
            try:
                with guard(self.settings.own, RunError), self.saver:
                    if not ended:
                        self._follow(loop, stopping)
            except VitrailError as error:
                self.folder.append_log(error.problem)
                write_page(self.journal, "stopped", about=error.problem)
                raise
        if state.step < self.schedule.end:
            self.prepared.listen(f"ended: no improvement in {counted(self.optimization.patience, 'epoch')}")

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
        cut, patience = self.prepared.cut, self.optimization.patience
        if patience != former.optimization.patience:
            self.prepared.listen(f"patience from step {step} on: {former.optimization.patience} -> {patience} epochs")
        if cut is not None and cut.selects and not former.chooses:
            before = "epochs before it were scored on all, and are not chosen from"
            self.journal.note(f"from step {step} on {cut.note}; {before}")
        self.folder.add_command(self.command)
        self.folder.write_text("config.yaml", settings_to_yaml(self.settings))

    def _change(self, change: Phase | MicroBatches) -> None:
        """Announce a change of the schedule, and write it before its first step, so that a killed run repeats it."""
        former = self.schedule.phases[-1]
        again = change.why == former.why  # a plan of as many steps as before
        if isinstance(change, Phase):  # the loop adds smaller micro-batches itself
            again |= change.shape == former.shape == "linear"  # late already, which was announced
            self.schedule.phases.append(change)
        self.folder.write_json(self.folder.schedule.name, self.schedule.to_dict())
        if again:
            self.prepared.listen(Rescheduled(self.schedule.end, ""))
            return
        words = f"from step {change.first} on: {change.why}"
        self.folder.append_log(words)
        self.journal.notes.append(words)  # for the page
        self.journal.write_data()
        self.prepared.listen(Rescheduled(self.schedule.end, change.why))

    def _write_first_files(self) -> None:
        """Write what identifies this run; the settings come last, since with them the folder counts as a run."""
        self.folder.write_text("command.txt", self.command + "\n")
        self.folder.write_json("env.json", environment_of_run())
        limited, cut = self.optimization.max_time > 0, self.prepared.cut
        more = [*([] if cut is None else [cut.note]), *[self.schedule.phases[-1].why] * limited]
        self.journal.write_data()
        self.journal.note(*more)
        write_samples(self.folder, self.prepared.dataset)
        self.prepared.seen.write(self.folder.hashes)
        if self.settings.initial is not None:
            write_start(self.folder, self.prepared.model, self.prepared.probed)
        if limited:
            self.folder.write_json(self.folder.schedule.name, self.schedule.to_dict())
        self.folder.write_text("config.yaml", settings_to_yaml(self.settings))

    def _follow(self, loop: Loop, stopping: StopRequest) -> None:
        """Do what each event asks for, until the last, a stop, or the end of the patience."""
        ended = False
        for event in loop:
            self.saver.look()
            match event:
                case StepDone():
                    self._after_step(event)
                case MicroBatches():
                    self._change(event)
                case EpochDone():
                    ended = self._after_epoch(event)
            if stopping.stop:
                self._save(True)
                problem = f"stopped at step {self.state.step}; everything is saved in {self.folder.path}"
                raise Stopped(problem, self.again)
            if ended:
                return

    def _after_step(self, done: StepDone) -> None:
        """Count a step, log some of them, and keep to the time."""
        for name in SUMS:
            self.sums[name] += getattr(done, name)
        self.prepared.listen(done)
        if done.step % LOG_STEPS == 0:
            row = {"kind": "step", "step": done.step, "loss": float(done.loss), "lr": done.learning_rate}
            self.folder.append_metrics(row)
        if self.budget is not None:
            self.budget.add_step(done.seconds)
            if phase := self.budget.after(self.state.step, self.schedule, self.optimization):
                self._change(phase)
        if time.perf_counter() - self.saved > SAVE_WITHIN_EPOCH_SECONDS:
            self._save()

    def _after_epoch(self, done: EpochDone) -> bool:
        """Evaluate the network and write what an epoch leaves; gives whether the patience is at its end."""
        began = time.perf_counter()
        row = self._score(done)
        if self.budget is not None:
            self.budget.add_scoring(time.perf_counter() - began)
        self.journal.name_unreadable(self.prepared.data, self.prepared.validation)
        if self.prepared.selects:
            keep_if_best(self.folder, self.state.averaged, row, self.metric, self.saver)
        self.folder.append_metrics(row)
        self.prepared.listen(EpochScored(row))
        self._watch(done)
        ended = self._out_of_patience()
        over = ended or self.state.step >= self.schedule.end
        if over or time.perf_counter() - self.saved > SAVE_SECONDS:
            self._save(over)
            write_page(self.journal, "running")
        return ended

    def _out_of_patience(self) -> bool:
        """Whether the epochs without improvement are as many as the patience."""
        since = max(phase.origin for phase in self.schedule.phases if phase.shape != "linear")  # not since it was late
        patience = self.optimization.patience
        return patience > 0 and out_of_patience(self.folder.history(), self.metric, patience, since)

    def _score(self, done: EpochDone) -> dict[str, Any]:
        """The row of an epoch in the metrics."""
        prepared, task = self.prepared, self.prepared.model.task
        seconds, waiting, images = self.sums.values()
        self.sums = dict.fromkeys(SUMS, 0.0)
        model = replace(prepared.model, network=self.state.best_network)
        result = self.lead.evaluate(prepared.seen.trained, model, *prepared.scored)
        self.journal.note(*result.notes[:1])  # the others have figures, which are others in every epoch
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
            **({"scored_on": result.split} if prepared.selects else {}),
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
            self.prepared.listen(f"warning: {words}")

    def _save(self, wait: bool = False) -> None:
        """Save the state as it is now, in a thread; first wait for the last save, and with `wait` also for this one."""
        extra = {"metrics_bytes": self.folder.metrics_bytes(), "versions": versions(), "seconds": self.seconds}
        extra["settings"] = settings_to_dict(self.settings)  # a resume holds config.yaml against them
        self.prepared.seen.write(self.folder.hashes)
        self.saver.wait()  # one copy at a time
        copy = self.lead.copy_state(self.state)
        if not copy.apart and self.state.shards is None:
            words = f"no memory for a copy of the state of step {copy.step}: the training waits while it is saved"
            self.prepared.listen(words)

        def write() -> None:
            flush(self.folder.metrics)  # the state stores their length
            save_state(copy, self.folder.resume, extra)
            if self.prepared.selects:
                tidy_best(self.folder, self.metric)

        if copy.apart:
            self.saver.later(write)
        else:  # the next step would change it
            write()
        if wait:
            self.saver.wait()
        self.saved = time.perf_counter()
