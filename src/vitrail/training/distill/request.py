"""What the options of a distillation give, and the teacher that they name.

`Request` is what a person gave; `Distillation` in the settings is what the run stores. `teacher_of` opens the teacher
before any image is read; `vitrail.training.distill.objective` turns a prepared classifier into a prepared student.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.data.columns import Classes, Texts
from vitrail.data.dataset import Dataset
from vitrail.data.images import Images
from vitrail.errors import COMMAND_LINE, DataError, UsageError
from vitrail.nn import ViTConfig
from vitrail.training.distill.teacher import FOREIGN, Teacher, open_teacher
from vitrail.training.options import DistillOptions
from vitrail.training.settings import ASSUME, Distillation, Settings, laid_over
from vitrail.weights.assume import checked, checked_names, words_of
from vitrail.weights.names import is_foreign

HANDED = "python:"  # before the name of a teacher that was handed over
WORDS = {"fit_head": ("never", "always"), "cache": ("off", "on")}  # what options call False and True


@dataclass(frozen=True, kw_only=True)
class Request:
    """The teacher and the options of a distillation, as a person gave them.

    Attributes:
        teacher: What `open_teacher` opens, or python:NAME for one that was handed over.
        options: What to do differently.
        handed: The teacher itself, when it was handed over in Python.
        assume: What a teacher of other people's weights does not say of itself.
        classes: What its logits are called.
    """

    teacher: str
    options: DistillOptions
    handed: Teacher | None = None
    assume: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be assumed, and what is no name."""
        object.__setattr__(self, "assume", checked(self.assume))
        object.__setattr__(self, "classes", checked_names(self.classes))

    def given(self) -> dict[str, Any]:
        """The fields of `Distillation` that the options give; paths without a reference to the current folder."""
        names = {field.name for field in fields(Distillation)} - {"teacher", "fit_head", "cache"}
        chosen = {name: getattr(self.options, name, None) for name in names}
        chosen = {name: value for name, value in chosen.items() if value not in (None, "auto")}
        if "teacher_weights" in chosen:
            chosen["teacher_weights"] = anywhere(chosen["teacher_weights"])
        said = {ASSUME: dict(self.assume), "teacher_classes": self.classes}
        return {"teacher": anywhere(self.teacher), **chosen, **{name: value for name, value in said.items() if value}}

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
        self._refuse_idle()
        before, given = {} if settings.distillation is None else asdict(settings.distillation), self.given()
        if before.get("teacher") != given["teacher"]:  # what is assumed of one is not assumed of another
            before |= {ASSUME: {}, "teacher_classes": ()}
        values = laid_over({**before, "identity": ""}, given)
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
        given = laid_over({ASSUME: stored.teacher_assume}, self.given())
        pairs = [(name, _shown(getattr(stored, name)), _shown(new)) for name, new in given.items()]
        pairs += [(name, words[getattr(stored, name)], getattr(self.options, name)) for name, words in WORDS.items()]
        pairs.append(("token", token, self.options.token))
        return [f"{name}: {old} -> {new}" for name, old, new in pairs if new not in (old, "auto")]

    def _refuse_idle(self) -> None:
        """Refuse what would have no effect.

        Raises:
            UsageError: Names the option.
        """
        options = self.options
        if options.temperature is not None and options.kind == "hard":
            raise UsageError(
                f"--temperature {options.temperature} divides probabilities, and a hard teacher gives its first "
                "choice only",
                "leave --temperature out",
            )
        if options.teacher_weights is not None and not self.teacher.startswith(FOREIGN):
            raise UsageError(
                f"--teacher-weights {options.teacher_weights} is for torchvision and timm, and {self.teacher} brings "
                "its own weights",
                "leave --teacher-weights out",
            )
        if self.handed is not None and (self.assume or self.classes):
            problem = f"assume= and classes= are for a teacher that is named, and {self.handed.name} is an object"
            raise UsageError(problem, "vitrail.load(name, assume=..., classes=...) as the teacher")
        if self.classes and options.fit_head == "always":
            problem = "what the teacher's logits are called has no effect where it gets a new head (fit_head always)"
            raise UsageError(problem, f"no classes={COMMAND_LINE}the same without --class-names")


def _shown(value: Any) -> Any:
    """Assumptions, and names, as a message has them; other values as they are."""
    return words_of(value) if isinstance(value, Mapping) else ", ".join(value) if isinstance(value, tuple) else value


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
    images = dataset.train.inputs if new else None
    teacher, fit_head = _opened(how, None if request is None else request.handed, fit, classes, images)
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


def _opened(
    how: Distillation, handed: Teacher | None, fit: str, classes: tuple[str, ...], images: Images | Texts | None
) -> tuple[Teacher, bool]:
    """The teacher, or its features where it gets a new head, and whether it does."""
    if how.teacher.startswith(HANDED):
        if handed is None:
            raise UsageError(
                f"this run learns from {how.teacher}, which was handed over in Python",
                "vitrail.distill(data, teacher, out, DistillOptions(resume='auto')) with the same teacher",
            )
        return handed, fit == "always" or (fit == "auto" and not handed.classes)
    said = {"assume": how.teacher_assume, "classes": how.teacher_classes}
    named = partial(open_teacher, how.teacher, how.teacher_weights, how.teacher_size, **said)
    teacher = named(head=fit != "always", images=images)
    if fit == "auto" and is_foreign(how.teacher) and not teacher.knows(classes):
        return replace(named(head=False), doubt=teacher.doubt), True
    return teacher, fit == "always"


def anywhere(path: str) -> str:
    """A path that means the same from any folder, also when nothing is there; names of networks as they are."""
    kind, colon, _ = path.partition(":")
    named = path in ("pretrained", "random") or (colon and len(kind) > 1)
    return path if named and not Path(path).exists() else str(Path(path).resolve())
