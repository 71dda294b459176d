"""The plan of a run's time, where it has a limit: what each part may take, by the seconds that were measured so far.

    start      reading and a quick look at the data: what they take
    probe      as many images as leave the parts below what they are owed; a few of each class in any case
    timing     a twentieth of the limit
    steps      a third of the limit, wherever the ending leaves it; then all that is left
    ending     evaluations, explanations and files, at the seconds of the images that were computed last

Steps are counted again and again:

    at the start     an estimate, from a few timed steps
    at step 20       the number, from the steps so far (at a quarter of them, if there are fewer than 80)
    when it is late  (something else uses the processor) the rate falls to 0 in a straight line over the last steps that
                     fit, a fifth of those planned

Each of these is one more `Phase` of the schedule, so a resumed run needs no clock to repeat them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vitrail.errors import Hint, UsageError
from vitrail.runs.settings import Optimization
from vitrail.training.optimizer import Phase, Schedule, phase_of

STEPS, TIMING = 1 / 3, 0.05  # of the limit
COUNTED = 20  # steps after which their number is fixed; a quarter of the run, where that is fewer
LEAST = 3  # timed steps before any decision
LATE = 0.02  # of the limit: a run is late if it would end later than this beyond it
EARLY = 0.05  # the same for the end of lateness
COOLDOWN = 0.2  # of the planned steps: the rate of a late run falls when no more than these fit
FINISHING = 2.0  # seconds for the model, the page and the files


@dataclass
class Budget:
    """The time budget of a run.

    Attributes:
        limit: Seconds for the whole run, from its call to its end.
        elapsed: Gives the seconds since the run began, without those between its parts.
        per_epoch: Steps of an epoch.
        planned: Seconds of a step, as timed before the first.
        scoring: Seconds of an evaluation of the validation samples, as measured last.
        passes: Time of all that comes after the last step, in such evaluations.
    """

    limit: float
    elapsed: Callable[[], float]
    per_epoch: int
    planned: float
    scoring: float
    passes: float
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=COUNTED))
    _pace: float = 0.0  # seconds of a step when an evaluation was measured; 0 where none is known

    @property
    def pace(self) -> float:
        """Seconds of a step: of the last ones, or as planned."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else self.planned

    @property
    def slower(self) -> float:
        """How many times as slow the machine is as when an evaluation was measured, by the steps since then."""
        return self.pace / self._pace if self._pace else 1.0

    @property
    def step(self) -> float:
        """Seconds of a step with its part of the evaluation of an epoch."""
        return self.pace + self.slower * self.scoring / self.per_epoch

    @property
    def around(self) -> float:
        """Seconds of the whole run without any further step."""
        return self.elapsed() + (1 + self.passes) * self.slower * self.scoring + FINISHING

    @property
    def free(self) -> float:
        """Seconds for what comes before the timing: the others have their part; below 0 where they cannot."""
        return self.limit * (1 - STEPS - TIMING) - self.around

    def add_scoring(self, seconds: float) -> None:
        """Add the time of an evaluation, which counts as much as what was known before."""
        self.scoring, self._pace = (self.slower * self.scoring + seconds) / 2, self.pace

    def add_step(self, seconds: float) -> None:
        """Add the time of one step."""
        self._seconds.append(seconds)
        if len(self._seconds) == LEAST and not self._pace:
            self._pace = self.pace

    def count_steps(self) -> int:
        """Number of steps that still fit."""
        return max(0, int((self.limit - self.around) / self.step))

    def plan(self, optimization: Optimization, step: int = 0, least: int = 1) -> Phase:
        """The phase that fits, at the start or from a step on.

        Args:
            optimization: Of the settings.
            step: Steps that are done.
            least: Smallest useful number of steps.

        Raises:
            UsageError: Fewer fit, or all epochs are done.
        """
        left = optimization.epochs * self.per_epoch - step
        if left < 1:
            problem = f"all {optimization.epochs} epochs are done, so more time would add nothing"
            raise UsageError(problem, Hint({"epochs": 2 * optimization.epochs}))
        steps = min(self.count_steps(), left)
        if steps < least:
            problem = f"max_time {self.limit:g} s leaves no time for a step: all else takes {self.around:.0f} s"
            raise UsageError(problem, Hint({"max_time": f"{-(-1.5 * self.around // 60):.0f}m"}))
        return self._phase(optimization, steps, first=step, origin=step)

    def after(self, step: int, schedule: Schedule, optimization: Optimization) -> Phase | None:
        """The phase that the clock adds after a step: the number of steps, once, or an earlier end if it is late.

        If it is no longer late, the end moves back, at most to the planned one.

        Args:
            step: Steps that are done.
            schedule: The current one; it is not changed.
            optimization: Of the settings.
        """
        ruling = schedule.phases[-1]
        counted = min(COUNTED, max(LEAST, ruling.steps // 4), max(1, ruling.steps - 1))
        if step >= schedule.end or step <= ruling.first or len(self._seconds) < min(LEAST, counted):
            return None  # the end, a step that is replayed, or too few of them are timed
        local = step - ruling.origin
        if ruling.first == ruling.origin and ruling.shape != "linear" and local <= counted:
            if local < counted:
                return None
            steps = min(local + self.count_steps(), optimization.epochs * self.per_epoch - ruling.origin)
            fixed = self._phase(optimization, steps, first=step, origin=ruling.origin)
            return replace(fixed, warmup=ruling.warmup if ruling.warmup <= local else max(local, fixed.warmup))
        ends = self.around + (schedule.end - step) * self.step
        planned = next(phase for phase in reversed(schedule.phases) if phase.shape != "linear")
        steps = min(self.count_steps(), planned.origin + planned.steps - step)
        late = ends > self.limit * (1 + LATE) and steps <= COOLDOWN * ruling.steps
        if not late and (ruling.shape != "linear" or ends >= self.limit * (1 - EARLY) or step + steps <= schedule.end):
            return None
        why = f"{'late' if late else 'less late'}: it would have ended after {ends:.0f} s of {self.limit:g}"
        return Phase(first=step, origin=step, steps=steps, peak=schedule.rate(step), shape="linear", why=why)

    def _phase(self, optimization: Optimization, steps: int, first: int, origin: int) -> Phase:
        """A whole schedule in this number of steps, as far as there is time."""
        whole, epochs = optimization.epochs * self.per_epoch - origin, steps / self.per_epoch
        time = f"{self.limit:g} s, of which all else takes {self.around:.0f},"
        why = f"{time} buy {steps} of {whole} steps: {epochs:.1f} of {whole / self.per_epoch:g} epochs"
        return phase_of(optimization, steps, first, origin, why)
