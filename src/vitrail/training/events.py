"""What a training says to whoever listens, as events; and how it is asked to stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.model import Model
from vitrail.tasks import Metric, Result
from vitrail.training.loop import StepDone


class Stopped(VitrailError):
    """A person or the system asked the run to stop; its state is saved (exit code 130)."""

    exit_code = 130


@dataclass(frozen=True)
class Reading:
    """Images being read into memory."""

    what: str
    done: int
    whole: int


@dataclass(frozen=True)
class Started:
    """The first step is about to be made."""

    folder: Path
    images: int
    steps_per_epoch: int
    epochs: int
    steps: int  # of the whole schedule
    step: int  # 0, or where the run goes on
    seconds: float  # expected for what is left, from timed steps
    unit: str = "image"  # what one sample is called
    metric: Metric = Metric("accuracy", "accuracy")  # noqa: RUF009  # by which the run is watched
    scored: str = "validation"  # on which split each epoch is scored


@dataclass(frozen=True)
class Rescheduled:
    """The training ends with another step than it was to."""

    steps: int
    why: str


@dataclass(frozen=True)
class EpochScored:
    """An epoch is done and was validated."""

    row: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """The run is finished: what it leaves behind."""

    folder: Path
    model: Model
    evaluated: Result
    seconds: float
    weights: str
    recipe: str
    document: str = ""  # what a founding document states of this recipe, where the two can be compared


Event = str | Reading | Started | Rescheduled | StepDone | EpochScored | Finished
Listen = Callable[[Event], None]


@dataclass
class StopRequest:
    """Whether a stop was asked for."""

    stop: bool = False


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Ctrl-C and SIGTERM ask for a stop at the next step, a second Ctrl-C ends at once; only in the main thread."""
    stopping = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(number: int, frame: object) -> None:
        if stopping.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.stop = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
