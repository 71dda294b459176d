"""Trainings that are killed with SIGKILL, at named places or at random moments, and go on; started by test_kills.

Each training is a forked child, so torch is imported once. Reads cases, one JSON object a line, and answers each with
one line: how often it was killed, the hash of the weights it ended with, and the rows of its metrics.

    {"place": "evaluation", "accumulate": 3, "workers": 2}    killed there, around the end of the first epoch
    {"place": "save", "processes": 2}                         the first of two that train together, as torchrun has them
    {"kills": 5, "seed": 0}                                   killed so often at random moments
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

import vitrail
from tests import shared_runs as runs
from tests.spared import spare
from tests.training import tiny
from tests.training.processes import free_port, load_all
from vitrail.training.events import Event
from vitrail.training.follow import Lead
from vitrail.training.loop import StepDone

EPOCH, IMAGES = 4, 54  # steps and samples of an epoch of the tiny photographs
FILES = {  # the change to the file system that is not made any more
    "save": ("os.rename", f"{EPOCH:09d}.writing"),
    "best": ("open", "best/1.safetensors.writing"),
    "page": ("open", "run.html.writing"),
}
STEPS = {"last step": EPOCH, "next step": EPOCH + 1}
PLACES = (*STEPS, *FILES, "evaluation")
STOPPING = 25.0  # seconds
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


def train(folder: Path, case: dict[str, Any], listen: Listen) -> Callable[[], None]:
    """A training of a case; the same again goes on with it."""

    def run() -> None:
        asked = {name: case.get(name, usual) for name, usual in (("accumulate", 1), ("workers", 0))}
        resume = "auto" if folder.exists() else "never"
        options = tiny.options("photos", epochs=2, patience=9, resume=resume, **asked)
        vitrail.train(str(DATA[0]), folder, options, listen)

    return run


def forked(folder: Path, case: dict[str, Any], place: str = "") -> list[int]:
    """The children that train together, of which the first is killed at a place; gives their numbers.

    The last of many does not train: they meet there, as in torchrun's own process.
    """
    world = case.get("processes", 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with free_port() as found:
        port = found.getsockname()[1]
    ranks = [one(folder, case, place if rank == 0 else "", rank, world, port) for rank in range(world)]
    return [*ranks, place_at(port)] if world > 1 else ranks


def place_at(port: int) -> int:
    """A child at which others meet; it ends with its parent at the latest."""
    parent, child = os.getpid(), os.fork()
    if not child:
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        while store and os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)
    return child


def one(folder: Path, case: dict[str, Any], place: str, rank: int, world: int, port: int) -> int:
    """One of them."""
    child = os.fork()
    if child:
        return child
    if world > 1:
        met = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in met.items()} | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
        os.setsid()
        os.dup2(os.open(words_of(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        train(folder, case, armed(place))()
        os._exit(0)
    except BaseException as error:  # whatever it is, this is the child's end
        print(f"vitrail: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def words_of(folder: Path, rank: int) -> Path:
    """What a process writes to stderr."""
    return folder.with_name(f"{folder.name}.{rank}.err")


def ended(children: Sequence[int], folder: Path) -> bool:
    """Wait for a training; whether it was killed, and another named that. One that failed ends the test."""
    first, *others = children
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a training ended with {code}")
    if others:
        *others, place = others
        for number, other in enumerate(others):
            must_end_as(code, other, first, words_of(folder, number + 1))
        os.kill(place, signal.SIGKILL)
        os.waitpid(place, 0)
    return code != 0


def must_end_as(code: int, other: int, first: int, words: Path) -> None:
    """Where the first one of two was killed, the other is stopped, ends in time, and names it."""
    if code:  # as torchrun does, whose SIGKILL comes 30 s later
        os.killpg(other, signal.SIGTERM)
    began, ended, status = time.monotonic(), 0, 0
    while not ended and time.monotonic() - began < STOPPING:
        ended, status = os.waitpid(other, os.WNOHANG if code else 0)
        time.sleep(0.05)
    if not ended:
        os.killpg(other, signal.SIGKILL)
    written = words.read_text()
    named = f"rank 0 (process {first} on {os.uname().nodename}) has ended at step "
    problems = written.count("vitrail: ")
    if not ended or bool(status) != bool(code) or [problems, written.count(named)] != [int(code != 0)] * 2:
        raise SystemExit(f"the second ended with {status}, in time: {bool(ended)}; the first with {code}: {written}")


def killed_at_random(folder: Path, case: dict[str, Any], seconds: float) -> int:
    """One training after another, killed so often in all; gives how many were begun."""
    moments, left, begun = random.Random(case["seed"]), case["kills"], 1
    while left:
        children = forked(folder / str(begun), case)
        time.sleep(moments.uniform(0.0, seconds))
        os.kill(children[0], signal.SIGKILL)
        left -= (killed := ended(children, folder))
        begun += not killed
    return begun


def answer(folder: Path, case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a case comes to."""
    place = case.get("place")
    if place is None:
        begun, killed = killed_at_random(folder, case, seconds), case["kills"]
    else:
        begun, killed = 1, int(bool(place) and ended(forked(folder / "1", case, place), folder / "1"))
    runs = [folder / str(number + 1) for number in range(begun)]
    for run in runs:
        if not (run / "evaluation.json").exists():
            ended(forked(run, case), run)
    found = [(json.loads((run / "evaluation.json").read_text())["weights"], tiny.what_was_learnt(run)) for run in runs]
    assert all(one == found[0] for one in found), "two ends of one training"
    return {"case": case, "killed": killed, "runs": len(runs), "weights": found[0][0], "rows": found[0][1]}


def main(folder: Path) -> None:
    """Answer the cases that come in."""
    torch.set_num_threads(1)
    spare()
    load_all()  # each child would do it: torch._dynamo alone takes longer than a training
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
