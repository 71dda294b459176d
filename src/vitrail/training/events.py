"""The events of a run, for listeners; and the signals that stop it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.model import Model
from vitrail.runtime import handling
from vitrail.tasks import Metric, Result
from vitrail.text import ShortRepr
from vitrail.training.loop import StepDone


class Stopped(VitrailError):
    """The run was stopped by a signal; its state is saved (exit code 130)."""

    exit_code = 130


@dataclass(frozen=True)
class Reading:
    """Progress of reading samples into memory."""

    what: str
    done: int
    whole: int


@dataclass(frozen=True)
class Started:
    """Before the first step."""

    folder: Path
    images: int
    steps_per_epoch: int
    steps: int  # of the whole schedule
    step: int  # 0, or the step at which the run is resumed
    seconds: float  # expected for the steps that are left
    unit: str = "image"  # name of one sample
    metric: Metric = Metric("accuracy", "accuracy")  # noqa: RUF009  # on validation
    scored: str = "validation"  # the split on which each epoch is evaluated

    @property
    def epochs(self) -> int:
        """Of the whole schedule; the last may be cut short."""
        return -(-self.steps // self.steps_per_epoch)


@dataclass(frozen=True)
class Rescheduled:
    """The number of steps has changed; `why` is empty where that was already announced."""

    steps: int
    why: str


@dataclass(frozen=True)
class EpochScored:
    """An epoch is done and evaluated."""

    row: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Finished(ShortRepr):
    """The run is finished."""

    folder: Path
    model: Model
    evaluated: Result
    seconds: float
    weights: str


Event = str | Reading | Started | Rescheduled | StepDone | EpochScored | Finished
Listen = Callable[[Event], None]
Note = Callable[..., None]  # of sentences, which are kept with the run


@dataclass
class StopRequest:
    """Whether a stop was requested."""

    stop: bool = False


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Ctrl-C and SIGTERM request a stop at the next step, a second Ctrl-C ends at once; only in the main thread."""
    stopping = StopRequest()

    def handle(number: int, frame: object) -> None:
        if stopping.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.stop = True

    with handling(handle, signal.SIGINT, signal.SIGTERM):
        yield stopping
