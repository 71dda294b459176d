"""What a person asks of a training, as one value: from the call or the command line to the settings.

What is passed as an object instead of a name is an `Own`; of it the settings hold the names. Of a distillation a
request names the teacher; `Distillation` in the settings is what the run stores of it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from torch import nn

from vitrail.data.formats import Reader
from vitrail.errors import COMMAND_LINE, UsageError
from vitrail.nn import Parts, ViTConfig, names_of
from vitrail.nn.networks import NetworkConfig
from vitrail.own import python_call, typed
from vitrail.tasks import TASKS, Task
from vitrail.tasks.task import Objective
from vitrail.training.distill.teacher import FOREIGN, Teacher
from vitrail.training.options import DistillOptions, TrainOptions
from vitrail.training.settings import ASSUME, Distillation, Settings, laid_over, read_given, validated
from vitrail.weights.assume import checked, checked_names, words_of

HANDED = "python:"  # before the name of a teacher that was handed over
WORDS = {"fit_head": ("never", "always"), "cache": ("off", "on")}  # what options call False and True


@dataclass(frozen=True)
class Own:
    """What was passed to `train` as an object instead of a name; see there."""

    task: Task | None = None
    network: nn.Module | None = None
    parts: Parts | None = None
    objective: Objective | None = None
    reader: Reader | None = None

    @property
    def config(self) -> NetworkConfig | None:
        """The configuration of an own network, where it has one of the library's kind."""
        found = getattr(self.network, "config", None)
        return found if isinstance(found, NetworkConfig) else None

    def names(self) -> dict[str, str]:
        """What the run stores of them."""
        return {name: _name(value) for name, value in vars(self).items() if value is not None}


def _name(value: object) -> str:
    match value:
        case Task():
            return typed(value)
        case Parts():
            return ", ".join(f"{slot}={name}" for slot, name in names_of(value).items())
        case nn.Module():
            return type(value).__name__
    return str(getattr(value, "__qualname__", None) or typed(value))


NOTHING_OWN = Own()


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asks of a training.

    Attributes:
        data: A named set, a folder, a manifest, a file of pairs; or what an own reader knows.
        options: What to do differently from the recipe; `DistillOptions` where there is a teacher.
        config: Content of the configuration file that they name, or empty.
        own: What was passed as an object.
        assume: What the weights that the training starts from do not say of themselves.
        teacher: What `open_teacher` opens, or python:NAME for one that was handed over; empty where there is none.
        teacher_assume: The same of the weights of the teacher.
        handed: The teacher itself, when it was handed over in Python.
        classes: What the teacher's logits are called.
        began: When it was asked, on `time.perf_counter`.
    """

    data: str = ""
    options: TrainOptions
    config: Mapping[str, Any] = field(default_factory=dict)
    own: Own = NOTHING_OWN
    assume: Mapping[str, Any] = field(default_factory=dict)
    teacher: str = ""
    teacher_assume: Mapping[str, Any] = field(default_factory=dict)
    handed: Teacher | None = None
    classes: Sequence[str] = ()
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Refuse what cannot be assumed of a teacher, and what is no name."""
        object.__setattr__(self, "teacher_assume", checked(self.teacher_assume))
        object.__setattr__(self, "classes", checked_names(self.classes))

    def whole(self) -> "Request":
        """The same with its configuration file, and checked as far as it can be on its own.

        Raises:
            UsageError: The file is wrong, there is no data, or objects do not go together with what else is asked for.
        """
        config = read_given(self.options.config) if self.options.config is not None else {}
        data = str(self.data or config.get("data", ""))
        if not data:
            raise UsageError("no training data given", "vitrail train digits")
        request = replace(self, data=data, config=config).completed()
        _check_own(request)
        return request

    def completed(self) -> "Request":
        """The same, with what the configuration file says of a distillation where options leave it open."""
        stored, network = self.config.get("distillation") or {}, self.config.get("network") or {}
        if not self.teacher or not stored:
            return self
        words = {name: words[stored[name]] for name, words in WORDS.items() if name in stored}
        if "distillation_token" in network:
            words["token"] = ("no", "yes")[network["distillation_token"]]
        left = {name: word for name, word in words.items() if getattr(self.options, name) == "auto"}
        return replace(self, options=replace(self.options, **left))

    def teaching(self) -> dict[str, Any]:
        """The fields of `Distillation` that are asked for; paths without a reference to the current folder."""
        names = {field.name for field in fields(Distillation)} - {"teacher", "fit_head", "cache"}
        chosen = {name: getattr(self.options, name, None) for name in names}
        chosen = {name: value for name, value in chosen.items() if value not in (None, "auto")}
        if "teacher_weights" in chosen:
            chosen["teacher_weights"] = anywhere(chosen["teacher_weights"])
        known = {ASSUME: dict(self.teacher_assume), "teacher_classes": self.classes}
        return {"teacher": anywhere(self.teacher), **chosen, **{name: value for name, value in known.items() if value}}

    def applied(self, settings: Settings) -> Settings:
        """The settings of the student: its distillation, and its token where there is one.

        Raises:
            UsageError: Something that is asked for has no effect, or there are no classes to be taught.
        """
        if not self.teacher:
            return settings
        _refuse_idle(self)
        before, teaching = {} if settings.distillation is None else asdict(settings.distillation), self.teaching()
        if before.get("teacher") != teaching["teacher"]:  # what is assumed of one is not assumed of another
            before |= {ASSUME: {}, "teacher_classes": ()}
        values = laid_over({**before, "identity": ""}, teaching)
        distillation = validated(TypeAdapter(Distillation), values, "the options", "distillation")
        token, network = vars(self.options)["token"], settings.network
        if not isinstance(network, ViTConfig):
            raise UsageError(
                f"a classifier cannot teach the task {settings.task}", "vitrail train DATA, without a teacher"
            )
        wanted = token == "yes" or (token == "auto" and network.class_token)
        return replace(settings, distillation=distillation, network=replace(network, distillation_token=wanted))

    def other_teaching(self, settings: Settings) -> list[str]:
        """What is asked of the teacher that a run which exists was not started with, as `name: old -> new`."""
        stored, options = settings.distillation, vars(self.options)
        if not self.teacher:
            return []
        if stored is None:
            return [f"teacher: none -> {self.teacher}"]
        token = "yes" if getattr(settings.network, "distillation_token", False) else "no"
        teaching = laid_over({ASSUME: stored.teacher_assume}, self.teaching())
        pairs = [(name, _shown(getattr(stored, name)), _shown(new)) for name, new in teaching.items()]
        pairs += [(name, words[getattr(stored, name)], options[name]) for name, words in WORDS.items()]
        pairs.append(("token", token, options["token"]))
        return [f"{name}: {old} -> {new}" for name, old, new in pairs if new not in (old, "auto")]


def _refuse_idle(request: Request) -> None:
    """Refuse what would have no effect on a distillation; names the option."""
    options, handed = request.options, request.handed
    assert isinstance(options, DistillOptions)
    if options.temperature is not None and options.kind == "hard":
        problem = (
            f"--temperature {options.temperature} is for soft distillation; hard distillation uses only the "
            "teacher's top class"
        )
        raise UsageError(problem, "the same without --temperature")
    if options.teacher_weights is not None and not request.teacher.startswith(FOREIGN):
        brings = f"is for torchvision and timm teachers, but {request.teacher} has its own weights"
        raise UsageError(f"--teacher-weights {options.teacher_weights} {brings}", "the same without --teacher-weights")
    if handed is not None and (request.teacher_assume or request.classes):
        problem = f"assume= and classes= are for a teacher given by name, but {handed.name} is an object"
        raise UsageError(problem, "vitrail.load(name, assume=..., classes=...) as the teacher")
    if request.classes and options.fit_head == "always":
        problem = "class names of the teacher have no effect if it gets a new head (fit_head always)"
        raise UsageError(problem, f"no classes={COMMAND_LINE}the same without --class-names")


def _shown(value: Any) -> Any:
    """Assumptions, and names, as a message has them; other values as they are."""
    return words_of(value) if isinstance(value, Mapping) else ", ".join(value) if isinstance(value, tuple) else value


def anywhere(path: str) -> str:
    """A path that means the same from any folder, also when nothing is there; names of networks as they are."""
    kind, colon, _ = path.partition(":")
    named = path in ("pretrained", "random") or (colon and len(kind) > 1)
    return path if named and not Path(path).exists() else str(Path(path).resolve())


def _check_own(request: Request) -> None:
    """Refuse objects that do not go together, or with the options and the configuration file.

    Raises:
        UsageError: Names both.
    """
    own, options, config = request.own, request.options, request.config
    if own.task is not None:
        task = options.task if options.task != "auto" else config.get("task", own.task.name)
        if task != own.task.name:
            raise UsageError(f"task {own.task.name} is given as an object, and {task} is asked for", "one of the two")
        if own.task.name in TASKS and type(own.task) is not type(TASKS[own.task.name]):
            raise UsageError(
                f"a task of your own has the name {own.task.name}, which is a task of the library", "another name"
            )
    if own.network is not None:
        idle = {"parts": own.parts is not None, "--size": options.size is not None}
        size, fits = options.image_size, getattr(own.config, "image", None)
        idle[f"--image-size {size}"] = size is not None and fits not in (None, (size, size))
        for what in (what for what, is_idle in idle.items() if is_idle):
            raise UsageError(
                f"{what} is for a network that vitrail builds, but a network was passed", f"leave {what} out"
            )
    stored = config.get("own") or {}
    named = {kind: name for kind, name in own.names().items() if kind in stored}
    if problem := differs(stored, named):
        words = [repr(config.get("data", "...")), f"options=vitrail.TrainOptions(config=Path({str(options.config)!r}))"]
        problem = f"{options.config} is of a run with objects of your own: {problem}"
        raise UsageError(problem, python_call("train", words, stored))


def differs(stored: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Which objects are given otherwise than a run has stored them, in words; tasks go by their own name."""
    pairs = {kind: (stored.get(kind, "the library's"), given.get(kind, "none")) for kind in {**stored, **given}}
    both = stored.keys() & given.keys()
    found = [f"{kind} {old}, given {new}" for kind, (old, new) in pairs.items() if old != new]
    return "; ".join(words for words in found if not ("task" in both and words.startswith("task ")))
