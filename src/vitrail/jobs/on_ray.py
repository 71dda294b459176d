"""Ranges as tasks of Ray: the workers that compute them, and the driver that hands them out.

Ray places workers, starts them again and carries tasks to them. What makes that safe is ours: a range is a task, its
part is written by the worker under a name that it gets when it is whole, and the driver alone decides what is missing.

    a worker ends         its range goes to whoever is free; Ray starts another worker in its place
    a worker freezes      Ray waits for ever; the driver does not: after its deadline the worker is killed
    the driver ends       the parts stay; the same command computes what is missing

Every worker is an actor that loads the model by its path, once, and holds it.
"""

import contextlib
import os
import shlex
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import DataError, Hint, RunError, UsageError, VitrailError, counted
from vitrail.jobs.cluster import Cluster, check_answers, first_sentence, join_cluster
from vitrail.jobs.parts import Compute, IdRange, PartFiles, Work, decoder_versions, digest_of_job

AGAIN = "the same command again: parts that are done are not computed again"
FIRST = 3600.0  # seconds for a range as long as none is done
LEAST, SLACK = 60.0, 10.0  # then: seconds, and times the slowest so far
STARTING = 600.0  # seconds for a worker to start and load the model
TRIES = 5  # times that a range may end its worker
LOOK = 0.5  # seconds between two looks at the clock
GONE = 10.0  # seconds without an answer after which a cluster has ended; Ray ends this process after a minute


def carry_by_workers(
    cluster: Cluster, work: Work, device: str, parts: PartFiles, ranges: Sequence[IdRange]
) -> Iterator[IdRange]:
    """By the workers of a cluster; see `vitrail.jobs.parts.complete_parts`.

    Args:
        cluster: Where workers run.
        work: What is done with every range.
        device: Where the network is.
        parts: Where parts go.
        ranges: Whose parts are missing.
    """
    with join_cluster(cluster) as ray:
        yield from _Driver(ray, cluster, work, parts, device).run(ranges)


@dataclass(frozen=True)
class Wanted:
    """What a worker must have, so that its parts are those of any other.

    Args:
        digest: Of the job, which it sees beside the parts.
        versions: Of what decodes and computes.
        threads: Of torch.
        folder: Where paths begin that have no root.
        image: A file that it must see, where there is one.
    """

    digest: str
    versions: Mapping[str, str]
    threads: int
    folder: str
    image: str | None

    @classmethod
    def here(cls, parts: PartFiles, threads: int, ranges: Sequence[IdRange]) -> "Wanted":
        """What this process has."""
        files = (each.images.file(row) for each in ranges[:1] for row in range(len(each.images)))
        image = next((str(file) for file in files if file is not None and file.exists()), None)
        return cls(digest_of_job(parts.folder), decoder_versions(), threads, os.getcwd(), image)


class Worker:
    """What runs in a process of a cluster. It loads the model once, and holds it.

    Args:
        work: What is done with every range.
        parts: Where parts go.
        wanted: What it must have.
    """

    def __init__(self, work: Work, parts: PartFiles, wanted: Wanted) -> None:
        self.work, self.parts, self.wanted = work, parts, wanted
        self.compute: Compute | None = None

    def ready(self) -> int:
        """The model is loaded, and this machine sees what it must.

        Raises:
            DataError: It does not.
            UsageError: It has other versions.
            VitrailError: What the model is opened by is not there.
        """
        wanted, host = self.wanted, socket.gethostname()
        torch.set_num_threads(wanted.threads)
        with contextlib.suppress(OSError):  # then what has no root is not seen
            os.chdir(wanted.folder)
        if digest_of_job(self.parts.folder) != wanted.digest:
            problem = f"{host} does not see the parts in {self.parts.folder}"
            raise DataError(problem, "--out in a folder that all machines of the cluster share")
        if wanted.image is not None and not Path(wanted.image).exists():
            problem = f"{host} does not see the image {wanted.image}"
            raise DataError(problem, "images in a folder that all machines of the cluster share")
        if differing := [
            f"{name} {there}" for name, there in decoder_versions().items() if wanted.versions[name] != there
        ]:
            needed = ", ".join(f"{name} {value}" for name, value in wanted.versions.items())
            same = shlex.join(["pip", "install", *(f"{name}=={value}" for name, value in wanted.versions.items())])
            problem = f"{host} has {', '.join(differing)}, but the job was started with {needed}"
            raise UsageError(problem, f"{same}  # on {host}")
        self.compute = self.work()
        return os.getpid()

    def do(self, some: IdRange) -> float:
        """Compute a range and write its part; gives the seconds that took."""
        began = time.monotonic()
        assert self.compute is not None
        self.parts.write(some.number, next(iter(self.compute([some]))))
        return time.monotonic() - began


@dataclass
class _Handle:
    """A worker as the driver sees it.

    Attributes:
        actor: Ray's handle, which stays when the worker is started again.
        pending: Ray's reference to the result that it is to return; None while it has nothing to do.
        range: What it computes; None while it starts.
        since: When that was submitted, on `time.monotonic`.
        killed: Whether it was killed because it did not return; a result is pending still, which will be an error.
    """

    actor: Any
    pending: Any = None
    range: IdRange | None = None
    since: float = 0.0
    killed: bool = False


@dataclass
class _Driver:
    """Hands out ranges until the part of each is there.

    Args:
        ray: The module.
        cluster: Where workers run.
        work: What is done with every range.
        parts: Where parts go.
        device: Where the network is.
    """

    ray: Any
    cluster: Cluster
    work: Work
    parts: PartFiles
    device: str
    slowest: float = 0.0
    tries: dict[int, int] = field(default_factory=dict)
    failing: float | None = None  # since when no worker could start
    looked: float = 0.0  # when the cluster was last looked at
    silent: float | None = None  # since when it does not answer

    def run(self, ranges: Sequence[IdRange]) -> Iterator[IdRange]:
        """Every range, when its part is there."""
        left, workers = deque(ranges), self._start_all(ranges)
        try:
            while left or any(worker.range for worker in workers):
                self._check_cluster()
                pending = [worker.pending for worker in workers if worker.pending is not None]
                returned, _ = self.ray.wait(pending, timeout=LOOK)
                for worker in [worker for worker in workers if worker.pending in returned]:
                    if (done := self._take(worker, left)) is not None:
                        yield done
                for worker in workers:
                    if worker.pending is None and left:
                        self._submit(worker, left.popleft())
                    elif worker.pending is not None and time.monotonic() - worker.since > self._deadline(worker):
                        self._kill(worker)
        finally:
            for worker in workers if self.silent is None else ():  # else Ray waits for an answer
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.ray.kill(worker.actor)

    def _check_cluster(self) -> None:
        """Every other second: whether what holds the cluster together answers, and any machine of it is left.

        Raises:
            RunError: Not for a while.
        """
        now = time.monotonic()
        if now - self.looked < 4 * LOOK:
            return
        self.looked = now
        there = False
        with contextlib.suppress(RunError, OSError):
            check_answers(self.ray.get_runtime_context().gcs_address)
            there = any(node["Alive"] for node in self.ray.nodes())
        if there:
            self.silent = None
            return
        self.silent = now if self.silent is None else self.silent
        if now - self.silent >= GONE:
            raise RunError(f"Ray itself has ended: {self.cluster.address} does not answer", AGAIN)

    def _start_all(self, ranges: Sequence[IdRange]) -> list[_Handle]:
        """As many workers as are wanted, but none that no machine has room for: Ray would let it wait for ever.

        Raises:
            UsageError: There is room for none.
        """
        threads, wanted = self.cluster.threads, self.cluster.workers
        each = {"CPU": threads, **({"GPU": 1} if self.device == "cuda" else {})}
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        there = {name: int(sum(machine.get(name, 0) for machine in machines)) for name in each}
        room = sum(int(min(machine.get(name, 0) // need for name, need in each.items())) for machine in machines)
        needs, has = (" and ".join(counted(n, name) for name, n in some.items()) for some in (each, there))
        if not room:
            hint = Hint({"threads": 1}) if all(there.values()) else Hint({"device": "cpu"})
            raise UsageError(f"a worker needs {needs}, but no machine of the cluster has so much: {has} in all", hint)
        workers = min(len(ranges), wanted or room)
        if workers > room:
            self.cluster.warn(f"{room} of {wanted} workers start: each needs {needs}, and the cluster has {has}.")
        options = {"num_cpus": threads, "num_gpus": each.get("GPU", 0), "max_restarts": -1, "max_task_retries": 0}
        actor, here = self.ray.remote(Worker).options(**options), Wanted.here(self.parts, threads, ranges)
        handles = [_Handle(actor.remote(self.work, self.parts, here)) for _ in range(min(workers, room))]
        for handle in handles:
            self._start(handle)
        return handles

    def _start(self, worker: _Handle) -> None:
        call = worker.actor.ready.options(max_task_retries=TRIES)  # else it fails while a worker starts again
        worker.pending, worker.range, worker.since = call.remote(), None, time.monotonic()

    def _submit(self, worker: _Handle, some: IdRange) -> None:
        worker.pending, worker.range, worker.since = worker.actor.do.remote(some.alone()), some, time.monotonic()

    def _take(self, worker: _Handle, left: deque[IdRange]) -> IdRange | None:
        """The range that a worker has done; one that it has not done is the next again, and the worker starts again.

        Raises:
            VitrailError: The worker's own, of the model or the disk; another would raise the same.
            RunError: The range has ended its worker too often, or something failed where it should not.
        """
        pending, some, killed = worker.pending, worker.range, worker.killed
        worker.pending, worker.range, worker.killed = None, None, False
        try:
            seconds = self.ray.get(pending)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, VitrailError | OSError):
                raise error.cause from error
            raise RunError(f"a worker failed: {' '.join(str(error.cause).split())}", Hint(drop=["ray"])) from error
        except self.ray.exceptions.RayError as error:
            self._retry(some, left, error)
            if some is not None and not killed:  # else that was reported
                self.cluster.warn(f"A worker was lost: {_words(some)} are computed again.")
            self._start(worker)
            return None
        if some is None:
            self.failing = None
        else:
            self.slowest = max(self.slowest, seconds)
        return some

    def _retry(self, some: IdRange | None, left: deque[IdRange], error: Exception) -> None:
        """A range whose worker has ended comes next, but not for ever."""
        if some is None:  # while Ray starts a worker again, each call fails at once, and on a busy machine that lasts
            self.failing = time.monotonic() if self.failing is None else self.failing
            given_up = time.monotonic() - self.failing >= LEAST
            time.sleep(LOOK)
        else:
            left.appendleft(some)
            self.tries[some.number] = self.tries.get(some.number, 0) + 1
            given_up = self.tries[some.number] >= TRIES
        if given_up:
            problem = f"workers end again and again at {_words(some)}: {first_sentence(error)}"
            raise RunError(problem, Hint(drop=["ray"], text="which continues after the finished parts"))

    def _deadline(self, worker: _Handle) -> float:
        """Seconds after which a worker is taken to be frozen: twice as many each time that its range was given up."""
        if worker.range is None:
            return STARTING
        by_others = max(LEAST, SLACK * self.slowest) if self.slowest else FIRST
        usual = by_others if self.cluster.deadline is None else self.cluster.deadline
        return usual * 2.0 ** self.tries.get(worker.range.number, 0)

    def _kill(self, worker: _Handle) -> None:
        """Kill a frozen worker; Ray starts another, and its pending result becomes an error."""
        if not worker.killed:
            then = "another starts" if worker.range is None else "they are computed again"
            limit = f"{self._deadline(worker):.3g} s"
            self.cluster.warn(f"A worker did not finish {_words(worker.range)} in {limit}: it is killed, and {then}.")
        self.ray.kill(worker.actor, no_restart=False)
        worker.since, worker.killed = time.monotonic(), True


def _words(some: IdRange | None) -> str:
    """What a worker computes, in words."""
    return "its start" if some is None else f"images {some.first + 1:,} to {some.first + len(some.ids):,}"
