"""What the options of a distillation give, and the teacher that they name.

`Request` is what a person gave; `Distillation` in the settings is what the run stores. `teacher_of` opens the teacher
before any image is read; `vitrail.training.distill.objective` turns a prepared classifier into a prepared student.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from vitrail.data.columns import Classes
from vitrail.data.dataset import Dataset
from vitrail.errors import DataError, UsageError
from vitrail.nn import ViTConfig
from vitrail.training.distill.teacher import FOREIGN, Teacher, open_teacher
from vitrail.training.options import DistillOptions
from vitrail.training.settings import Distillation, Settings
from vitrail.weights.kinds import is_foreign

HANDED = "python:"  # before the name of a teacher that was handed over
WORDS = {"fit_head": ("never", "always"), "cache": ("off", "on")}  # what options call False and True


@dataclass(frozen=True, kw_only=True)
class Request:
    """The teacher and the options of a distillation, as a person gave them.

    Attributes:
        teacher: What `open_teacher` opens, or python:NAME for one that was handed over.
        options: What to do differently.
        handed: The teacher itself, when it was handed over in Python.
    """

    teacher: str
    options: DistillOptions
    handed: Teacher | None = None

    def given(self) -> dict[str, Any]:
        """The fields of `Distillation` that the options give; paths without a reference to the current folder."""
        names = {field.name for field in fields(Distillation)} - {"teacher", "fit_head", "cache"}
        chosen = {name: getattr(self.options, name, None) for name in names}
        chosen = {name: value for name, value in chosen.items() if value not in (None, "auto")}
        if "teacher_weights" in chosen:
            chosen["teacher_weights"] = anywhere(chosen["teacher_weights"])
        return {"teacher": anywhere(self.teacher), **chosen}

    def completed(self, given: Mapping[str, Any]) -> "Request":
        """The same, where options leave a choice open, with what a configuration file says of it."""
        stored, network = given.get("distillation") or {}, given.get("network") or {}
        said = {name: words[stored[name]] for name, words in WORDS.items() if name in stored}
        if stored and "distillation_token" in network:
            said["token"] = ("no", "yes")[network["distillation_token"]]
        left = {name: word for name, word in said.items() if getattr(self.options, name) == "auto"}
        return replace(self, options=replace(self.options, **left))

    def applied(self, settings: Settings) -> Settings:
        """The settings of the student: its distillation, and its token where there is one."""
        _refuse_idle(self.teacher, self.options)
        before = {} if settings.distillation is None else asdict(settings.distillation)
        values: dict[str, Any] = {**before, "identity": "", **self.given()}
        token, network = self.options.token, settings.network
        if not isinstance(network, ViTConfig):
            raise UsageError(f"a teacher of classes cannot teach the task {settings.task}", "vitrail train DATA, alone")
        wanted = token == "yes" or (token == "auto" and network.class_token)
        return replace(
            settings, distillation=Distillation(**values), network=replace(network, distillation_token=wanted)
        )

    def differences(self, settings: Settings) -> list[str]:
        """What is given that a run which exists was not started with, as `name: old -> new`."""
        stored = settings.distillation
        if stored is None:
            return [f"teacher: none -> {self.teacher}"]
        token = "yes" if getattr(settings.network, "distillation_token", False) else "no"
        pairs = [(name, getattr(stored, name), new) for name, new in self.given().items()]
        pairs += [(name, words[getattr(stored, name)], getattr(self.options, name)) for name, words in WORDS.items()]
        pairs.append(("token", token, self.options.token))
        return [f"{name}: {old} -> {new}" for name, old, new in pairs if new not in (old, "auto")]


def teacher_of(
    settings: Settings, request: Request | None, dataset: Dataset, new: bool
) -> tuple[Settings, Teacher | None]:
    """The teacher that the settings name, opened, without its head where it gets a new one; None where they name none.

    Args:
        settings: Of the student.
        request: What a person gave; None when only the settings say it (a configuration file, or a run that goes on).
        dataset: The student's.
        new: Whether the run begins; then the choice of a new head is made.

    Returns:
        The settings, which now say who the teacher is and whether it gets a new head, and the teacher.

    Raises:
        DataError: If the teacher is missing, is another one than before, or does not know the classes.
        UsageError: If there is no teacher of that name.
    """
    how = settings.distillation
    if how is None:
        return settings, None
    if not isinstance(dataset.codec, Classes):
        raise UsageError(f"a teacher of classes cannot teach the column {dataset.column}", "vitrail train DATA, alone")
    classes = dataset.codec.names
    fit = request.options.fit_head if request is not None and new else ("always" if how.fit_head else "never")
    teacher, fit_head = _opened(how, None if request is None else request.handed, fit, classes)
    identity = teacher.identity()
    if how.identity not in ("", identity):
        raise DataError(
            f"the teacher {how.teacher} has changed since the run was started (its weights were {how.identity}, they "
            f"are {identity})",
            "the teacher as it was, or another --out",
        )
    if not fit_head:
        teacher.matched(classes)
    return replace(settings, distillation=replace(how, identity=identity, fit_head=fit_head)), teacher


def _opened(how: Distillation, handed: Teacher | None, fit: str, classes: tuple[str, ...]) -> tuple[Teacher, bool]:
    """The teacher, or its features where it gets a new head, and whether it does."""
    if how.teacher.startswith(HANDED):
        if handed is None:
            raise UsageError(
                f"this run learns from {how.teacher}, which was handed over in Python",
                "vitrail.distill(data, teacher, out, DistillOptions(resume='auto')) with the same teacher",
            )
        return handed, fit == "always"
    named = (how.teacher, how.teacher_weights, how.teacher_size)
    teacher = open_teacher(*named, head=fit != "always")
    if fit == "auto" and is_foreign(how.teacher) and not teacher.knows(classes):
        return open_teacher(*named, head=False), True
    return teacher, fit == "always"


def _refuse_idle(teacher: str, options: DistillOptions) -> None:
    """Refuse options of a distillation that would have no effect.

    Raises:
        UsageError: Names the option.
    """
    if options.temperature is not None and options.kind == "hard":
        raise UsageError(
            f"--temperature {options.temperature} divides probabilities, and a hard teacher gives its first choice "
            "only",
            "leave --temperature out",
        )
    if options.teacher_weights is not None and not teacher.startswith(FOREIGN):
        raise UsageError(
            f"--teacher-weights {options.teacher_weights} is for torchvision and timm, and {teacher} brings its own "
            "weights",
            "leave --teacher-weights out",
        )


def anywhere(path: str) -> str:
    """A path that means the same from any folder, also when nothing is there; names of networks as they are."""
    kind, colon, _ = path.partition(":")
    named = path in ("pretrained", "random") or (colon and len(kind) > 1)
    return path if named and not Path(path).exists() else str(Path(path).resolve())
