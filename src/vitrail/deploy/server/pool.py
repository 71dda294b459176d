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
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import DataError, Hint, RunError, UsageError, VitrailError
from vitrail.weights.places import is_onnx

HERE, ROOT = "vitrail.deploy.server", str(Path(__file__).parents[3])
LENGTHS = struct.Struct("!IQ")  # bytes of a header, and of a body
DROP = signal.SIGUSR1  # nobody waits any more for what is computed
NONE_LEFT = "no process is left that answers"
BEGINNING = 120.0  # seconds in which a forked process says who it is, or the one that forks is exchanged
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


class Forker:
    """The process from which those that answer are forked; where it has ended, another takes its place.

    multiprocessing's own ends by a SIGTERM to a whole group, and runs the main module of its user in every copy.

    Args:
        paths: Of all models: exports alone need no torch.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.imported = f"{HERE}.exports" if all(map(is_onnx, paths)) else f"{HERE}.models"
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            code = f"from {HERE}.worker import fork; fork({number}, {self.imported!r})"
            found = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
            own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": found}  # more threads are asked for when a model is loaded
            words, environment = (sys.executable, "-P", "-c", code), os.environ | own
            self.process = subprocess.Popen(
                words, pass_fds=[number], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def fork(self, load: Mapping[str, Any]) -> socket.socket:
        """One end of a socket; a new process has the other, and is told what to load."""
        ours, theirs = socket.socketpair()
        with theirs:
            if self.process is None or self.process.poll() is not None:
                self.begin()
            ours.sendall(frame_of(load))
            with suppress(OSError):  # it has just ended; then so has this socket
                socket.send_fds(self.channel, [b"."], [theirs.fileno()])
        return ours

    def kill(self) -> None:
        """End one from which nothing comes; the next process is forked from another."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        """End it; those that answer are ended by whoever has them."""
        if self.process is not None:
            self.channel.close()
            self.process.wait()


class WorkerProcess(asyncio.Protocol):
    """One process, and what it is at; see `start`.

    Attributes:
        models: What it says of each model by name: `version`, `routes`, `notes`.
        seconds: That a first answer took.
        ended: Is set when the process has ended.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.models, self.device, self.seconds = dict[str, dict[str, Any]](), "cpu", 0.0
        self.job: QueuedRequest | None = None
        self.ended, self.pid, self.buffer = asyncio.Event(), 0, bytearray()
        self.transport: Any = None
        self.frame: asyncio.Future[tuple[dict[str, Any], bytes]] = loop.create_future()
        self.frame.cancel()  # nobody waits for one yet

    async def start(self, forked: socket.socket) -> None:
        """Wait until it has loaded its models.

        Args:
            forked: Of a `Forker`.

        Raises:
            VitrailError: As the process says that it cannot load them; or it ended.
        """
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=forked)
            self.pid = (await self.receive(BEGINNING))[0]["pid"]
            facts, _ = await self.receive(LOADING)
        except LostError as error:
            hint = "where more memory is free; what stands above says more"
            raise RunError(f"a process that answers {error} while it loaded its models", hint) from error
        if error := facts.get("error"):
            raise KINDS[error["exit_code"]](error["problem"], Hint(**error["hint"]))
        self.models, self.device, self.seconds = facts["models"], facts["device"], facts["seconds"]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what frames are sent through."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """A part of a frame."""
        self.buffer += data
        self._deliver()

    def _deliver(self) -> None:
        """Take the next frame from what has come, if it is whole and somebody waits for it."""
        if len(self.buffer) < LENGTHS.size or self.frame.done():
            return
        words, size = LENGTHS.unpack_from(self.buffer)
        middle, end = LENGTHS.size + words, LENGTHS.size + words + size
        if len(self.buffer) >= end:
            self.frame.set_result((json.loads(self.buffer[LENGTHS.size : middle]), bytes(self.buffer[middle:end])))
            del self.buffer[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended."""
        self.ended.set()
        if not self.frame.done():
            self.frame.set_exception(LostError("ended"))

    async def receive(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The frame that comes next.

        Raises:
            LostError: None comes.
        """
        if self.ended.is_set():
            raise LostError("ended")
        self.frame = asyncio.get_running_loop().create_future()
        self._deliver()
        try:
            async with asyncio.timeout(seconds):
                return await self.frame
        except TimeoutError as error:
            raise LostError(f"gave no answer in {seconds:g} s") from error

    def send(self, number: int) -> None:
        """A signal, if it is still there."""
        if self.pid and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self) -> None:
        """End it, whatever it does."""
        self.send(signal.SIGKILL)
        if self.transport is not None:
            self.transport.abort()


class Pool:
    """Processes that answer alike, and what waits for them.

    Args:
        forker: Where they come from.
        load: What each is told to load.
        count: How many.
        bound: How many requests wait, at most.
        timeout: Seconds for an answer.
        changed: Called when a process that replaces another has loaded other weights than that.
        warn: Called with a sentence.
    """

    def __init__(
        self,
        forker: Forker,
        load: Mapping[str, Any],
        count: int,
        bound: int,
        timeout: float,
        changed: Callable[[], object],
        warn: Callable[[str], object],
    ) -> None:
        self.forker, self.load, self.count, self.bound, self.timeout = forker, load, count, bound, timeout
        self.changed, self.warn = changed, warn
        self.jobs, self.idle, self.workers = deque[QueuedRequest](), list[WorkerProcess](), set[WorkerProcess]()
        self.models, self.seconds, self.answered, self.restarts = dict[str, dict[str, Any]](), 1.0, 0, 0
        self.tasks, self.begun, self.failing = set["asyncio.Task[None]"](), list[socket.socket](), 0

    @property
    def full(self) -> bool:
        """Whether no more can wait."""
        return len(self.jobs) >= self.bound

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
        if self.failing and not self.workers:
            raise Refusal(503, NONE_LEFT, f"the same again in {self.failing} s", self.failing)
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

    def hurry(self) -> None:
        """Have a first process load while there is no event loop yet."""
        self.begun.append(self.forker.fork(self.load))

    async def prepare(self, count: int | None = None) -> list[WorkerProcess]:
        """New processes that are ready, and answer nothing yet.

        Raises:
            VitrailError: As `WorkerProcess.start`; then all of them are ended.
        """
        starting = [asyncio.create_task(self._start()) for _ in range(count or self.count)]
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
        self.failing = 0
        self.workers.add(worker)
        self.idle.append(worker)
        self.begin(self._watch(worker))
        self._dispatch()

    async def fill(self) -> None:
        """Start those that are missing; one that cannot be started is tried again, ever more slowly."""
        pause, crew = PAUSES[0], self.workers
        while len(self.workers) < self.count:
            try:
                worker = await self._start()
                if self.workers is not crew or len(self.workers) >= self.count:  # others answer meanwhile
                    worker.end()
                    return
                if self.models and worker.models != self.models:
                    worker.end()
                    self.changed()
                    raise RunError("the models were written anew", "the same in a minute")
                self.add(worker)
            except VitrailError as error:
                self.warn(f"{error.problem}; the next attempt is in {pause:g} s")
                if pause > PAUSES[0] and not self.workers:
                    self.failing = math.ceil(pause)
                    while self.jobs:
                        _refuse(self.jobs.popleft(), NONE_LEFT, self.failing)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSES[1])

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
            await worker.ended.wait()

    async def _start(self) -> WorkerProcess:
        worker = WorkerProcess()
        try:
            await worker.start(self.begun.pop() if self.begun else self.forker.fork(self.load))
        except BaseException:
            worker.end()
            if not worker.pid:
                self.forker.kill()
            raise
        return worker

    def _dispatch(self) -> None:
        while self.jobs and self.idle:
            worker, job = self.idle.pop(), self.jobs.popleft()
            worker.job = job
            self.begin(self._answer(worker, job))

    async def _answer(self, worker: WorkerProcess, job: QueuedRequest) -> None:
        began = time.monotonic()
        try:
            worker.transport.write(frame_of(job.header, job.body))
            header, body = await worker.receive(self.timeout)
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
        await worker.ended.wait()
        if worker in self.idle:
            self.idle.remove(worker)
            self._lose(worker, "ended")

    def _lose(self, worker: WorkerProcess, how: str) -> None:
        worker.job = None
        worker.end()
        if worker in self.workers:
            self.workers.remove(worker)
            self.restarts += 1
            self.warn(f"process {worker.pid} {how}; another takes its place")
            self.begin(self.fill())


def _refuse(job: QueuedRequest, problem: str, wait: int) -> None:
    if not job.answer.done():
        job.answer.set_exception(Refusal(503, problem, f"the same again in {wait} s", wait))
