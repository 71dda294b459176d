"""What would be trained, as one value: said before anything is, by `vitrail train ... --dry-run`.

Time and memory are those of the loop itself: it makes its first steps, on what would be trained, and nothing is kept.
"""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from vitrail.data.batches import Batches
from vitrail.data.dataset import Split
from vitrail.model import Model
from vitrail.runtime import peak_memory, threads_set
from vitrail.training.evaluate import BATCH, evaluate_split
from vitrail.training.loop import EpochDone, StepDone, start, steps_per_epoch, train_loop
from vitrail.training.optimizer import Rule, parameter_rules
from vitrail.training.prepared import Prepared
from vitrail.training.schedule import MicroBatches, Schedule
from vitrail.training.settings import Settings, settings_to_dict

STEPS = 20  # that are made at most
SECONDS = 30.0  # of steps from which on no further one is made, but for the second
WARMING = 2  # steps at the start that say little: buffers are made, and images wait already


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The first steps of a training, as they were made.

    Attributes:
        steps: How many.
        sample: Seconds of a sample in them, behind the first ones.
        scoring: Seconds of looking at the held-out samples once.
        memory: Bytes that this process took at most; None where the system does not tell.
        notes: What was said meanwhile.
    """

    steps: int
    sample: float
    scoring: float
    memory: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be trained.

    Attributes:
        settings: All choices.
        samples: Of each split.
        unit: What one sample is called.
        rules: What is done with which parameters; each parameter stands in one row.
        steps: Of the optimizer; 0 where the head is fitted to features that are computed once.
        seconds: That they take, with a look at the held-out samples behind each epoch.
        notes: What was said of the data and of each choice.
        timed: The first steps; None where there are none.
    """

    settings: Settings
    samples: dict[str, int]
    unit: str
    rules: tuple[Rule, ...]
    steps: int
    seconds: float
    notes: tuple[str, ...]
    timed: Timed | None = None

    def rate(self, rule: Rule) -> float:
        """The highest learning rate of some parameters."""
        return rule.rate * self.settings.optimization.learning_rate

    def row(self, rule: Rule) -> dict[str, Any]:
        """One row of the table; without rate and decay where no step is made."""
        stepped = not self.settings.fits_head
        how = {"rate": self.rate(rule), "weight_decay": rule.weight_decay}
        return {**asdict(rule), **{name: value if stepped else None for name, value in how.items()}}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the rate of a row is the highest one, null where the head is fitted."""
        timed = self.timed
        return {
            "data": self.settings.data,
            "recipe": self.settings.recipe,
            "samples": self.samples,
            "parameters": [self.row(rule) for rule in self.rules],
            "steps": self.steps,
            "seconds": self.seconds,
            "timed_steps": 0 if timed is None else timed.steps,
            "step_seconds": None if timed is None else timed.sample * self.settings.optimization.batch_size,
            "images_per_second": None if timed is None else 1 / timed.sample,
            "memory_bytes": None if timed is None else timed.memory,
            "notes": list(self.notes),
            "settings": settings_to_dict(self.settings),
        }


def plan_of(prepared: Prepared, began: float) -> Plan:
    """What a prepared training that was asked for at this time would do.

    Raises:
        RunError: Its first steps cannot be made: no memory, or a loss that is not finite.
    """
    settings, choices = prepared.settings, prepared.settings.optimization
    rules = tuple(parameter_rules(prepared.network, choices))
    per_epoch = steps_per_epoch(len(prepared.data), choices)
    steps, seconds, notes, found = 0, 0.0, prepared.notes, None
    if not settings.fits_head:
        before = time.perf_counter()
        with threads_set(settings.execution.threads):
            found = timed(prepared)
        steps, notes, step = choices.epochs * per_epoch, (*notes, *found.notes), found.sample * choices.batch_size
        if budget := prepared.budget(began + time.perf_counter() - before, 0.0):  # in which no such steps are made
            budget.planned, budget.scoring = step, found.scoring
            phase = budget.plan(choices, least=0 if settings.initial is not None else 1)
            steps, notes = phase.steps, (*notes, phase.why)
        epochs = steps / per_epoch
        seconds = epochs * (len(prepared.data) * found.sample + found.scoring)
    return Plan(
        settings=settings,
        samples={name: len(samples) for name, samples in prepared.dataset.splits.items()},
        unit=prepared.unit,
        rules=rules,
        steps=steps,
        seconds=seconds,
        notes=notes,
        timed=found,
    )


def timed(prepared: Prepared) -> Timed:
    """Make the first steps of a training, and look at held-out samples; its network is then no more what it was."""
    settings, device = prepared.settings, torch.device(prepared.settings.execution.device)
    choices, notes = settings.optimization, list[str]()
    state = start(prepared.network, choices)
    schedule = Schedule.of(choices, steps_per_epoch(len(prepared.data), choices))
    made: list[StepDone] = []
    for event in train_loop(state, prepared.data, prepared.objective, choices, settings.execution, schedule):
        match event:
            case StepDone():
                made.append(event)
                float(event.loss)  # an accelerator has done it then
            case MicroBatches():
                notes.append(event.why)
            case EpochDone():
                continue
        if len(made) >= STEPS or (len(made) > 1 and sum(step.seconds for step in made) > SECONDS):
            break
    counted = made[min(WARMING, len(made) - 1) :]
    sample = sum(step.seconds for step in counted) / max(1, sum(step.images for step in counted))
    scoring = _scoring(replace(prepared.model, network=state.best_network), *prepared.scored, sample)
    memory = peak_memory(device)
    return Timed(steps=len(made), sample=sample, scoring=scoring, memory=memory, notes=tuple(notes))


def _scoring(model: Model, split: Split, batches: Batches, sample: float) -> float:
    """Seconds of looking at these samples, as a batch of them says; a third of a step where that would take long."""
    some = min(BATCH, len(batches))
    if some * sample / 3 > SECONDS:
        return len(batches) * sample / 3
    ids, began = np.arange(some, dtype=np.int64), time.perf_counter()
    evaluate_split(model, replace(split, samples=split.samples.select(ids)), batches.part(ids))
    return (time.perf_counter() - began) * len(batches) / some
