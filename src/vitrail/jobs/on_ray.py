"""Ranges as tasks of Ray: the one file that knows it, imported only where it is asked for.

Ray places workers, starts them again and carries tasks to them. What makes that safe is ours: a range is a task, its
part is written by the worker under a name that it gets when it is whole, and the driver alone decides what is missing.

    a worker ends         its range goes to whoever is free; Ray starts another worker in its place
    a worker stands still Ray waits for ever; the driver does not: behind its deadline the worker is ended
    the driver ends       the parts stay; the same command computes what is missing

Every worker is an actor that loads the model by its path, once, and holds it.
"""

import contextlib
import io
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrail.data.images import FileImages
from vitrail.errors import DataError, RunError, UsageError, VitrailError, counted
from vitrail.jobs import cluster_guard
from vitrail.jobs.parts import Carry, Parts, digest_of, versions
from vitrail.jobs.ranges import Compute, Range, Work
from vitrail.runtime import cores

LOCAL = "local"
OLDEST, BELOW, WANTED = (2, 55), (3, 0), "ray>=2.55,<3"  # as the extra `ray` of pyproject.toml
LISTENER = "ray_listen_error_messages"
AGAIN = "the same command again: parts that are done are kept"
INSTALL = 'pip install "vitrail[ray]"'
FIRST = 3600.0  # seconds for a range as long as none is done
LEAST, SLACK = 60.0, 10.0  # then: seconds, and times the slowest so far
STARTING = 600.0  # seconds for a worker to start and load the model
TRIES = 5  # times that a range may end its worker
STARTS = -1  # in the place of a range: a worker that starts
ANSWERS = 10.0  # seconds for a cluster to answer
LOOK = 0.5  # seconds between two looks at the clock
GONE = 10.0  # seconds without an answer behind which a cluster has ended; Ray ends this process after a minute
STORE = 80 * 2**20  # bytes of Ray's object store, which holds names of files alone
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
}


@dataclass(frozen=True)
class Cluster:
    """Where workers run, and how many.

    Args:
        address: Of a Ray cluster, or "local": one is started, and stopped in the end.
        workers: How many; one for each processor, divided by threads, when None.
        threads: Of torch in each.
        deadline: Seconds behind which a worker that is at a range is taken to stand still; 10 times the slowest range
            so far when None, at least a minute, and an hour as long as none is done.
        tell: Called with a sentence when a worker is lost.
    """

    address: str
    workers: int | None = None
    threads: int = 1
    deadline: float | None = None
    tell: Callable[[str], None] = lambda sentence: None

    def __post_init__(self) -> None:
        """Refuse what is no address.

        Raises:
            UsageError: Says what one is.
        """
        port = self.address.rpartition(":")[2]
        if self.address not in (LOCAL, "auto") and not (":" in self.address and port.strip("/").isdecimal()):
            raise UsageError(
                f"a Ray cluster must be {LOCAL}, auto or HOST:PORT, got '{self.address}'", f"--ray {LOCAL}"
            )

    def carry(self, work: Work, parts: Parts, device: torch.device) -> Carry:
        """What computes ranges by these workers; see `vitrail.jobs.parts.complete`."""

        def carried(ranges: Sequence[Range]) -> Iterator[Range]:
            with _joined(self, device) as ray:
                yield from _Driver(ray, self, work, parts, device).run(ranges)

        return carried


def check_ray() -> Any:
    """Ray, the module; without it, with a broken one or one of another version nothing begins.

    Raises:
        UsageError: What is there, and what is to be installed.
    """
    for name, value in QUIET.items():  # before it is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except Exception as error:  # whatever a broken installation raises
        if isinstance(error, ModuleNotFoundError) and error.name == "ray":
            raise UsageError(f"--ray needs {WANTED}, which is not installed", INSTALL) from error
        problem = f"Ray cannot be imported ({type(error).__name__}: {_sentence(error)}); --ray needs {WANTED}"
        raise UsageError(problem, INSTALL) from error
    there = str(getattr(ray, "__version__", "without a version"))
    numbers = re.match(r"(\d+)\.(\d+)", there)
    if numbers is None or not OLDEST <= tuple(map(int, numbers.groups())) < BELOW:
        raise UsageError(f"Ray {there} is installed, but --ray needs {WANTED}", INSTALL)
    return ray


def _sentence(error: BaseException) -> str:
    """The first sentence of what another library says, in one line."""
    text = re.split(r"(?<=[.!?])\s|\n", str(error).strip(), maxsplit=1)[0]
    return " ".join(text.split())[:200].rstrip(".")


@contextlib.contextmanager
def _joined(cluster: Cluster, device: torch.device) -> Iterator[Any]:
    """Ray, with a cluster; one that was started for this is stopped."""
    ray = check_ray()
    own: dict[str, Any] = {}
    if cluster.address == LOCAL:
        threads = cluster.threads * (cluster.workers or max(1, cores() // cluster.threads))
        own = {"num_cpus": threads, "object_store_memory": STORE, "include_dashboard": False}
    else:
        _check_answers(cluster.address)
    if ray.is_initialized():  # by whoever calls
        yield ray
        return
    with _guarded() if own else contextlib.nullcontext():
        try:
            ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _no_cluster(cluster.address, error, listens=cluster.address != LOCAL) from error
        try:
            with contextlib.redirect_stdout(_WithoutRay(sys.stdout)), _stopped_by_signal():
                yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """A cluster that is started within ends with this process, also when that is killed; where there is /proc."""
    if sys.platform != "linux":
        yield
        return
    mark = os.environ[cluster_guard.NAME] = f"{os.getpid()}-{uuid.uuid4().hex}"
    words = [sys.executable, "-I", cluster_guard.__file__, mark]
    own = {name: value for name, value in os.environ.items() if name != cluster_guard.NAME}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=own, start_new_session=True):  # waits for it at the end
        try:
            yield
        finally:
            os.environ.pop(cluster_guard.NAME)


@contextlib.contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """SIGTERM ends a job as Ctrl-C does: workers are stopped, parts stay. Ray's own handler leaves without a word."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _no_cluster(address: str, error: Exception, listens: bool = False) -> RunError:
    """What is said where no cluster can be joined; Ray shows no token to one that is named, unless it is told to."""
    problem = f"no Ray cluster answers at {address} ({_sentence(error)})"
    if listens and "RAY_AUTH_MODE" not in os.environ:
        return RunError(
            problem, "export RAY_AUTH_MODE=token  # if the cluster requires a token, then the same command again"
        )
    return RunError(problem, "--ray local")


def _check_answers(address: str) -> None:
    """Refuse a place where nobody listens, for which Ray itself waits for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


class _WithoutRay(io.TextIOBase):
    """A stream to which Ray's own thread, which speaks of workers that it lost, writes nothing: we say that ourselves.

    Args:
        stream: For all others.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """To the stream, but for that thread."""
        return len(text) if threading.current_thread().name == LISTENER else self.stream.write(text)

    def flush(self) -> None:
        """As it is."""
        self.stream.flush()

    @property
    def encoding(self) -> str:  # pyrefly: ignore[bad-override]
        """That of the stream."""
        return self.stream.encoding

    def isatty(self) -> bool:
        """Whether the stream is one."""
        return self.stream.isatty()


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
    def here(cls, parts: Parts, threads: int, ranges: Sequence[Range]) -> "Wanted":
        """What this process has."""
        paths = [path for each in ranges[:1] if isinstance(each.images, FileImages) for path in each.images.paths]
        image = next((str(path) for path in paths if path.exists()), None)
        return cls(digest_of(parts.folder), versions(), threads, os.getcwd(), image)


class Worker:
    """What runs in a process of a cluster. It loads the model when it is first asked, and holds it.

    Args:
        work: What is done with every range.
        parts: Where parts go.
        wanted: What it must have.
    """

    def __init__(self, work: Work, parts: Parts, wanted: Wanted) -> None:
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
        if digest_of(self.parts.folder) != wanted.digest:
            problem = f"{host} does not see the parts in {self.parts.folder}"
            raise DataError(problem, "--out in a folder that all machines of the cluster share")
        if wanted.image is not None and not Path(wanted.image).exists():
            problem = f"{host} does not see the image {wanted.image}"
            raise DataError(problem, "images in a folder that all machines of the cluster share")
        if differing := [f"{name} {there}" for name, there in versions().items() if wanted.versions[name] != there]:
            asked = ", ".join(f"{name} {value}" for name, value in wanted.versions.items())
            same = shlex.join(["pip", "install", *(f"{name}=={value}" for name, value in wanted.versions.items())])
            problem = f"{host} has {', '.join(differing)}, but the job was started with {asked}"
            raise UsageError(problem, f"{same}  # on {host}")
        self.compute = self.work.open()
        return os.getpid()

    def do(self, some: Range) -> float:
        """Compute a range, and keep its part; gives the seconds that took."""
        began = time.monotonic()
        assert self.compute is not None
        self.parts.write(some.number, next(iter(self.compute([some]))))
        return time.monotonic() - began


@dataclass
class _Seat:
    """A worker as the driver sees it.

    Attributes:
        actor: Ray's handle, which stays when the worker is started again.
        asked: What it was asked: a reference of Ray.
        range: What it is at; None while it starts.
        since: When it was asked, on `time.monotonic`.
    """

    actor: Any
    asked: Any = None
    range: Range | None = None
    since: float = 0.0


@dataclass
class _Driver:
    """Hands ranges out, and sees to it that each is done.

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
    parts: Parts
    device: torch.device
    slowest: float = 0.0
    tries: dict[int, int] = field(default_factory=dict)
    failing: float | None = None  # since when no worker could start
    looked: float = 0.0  # when the cluster was last looked at
    silent: float | None = None  # since when it does not answer

    def run(self, ranges: Sequence[Range]) -> Iterator[Range]:
        """Every range, when its part is there."""
        left, seats = deque(ranges), self._seats(ranges)
        try:
            while left or any(seat.range for seat in seats):
                self._check_cluster()
                answered, _ = self.ray.wait([seat.asked for seat in seats if seat.asked is not None], timeout=LOOK)
                for seat in [seat for seat in seats if seat.asked in answered]:
                    done = self._answer(seat, left)
                    if done is not None:
                        yield done
                    if seat.asked is None and left:
                        self._ask(seat, left.popleft())
                for seat in seats:
                    if seat.asked is None and left:
                        self._ask(seat, left.popleft())
                    elif seat.asked is not None and time.monotonic() - seat.since > self._deadline(seat):
                        self._end(seat)
        finally:
            for seat in seats if self.silent is None else ():  # else Ray waits for an answer
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.ray.kill(seat.actor)

    def _check_cluster(self) -> None:
        """Every other second: whether what holds the cluster together answers, and any machine of it is left.

        Raises:
            RunError: Not for a while.
        """
        now = time.monotonic()
        if now - self.looked < 4 * LOOK:
            return
        self.looked = now
        host, _, port = self.ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()
            there = any(node["Alive"] for node in self.ray.nodes())
        except OSError:
            there = False
        if there:
            self.silent = None
            return
        self.silent = now if self.silent is None else self.silent
        if now - self.silent >= GONE:
            raise RunError(f"Ray itself has ended: {self.cluster.address} does not answer", AGAIN)

    def _seats(self, ranges: Sequence[Range]) -> list[_Seat]:
        """The workers, which start."""
        there, threads = self.ray.cluster_resources(), self.cluster.threads
        each = {"num_cpus": threads, "num_gpus": int(self.device.type == "cuda")}
        room = int(there.get("CPU", 0) // threads)
        if each["num_gpus"]:
            room = min(room, int(there.get("GPU", 0)))
        if not room:
            has = f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs"
            raise UsageError(f"a worker needs {threads} CPUs, but the cluster has {has}", "--threads 1")
        actor = self.ray.remote(Worker).options(**each, max_restarts=-1, max_task_retries=0)
        wanted = Wanted.here(self.parts, threads, ranges)
        workers = min(len(ranges), self.cluster.workers or room)
        seats = [_Seat(actor.remote(self.work, self.parts, wanted)) for _ in range(workers)]
        for seat in seats:
            self._start(seat)
        return seats

    def _start(self, seat: _Seat) -> None:
        asked = seat.actor.ready.options(max_task_retries=TRIES).remote()  # else it fails while a worker starts again
        seat.asked, seat.range, seat.since = asked, None, time.monotonic()

    def _ask(self, seat: _Seat, some: Range) -> None:
        seat.asked, seat.range, seat.since = seat.actor.do.remote(some.alone()), some, time.monotonic()

    def _answer(self, seat: _Seat, left: deque[Range]) -> Range | None:
        """The range that a worker has done; one that it has not done is the next again, and the worker starts again.

        Raises:
            VitrailError: What the worker says of the model or the disk; another would say the same.
            RunError: The range has ended its worker too often, or something failed where it should not.
        """
        asked, some = seat.asked, seat.range
        seat.asked = seat.range = None
        try:
            seconds = self.ray.get(asked)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, VitrailError | OSError):
                raise error.cause from error
            raise RunError(
                f"a worker failed: {' '.join(str(error.cause).split())}", "the same without --ray"
            ) from error
        except self.ray.exceptions.RayError as error:
            self._again(some, left, error)
            self._start(seat)
            return None
        if some is None:
            self.tries.pop(STARTS, None)
            self.failing = None
        else:
            self.slowest = max(self.slowest, seconds)
        return some

    def _again(self, some: Range | None, left: deque[Range], error: Exception) -> None:
        """A range whose worker has ended comes next, but not for ever."""
        number = STARTS if some is None else some.number
        self.tries[number] = self.tries.get(number, 0) + 1
        patient = False
        if some is None:  # while Ray starts a worker again, each call fails at once, and on a busy machine that lasts
            self.failing = time.monotonic() if self.failing is None else self.failing
            patient = time.monotonic() - self.failing < LEAST
            time.sleep(LOOK)
        if self.tries[number] >= TRIES and not patient:
            problem = f"workers ended {counted(TRIES, 'time')} at {_words(some)}: {_sentence(error)}"
            raise RunError(problem, "the same without --ray; finished parts are kept")
        if some is not None:
            self.cluster.tell(f"A worker ended at {_words(some)}: they are computed again.")
            left.appendleft(some)

    def _deadline(self, seat: _Seat) -> float:
        """Seconds behind which a worker is taken to stand still: twice as many each time that it was."""
        if seat.range is None:
            return STARTING
        if self.cluster.deadline is not None:
            usual = self.cluster.deadline
        else:
            usual = max(LEAST, SLACK * self.slowest) if self.slowest else FIRST
        return usual * 2.0 ** self.tries.get(seat.range.number, 0)

    def _end(self, seat: _Seat) -> None:
        """End a worker that stands still; Ray starts another, and what it was asked comes back as an error."""
        seconds = self._deadline(seat)
        self.cluster.tell(f"A worker has stood still for {seconds:.3g} s at {_words(seat.range)}: it is ended.")
        self.ray.kill(seat.actor, no_restart=False)
        seat.since = time.monotonic()


def _words(some: Range | None) -> str:
    """What a worker is at, in words."""
    return "its start" if some is None else f"images {some.first + 1:,} to {some.first + len(some.ids):,}"
