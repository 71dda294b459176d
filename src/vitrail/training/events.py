"""What a training tells: events to whoever listens, and the page of its run; and how it is asked to stop."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.data.images import Images
from vitrail.errors import VitrailError, counted
from vitrail.io import other_out, read_json
from vitrail.model import Model
from vitrail.pages.run_page import write_run_page
from vitrail.pages.views import Example, RunView, SidesView, VerdictsView
from vitrail.tasks import Metric, Result
from vitrail.training.halves import halved
from vitrail.training.loop import StepDone, steps_per_epoch
from vitrail.training.optimizer import parameter_rules, rates_words
from vitrail.training.prepared import Prepared
from vitrail.training.recipes import document_figure
from vitrail.training.run import RunFolder
from vitrail.training.settings import Settings, image_config, settings_to_dict
from vitrail.training.tuning.lora import FACTORS

RunState = Literal["running", "finished", "stopped"]


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
    asked = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: object) -> None:
        if asked.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.stop = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def started_of(folder: Path, prepared: Prepared, step: int, end: int) -> Started:
    """What is told of a training that stands at a step and ends behind another."""
    per_epoch = steps_per_epoch(len(prepared.data), prepared.settings.optimization)
    return Started(
        folder=folder,
        images=len(prepared.data),
        steps_per_epoch=per_epoch,
        epochs=-(-end // per_epoch),
        steps=end,
        step=step,
        seconds=max(0, end - step) * prepared.step_seconds,
        unit=prepared.unit,
        metric=prepared.model.task.metric,
        scored=prepared.scored[0].split,
    )


def write_page(
    folder: RunFolder,
    prepared: Prepared,
    state: RunState,
    result: Result | None = None,
    sides: SidesView | None = None,
    about: str = "",
    verdicts: VerdictsView | None = None,
) -> None:
    """Write `run.html`.

    Args:
        folder: The run.
        prepared: Its settings, data and model.
        state: Whether it goes on, came to its end, or was stopped before.
        result: The final evaluation, once there is one.
        sides: The probe and the tuned network beside each other, once there are both.
        about: Which network of the run the model is, in sentences.
        verdicts: Whether the model looks at the thing, where that was tested.
    """
    probed = folder.path / "probe.json"
    level = read_json(probed, other_out(folder.path))["accuracy"] if probed.is_file() else None
    task, model = prepared.model.task, prepared.model
    curves = [
        ("training" if name == task.metric.key else f"training, {name.replace('_', ' ')}", f"training_{name}")
        for name in task.measures.values()
    ]
    view = RunView(
        title=prepared.settings.data,
        state=state,
        facts=_facts(prepared),
        history=folder.history(),
        metric=task.metric.label,
        fraction=task.metric.fraction,
        curves=[*curves, (prepared.scored_words, f"validation_{task.metric.key}")],
        scored=prepared.scored_words,
        level=None if level is None else ("linear probe (all of validation)", level),
        sides=sides,
        verdicts=verdicts,
        about=about,
        rates=rates_words(parameter_rules(prepared.network, prepared.settings.optimization)),
        evaluation=None if result is None else result.view(),
        settings=settings_to_dict(prepared.settings),
        environment=json.loads((folder.path / "env.json").read_text(encoding="utf-8")),
        notes=list(prepared.notes),
        command=(folder.path / "command.txt").read_text(encoding="utf-8").strip(),
        examples=() if result is None or prepared.dataset.reads_text else _examples(result, prepared),
        unit=prepared.unit,
        document=document_figure(prepared.settings),
        about_probabilities=model.about,
    )
    write_run_page(folder.page, view)


def _facts(prepared: Prepared) -> list[tuple[str, str]]:
    """Sizes of data and network, as name and value."""
    own = [each for name, each in prepared.network.named_parameters() if not name.endswith(FACTORS)]  # as it is saved
    count, settings = sum(parameter.numel() for parameter in own), prepared.settings
    name, holds = prepared.model.output.describe()
    sizes = ", ".join(f"{len(samples):,} {part}" for part, samples in prepared.dataset.splits.items())
    facts = [
        (f"{prepared.unit}s", sizes),
        (name, str(prepared.model.output.outputs) if name == "classes" else holds),
        ("recipe", settings.recipe),
        ("network", f"{count:,} parameters, {_shape(settings)}"),
    ]
    if (reads := image_config(settings.network)) is not None:
        (height, width), (down, across) = reads.image, reads.patch
        facts.append(("image size", f"{height} x {width}, patches of {down} x {across}"))
    return [*facts, *settings.distillation_facts().items()]


def _shape(settings: Settings) -> str:
    """The shape of a network in words."""
    if "network" in settings.own:
        return settings.own["network"]
    reads, writes = vars(image_config(settings.network) or settings.network), vars(settings.network)
    width, depth = reads["width"], reads.get("depth", writes.get("encoder_depth"))
    if "decoder_depth" not in writes:
        return f"{counted(depth, 'block')} of width {width}"
    reading = counted(depth, "block that reads", "blocks that read")
    return f"{reading} and {counted(writes['decoder_depth'], 'that writes', 'that write')}, width {width}"


def _examples(result: Result, prepared: Prepared) -> tuple[Example, ...]:
    """The images that an evaluation names as worth a look."""
    samples = halved(prepared.dataset, prepared.model.task.column, result.split).samples
    inputs, shape = samples.inputs, prepared.model.preprocessing
    assert isinstance(inputs, Images)
    return tuple(
        Example(shape.to_array(inputs.open(one.id)), one.name, one.truth, one.answer, one.probability)
        for one in result.examples
    )
