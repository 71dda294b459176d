"""A limit on the time of a whole run, and what is decided from it: how many steps there will be, and where they end.

    at the start     a few steps that were timed on their own say about how many there will be
    at step 20       the steps so far say it for good (at a quarter of them, where there are fewer than 80)
    when it is late  (something else takes the processor) the rate falls to 0 in a straight line over the last steps
                     that are to be had, a fifth of all that were planned

Each of these is one more `Phase` of the schedule, so whoever replays a run asks no clock.
"""

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vitrail.errors import UsageError
from vitrail.training.schedule import Phase, Schedule
from vitrail.training.settings import Optimization

COUNTED = 20  # steps after which their number is fixed; a quarter of the run, where that is fewer
LEAST = 3  # steps that must have been timed before anything is decided
LATE = 0.02  # of the limit: so much later than it the run may be expected to end
EARLY = 0.05  # the same of a run that was late, and is no more
COOLDOWN = 0.2  # of the planned steps: a late run begins to come down when no more than these are to be had
FINISHING = 2.0  # seconds for the model, the page and the files
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


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
        raise UsageError(f"--max-time is a length of time, got {text!r}", "--max-time 10m")
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
            problem = f"--max-time {self.limit:g}s leaves no time for a step: all around it takes {self.around:.0f} s"
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
            why = f"no more so late: it {words} of {self.limit:g}"
            return Phase(first=step, origin=step, steps=steps, peak=rate, shape="linear", why=why)
        return None

    def _phase(self, choices: Optimization, steps: int, first: int, origin: int) -> Phase:
        """A whole schedule in so many steps; its warm-up is the same fraction of it as the recipe's."""
        warmup = round(choices.warmup_epochs / choices.epochs * steps)
        whole, epochs = choices.epochs * self.per_epoch - origin, steps / self.per_epoch
        why = f"{self.limit:g} s buy {steps} of {whole} steps: {epochs:.1f} of {whole / self.per_epoch:g} epochs"
        shape, peak = choices.schedule, choices.learning_rate
        return Phase(first=first, origin=origin, steps=steps, warmup=warmup, peak=peak, shape=shape, why=why)
