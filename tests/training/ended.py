"""What the tests of whole runs share: a run that ends behind a step, and what can be compared when it went on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.training.events import Event
from vitrail.training.loop import StepDone
from vitrail.training.run import RunFolder


class Killed(BaseException):
    """The end of a process, as far as it can be had without one."""


def die() -> None:
    raise Killed


def ended_at(step: int, end: Callable[[], None] = die) -> Callable[[Event], None]:
    """A listener that ends the run behind a step."""

    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            end()

    return listen


def what_was_learnt(folder: Path) -> list[dict[str, Any]]:
    """The rows of the metrics, one for each epoch, without what depends on the clock."""
    clock = {"seconds", "images_per_second", "waiting_share"}
    return [{key: value for key, value in row.items() if key not in clock} for row in RunFolder(folder).history()]
