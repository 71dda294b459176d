"""The cluster of Ray on which a job computes: one that is joined, or one of this machine that ends with the process.

Ray is imported where it is first needed. A Ray that is started here is stopped in the end; if this process is killed,
`cluster_guard` stops it.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vitrail.errors import Hint, RunError, UsageError, check_address, counted
from vitrail.jobs import cluster_guard
from vitrail.jobs.parts import Carry, Compute, carry_here
from vitrail.jobs.precision import Opening, Precision
from vitrail.runtime import cores, handling

LOCAL = "local"
OLDEST, BELOW, WANTED = (2, 55), (3, 0), "ray>=2.55,<3"  # as the extra `ray` of pyproject.toml
LISTENER = "ray_listen_error_messages"
INSTALL = 'pip install "vitrail[ray]"'
ANSWERS = 10.0  # seconds for a cluster to answer
AS_CTRL_C = signal.default_int_handler  # SIGTERM stops workers, and parts stay; Ray's handler exits without a message
STORE = 80 * 2**20  # bytes of Ray's object store, which holds names of files alone
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
    "SPT_NOENV": "1",  # a process of Ray that sets its title would else overwrite the mark of `cluster_guard`
}


@dataclass(frozen=True)
class Cluster:
    """Where workers run, and how many.

    Args:
        address: Of a Ray cluster, or "local": one is started, and stopped in the end.
        workers: How many; one for each processor, divided by threads, when None.
        threads: Of torch in each.
        deadline: Seconds after which a worker that has not finished its range is replaced; 10 times the slowest range
            so far when None, at least a minute, and an hour as long as none is done.
        warn: Called with a sentence when a worker is lost or replaced, and when there is room for fewer.
        opening: What workers load the model by; of the job, where None.
    """

    address: str
    workers: int | None = None
    threads: int = 1
    deadline: float | None = None
    warn: Callable[[str], None] = lambda sentence: None
    opening: Opening | None = None

    def __post_init__(self) -> None:
        """Check the address, and on this machine the number of workers: more than its cores can run are only slower.

        Raises:
            UsageError: Names what is possible.
        """
        check_address(self.address)
        if self.address == LOCAL and self.workers is not None and self.workers > (room := local_room(self.threads)):
            each = f"{counted(room, 'worker')} of {counted(self.threads, 'thread')}"
            problem = f"this machine has {counted(cores(), 'processor core')}, for {each}, got {self.workers} workers"
            raise UsageError(problem, Hint({"workers": room}))


def carry_of(cluster: Cluster | None, here: Compute, work: Callable[[Opening], Compute], precision: Precision) -> Carry:
    """Who computes ranges and writes their parts: this process, or the workers of a cluster.

    Args:
        cluster: Where workers run; None for this process.
        here: What this process does.
        work: What a worker does, from what it loads the model by; made of plain values.
        precision: In which it does.
    """
    if cluster is None:
        return partial(carry_here, here)
    from vitrail.jobs.on_ray import carry_by_workers

    assert cluster.opening is not None
    opening = replace(cluster.opening, precision=precision)
    return partial(carry_by_workers, cluster, partial(work, opening), opening.device)


def local_room(threads: int) -> int:
    """Workers with so many threads that this machine has cores for; at least one."""
    return max(1, cores() // threads)


def check_ray() -> Any:
    """Ray, the module, of a version that is supported.

    Raises:
        UsageError: It is missing, broken or of another version; names what to install.
    """
    for name, value in ENVIRONMENT.items():  # before it is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except Exception as error:  # whatever a broken installation raises
        if isinstance(error, ModuleNotFoundError) and error.name == "ray":
            raise UsageError(f"--ray needs {WANTED}, which is not installed", INSTALL) from error
        problem = f"Ray cannot be imported ({type(error).__name__}: {first_sentence(error)}); --ray needs {WANTED}"
        raise UsageError(problem, INSTALL) from error
    there = str(getattr(ray, "__version__", "without a version"))
    numbers = re.match(r"(\d+)\.(\d+)", there)
    if numbers is None or not OLDEST <= tuple(map(int, numbers.groups())) < BELOW:
        raise UsageError(f"Ray {there} is installed, but --ray needs {WANTED}", INSTALL)
    return ray


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's message, in one line."""
    text = re.split(r"(?<=[.!?])\s|\n", str(error).strip(), maxsplit=1)[0]
    return " ".join(text.split())[:200].rstrip(".")


@contextlib.contextmanager
def join_cluster(cluster: Cluster) -> Iterator[Any]:
    """Ray, with a cluster; one that was started for this is stopped.

    Raises:
        UsageError: Ray is missing.
        RunError: No cluster answers at the address.
    """
    ray = check_ray()
    own: dict[str, Any] = {}
    if cluster.address == LOCAL:
        threads = cluster.threads * (cluster.workers or local_room(cluster.threads))
        own = {"num_cpus": threads, "object_store_memory": STORE, "include_dashboard": False}
    else:
        check_answers(cluster.address)
    if ray.is_initialized():  # by whoever calls
        yield ray
        return
    with _guarded() if own else contextlib.nullcontext():
        try:
            ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _no_cluster(cluster.address, error, listens=cluster.address != LOCAL) from error
        try:
            with contextlib.redirect_stdout(_WithoutRay(sys.stdout)), handling(AS_CTRL_C, signal.SIGTERM):
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


def _no_cluster(address: str, error: Exception, listens: bool = False) -> RunError:
    """No cluster can be joined; without RAY_AUTH_MODE Ray sends no token to one that listens."""
    problem = f"no Ray cluster answers at {address} ({first_sentence(error)})"
    if listens and "RAY_AUTH_MODE" not in os.environ:
        return RunError(problem, "export RAY_AUTH_MODE=token  # if the cluster wants one, then the same command again")
    return RunError(problem, Hint({"ray": LOCAL}))


def check_answers(address: str) -> None:
    """Refuse an address where nobody listens, for which Ray itself waits for minutes.

    Raises:
        RunError: Nobody does.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


class _WithoutRay:
    """A stream to which Ray's own thread, which reports the workers that it lost, writes nothing: the driver does.

    Args:
        stream: For all others.
    """

    def __init__(self, stream: Any) -> None:
        self.stream, self.flush = stream, stream.flush

    def write(self, text: str) -> int:
        """To the stream, but for that thread."""
        return len(text) if threading.current_thread().name == LISTENER else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's."""
        return getattr(self.stream, name)
