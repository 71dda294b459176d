"""A limit on time: the run ends within it, whatever else runs; what was decided is written, and replayed to the bit.

And a finished run that goes on to more epochs.
"""

import html
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

import vitrail
from tests.errors import figures, must_raise
from tests.shared_runs import stored
from tests.training.tiny import AGAIN, Killed, ended_at, options, rows, saved, steps_of, what_was_learnt, whole
from vitrail.errors import DataError, UsageError
from vitrail.options import parse_seconds
from vitrail.runs.settings import Optimization
from vitrail.training.budget import FINISHING, STEPS, Budget
from vitrail.training.optimizer import Phase, Schedule, extension
from vitrail.training.setup import EACH, HELD, probe_enough

pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1h30m", 5400), ("2 min", 120), ("1d", 86400)],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "-3m", "0s", "1h 30", "m"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(UsageError):
        parse_seconds(text)


def test_phases_follow_each_other() -> None:
    """Each rules from its first step on; a straight line from where it was, to 0 one step behind the last."""
    choices = Optimization(epochs=4, learning_rate=0.5, warmup_epochs=1.0)
    schedule = Schedule.of(choices, 10)
    before = [schedule.rate(step) for step in range(40)]
    schedule.phases.append(Phase(first=25, origin=25, steps=5, peak=schedule.rate(25), shape="linear"))
    assert schedule.end == 30
    assert [schedule.rate(step) for step in range(26)] == before[:26]
    assert [schedule.rate(step) for step in range(25, 31)] == pytest.approx(
        [before[25] * k / 5 for k in (5, 4, 3, 2, 1, 0)]
    )
    schedule.phases.append(extension(choices, 30, 20))
    assert schedule.end == 50
    assert max(schedule.rate(step) for step in range(30, 50)) == schedule.rate(35) == 0.5
    assert schedule.rate(30) == pytest.approx(0.5 / 6)
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))).phases == schedule.phases


class Machine:
    """A run as the clock sees it: steps, a look at the validation samples behind each epoch, and what comes last.

    Args:
        limit: Seconds.
        step: Seconds of one.
        score: Seconds of a look.
        planned: What the steps before the first said of one.
        factor: How much slower it is
        slow_from: from this part of the limit on,
        slow_to: and up to this part.
        epochs: Of the recipe, of 15 steps.
    """

    def __init__(
        self,
        limit: float,
        step: float,
        score: float,
        planned: float,
        factor: float,
        slow_from: float,
        epochs: int,
        slow_to: float = math.inf,
    ) -> None:
        self.now = self.done = 0.0
        self.slow_to = slow_to * limit
        self.step, self.score, self.factor, self.slow_from = step, score, factor, slow_from * limit
        self.choices = Optimization(epochs=epochs, warmup_epochs=1.0, max_time=limit)
        self.budget = Budget(limit, lambda: self.now, 15, planned, score, 1.0)

    def take(self, seconds: float) -> float:
        seconds *= self.factor if self.slow_from <= self.now < self.slow_to else 1
        self.now += seconds
        return seconds

    def run(self) -> Schedule:
        self.take(1.0)
        schedule, step = Schedule([self.budget.plan(self.choices)]), 0
        while step < schedule.end:
            schedule.rate(step)
            step += 1
            self.budget.add_step(self.take(self.step))
            if phase := self.budget.after(step, schedule, self.choices):
                assert phase.first == step
                assert 0 <= phase.peak <= self.choices.learning_rate
                schedule.phases.append(phase)
            if step % 15 == 0 or step >= schedule.end:
                self.budget.add_scoring(self.take(self.score))
        self.take(self.score)
        self.now += FINISHING
        return schedule


@settings(deadline=None, max_examples=100)
@given(
    step=st.floats(0.05, 1.0),
    score=st.floats(0.1, 3.0),
    wrong=st.floats(0.3, 3.0),
    factor=st.floats(1.0, 3.0),
    slow_from=st.floats(0.0, 0.9),
)
def test_a_run_ends_within_its_limit(step: float, score: float, wrong: float, factor: float, slow_from: float) -> None:
    """Within a tenth, also where something else begins on the machine, and where the first figures were wrong."""
    machine = Machine(180.0, step, score, wrong * step, factor, slow_from, 10_000)
    schedule = machine.run()
    assert 0.9 * 180 <= machine.now <= 1.1 * 180
    rates = [schedule.rate(one) for one in range(schedule.end)]
    assert rates[-1] < 0.25 * max(rates), "whatever happened, the rate came down"
    firsts = [phase.first for phase in schedule.phases]
    assert firsts == sorted(set(firsts))


@settings(deadline=None, max_examples=100)
@given(
    step=st.floats(0.05, 1.0),
    score=st.floats(0.1, 1.0),
    factor=st.floats(1.5, 3.0),
    slow_from=st.floats(0.1, 0.7),
    lasts=st.floats(0.05, 0.5),
)
def test_a_load_that_is_over_before_the_run_is_leaves_no_time_unused(
    step: float, score: float, factor: float, slow_from: float, lasts: float
) -> None:
    """Beside tests that came and went, runs of 150 s were over after 130 s."""
    machine = Machine(180.0, step, score, step, factor, slow_from, 10_000, slow_to=min(0.85, slow_from + lasts))
    schedule = machine.run()
    assert 0.9 * 180 <= machine.now <= 1.1 * 180
    rates = [schedule.rate(one) for one in range(schedule.end)]
    assert rates[-1] < 0.25 * max(rates)
    ends = [phase.origin + phase.steps for phase in schedule.phases if phase.shape != "linear"]
    assert schedule.end <= ends[-1], "never more than was planned before it was late"


@dataclass
class WholeRun:
    """A run from pretrained weights as the clock sees it, whose every second takes `load` as long.

    Attributes:
        load: How many times slower than alone.
        train: Images of training; so many steps an epoch as these make of 32.
        held: Held-out images, of which a third is scored behind each epoch.
        ending: Images that are computed behind the last step.
        later: The load from the first step on.
    """

    load: float
    train: int
    held: int
    ending: int
    later: float = 0.0
    now: float = 0.0
    each: float = 0.02  # seconds of an image, alone
    begun: float = 10.0  # of what comes before the probe
    timing: float = 3.0
    step: float = 0.35
    limit: float = 120.0
    in_steps: float = 0.0  # with the evaluation behind each epoch
    made: int = 0
    known: int = 0
    unseen: int = 0

    def take(self, seconds: float) -> float:
        self.now += (taken := seconds * self.load)
        return taken

    def run(self) -> "WholeRun":
        self.take(self.begun)
        scored, choices = self.held // 3, Optimization(epochs=10, warmup_epochs=1.0, max_time=self.limit)
        per_epoch, passes = -(-self.train // 32), self.ending / (self.held // 3)
        budget = Budget(self.limit, lambda: self.now, per_epoch, 0.0, 0.0, passes)
        enough = probe_enough(budget, scored, EACH * 2)
        while self.unseen < self.held and not (self.unseen and enough(self.unseen, 0)):
            self.take(16 * self.each)
            self.unseen += 16
        while self.known < self.train and not (self.known and enough(self.unseen, self.known)):
            self.take(16 * self.each)
            self.known += 16
        self.take(self.timing)
        budget.planned = 1.2 * self.step * self.load
        schedule, done = Schedule([budget.plan(choices, least=0)]), 0
        self.load = self.later or self.load
        while done < schedule.end:
            done += 1
            self.in_steps += (taken := self.take(self.step))
            budget.add_step(taken)
            if phase := budget.after(done, schedule, choices):
                schedule.phases.append(phase)
            if done % per_epoch == 0 or done >= schedule.end:
                budget.add_scoring(taken := self.take(scored * self.each))
                self.in_steps += taken
        self.made = done
        self.take(self.ending * self.each + FINISHING)
        return self


@settings(deadline=None, max_examples=100)
@given(
    load=st.floats(1.0, 4.0),
    later=st.sampled_from([0.8, 1.0, 1.0, 1.25]),
    images=st.sampled_from([(245, 45), (245, 150), (1000, 150), (4000, 450), (4000, 1200)]),
    ending=st.integers(100, 1500),
)
def test_steps_have_a_third_of_a_limited_time_and_the_end_holds(
    load: float, later: float, images: tuple[int, int], ending: int
) -> None:
    """Wherever what a run has in any case leaves them that; the probe takes what is left, under any load."""
    train, held = images
    run = WholeRun(load, train, held, ending, later * load)
    least = min(EACH * 2 + 16, train) + min(EACH * 2 + 16, HELD, held)
    before = load * (run.begun + run.timing + run.each * least)
    behind = load * max(1.0, later) * (run.each * (ending + held // 3) + FINISHING)
    run.run()
    room = 0.1 if later == 1 else 0.15
    assert run.now <= (1 + room) * max(run.limit, before + behind)
    epochs_are_done = run.made == 10 * -(-train // 32)
    assert epochs_are_done or run.in_steps >= min(0.85 * STEPS * run.limit, 0.85 * (run.limit - before - behind))
    if not epochs_are_done and before + behind < run.limit:
        assert run.now >= (1 - room) * run.limit
    alone = WholeRun(1.0, 245, 150, 400).run()
    assert (alone.known, alone.unseen) == (256, 160), "all that there are"


def test_a_limit_that_is_long_enough_changes_nothing() -> None:
    machine = Machine(1e6, 0.1, 0.2, 0.1, 1.0, 1.0, 6)
    schedule, plain = machine.run(), Schedule.of(machine.choices, 15)
    assert schedule.end == plain.end == 90
    assert [schedule.rate(step) for step in range(90)] == [plain.rate(step) for step in range(90)]


def test_a_limit_that_is_over_before_the_first_step_is_refused() -> None:
    with pytest.raises(UsageError):
        Machine(3.0, 0.5, 2.0, 0.5, 1.0, 1.0, 6).run()


SECONDS = 4.0  # of a step, as the run is told
LIMIT = "2m"


def told_time(monkeypatch: pytest.MonkeyPatch, slow: int) -> None:
    """From now on a step takes 4 seconds, and 8 from a step on; looking at samples takes none."""
    add_step = Budget.add_step

    def steps(self: Any) -> list[float]:
        return self.__dict__.setdefault("made", [])

    def make(self: Any, seconds: float) -> None:
        steps(self).append(SECONDS * (2 if len(steps(self)) >= slow else 1))
        add_step(self, steps(self)[-1])

    monkeypatch.setattr(Budget, "add_step", make)
    monkeypatch.setattr(Budget, "scoring", property(lambda self: 0.0, lambda self, seconds: None), raising=False)
    clock = property(lambda self: lambda: sum(steps(self)), lambda self, elapsed: None)
    monkeypatch.setattr(Budget, "elapsed", clock, raising=False)
    plan = Budget.plan
    told = partial(replace, planned=SECONDS, scoring=0.0)
    monkeypatch.setattr(Budget, "plan", lambda self, *rest, **named: plan(told(self), *rest, **named))


def scheduled(folder: Path, again: Path) -> Path:
    """A run that has not begun: the settings of another one without a limit, and its schedule."""
    again.mkdir()
    for name in ("data.json", "env.json", "command.txt", "schedule.json"):
        shutil.copy(folder / name, again)
    settled = yaml.safe_load((folder / "config.yaml").read_text())
    settled["optimization"]["max_time"] = 0.0
    (again / "config.yaml").write_text(yaml.safe_dump(settled))
    return again


def test_more_time_for_epochs_that_are_done_is_refused() -> None:
    budget, choices = Budget(600.0, lambda: 0.0, 7, 1.0, 1.0, 1.0), Optimization(epochs=2, max_time=600.0)
    assert budget.plan(choices, 13).steps == 1
    with must_raise(UsageError, "2 epochs") as caught:
        budget.plan(choices, 14)
    assert caught.value.hint.flags == {"epochs": 4}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[("schedule.json", content) for content in ("{", "[]", "{}", '{"phases": []}', '{"phases": [{"steps": 3}]}')],
        ("schedule.json", '{"phases": [7]}'),
        ("env.json", "{"),
    ],
)
def test_a_damaged_file_of_a_run_is_refused_in_one_line(name: str, content: str, tmp_path: Path) -> None:
    folder = shutil.copytree(whole("digits"), tmp_path / "run")
    (folder / name).write_text(content)
    with must_raise(DataError, name):
        vitrail.train("digits", folder, AGAIN)


def test_a_late_run_that_is_killed_takes_the_same_steps_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clock decided lies in the run before it is done: killed before and behind, it ends with the same bits.

    The other run knows of no limit and no clock; it has the schedule alone.
    """
    saved(monkeypatch, often=False)
    asked, folder = options("digits", epochs=9, max_time=LIMIT), tmp_path / "limited"
    told_time(monkeypatch, slow=12)
    first = vitrail.train("digits", folder, asked)
    found = json.loads((folder / "schedule.json").read_text())
    starts = [phase["first"] for phase in found["phases"]]
    assert starts[0] == 0
    assert starts[1] == 7, "a quarter of the 29 steps that fit"
    assert 12 < starts[2] < found["steps"] < 29 < 9 * 7
    assert rows(folder)[-1]["step"] == found["steps"]
    (badge,) = re.findall('<p class="state finished"><span>(.*?)</span>', (folder / "run.html").read_text())
    assert list(map(float, figures(badge))) == [round(found["steps"] / 7, 1), 9], "epochs, of those that were wanted"
    monkeypatch.setattr(Budget, "after", lambda *given: pytest.fail("a schedule that is there needs no clock"))
    again = scheduled(folder, tmp_path / "again")
    saved(monkeypatch, often=True)
    for step in (3, 12, starts[2] + 1, found["steps"]):
        with pytest.raises(Killed):
            vitrail.train("digits", again, AGAIN, ended_at(step))
    ended = vitrail.train("digits", again, AGAIN)
    assert ended.weights == first.weights
    assert what_was_learnt(again) == what_was_learnt(folder)
    assert json.loads((again / "schedule.json").read_text()) == found


def test_a_finished_run_goes_on_to_more_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a schedule of their own, killed or not; fewer are refused; and nothing is lost before the new end."""
    folder, events = tmp_path / "run", []
    shutil.copytree(whole("digits"), folder)
    before = what_was_learnt(folder)
    more = replace(AGAIN, epochs=4)
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    ended = vitrail.train("digits", folder, more, events.append)
    assert steps_of(events) == list(range(15, 29))
    assert what_was_learnt(folder)[:2] == before
    assert [row["epoch"] for row in rows(folder)] == [1, 2, 3, 4]
    assert yaml.safe_load((folder / "config.yaml").read_text())["optimization"]["epochs"] == 4
    (phase, added) = json.loads((folder / "schedule.json").read_text())["phases"]
    assert (phase["steps"], added["first"], added["steps"]) == (14, 14, 14)
    assert stored(folder)["weights"] == ended.weights != stored(whole("digits"))["weights"]
    first = (whole("digits") / "command.txt").read_text()
    typed = (folder / "command.txt").read_text().removeprefix(first)
    assert "epochs=4" in typed
    assert typed.strip() in html.unescape((folder / "run.html").read_text())
    saved(monkeypatch, often=True)
    with pytest.raises(Killed):
        vitrail.train("digits", killed, more, ended_at(20))
    assert stored(killed) == stored(whole("digits")), "the model that was there is there until the new one is"
    assert vitrail.train("digits", killed, AGAIN).weights == ended.weights
    unsaved = shutil.copytree(whole("digits"), tmp_path / "unsaved")
    saved(monkeypatch, often=False)
    with pytest.raises(Killed):
        vitrail.train("digits", unsaved, more, ended_at(16))
    assert vitrail.train("digits", unsaved, AGAIN).weights == ended.weights, "no state knows of the new settings"
    assert vitrail.train("digits", folder, more).weights == ended.weights, "nothing more is to be done"
    assert len((killed / "command.txt").read_text().splitlines()) == 2
    with pytest.raises(UsageError):
        vitrail.train("digits", folder, replace(AGAIN, epochs=3))
    with must_raise(UsageError, "60 s"):
        vitrail.train("digits", folder, replace(AGAIN, max_time="1m"))


ROOT = Path(__file__).parents[2]

LIMITED = """
import sys
import vitrail
from pathlib import Path
from tests import shared_runs as runs
from tests.training import tiny

runs.share_below(Path(sys.argv[1]))
tiny.save(often=True)
asked = tiny.options("digits", epochs=400, max_time="2m", resume="auto")
vitrail.train("digits", sys.argv[2], asked, lambda event: print(*tiny.steps_of([event]), flush=True))
"""


@pytest.mark.soak
def test_eight_kills_of_a_run_with_a_limit(tmp_path: Path) -> None:
    """Real processes on the real clock, killed anywhere; then the schedule alone, in one go: the same bits.

    Where other work slows the machine down a run has few steps, and ends before its last kill: another follows.
    """
    dice, kills, runs = random.Random(0), 0, 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    while kills < 8:
        runs += 1
        folder = tmp_path / f"run-{runs}"
        command = [sys.executable, "-c", LIMITED, str(tmp_path / "shared"), str(folder)]
        while not (folder / "evaluation.json").exists():
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
                assert child.stdout is not None
                left = dice.randrange(1, 8) if kills < 8 else 10**9
                for line in child.stdout:
                    left -= bool(line.strip())
                    if left <= 0:
                        child.send_signal(signal.SIGKILL)
                        kills += 1
                        break
        again = scheduled(folder, tmp_path / f"again-{runs}")
        assert vitrail.train("digits", again, AGAIN).weights == stored(folder)["weights"]
        assert what_was_learnt(again) == what_was_learnt(folder)
