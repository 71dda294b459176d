"""What a person asked of a training, as one value: from the call or the command line to the settings.

What is passed as an object instead of a name is an `Own`; of it the settings hold the names.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vitrail.data.readers import Reader
from vitrail.errors import UsageError
from vitrail.nn import Parts, names_of
from vitrail.nn.networks import NetworkConfig
from vitrail.own import python_call, typed
from vitrail.tasks import TASKS, Task
from vitrail.tasks.task import Objective
from vitrail.training.distill.request import Request
from vitrail.training.options import TrainOptions


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
        given = {name: getattr(self, name) for name in ("task", "network", "parts", "objective", "reader")}
        return {name: _name(value) for name, value in given.items() if value is not None}


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
class Asked:
    """What a person asked of a training.

    Attributes:
        data: A named set, a folder, a manifest, a file of pairs; or what an own reader knows.
        options: What to do differently from the recipe.
        given: Content of the configuration file that they name, or empty.
        own: What was passed as an object.
        assume: What the weights that the training starts from do not say of themselves.
        request: The teacher, where there is one.
        began: When it was asked, on `time.perf_counter`.
    """

    data: str
    options: TrainOptions
    given: Mapping[str, Any] = field(default_factory=dict)
    own: Own = NOTHING_OWN
    assume: Mapping[str, Any] = field(default_factory=dict)
    request: Request | None = None
    began: float = field(default_factory=time.perf_counter)


def check_own(asked: Asked) -> None:
    """Refuse objects that do not go together, or with the options and the configuration file.

    Raises:
        UsageError: Names both.
    """
    own, options, given = asked.own, asked.options, asked.given
    if own.task is not None:
        task = options.task if options.task != "auto" else given.get("task", own.task.name)
        if task != own.task.name:
            raise UsageError(f"task {own.task.name} is given as an object, and {task} is asked for", "one of the two")
        if own.task.name in TASKS and type(own.task) is not type(TASKS[own.task.name]):
            raise UsageError(f"an own task is called {own.task.name}, as one of the library's is", "another name")
    if own.network is not None:
        idle = {"parts": own.parts is not None, "--size": options.size is not None}
        size, fits = options.image_size, getattr(own.config, "image", None)
        idle[f"--image-size {size}"] = size is not None and fits not in (None, (size, size))
        for what in (what for what, is_idle in idle.items() if is_idle):
            raise UsageError(f"{what} is for a network that is built, and one is given", f"leave {what} out")
    stored = given.get("own") or {}
    named = {kind: name for kind, name in own.names().items() if kind in stored}
    if problem := differs(stored, named):
        words = [repr(given.get("data", "...")), f"options=vitrail.TrainOptions(config=Path({str(options.config)!r}))"]
        problem = f"{options.config} is of a run with objects of a person's own: {problem}"
        raise UsageError(problem, python_call("train", words, stored))


def differs(stored: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Which objects are given otherwise than a run has stored them, in words; tasks go by their own name."""
    pairs = {kind: (stored.get(kind, "the library's"), given.get(kind, "none")) for kind in {**stored, **given}}
    both = stored.keys() & given.keys()
    found = [f"{kind} {old}, given {new}" for kind, (old, new) in pairs.items() if old != new]
    return "; ".join(words for words in found if not ("task" in both and words.startswith("task ")))
