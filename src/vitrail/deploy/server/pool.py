"""Processes that answer requests, each one at a time, and the queue before them, which has an end.

Between both goes a frame: the lengths of a header and of a body, the header as JSON, the body as it is. What comes from
strangers is only ever decoded by such a process. One that ends, or gives no answer in time, is replaced; what it was at
is refused.
"""

import asyncio
import json
import math
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.errors import DataError, Hint, RunError, UsageError, VitrailError

HERE = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
LENGTHS = struct.Struct("!IQ")  # bytes of a header, and of a body
DROP = signal.SIGUSR1  # nobody waits any more for what is computed
LOADING = 600.0  # seconds in which a process has its models, or is given up
PAUSES = 1.0, 60.0  # seconds before a process that could not be started is tried again: the first time, and at most
MEMORY = 1 / 8  # weight of the newest in the mean of the seconds that an answer takes, at least
KINDS: dict[int, type[VitrailError]] = {kind.exit_code: kind for kind in (RunError, UsageError, DataError)}


def frame_of(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A frame."""
    words = json.dumps(header).encode()
    return LENGTHS.pack(len(words), len(body)) + words + body


class Refusal(Exception):
    """What a client is told in place of an answer.

    Args:
        status: Of HTTP.
        problem: What was given and what was wanted.
        hint: What to try.
        wait: Seconds after which to ask again, where that may help.
    """

    def __init__(self, status: int, problem: str, hint: str, wait: int | None = None) -> None:
        super().__init__(problem)
        self.status, self.problem, self.hint, self.wait = status, problem, hint, wait


class LostError(Exception):
    """A process gave no answer: it ended, or took too long."""


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits for its answer, or for a process; the header and body of both are those of the frames."""

    header: Mapping[str, Any]
    body: bytes
    answer: "asyncio.Future[tuple[dict[str, Any], bytes]]"


@dataclass(eq=False)
class WorkerProcess:
    """One process, and what it is at.

    Attributes:
        models: What it says of each model by name: `version`, `routes`, `notes`.
        seconds: That a first answer took.
    """

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    device: str = "cpu"
    seconds: float = 0.0
    job: QueuedRequest | None = None

    @classmethod
    async def start(cls, load: Mapping[str, Any]) -> "WorkerProcess":
        """A process that has loaded its models.

        Raises:
            VitrailError: As the process says that it cannot load them; or it ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            words = sys.executable, "-P", "-m", "vitrail.deploy.server.worker", str(number)
            own = {"OMP_NUM_THREADS": str(load["threads"]), "PYTHONPATH": HERE}
            process = await asyncio.create_subprocess_exec(
                *words, pass_fds=[number], stdin=-3, env=os.environ | own, start_new_session=True
            )
        worker = cls(process, *await asyncio.open_connection(sock=ours))
        try:
            facts, _ = await worker.exchange(load, b"", LOADING)
            if error := facts.get("error"):
                raise KINDS[error["exit_code"]](error["problem"], Hint(**error["hint"]))
        except LostError as error:
            worker.end()
            hint = "where more memory is free; what stands above says more"
            raise RunError(f"a process that answers {error} while it loaded its models", hint) from error
        except BaseException:
            worker.end()
            await worker.process.wait()
            raise
        worker.models, worker.device, worker.seconds = facts["models"], facts["device"], facts["seconds"]
        return worker

    async def exchange(self, header: Mapping[str, Any], body: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Its answer to a frame.

        Raises:
            LostError: There is none.
        """
        try:
            async with asyncio.timeout(seconds):
                self.writer.write(frame_of(header, body))
                await self.writer.drain()
                words, size = LENGTHS.unpack(await self.reader.readexactly(LENGTHS.size))
                return json.loads(await self.reader.readexactly(words)), await self.reader.readexactly(size)
        except TimeoutError as error:
            raise LostError(f"gave no answer in {seconds:g} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise LostError("ended") from error

    def send(self, number: int) -> None:
        """A signal, if it is still there; asyncio's own method would take the news of its end from who waits for it."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def end(self) -> None:
        """End it, whatever it does."""
        self.writer.close()
        self.send(signal.SIGKILL)


class Pool:
    """Processes that answer alike, and what waits for them.

    Args:
        load: What each is told to load.
        count: How many.
        bound: How many requests wait, at most.
        timeout: Seconds for an answer.
        changed: Called when a process that replaces another has loaded other weights than that.
        warn: Called with a sentence.
    """

    def __init__(
        self,
        load: Mapping[str, Any],
        count: int,
        bound: int,
        timeout: float,
        changed: Callable[[], object],
        warn: Callable[[str], object],
    ) -> None:
        self.load, self.count, self.bound, self.timeout = load, count, bound, timeout
        self.changed, self.warn = changed, warn
        self.jobs, self.idle, self.workers = deque[QueuedRequest](), list[WorkerProcess](), set[WorkerProcess]()
        self.models, self.seconds, self.answered, self.restarts = dict[str, dict[str, Any]](), 1.0, 0, 0
        self.tasks = set["asyncio.Task[None]"]()

    @property
    def full(self) -> bool:
        """Whether no more can wait."""
        return len(self.jobs) >= self.bound

    @property
    def busy(self) -> bool:
        """Whether something is answered, or waits for it."""
        return bool(self.jobs) or any(worker.job for worker in self.workers)

    def refusal(self) -> Refusal:
        """That too many wait, and when to ask again."""
        wait = math.ceil((len(self.jobs) + 1) * self.seconds / max(1, len(self.workers)))
        return Refusal(503, "too many requests wait already", f"the same again in {wait} s", wait)

    async def ask(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """What a process answers, when it is this request's turn; whoever waits for it may be cancelled.

        Raises:
            Refusal: Too many wait, or the process was lost.
        """
        if self.full:
            raise self.refusal()
        job = QueuedRequest(header, body, asyncio.get_running_loop().create_future())
        self.jobs.append(job)
        self._dispatch()
        try:
            return await job.answer
        except asyncio.CancelledError:
            if job in self.jobs:
                self.jobs.remove(job)
            for worker in self.workers:
                if worker.job is job:
                    worker.send(DROP)
            raise

    async def prepare(self, count: int | None = None) -> list[WorkerProcess]:
        """New processes that are ready, and answer nothing yet.

        Raises:
            VitrailError: As `WorkerProcess.start`; then all of them are ended.
        """
        starting = [asyncio.create_task(WorkerProcess.start(self.load)) for _ in range(count or self.count)]
        await asyncio.wait(starting)
        failed = [task.exception() for task in starting if task.exception()]
        workers = [task.result() for task in starting if not task.exception()]
        if failed or any(each.models != workers[0].models for each in workers):  # written anew between two of them
            for worker in workers:
                worker.end()
            raise failed[0] if failed and failed[0] else RunError("a model was written while it was loaded", "again")
        return workers

    def swap(self, workers: Sequence[WorkerProcess]) -> None:
        """Have these answer from now on; those before end when they have answered."""
        for worker in self.idle:
            worker.end()
        self.idle, self.workers = [], set()
        for worker in workers:
            self.add(worker)

    def add(self, worker: WorkerProcess) -> None:
        """One more that answers."""
        if not self.workers:
            self.models, self.seconds = worker.models, worker.seconds
        self.workers.add(worker)
        self.idle.append(worker)
        self.begin(self._watch(worker))
        self._dispatch()

    async def fill(self) -> None:
        """Start those that are missing; one that cannot be started is tried again, ever more slowly."""
        pause, crew = PAUSES[0], self.workers
        while len(self.workers) < self.count:
            try:
                worker = await WorkerProcess.start(self.load)
            except VitrailError as error:
                self.warn(f"{error.problem}; the next attempt is in {pause:g} s")
                for job in () if self.workers else [self.jobs.popleft() for _ in range(len(self.jobs))]:
                    _refuse(job, "no process is left that answers", math.ceil(pause))
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
                continue
            if self.workers is not crew or len(self.workers) >= self.count:  # others answer meanwhile
                worker.end()
                return
            if self.models and worker.models != self.models:
                worker.end()
                self.changed()
                return
            self.add(worker)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside all else."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def end(self) -> None:
        """End all processes."""
        for task in self.tasks:
            task.cancel()
        for worker in self.workers:
            worker.end()
            await worker.process.wait()

    def _dispatch(self) -> None:
        while self.jobs and self.idle:
            worker, job = self.idle.pop(), self.jobs.popleft()
            worker.job = job
            self.begin(self._answer(worker, job))

    async def _answer(self, worker: WorkerProcess, job: QueuedRequest) -> None:
        began = time.monotonic()
        try:
            header, body = await worker.exchange(job.header, job.body, self.timeout)
        except LostError as error:
            _refuse(job, f"the process that was at this request {error}", max(1, math.ceil(self.seconds)))
            self._lose(worker, str(error))
            return
        worker.job = None
        if not header.get("dropped"):
            self.answered += 1
            self.seconds += max(MEMORY, 1 / self.answered) * (time.monotonic() - began - self.seconds)
            if not job.answer.done():
                job.answer.set_result((header, body))
        elif not job.answer.done():  # it was meant for the one before
            self.jobs.appendleft(job)
        if worker in self.workers:
            self.idle.append(worker)
        else:
            worker.end()
        self._dispatch()

    async def _watch(self, worker: WorkerProcess) -> None:
        """Replace a process that ends while it is at nothing."""
        await worker.process.wait()
        if worker in self.idle:
            self.idle.remove(worker)
            self._lose(worker, "ended")

    def _lose(self, worker: WorkerProcess, how: str) -> None:
        worker.job = None
        worker.end()
        if worker in self.workers:
            self.workers.remove(worker)
            self.restarts += 1
            self.warn(f"process {worker.process.pid} {how}; another takes its place")
            self.begin(self.fill())


def _refuse(job: QueuedRequest, problem: str, wait: int) -> None:
    if not job.answer.done():
        job.answer.set_exception(Refusal(503, problem, f"the same again in {wait} s", wait))
