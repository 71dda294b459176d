"""Whole trainings in one call: prepare, train, evaluate once, leave a run folder. `train` and `distill`.

`plan` says before what they would do. Whoever wants to watch passes `listen`, which gets every event of `events.py`:
bars, logs and pages listen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.readers import Reader
from vitrail.errors import UsageError
from vitrail.io import locked
from vitrail.model import Model
from vitrail.nn import Parts
from vitrail.own import python_call, typed
from vitrail.runtime import threads_set
from vitrail.tasks import Task
from vitrail.tasks.task import Objective
from vitrail.training.asked import Asked, Own, check_own
from vitrail.training.contracts import check_kinds
from vitrail.training.distill.request import HANDED, Request
from vitrail.training.distill.teacher import Teacher, of_model
from vitrail.training.distributed.follow import Lead, follow
from vitrail.training.distributed.meeting import together
from vitrail.training.events import Finished, Listen
from vitrail.training.job import Job
from vitrail.training.options import DistillOptions, TrainOptions
from vitrail.training.plan import Plan, plan_of
from vitrail.training.run import RunFolder, beginning, default_folder, open_folder, resumed, saving
from vitrail.training.settings import read_given
from vitrail.training.setup import new_run
from vitrail.training.stored import resume_run


def train(
    data: str = "",
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
    """Train a Vision Transformer on a set of images or texts, and leave a run folder with its page.

    What is passed as an object is stored by its name: going on, `load` and `evaluate` take the same object again.

    Args:
        data: A named set, a folder of class folders, a CSV or JSONL manifest, a file of pairs (see
            `vitrail.data.readers`); what `reader` knows, where there is one; empty when `options.config` names it.
        out: The run folder; a new one below `runs/` when None.
        options: What to do differently from the recipe.
        listen: Gets every event; see `vitrail.training.events`.
        command: What was typed, to be stored with the run; the call in Python when empty.
        task: What is learnt, of one's own; else `options.task`.
        network: What is trained, of one's own: called as `network(inputs)`, and by whoever looks inside with `record=`.
        parts: The parts of the network, where they are not the standard ones.
        objective: What is minimised, instead of the task's.
        reader: (data, data root) -> `RawDataset`, instead of the library's readers.
        assume: What the weights of `options.init` do not say of themselves, as `vitrail.load` takes it.

    Returns:
        The model, its evaluation and the folder.

    Raises:
        UsageError: If an option is wrong, an object breaks its contract, or the folder exists and `options.resume` is
            "never".
        DataError: If the data cannot be used.
        RunError: If the training fails (a loss that is not finite).
        Stopped: After Ctrl-C or SIGTERM; the same call with resume="auto" goes on.
    """
    check_kinds(task, network, parts, objective, reader)
    own = Own(task, network, parts, objective, reader)
    return _run(Asked(data=data, options=options, own=own, assume=assume or {}), out, listen, command)


def distill(
    data: str,
    teacher: str | Path | Model | Teacher | Callable[..., Any],
    out: str | Path | None = None,
    options: DistillOptions = DistillOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    command: str = "",
    *,
    assume: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
) -> Finished:
    """Train a student on a set of images, from their labels and from a teacher.

    Args:
        data: As for `train`.
        teacher: What `load` opens by name, any classifier of torchvision or timm (`timm:resnet50`), a loaded `Model`,
            or a `Teacher` made of any callable.
        out: The run folder; a new one below `runs/` when None.
        options: What to do differently from the recipe; `options.size` is the student's.
        listen: Gets every event; see `vitrail.training.events`.
        command: What was typed, to be stored with the run; the call in Python when empty.
        assume: What a teacher of other people's weights does not say of itself, as `vitrail.load` takes it.
        classes: What its logits are called, where it does not say it.

    Returns:
        The student, its evaluation and the folder. The student needs its teacher no more.

    Raises:
        UsageError: If an option is wrong, or the teacher cannot teach this student.
        DataError: If the data or the teacher cannot be used, or the teacher does not know the classes.
        RunError: If the training fails (a loss that is not finite).
        Stopped: After Ctrl-C or SIGTERM; the same call with resume="auto" goes on.
    """
    request = _request(teacher, options, _said(assume, classes))
    return _run(Asked(data=data, options=options, request=request), out, listen, command)


def plan(
    data: str = "",
    out: str | Path | None = None,
    options: TrainOptions = TrainOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    *,
    teacher: str | Path | Model | Teacher | None = None,
    assume: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
) -> Plan:
    """What `train`, or with a teacher `distill`, would do: nothing is trained, and nothing written.

    The data is read, and a few steps are timed; a probe that takes minutes is left out. Arguments and errors are those
    of the two; `options` are `DistillOptions` where there is a teacher.

    Returns:
        The settings, the table of all parameters, the steps, and an estimate of their time.
    """
    if teacher is None:
        asked = Asked(data=data, options=options, assume=assume or {})
    else:
        assert isinstance(options, DistillOptions)
        asked = Asked(data=data, options=options, request=_request(teacher, options, _said(assume, classes)))
    if options.resume != "never":
        problem = f"a dry run is of a training that would begin, and --resume {options.resume} goes on"
        raise UsageError(problem, "leave it out")
    if out is not None and Path(out).exists():
        open_folder(Path(out), False)
    return plan_of(new_run(_whole(asked), listen, dry=True), asked.began)


def _said(assume: Mapping[str, Any] | None, classes: Sequence[str] | None) -> dict[str, Any]:
    """What was said of a teacher."""
    return {name: value for name, value in (("assume", assume), ("classes", classes)) if value is not None}


def _request(teacher: Any, options: DistillOptions, said: Mapping[str, Any]) -> Request:
    """What is asked of a teacher.

    Raises:
        UsageError: It is none.
    """
    handed = of_model(teacher, "model") if isinstance(teacher, Model) else teacher
    if isinstance(handed, Teacher):
        return Request(teacher=f"{HANDED}{handed.name}", options=options, handed=handed, **said)
    if isinstance(handed, str | Path):
        return Request(teacher=str(handed), options=options, **said)
    raise UsageError(
        f"a teacher must be a run, a name or a Teacher, got {type(teacher).__name__}",
        "vitrail.Teacher(network, preprocessing, classes), which says what its images and answers are",
    )


def _whole(asked: Asked) -> Asked:
    """The same with its configuration file, and checked as far as it can be on its own."""
    options = asked.options
    given = read_given(options.config) if options.config is not None else {}
    data = str(asked.data or given.get("data", ""))
    if not data:
        raise UsageError("no data given: what should be trained on?", "vitrail train digits")
    asked = replace(asked, data=data, given=given)
    check_own(asked)
    return asked


def _run(asked: Asked, out: str | Path | None, listen: Listen, command: str) -> Finished:
    """One training by all processes that train together; only the first writes, and tells what it does."""
    with together(asked.options.device, asked.options.shard) as group:
        asked = _whole(asked)
        if group.rank:
            return follow(group, asked)
        lead = Lead(group)
        finished = _led(asked, out, listen, command, lead)
        lead.end(finished)
        return finished


def _led(asked: Asked, out: str | Path | None, listen: Listen, command: str, lead: Lead) -> Finished:
    """One training, in a new folder or in one that goes on."""
    data, options = asked.data, asked.options
    path = Path(out) if out is not None else default_folder(data)
    if path.exists():
        folder, going_on = open_folder(path, options.resume != "never")
    else:
        folder, going_on = RunFolder(path), False
    prepared = (
        resume_run(folder, asked, listen, lead.group) if going_on else new_run(asked, listen, processes=lead.group)
    )
    if command.startswith("vitrail "):
        again = resumed(command, path)
    else:
        again = _call(asked, path, replace(options, resume="auto"))
    command = command or _call(asked, path, options)
    with saving(path, command, again), threads_set(prepared.settings.execution.threads):
        folder, _ = open_folder(path, options.resume != "never")
        with locked(folder.path, folder.path / "lock", listen), beginning(folder):
            job = Job(folder, prepared, listen, command, again, asked.began, verdicts=options.verdicts, lead=lead)
            return job.run(going_on, options.resume == "anyway")


def _call(asked: Asked, path: Path, options: TrainOptions) -> str:
    """The call in Python that asks for this, with these options."""
    request, words = asked.request, [repr(asked.data), repr(str(path)), f"vitrail.{typed(options)}"]
    said = {"assume": dict(asked.assume)}
    if request is not None:
        words.insert(1, repr(request.teacher) if request.handed is None else "vitrail.Teacher(...)")
        said = {"assume": dict(request.assume), "classes": tuple(request.classes)}
    words += [f"{name}={value!r}" for name, value in said.items() if value]
    return python_call("train" if request is None else "distill", words, asked.own.names())
