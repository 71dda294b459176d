"""The libraries side by side: a process for each, their turns, and the figures."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import torch

from benchmarks.libraries.turn import FORMS, MATRICES, OWN, PEERS, Job, present
from vitrail.errors import RunError, UsageError, nearest
from vitrail.runtime import device_name

APART, CHOSEN = "vitrail, a batch a thread", "vitrail, as predict --out chooses"
CHOSEN_STEP = "vitrail, as train chooses"
BESIDE = {"default": (APART, CHOSEN), "autocast": (CHOSEN,), "bf16": (APART,), "train": (CHOSEN_STEP,)}  # its own ways


@dataclass(frozen=True)
class Side:
    """What one library showed in one form.

    Attributes:
        name: The library; `matrices` for the rate at which this machine multiplies alone.
        form: One of `FORMS`.
        version: Of the library.
        gap: How far its answers are from those of vitrail's network of the same numbers, in fp32.
        rates: Images per second, round by round; none where it could not run.
        problem: Why it could not.
    """

    name: str
    form: str
    version: str = ""
    gap: float = 0.0
    rates: tuple[float, ...] = ()
    problem: str = ""

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)


@dataclass(frozen=True)
class Bench:
    """What all showed.

    Attributes:
        job: Size, batch and device, which are the same for all.
        machine: Processor, cores, load and versions, in a line.
        sides: In turn.
    """

    job: Job
    machine: str
    sides: tuple[Side, ...]

    def of(self, form: str) -> list[Side]:
        """Those that ran in a form, but for the machine's own rate."""
        return [side for side in self.sides if side.form == form and side.rates and side.name != MATRICES]

    def fraction(self, side: Side) -> float | None:
        """Of the rate at which this machine multiplies matrices of that size in that precision."""
        if (side.name, side.form) in (
            (CHOSEN, "default"),
            (CHOSEN_STEP, "train"),
        ):  # another precision than that of its matrices
            return None
        own = [each for each in self.sides if (each.name, each.form) == (MATRICES, side.form) and each.rates]
        return side.rate / own[0].rate if own else None

    def ratio(self, side: Side) -> float | None:
        """To the fastest other library, round by round; None where there is none."""
        peers = [each for each in self.of(side.form) if each.name in PEERS and each.name != side.name]
        if not peers:
            return None
        best = max(peers, key=lambda each: each.rate)
        return statistics.median(own / other for own, other in zip(side.rates, best.rates, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own = ("size", "batch", "image_size", "device")
        sides = [
            {**asdict(side), **({"fraction": self.fraction(side), "ratio": self.ratio(side)} if side.rates else {})}
            for side in self.sides
        ]
        return {"machine": self.machine, **{name: getattr(self.job, name) for name in own}, "sides": sides}


class Process:
    """A process that runs when it is sent a line.

    Args:
        job: What it does.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        environment = dict(os.environ)
        if job.name == OWN:  # what vitrail's command line sets for itself
            environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.libraries.turn"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.ready = self.send(json.dumps(asdict(job)))

    def send(self, line: str) -> dict[str, Any]:
        """Send a line, and wait for the answer."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(f"{line}\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return {"problem": f"its process ended with {self._child.wait()}"}
        answer = self._child.stdout.readline()
        return json.loads(answer) if answer else {"problem": f"its process ended with {self._child.wait()}"}

    def end(self) -> None:
        """End it."""
        self._child.kill()
        self._child.communicate()


def bench(
    job: Job,
    forms: Sequence[str] = ("default",),
    rounds: int = 3,
    peers: Sequence[str] | None = None,
    note: Callable[[str], None] = lambda sentence: None,
) -> Bench:
    """Have every library run the same network in turn.

    Args:
        job: Size, batch, device and threads; its name and form do not matter.
        forms: Of `FORMS`.
        rounds: Turns of each.
        peers: The other libraries; those that are installed when None.
        note: Called with how far it is.

    Raises:
        UsageError: A library or form is not known, or no other library is here.
        RunError: vitrail itself could not run.
    """
    for names, known in ((forms, FORMS), (peers or (), PEERS)):
        for name in names:
            if name not in known:
                raise UsageError(f"'{name}' is none of {', '.join(known)}", nearest(name, known) or next(iter(known)))
    names = present() if peers is None else list(peers)
    if not names:
        problem = f"no other library is installed: {', '.join(PEERS)}"
        raise UsageError(problem, 'pip install "vitrail[compat]"')
    if peers is None and (missing := [name for name in PEERS if name not in names]):
        note(f"not installed, so not timed: {', '.join(missing)}")
    for name, number in (("rounds", rounds), ("batch", job.batch)):
        if number < 1:
            raise UsageError(f"{name} must be at least 1, got {number}", f"{name}=3")
    found = []
    for form in forms:
        found += _turns(job, form, rounds, names, note)
    own = [side for side in found if side.name == OWN and side.problem]
    if own:
        raise RunError(f"vitrail could not run ({own[0].form}): {own[0].problem}", "a smaller batch")
    return Bench(job, machine(), tuple(found))


def _turns(job: Job, form: str, rounds: int, names: Sequence[str], note: Callable[[str], None]) -> list[Side]:
    """One form: the processes are started one after the other, and then take turns."""
    jobs = {name: replace(job, name=name, form=form) for name in (MATRICES, OWN, *names)}
    for name in BESIDE.get(form, ()):
        if name != APART or job.device == "cpu":
            jobs[name] = replace(jobs[OWN], how="apart" if name == APART else "chosen")
    processes, rates, problems = dict[str, Process](), {name: list[float]() for name in jobs}, dict[str, str]()
    try:
        for name, each in jobs.items():
            note(f"{form}: {name} is built")
            processes[name] = Process(each)
            if "problem" in processes[name].ready:
                problems[name] = processes[name].ready["problem"]
        for turn in range(rounds):
            note(f"{form}: round {turn + 1} of {rounds}")
            for name, process in processes.items():
                if name not in problems and "rate" in (answer := process.send("go")):
                    rates[name].append(answer["rate"])
                elif name not in problems:
                    problems[name] = answer["problem"]
    finally:
        for process in processes.values():
            process.end()
    return [
        Side(name, form, problem=problems[name])
        if name in problems
        else Side(name, form, process.ready["version"], process.ready["gap"], tuple(rates[name]))
        for name, process in processes.items()
    ]


def machine() -> str:
    """Processor, cores, load and versions, in one line."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    machine = f"{device_name(torch.device('cpu'))}, {os.cpu_count()} virtual cores"
    return f"{machine}{load}, Python {platform.python_version()}, torch {version('torch')}"
