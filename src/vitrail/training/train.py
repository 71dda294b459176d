"""A whole training in one call, which prepares, trains, evaluates, and writes a run folder: `train` and `distill`.

`listen` gets every event (`events.py`), for progress bars, logs and pages.

`plan_training` estimates a training without a run folder (`vitrail train ... --dry-run`): time and memory are measured
in the first steps of the loop itself.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.arguments import in_python, python_call, typed
from vitrail.data.batches import Batches
from vitrail.data.dataset import Split
from vitrail.data.layout import Layout
from vitrail.data.sources import Data, Reader, name_passed
from vitrail.errors import Hint, UsageError
from vitrail.io import locked, resume_command
from vitrail.model import Model
from vitrail.nn import Parts
from vitrail.options import DistillOptions, TrainOptions
from vitrail.runs.contracts import check_own_kinds
from vitrail.runs.evaluate import BATCH, evaluate_split
from vitrail.runs.folder import RunFolder, beginning, default_folder, open_folder, saving
from vitrail.runs.settings import Settings, settings_to_dict
from vitrail.runtime import peak_memory, threads_set
from vitrail.tasks import Task
from vitrail.tasks.task import Objective
from vitrail.training.configuration.request import OBJECT, Own, Request
from vitrail.training.configuration.resolve import with_file
from vitrail.training.configuration.teacher import Teacher, of_model
from vitrail.training.distributed.meeting import join_processes
from vitrail.training.events import Finished, Listen
from vitrail.training.follow import Lead, follow
from vitrail.training.job import Job
from vitrail.training.loop import StepDone, start, train_loop
from vitrail.training.optimizer import MicroBatches, ParameterRule, parameter_rules
from vitrail.training.prepared import Prepared
from vitrail.training.report import Journal, Log, verdict_passes
from vitrail.training.setup import new_run, resume_run

STEPS = 20  # of a dry run at most
SECONDS = 30.0  # after which a dry run ends, if two steps are done
WARMING = 2  # first steps that are not timed: buffers are allocated, and images were loaded ahead


@typed
def train(
    data: Data = "",
    out: str | Path | None = None,
    options: TrainOptions = TrainOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    command: str = "",
    *,
    task: Task | None = None,
    network: nn.Module | None = None,
    parts: Parts | None = None,
    objective: Objective | None = None,
    reader: Reader | None = None,
    assume: Mapping[str, Any] | None = None,
) -> Finished:
    """Train a Vision Transformer on images or texts, and write a run folder with a page.

    A run stores the names of objects that are passed here; resuming it, `load` and `evaluate` take the same objects.

    Args:
        data: A named set, a folder of class folders, a list, a file of pairs (see
            `vitrail.data.sources`), or what `reader` takes; may be empty if `options.config` names it. Or an object:
            [(image, label), ...], a Dataset of torch, columns; see `vitrail.data.readers.memory`.
        out: The run folder; a new one below `runs/` when None.
        options: Settings that differ from the recipe.
        listen: Gets every event; see `vitrail.training.events`.
        command: The command line, to be stored with the run; this call in Python when empty.
        task: A task of your own, instead of `options.task`.
        network: A network of your own: called as `network(inputs)`.
        parts: Parts of the network that differ from the standard ones.
        objective: Minimised instead of the task's objective.
        reader: (data, data root) -> `RawDataset`, instead of the library's readers.
        assume: What the weights of `options.init` do not say of themselves, as `vitrail.load` takes it.

    Returns:
        The model, its evaluation and the folder.

    Raises:
        UsageError: An option is wrong, an object breaks its contract, or the folder exists and `options.resume` is
            "never".
        DataError: The data cannot be used.
        RunError: The training fails, such as by a loss that is not finite.
        Stopped: Ctrl-C or SIGTERM; the same call with resume="auto" continues the run.
    """
    check_own_kinds(task, network, parts, objective, reader)
    data, reader = name_passed(data, reader, Layout.of(options))
    own = Own(task, network, parts, objective, reader)
    return _run(Request(data=data, options=options, own=own, assume=assume or {}), out, listen, command)


@typed
def distill(
    data: Data,
    teacher: str | Path | Model | Teacher | Callable[..., Any],
    out: str | Path | None = None,
    options: DistillOptions = DistillOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    command: str = "",
    *,
    assume: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
) -> Finished:
    """Train a student on the labels of images and on the predictions of a teacher.

    Args:
        data: As for `train`.
        teacher: Anything that `load` opens by name, any classifier of torchvision or timm (`timm:resnet50`), a loaded
            `Model`, or a `Teacher` made from any callable.
        out: The run folder; a new one below `runs/` when None.
        options: Settings that differ from the recipe; `options.size` is the student's.
        listen: Gets every event; see `vitrail.training.events`.
        command: The command line, to be stored with the run; this call in Python when empty.
        assume: What the teacher's weights do not say of themselves, as `vitrail.load` takes it.
        classes: Class names of its logits, if the weights have none.

    Returns:
        The student, its evaluation and the folder. The student works without its teacher.

    Raises:
        UsageError: An option is wrong, or the teacher cannot teach this student.
        DataError: The data or the teacher cannot be used, or the teacher does not know the classes.
        RunError: The training fails, such as by a loss that is not finite.
        Stopped: Ctrl-C or SIGTERM; the same call with resume="auto" continues the run.
    """
    return _run(_distillation(data, teacher, options, assume, classes), out, listen, command)


def _distillation(
    data: Data, teacher: Any, options: TrainOptions, assume: Mapping[str, Any] | None, classes: Sequence[str] | None
) -> Request:
    """The request of a distillation.

    Raises:
        UsageError: The teacher is none.
    """
    teacher = of_model(teacher, "model") if isinstance(teacher, Model) else teacher
    if not isinstance(teacher, Teacher | str | Path):
        problem = f"a teacher must be a run, a name or a Teacher, got {type(teacher).__name__}"
        raise UsageError(problem, "vitrail.Teacher(network, preprocessing, classes)")
    passed = isinstance(teacher, Teacher)
    name, reader = name_passed(data, None, Layout.of(options))
    return Request(
        data=name,
        options=options,
        own=Own(reader=reader),
        teacher=f"{OBJECT}{teacher.name}" if passed else str(teacher),
        teacher_assume=assume or {},
        teacher_object=teacher if passed else None,
        classes=classes or (),
    )


def _run(request: Request, out: str | Path | None, listen: Listen, command: str) -> Finished:
    """One run, new or resumed, by all processes that train together; only the first writes and sends events."""
    with join_processes(request.options.device, request.options.shard) as group:
        request = with_file(request)
        if group.rank:
            return follow(group, request)
        options, lead, log = request.options, Lead(group), Log(listen)
        resume = options.resume != "never"
        resuming = out is not None and Path(out).exists() and open_folder(Path(out), resume)
        if resuming:
            prepared = resume_run(RunFolder(Path(out)), request, log, group)
        else:
            prepared = new_run(request, log, processes=group)
        path = Path(out) if out is not None else default_folder(request.data)
        if command.startswith("vitrail "):
            again = resume_command(command, path)
        else:
            again = _call(request, path, replace(options, resume="auto"))
        command = command or _call(request, path, options)
        with saving(path, command, again), threads_set(prepared.settings.execution.threads):
            open_folder(path, resume)
            folder = RunFolder(path)
            with locked(path, path / "lock", log), beginning(folder):
                log.open(folder)
                job = Job(Journal(folder, prepared, [*prepared.notes]), request, command, again, lead)
                finished = job.run(resuming)
        lead.end(finished)
        return finished


def _call(request: Request, path: Path, options: TrainOptions) -> str:
    """The call in Python for this request, with these options."""
    words = [repr(request.data), repr(str(path)), f"vitrail.{in_python(options)}"]
    if request.teacher:
        words.insert(1, repr(request.teacher) if request.teacher_object is None else "vitrail.Teacher(...)")
    more = {"assume": dict(request.assume or request.teacher_assume), "classes": tuple(request.classes)}
    words += [f"{name}={value!r}" for name, value in more.items() if value]
    return python_call("distill" if request.teacher else "train", words, request.own.names())


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Measurements of the first steps of a training.

    Attributes:
        steps: Number of steps.
        sample: Seconds per sample, without the first steps.
        scoring: Seconds of one evaluation of the held-out samples.
        memory: Peak memory of this process in bytes; None where the system does not give it.
    """

    steps: int
    sample: float
    scoring: float
    memory: int | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training that was not run.

    Attributes:
        settings: All settings.
        samples: Their number in each split.
        unit: Name of one sample.
        rules: Learning rate and weight decay of each parameter.
        steps: Optimizer steps; 0 if only the head is fitted, to features that are computed once.
        seconds: Estimated time of the whole run: reading, steps, the evaluation after each epoch, and its end.
        notes: On the data and on each choice.
        timed: The first steps; None if there are none.
    """

    settings: Settings
    samples: dict[str, int]
    unit: str
    rules: tuple[ParameterRule, ...]
    steps: int
    seconds: float
    notes: tuple[str, ...]
    timed: Timed | None = None

    def rate(self, rule: ParameterRule) -> float:
        """The peak learning rate of some parameters."""
        return rule.rate * self.settings.optimization.learning_rate

    def row(self, rule: ParameterRule) -> dict[str, Any]:
        """One row of the table; without rate and decay if no step is made."""
        stepped = not self.settings.fits_head
        how = {"rate": self.rate(rule), "weight_decay": rule.weight_decay}
        return {**asdict(rule), **{name: value if stepped else None for name, value in how.items()}}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the rate of a row is its peak, null if only the head is fitted."""
        timed = self.timed
        return {
            "data": self.settings.data,
            "recipe": self.settings.recipe,
            "samples": self.samples,
            "parameters": [self.row(rule) for rule in self.rules],
            "steps": self.steps,
            "seconds": self.seconds,
            "timed_steps": 0 if timed is None else timed.steps,
            "step_seconds": None if timed is None else timed.sample * self.settings.optimization.batch_size,
            "images_per_second": None if timed is None else 1 / timed.sample,
            "memory_bytes": None if timed is None else timed.memory,
            "notes": list(self.notes),
            "settings": settings_to_dict(self.settings),
        }


def plan_training(
    data: Data = "",
    out: str | Path | None = None,
    options: TrainOptions = TrainOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    *,
    teacher: str | Path | Model | Teacher | None = None,
    assume: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
) -> Plan:
    """A dry run of `train`, or with a teacher of `distill`, in which nothing is written.

    The data is read, and a few steps are timed; a probe that takes minutes is left out. Arguments and errors are
    those of the two; with a teacher, `options` are `DistillOptions`.

    Returns:
        The settings, the table of all parameters, the number of steps, and an estimate of the time.

    Raises:
        RunError: A step fails: no memory, or a loss that is not finite.
    """
    if teacher is None:
        name, reader = name_passed(data, None, Layout.of(options))
        request = Request(data=name, options=options, own=Own(reader=reader), assume=assume or {})
    else:
        request = _distillation(data, teacher, options, assume, classes)
    if options.resume != "never":
        problem = f"a dry run is for a new run, and --resume {options.resume} continues one"
        raise UsageError(problem, Hint(drop=["dry_run"]))
    if out is not None and Path(out).exists():
        open_folder(Path(out), False)
    prepared, began = new_run(with_file(request), listen, dry=True), request.began
    settings, optimization = prepared.settings, prepared.settings.optimization
    rules = tuple(parameter_rules(prepared.network, optimization))
    per_epoch = prepared.per_epoch
    notes = [*prepared.notes, *([] if prepared.cut is None else [prepared.cut.note])]
    steps, seconds, found = 0, 0.0, None
    if not settings.fits_head:
        before = time.perf_counter()
        with threads_set(settings.execution.threads):
            found = time_first_steps(prepared, notes.append)
        steps = optimization.epochs * per_epoch
        verdicts = verdict_passes(prepared, options.verdicts)
        if budget := prepared.budget(lambda: before - began, verdicts):  # without the time of these steps
            budget.planned, budget.scoring = found.sample * optimization.batch_size, found.scoring
            phase = budget.plan(optimization, least=settings.least_steps)
            steps = phase.steps
            notes.append(phase.why)
        epochs = steps / per_epoch
        around = before - began + prepared.passes * found.scoring
        seconds = epochs * (len(prepared.data) * found.sample + found.scoring) + around
    return Plan(
        settings=settings,
        samples={name: len(samples) for name, samples in prepared.dataset.splits.items()},
        unit=prepared.unit,
        rules=rules,
        steps=steps,
        seconds=seconds,
        notes=tuple(notes),
        timed=found,
    )


def time_first_steps(prepared: Prepared, notify: Callable[[str], object]) -> Timed:
    """Time the first steps of a training and an evaluation; the network is changed."""
    settings, device = prepared.settings, torch.device(prepared.settings.execution.device)
    state, made = start(prepared.network, settings.optimization), list[StepDone]()
    for event in train_loop(state, prepared.data, prepared.objective, settings.optimization, settings.execution):
        if isinstance(event, StepDone):
            made.append(event)
            float(event.loss)  # an accelerator has done it then
        elif isinstance(event, MicroBatches):
            notify(event.why)
        if len(made) >= STEPS or (len(made) > 1 and sum(step.seconds for step in made) > SECONDS):
            break
    counted = made[min(WARMING, len(made) - 1) :]
    sample = sum(step.seconds for step in counted) / max(1, sum(step.images for step in counted))
    scoring = _scoring(replace(prepared.model, network=state.best_network), *prepared.scored, sample)
    return Timed(steps=len(made), sample=sample, scoring=scoring, memory=peak_memory(device))


def _scoring(model: Model, split: Split, batches: Batches, sample: float) -> float:
    """Seconds of evaluating these samples, by one batch of them; by a third of a step where even that takes long."""
    some = min(BATCH, len(batches))
    if some * sample / 3 > SECONDS:
        return len(batches) * sample / 3
    ids, began = np.arange(some, dtype=np.int64), time.perf_counter()
    evaluate_split(model, replace(split, samples=split.samples.select(ids)), batches.subset(ids))
    return (time.perf_counter() - began) * len(batches) / some
