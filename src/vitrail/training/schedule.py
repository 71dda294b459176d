"""How high the learning rate is at each step, and with which step a training ends.

    cosine       a linear warm-up, then half a cosine that would be 0 one step after the last
    constant     a linear warm-up, then the peak
    linear       from the peak in a straight line, which would be 0 one step after the last

A training has one phase, unless something happened to it on its way: its steps were counted anew, it was late, or it
was to go on after its end. Then one more phase rules from that step on. Where memory ran out, micro-batches are smaller
from a step on. `schedule.json` of a run holds all of these; each is written before its first step, so that a run that
was killed takes the same steps again.

A `Budget` is the clock of a run that has a limit on its whole time. It decides how many steps there will be:

    at the start     a few steps that were timed on their own say about how many
    at step 20       the steps so far say it for good (at a quarter of them, where there are fewer than 80)
    when it is late  (something else takes the processor) the rate falls to 0 in a straight line over the last steps
                     that are to be had, a fifth of all that were planned

Each of these is one more `Phase` of the schedule, so whoever replays a run asks no clock.
"""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from vitrail.errors import UsageError
from vitrail.training.settings import Optimization

COUNTED = 20  # steps after which their number is fixed; a quarter of the run, where that is fewer
LEAST = 3  # steps that must have been timed before anything is decided
LATE = 0.02  # of the limit: so much later than it the run may be expected to end
EARLY = 0.05  # the same of a run that was late, and is no more
COOLDOWN = 0.2  # of the planned steps: a late run begins to come down when no more than these are to be had
FINISHING = 2.0  # seconds for the model, the page and the files
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

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


def seconds_of(text: str) -> float:
    """Seconds in a length of time: 90, 90s, 10m, 1h30m.

    Raises:
        UsageError: It is none, or not above 0.
    """
    found = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*(min|[smhd])?", text.strip().lower())
    whole = "".join(f"{number}{unit}" for number, unit in found)
    if (
        not found
        or whole != re.sub(r"\s+", "", text.lower())
        or (len(found) > 1 and any(not unit for _, unit in found))
    ):
        raise UsageError(f"--max-time must be a duration, got {text!r}", "--max-time 10m")
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in found)
    if seconds <= 0:
        raise UsageError(f"--max-time must be above 0, got {text}", "--max-time 10m")
    return seconds


@dataclass
class Budget:
    """The clock of a run that has a limit.

    Attributes:
        limit: Seconds that the whole run may take, from its call to its end.
        began: When this process began with it, by `clock`.
        spent: Seconds that it took before, where it goes on.
        per_epoch: Steps of an epoch.
        planned: Seconds of a step, as timed before the first.
        scoring: Seconds of looking at the validation samples, as far as is known.
        passes: How often as long all that comes after the last step takes.
        clock: Seconds.
    """

    limit: float
    began: float
    spent: float
    per_epoch: int
    planned: float
    scoring: float
    passes: float
    clock: Callable[[], float] = time.perf_counter
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=COUNTED))

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, without those between its parts."""
        return self.spent + self.clock() - self.began

    @property
    def step(self) -> float:
        """Seconds of a step with its part of an epoch's scoring: of the last ones, or as planned."""
        seconds = sum(self._seconds) / len(self._seconds) if self._seconds else self.planned
        return seconds + self.scoring / self.per_epoch

    @property
    def around(self) -> float:
        """Seconds until the end of the run if no step were made any more."""
        return self.elapsed + (1 + self.passes) * self.scoring + FINISHING

    def took(self, seconds: float) -> None:
        """One more step took so long."""
        self._seconds.append(seconds)

    def scored(self, seconds: float) -> None:
        """Looking at the validation samples took so long."""
        self.scoring = seconds

    def affordable(self) -> int:
        """Steps that can still be made; 0 where there is no time for one."""
        return max(0, int((self.limit - self.around) / self.step))

    def plan(self, choices: Optimization, step: int = 0, least: int = 1) -> Phase:
        """What there is time for at the start, or from a step on.

        Args:
            choices: What the settings say.
            step: Steps that are done.
            least: Steps without which there is nothing to be had.

        Raises:
            UsageError: There is no time for a step.
        """
        steps = min(self.affordable(), choices.epochs * self.per_epoch - step)
        if steps < least:
            problem = f"--max-time {self.limit:g}s leaves no time for a step: all else takes {self.around:.0f} s"
            raise UsageError(problem, f"--max-time {-(-1.5 * self.around // 60):.0f}m")
        return self._phase(choices, steps, first=step, origin=step)

    def after(self, step: int, schedule: Schedule, choices: Optimization) -> Phase | None:
        """What the clock changes behind a step: the number of steps, once, and an earlier end where it is late.

        Where what made it late is over, the end moves back again, to where it was planned at most.

        Args:
            step: Steps that are done.
            schedule: As it is; it is not changed.
            choices: What the settings say.
        """
        ruling = schedule.phases[-1]
        if step >= schedule.end or step <= ruling.first or len(self._seconds) < min(LEAST, ruling.steps):
            return None  # the end, a step that is replayed, or too few of them are timed
        local, counted = step - ruling.origin, min(COUNTED, max(LEAST, ruling.steps // 4))
        if ruling.first == ruling.origin and ruling.shape != "linear" and local <= counted:
            if local < counted:
                return None
            steps = min(local + self.affordable(), choices.epochs * self.per_epoch - ruling.origin)
            fixed = self._phase(choices, steps, first=step, origin=ruling.origin)
            return replace(fixed, warmup=ruling.warmup if ruling.warmup <= local else max(local, fixed.warmup))
        ends = self.around + (schedule.end - step) * self.step
        steps, rate, words = self.affordable(), schedule.rate(step), f"would have ended after {ends:.0f} s"
        if ends > self.limit * (1 + LATE) and steps <= COOLDOWN * ruling.steps:
            why = f"late: it {words} of {self.limit:g}"
            return Phase(first=step, origin=step, steps=steps, peak=rate, shape="linear", why=why)
        planned = next(phase for phase in reversed(schedule.phases) if phase.shape != "linear")
        steps = min(steps, planned.origin + planned.steps - step)
        if ruling.shape == "linear" and ends < self.limit * (1 - EARLY) and step + steps > schedule.end:
            why = f"less late: it {words} of {self.limit:g}"
            return Phase(first=step, origin=step, steps=steps, peak=rate, shape="linear", why=why)
        return None

    def _phase(self, choices: Optimization, steps: int, first: int, origin: int) -> Phase:
        """A whole schedule in so many steps; its warm-up is the same fraction of it as the recipe's."""
        warmup = round(choices.warmup_epochs / choices.epochs * steps)
        whole, epochs = choices.epochs * self.per_epoch - origin, steps / self.per_epoch
        why = f"{self.limit:g} s buy {steps} of {whole} steps: {epochs:.1f} of {whole / self.per_epoch:g} epochs"
        shape, peak = choices.schedule, choices.learning_rate
        return Phase(first=first, origin=origin, steps=steps, warmup=warmup, peak=peak, shape=shape, why=why)
