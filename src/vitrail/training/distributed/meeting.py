"""How the processes of one training meet, and how they part: all of them at once, with the first cause on top.

torchrun (or whatever starts them) sets in the environment which process this is, how many there are, and where they
meet: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. Without it a training is one process.

VITRAIL_TIMEOUT is the number of seconds after which a silent process is taken for frozen; 120 when it is not set.
"""

import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path

import torch
from torch import distributed as dist

from vitrail.errors import INTERRUPTED, DataError, Hint, RunError, UsageError, VitrailError
from vitrail.runs.group import ALONE, Group
from vitrail.runtime import handling
from vitrail.training.distributed.group import Together
from vitrail.training.distributed.watch import AGAIN, BEAT, Ended, Failure, Watch, leave, waiting

TIMEOUT = 120.0  # seconds; torch's own are 10 and 30 minutes
STARTING = 2.5  # times that, within which all must have come
PARTING = 10.0  # seconds in which the others hear why they end
LATER = 15.0  # seconds behind it an exchange is given up: a process that is frozen is named before
ANSWERS = 5.0  # seconds for a place to accept a connection
KINDS: dict[int, type[VitrailError]] = {2: UsageError, 3: DataError}
LAUNCHER = "VITRAIL_LAUNCHER"  # in the environment: the number of the process that `--devices` was typed for
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_meetings = count()  # of this program, which may train more than once


@contextmanager
def join_processes(device: str, shard: bool = False) -> Iterator[Group]:
    """All processes of one training, for a time; `ALONE` where the environment names no others.

    Whatever ends one of them ends all: the first process raises the first cause, and the others end in silence.

    Args:
        device: As `--device` has it.
        shard: Whether the network is to be divided among them.

    Raises:
        UsageError: They cannot meet, or are not alike.
        VitrailError: What ended another one.
    """
    if world_of() == 1:
        if shard:
            raise UsageError("--shard divides a network among processes, but there is only one", Hint({"devices": 2}))
        yield ALONE
        return
    accelerated = torch.cuda.is_available() and not device.startswith(("cpu", "mps"))
    if accelerated:
        _take_gpu(device)
    try:
        group = replace(_meet(seconds_of_silence()), shard=shard)
    except RuntimeError as error:  # torch's, of the store
        raise RunError("what started all processes has ended, or is silent, before they met", AGAIN) from error
    with handling(_raise, signal.SIGTERM):
        try:
            _check_alike(group)
            backend, store = "cpu:gloo,cuda:nccl" if accelerated else "gloo", dist.PrefixStore("torch", group.store)
            limit = timedelta(seconds=group.watch.timeout + LATER)
            dist.init_process_group(backend, rank=group.rank, world_size=group.world, store=store, timeout=limit)
            yield group
        except GeneratorExit:
            raise
        except BaseException as error:
            with handling(signal.SIG_IGN, signal.SIGTERM):  # torchrun ends the others at once; they have to report
                _part(group, error)
        else:
            group.meet()
            group.watch.close()  # from now on each may end
            _goodbye(group)
            dist.destroy_process_group()


class Terminated(KeyboardInterrupt):
    """SIGTERM, outside of the loop, where it stops a training at once."""


def _raise(number: int, frame: object) -> None:
    raise Terminated


def _meet(timeout: float) -> Together:
    """The group that the environment describes, when all have come."""
    missing = [name for name in PLACE if name not in os.environ]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        problem = f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and {' and '.join(missing)} {are} not set"
        raise UsageError(problem, "torchrun, which sets all of them; or WORLD_SIZE=1")
    rank, world = _number("RANK"), world_of()
    if not 0 <= rank < world:
        raise UsageError(f"RANK is {rank}, and WORLD_SIZE {world}", f"RANK=0 to RANK={world - 1}, each once")
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    prefix = f"vitrail/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}"
    store, beats = (dist.PrefixStore(prefix, _place(rank, timeout, here)) for here in (hosts, False))
    store.set(f"made of/{rank}", json.dumps({"vitrail": _code(), "torch": torch.__version__}))
    watch = Watch(beats, rank, world, timeout)
    watch.start()
    for other in range(world):
        if waiting(store, f"beat/{other}", watch, STARTING * timeout) is None:
            here = sum(store.check([f"beat/{each}"]) for each in range(world))
            problem = f"rank {rank} has waited {STARTING * timeout:g} s for rank {other}: {here} of {world} have come"
            raise RunError(problem, "one process for each rank; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of each")
    watch.watch()
    machines = max(1, world // _number("LOCAL_WORLD_SIZE", str(world)))
    return Together(rank=rank, world=world, machines=machines, store=store, watch=watch)


def world_of() -> int:
    """How many processes there are by the environment; 1 where it has no number."""
    return _number("WORLD_SIZE", "1")


def _number(name: str, usual: str = "") -> int:
    text = os.environ.get(name, usual)
    if not text.isdecimal():
        example = 29500 if name == "MASTER_PORT" else 1
        raise UsageError(f"{name} must be a whole number, got {text!r}", f"{name}={example}; torchrun sets all of them")
    return int(text)


def seconds_of_silence() -> float:
    """Seconds after which a silent process is taken for frozen: VITRAIL_TIMEOUT."""
    text = os.environ.get("VITRAIL_TIMEOUT", str(TIMEOUT))
    if not text.replace(".", "", 1).isdecimal() or float(text) == 0:
        raise UsageError(f"VITRAIL_TIMEOUT must be seconds above 0, got {text!r}", f"VITRAIL_TIMEOUT={TIMEOUT:g}")
    return float(text)


def _take_gpu(device: str) -> None:
    """One GPU for each process of a machine: from now on "cuda" means its own."""
    number, there = _number("LOCAL_RANK", "0"), torch.cuda.device_count()
    if ":" in device:
        raise UsageError(f"--device {device} is one GPU, and each process takes its own", Hint({"device": "cuda"}))
    if number >= there:
        problem = f"{socket.gethostname()} has {there} GPUs, and process {number + 1} of it wants one of its own"
        raise UsageError(problem, Hint({"devices": there}, text="or --device cpu"))
    torch.cuda.set_device(number)


@cache
def _place(rank: int, timeout: float, hosts: bool) -> dist.Store:
    """A connection to where the processes meet, for the life of this program; or the place itself."""
    place, port, limit = os.environ["MASTER_ADDR"], _number("MASTER_PORT"), STARTING * timeout

    def connect() -> dist.Store:
        return dist.TCPStore(place, port, is_master=hosts, timeout=timedelta(seconds=limit), wait_for_workers=False)

    since = time.monotonic()
    try:
        found = _within(limit + LATER, connect)
    except (TimeoutError, RuntimeError) as error:  # the latter are torch's DistError and others
        text = " ".join(str(error).split())
        if hosts and "address already in use" in text.lower():
            raise UsageError(f"port {port} of {place} is in use", f"MASTER_PORT={port + 1}") from error
        raise _not_met(rank, place, port, time.monotonic() - since, text) from error
    found.set_timeout(timedelta(seconds=timeout))
    return found


def _not_met(rank: int, place: str, port: int, seconds: float, text: str) -> RunError:
    """Why a process could not connect: nobody is there, somebody else is, or the place cannot be reached.

    Args:
        rank: Of this process.
        place: Where they were to meet.
        port: Of it.
        seconds: How long it has waited.
        text: The message of torch; empty where there was none in that time.
    """
    who = f"rank {rank} on {socket.gethostname()}"
    try:
        socket.create_connection((place, port), timeout=ANSWERS).close()
    except ConnectionRefusedError:
        problem = f"{who}: the first process did not come to {place}:{port} within {seconds:.0f} s"
        return RunError(problem, "start the process with RANK=0, too; or the MASTER_ADDR and MASTER_PORT that it has")
    except OSError as error:
        text = text or " ".join(str(error).split())
    if text:
        problem = f"{who} does not reach {place}:{port}: {text[:200]}"
        return RunError(problem, "MASTER_ADDR and MASTER_PORT, which all processes must reach")
    problem = f"{who}: what listens at {place}:{port} is none of these processes"
    return RunError(problem, f"MASTER_PORT={port + 1} for all of them")


def _within(seconds: float, work: Callable[[], dist.Store]) -> dist.Store:
    """What some work gives, which may never come to its end.

    Raises:
        RunError: The process that started all others has ended.
        TimeoutError: It took longer.
        Exception: Its own.
    """
    found = Future[dist.Store]()

    def run() -> None:
        try:
            found.set_result(work())
        except Exception as error:  # for whoever waits
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    since = time.monotonic()
    while not wait([found], BEAT).done and time.monotonic() - since < seconds:
        if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
            raise RunError("what started all processes has ended before they met", AGAIN)
    return found.result(0)


def _check_alike(group: Together) -> None:
    """Refuse processes with other code or another torch than the first has; in all of them, so that none waits.

    Raises:
        UsageError: Says both.
    """
    first, *others = (json.loads(group.store.get(f"made of/{rank}")) for rank in range(group.world))
    for rank, made in enumerate(others, 1):
        if changed := [f"{name} {made[name]}, and rank 0 {first[name]}" for name in made if made[name] != first[name]]:
            problem = f"rank {rank} has {'; '.join(changed)}"
            raise UsageError(problem, "the same versions on every machine: vitrail doctor")


def _code() -> str:
    """A hash of the library's sources."""
    root = Path(__file__).parents[2]
    found = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def _part(group: Together, error: BaseException) -> None:
    """End all processes: the one that reports raises the first cause, the others leave with its exit code."""
    watch, mine = group.watch, _failure_of(group, error)
    watch.parting = True
    last = threading.Timer(2 * LATER, os._exit, [1 if mine is None else mine.code])
    last.daemon = True
    last.start()
    failure = watch.cause(error) if mine is None else watch.first(mine)
    reports = watch.reports(failure)
    _goodbye(group, wait=not failure.gone)
    watch.close()
    if not reports:
        sys.stdout.flush()
        leave(failure, reports)
    last.cancel()
    if isinstance(error, KeyboardInterrupt) and failure.code == INTERRUPTED:
        raise error
    met_it = isinstance(error, VitrailError) and failure.problem.endswith(error.problem)  # as another did
    if mine is not None and not isinstance(error, Ended) and (failure.rank == group.rank or met_it):
        raise error
    raise KINDS.get(failure.code, RunError)(failure.problem, failure.hint) from error


def _failure_of(group: Together, error: BaseException) -> Failure | None:
    """What the others learn of an error; None where it is only that another one is gone."""
    match error:
        case Ended():
            return error.failure
        case Terminated():  # maybe since another one is gone
            return None
        case VitrailError():
            problem, hint, code = error.problem, error.hint, error.exit_code
        case KeyboardInterrupt():
            problem, hint, code = "interrupted", group.watch.hint, INTERRUPTED
        case SystemExit():
            return Failure(group.rank, "it has left", group.watch.hint, error.code if type(error.code) is int else 1)
        case dist.DistError() | RuntimeError() if _of_an_exchange(error):
            return None
        case _:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            problem, code = f"it failed where it should not: {text}", 1
            hint = Hint(text="the same command with --debug, and report what it prints")
    step = f" at step {group.watch.step}" if group.watch.step else ""
    return Failure(group.rank, f"{group.watch.name(group.rank)}{step}: {problem}", hint, code)


def _of_an_exchange(error: BaseException) -> bool:
    """Whether it is an error of torch in an exchange with other processes."""
    text = str(error).lower()
    known = ("gloo", "nccl", "connection", "timed out", "timeout", "peer", "socket")
    return isinstance(error, dist.DistError) or any(word in text for word in known)


def _goodbye(group: Together, wait: bool = True) -> None:
    """The first process stays until the others need it no more; it may be the place where they met."""
    if group.watch.lost:
        return
    with suppress(RuntimeError, Ended):
        group.store.set(f"bye/{group.rank}", "bye")
        if group.rank == 0:
            for other in range(1, group.world) if wait else ():
                group.store.wait([f"bye/{other}"], timedelta(seconds=PARTING))
