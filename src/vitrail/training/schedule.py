"""How high the learning rate is at each step, and with which step a training ends.

    cosine       a linear warm-up, then half a cosine that would be 0 one step after the last
    constant     a linear warm-up, then the peak
    linear       from the peak in a straight line, which would be 0 one step after the last

A training has one phase, unless something happened to it on its way: its steps were counted anew, it was late, or it
was to go on after its end. Then one more phase rules from that step on. Where memory ran out, micro-batches are smaller
from a step on. `schedule.json` of a run holds all of these; each is written before its first step, so that a run that
was killed takes the same steps again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from vitrail.training.settings import Optimization

Shape = Literal["cosine", "constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a schedule.

    Attributes:
        first: The step from which it rules, counted from 0.
        origin: The step from which it counts: that, or one before it.
        steps: From its origin to its end.
        warmup: Of these, in which the rate rises linearly from 0.
        peak: Its highest rate.
        shape: What comes after the warm-up.
        why: What for, in words.
    """

    first: int = 0
    origin: int = 0
    steps: int
    warmup: int = 0
    peak: float
    shape: Shape = "cosine"
    why: str = ""

    def rate(self, step: int) -> float:
        """The rate of a step, counted as everywhere from the first of the training."""
        local = step - self.origin
        if local < self.warmup:
            return self.peak * (local + 1) / (self.warmup + 1)
        if self.shape == "constant":
            return self.peak
        done = min(1.0, (local - self.warmup) / max(1, self.steps - self.warmup))
        return self.peak * (1 - done) if self.shape == "linear" else self.peak * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """In how many micro-batches each batch is computed, from a step on.

    Attributes:
        first: That step, counted from 0.
        accumulate: How many.
        why: What for, in words.
    """

    first: int
    accumulate: int
    why: str = ""


class Schedule:
    """The phases of a training; one may be added while it is under way.

    Args:
        phases: In order.
        micro_batches: Where they are others than the settings say, in order.
    """

    def __init__(self, phases: Sequence[Phase], micro_batches: Sequence[MicroBatches] = ()) -> None:
        self.phases, self.micro_batches = list(phases), list(micro_batches)

    @classmethod
    def of(cls, choices: Optimization, steps_per_epoch: int) -> "Schedule":
        """The one that settings say.

        Args:
            choices: With epochs, warm-up, rate and shape.
            steps_per_epoch: Optimizer steps in one epoch.
        """
        steps, warmup = choices.epochs * steps_per_epoch, round(choices.warmup_epochs * steps_per_epoch)
        return cls([Phase(steps=steps, warmup=warmup, peak=choices.learning_rate, shape=choices.schedule)])

    @property
    def end(self) -> int:
        """Steps of the whole training."""
        return self.phases[-1].origin + self.phases[-1].steps

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return next(phase for phase in reversed(self.phases) if phase.first <= step or phase.first == 0).rate(step)

    def at(self, step: int, choices: Optimization) -> Optimization:
        """The choices that hold at a step: with its micro-batches."""
        found = [each.accumulate for each in self.micro_batches if each.first <= step]
        return replace(choices, accumulate=found[-1]) if found else choices

    def become(self, other: "Schedule") -> None:
        """Say what another one says."""
        self.phases[:], self.micro_batches[:] = other.phases, other.micro_batches

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        smaller = {"micro_batches": [asdict(each) for each in self.micro_batches]} if self.micro_batches else {}
        return {"steps": self.end, "phases": [asdict(phase) for phase in self.phases], **smaller}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Schedule":
        """From what `to_dict` gave.

        Raises:
            KeyError, TypeError: Something else was given.
        """
        smaller = [MicroBatches(**each) for each in values.get("micro_batches", ())]
        return cls([Phase(**phase) for phase in values["phases"]], smaller)


def extension(choices: Optimization, step: int, steps: int) -> Phase:
    """What comes after the end of a schedule: the same once more, as a warm restart ("SGDR", 2017).

    Args:
        choices: With the epochs of the whole training.
        step: Steps that are done.
        steps: How many more.
    """
    warmup, peak, shape = round(choices.warmup_epochs / choices.epochs * steps), choices.learning_rate, choices.schedule
    why = f"{steps} more steps, in a schedule of their own: {shape}, up to {peak:g} again in {warmup} of them"
    return Phase(first=step, origin=step, steps=steps, warmup=warmup, peak=peak, shape=shape, why=why)
