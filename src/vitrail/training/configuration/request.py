"""The request of a training run: data, options, a configuration file, and objects that were passed in Python.

`Request.values` has the configuration file and, laid over it, the options, nested as the settings are. What neither of
them names is left to the recipe.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.arguments import PASSED, in_python
from vitrail.data.sources import Reader
from vitrail.errors import Hint, as_word
from vitrail.nn import Parts, names_of
from vitrail.nn.networks import NetworkConfig
from vitrail.options import TrainOptions, parse_seconds, switch_of
from vitrail.runs.settings import ASSUME, OPTIONS, lay_over, settings_of
from vitrail.tasks import Task
from vitrail.tasks.task import Objective
from vitrail.training.configuration.rare import read_asymmetric, read_class_weights
from vitrail.training.configuration.teacher import Teacher
from vitrail.weights.assume import check_assume, check_names

OBJECT = PASSED  # before the name of a teacher that was passed as an object
PATHS = ("teacher", "teacher_weights")  # which are stored as absolute paths


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
        """The configuration of the network, if it is one of the library's."""
        found = getattr(self.network, "config", None)
        return found if isinstance(found, NetworkConfig) else None

    def names(self) -> dict[str, str]:
        """What the run stores of each object, by argument."""
        return {name: _name(value) for name, value in vars(self).items() if value is not None}


def _name(value: object) -> str:
    match value:
        case Task():
            return in_python(value)
        case Parts():
            return ", ".join(f"{slot}={name}" for slot, name in names_of(value).items())
        case nn.Module():
            return type(value).__name__
    return str(getattr(value, "__qualname__", None) or in_python(value))


NOTHING_OWN = Own()


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a training run.

    Attributes:
        data: A named set, a folder, a list, a file of pairs; or what the user's own reader takes.
        options: What differs from the recipe; `DistillOptions` with a teacher.
        config: Content of the configuration file that the options name, or empty.
        own: What was passed as an object.
        assume: What the weights of `options.init` do not say of themselves.
        teacher: What `open_teacher` opens, or python:NAME for one that was passed as an object; empty for none.
        teacher_assume: What the weights of the teacher do not say of themselves.
        teacher_object: The teacher, if it was passed as an object.
        classes: Names of the teacher's logits.
        began: Time of the call, on `time.perf_counter`.

    Raises:
        UsageError: `teacher_assume` or `classes` are not possible.
    """

    data: str = ""
    options: TrainOptions
    config: Mapping[str, Any] = field(default_factory=dict)
    own: Own = NOTHING_OWN
    assume: Mapping[str, Any] = field(default_factory=dict)
    teacher: str = ""
    teacher_assume: Mapping[str, Any] = field(default_factory=dict)
    teacher_object: Teacher | None = None
    classes: Sequence[str] = ()
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Check what is stated of a teacher."""
        object.__setattr__(self, "teacher_assume", check_assume(self.teacher_assume))
        object.__setattr__(self, "classes", check_names(self.classes))

    def seconds(self) -> float:
        """Seconds since the call."""
        return time.perf_counter() - self.began

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """All options that differ from their default, nested as the settings are; paths are absolute."""
        defaults, found = {each.name: each.default for each in fields(self.options)}, dict[str, Any]()
        for name, (section, key) in settings_of(self.options).items():
            if (value := getattr(self.options, name)) != defaults[name]:
                inside = found.setdefault(section, {}) if section else found
                inside[key] = _value(name, value)
        if self.assume:
            found.setdefault("initial", {})["assume"] = dict(self.assume)
        if self.teacher:
            stated = {ASSUME: dict(self.teacher_assume), "teacher_classes": self.classes}
            named = {"teacher": absolute(self.teacher), **{key: value for key, value in stated.items() if value}}
            found["distillation"] = {**found.get("distillation", {}), **named}
        return found

    @cached_property
    def values(self) -> dict[str, Any]:
        """The configuration file with the options laid over it; what the file assumes of a teacher is of that one."""
        config, overrides = dict(self.config), self.overrides
        if stored := config.get("distillation"):
            stored = {key: absolute(each) if key in PATHS and each else each for key, each in stored.items()}
            if self.teacher:
                another = stored.get("teacher") != overrides["distillation"]["teacher"]
                left_out = {"identity", *((ASSUME, "teacher_classes") if another else ())}
                stored = {key: value for key, value in stored.items() if key not in left_out}
            config["distillation"] = stored
        return lay_over(config, overrides)

    @property
    def blamed(self) -> str:
        """What has decided the network, where it cannot be built: the options, or the configuration file."""
        chosen = self.options.size is not None or "network" in self.overrides
        return OPTIONS if self.options.config is None or chosen else str(self.options.config)

    def shown(self, name: str) -> tuple[str, str | Hint]:
        """An option with its value, as it was typed or stands in the configuration file; and how it is left out."""
        value, usual = getattr(self.options, name), {each.name: each.default for each in fields(self.options)}[name]
        if value == usual:
            place = ".".join(filter(None, settings_of(self.options)[name]))
            return f"{place} in {self.options.config}", f"{self.options.config} without {place}"
        flag = f"--{'no_' * (value is False)}{name}".replace("_", "-")
        return flag if isinstance(value, bool) else f"{flag} {as_word(value)}", Hint(drop=[name])

    def section(self, name: str) -> Mapping[str, Any]:
        """One section of the values, empty where there is none; all of them for the empty name."""
        return (self.values.get(name) or {}) if name else self.values

    def setting(self, option: str) -> Any:
        """What the options or the file request of the setting that an option decides; None where they leave it open."""
        section, key = settings_of(self.options)[option]
        return self.section(section).get(key)


def absolute(path: str) -> str:
    """A path that means the same from any folder, also when nothing is there; names of networks as they are."""
    kind, colon, _ = path.partition(":")
    named = path in ("pretrained", "random") or (colon and len(kind) > 1)
    return path if named and not Path(path).exists() else str(Path(path).resolve())


STORED: dict[str, Callable[[Any], Any]] = {
    "max_time": parse_seconds,
    "class_weights": read_class_weights,
    "asymmetric": read_asymmetric,
    "data_root": lambda root: str(root.resolve()),
    "teacher_weights": absolute,
}
"""How some options are stored."""


def _value(name: str, value: Any) -> Any:
    """The value of an option, as the settings have it."""
    if switch := switch_of(name):
        return value == switch[1]
    return STORED[name](value) if name in STORED else value
