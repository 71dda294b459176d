"""Trainings that are killed with SIGKILL, at named places or at random moments, and go on; started by test_kills.

Each training is a forked child, so torch is imported once. Reads cases, one JSON object a line, and answers each with
one line: how often it was killed, the hash of the weights it ended with, and the rows of its metrics.

    {"place": "evaluation", "accumulate": 3, "workers": 2}    killed there, around the end of the first epoch
    {"kills": 5, "seed": 0}                                   killed so often at random moments
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vitrail
from tests import runs
from tests.training import tiny
from vitrail.training.distributed.follow import Lead
from vitrail.training.events import Event
from vitrail.training.loop import StepDone

EPOCH, IMAGES = 4, 54  # steps and samples of an epoch of the tiny photographs
FILES = {  # the change to the file system that is not made any more
    "save": ("os.rename", f"{EPOCH:09d}.writing"),
    "best": ("open", "best/1.safetensors.writing"),
    "page": ("open", "run.html.writing"),
}
STEPS = {"last step": EPOCH, "next step": EPOCH + 1}
PLACES = (*STEPS, *FILES, "evaluation")
DATA = list[Path]()
Listen = Callable[[Event], None]


def die(*given: object) -> None:
    """The end of this process, at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def armed(place: str) -> Listen:
    """Have this process die at a place; gives the listener of its training."""
    if place == "evaluation":
        Lead.evaluate = die
    event, end = FILES.get(place, ("", ""))

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name == event and str(arguments[0]).endswith(end):
            die()

    if event:
        sys.addaudithook(hook)

    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == STEPS.get(place):
            die()

    return listen


def train(folder: Path, case: dict[str, Any], place: str = "") -> Callable[[], None]:
    """A training of a case; the same again goes on with it."""

    def run() -> None:
        asked = {name: case.get(name, usual) for name, usual in (("accumulate", 1), ("workers", 0))}
        resume = "auto" if folder.exists() else "never"
        options = tiny.options("photos", epochs=2, patience=9, resume=resume, **asked)
        vitrail.train(str(DATA[0]), folder, options, armed(place))

    return run


def forked(work: Callable[[], None]) -> int:
    """A child that does this; gives its number."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:  # whatever it is, this is the child's end
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def ended(child: int) -> bool:
    """Wait for a child; whether it was killed. One that failed ends the test."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a training ended with {code}")
    return code != 0


def killed_at_random(folder: Path, case: dict[str, Any], seconds: float) -> int:
    """One training after another, killed so often in all; gives how many were begun."""
    moments, left, begun = random.Random(case["seed"]), case["kills"], 1
    while left:
        child = forked(train(folder / str(begun), case))
        time.sleep(moments.uniform(0.0, seconds))
        os.kill(child, signal.SIGKILL)
        left -= (killed := ended(child))
        begun += not killed
    return begun


def answer(folder: Path, case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a case comes to."""
    place = case.get("place")
    if place is None:
        begun, killed = killed_at_random(folder, case, seconds), case["kills"]
    else:
        begun, killed = 1, int(bool(place) and ended(forked(train(folder / "1", case, place))))
    runs = [folder / str(number + 1) for number in range(begun)]
    for run in runs:
        if not (run / "evaluation.json").exists():
            ended(forked(train(run, case)))
    found = [(json.loads((run / "evaluation.json").read_text())["weights"], tiny.what_was_learnt(run)) for run in runs]
    assert all(one == found[0] for one in found), "two ends of one training"
    return {"case": case, "killed": killed, "runs": len(runs), "weights": found[0][0], "rows": found[0][1]}


def main(folder: Path) -> None:
    """Answer the cases that come in."""
    torch.set_num_threads(1)
    runs.share_below(folder / "shared")
    tiny.save(often=True)
    DATA.append(tiny.photographs(folder))
    tiny.options("photos")  # its configuration is written once
    seconds = 0.0
    for number, line in enumerate(sys.stdin):
        began = time.perf_counter()
        print(json.dumps(answer(folder / str(number), json.loads(line), seconds)), flush=True)
        seconds = seconds or time.perf_counter() - began  # of the first, which is unbroken


if __name__ == "__main__":
    main(Path(sys.argv[1]))
