"""Who is still there: each process sends a beat every second, and watches the others by its own clock.

    beat/2     of process 2: a number that grows, its step, whether it ends, its id and host
    failure    the first cause for which all of them end; whoever meets it first writes it, the others read it
    reporter   who prints it: one process, so that it is read once

A process that was killed is noticed at once by the sockets of those that exchange with it; by one that waits for its
order, when it is silent and the system has no such process. One that is frozen holds all of them up, and only its
silence says so. What is written here lies in the store at which the processes met. That may lie in the process that
started them: where it was killed or is frozen, more than one of them reports.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import Store

from vitrail.errors import INTERRUPTED, Hint, RunError

BEAT = 1.0  # seconds between two beats
STILL = 4.0  # seconds without a beat after which a process whose connection broke is taken for gone
PATIENT = 10.0  # seconds in which one of them must be seen to be gone, or report why it ends
GRACE = 3.0  # seconds in which a process may end by itself once there is a failure
AGAIN = Hint(text="the same command again; with --out RUN --resume auto a run continues")


def _state(pid: int) -> str:
    """What a process does, by Linux's letters, such as Z, has ended; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _identity() -> dict[str, Any]:
    """This process, for the others: its number, its host, and the machine or container in which that number counts."""
    host = system = socket.gethostname()
    with suppress(OSError):
        system = f"{host} {os.readlink('/proc/self/ns/pid')}"
    return {"pid": os.getpid(), "host": host, "system": system}


@dataclass(frozen=True)
class Failure:
    """Why all processes end.

    Attributes:
        rank: Of the process where it began.
        problem: One line.
        hint: The next thing to try.
        code: Exit code of all.
        gone: Whether that process cannot report it itself.
    """

    rank: int
    problem: str
    hint: Hint
    code: int = 1
    gone: bool = False

    @classmethod
    def from_json(cls, text: str | bytes) -> "Failure":
        """A failure that another process wrote into the store."""
        values = json.loads(text)
        values["hint"] = Hint(**values["hint"])
        return cls(**values)


def leave(failure: Failure, reports: bool) -> NoReturn:
    """End this process at once, whatever its threads wait for.

    Args:
        failure: Why.
        reports: Whether this process prints it.
    """
    if reports:
        sys.stderr.write(f"vitrail: {failure.problem}\ntry: {failure.hint.text or failure.hint}\n")
        sys.stderr.flush()
    for decoder in multiprocessing.active_children():  # one that hangs at its start does not see that this one ends
        decoder.kill()
    os._exit(failure.code)


class Ended(RunError):
    """Another process has failed, or is gone."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.problem, failure.hint)
        self.failure = failure


class Watch:
    """The beats of all processes, in a thread of its own.

    Args:
        store: A connection of its own to where the processes met.
        rank: Of this process.
        world: How many there are.
        timeout: Seconds of silence after which a process is taken for frozen.
    """

    def __init__(self, store: Store, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world, self.timeout = rank, world, timeout
        self.identity = _identity()
        self.failure: Failure | None = None
        self.step, self.stopping, self.hint = 0, False, AGAIN
        self.others: dict[int, dict[str, Any]] = {}
        self.parting = False  # whether this process ends by itself
        self.lost = False  # whether the store answers no more; it is then left alone
        self._heard = time.monotonic()  # the store
        self._store, self._number = store, 0
        self._moved = dict.fromkeys(set(range(world)) - {rank}, time.monotonic())
        self._over, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._beat, self._guard)]

    def start(self) -> None:
        """Send the first beat; to be called before the others are met."""
        self._store.compare_set("failure", "", "")  # the key is there: no failure yet
        self._send()

    def watch(self) -> None:
        """Watch the others, who have all begun."""
        self._heard = time.monotonic()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """No more beats."""
        self._over.set()
        for thread in () if self.lost else self._threads:
            thread.join(timeout=GRACE)

    def check(self) -> None:
        """Go on only while all is well.

        Raises:
            Ended: There is a failure.
        """
        if self.failure is not None:
            raise Ended(self.failure)

    def first(self, failure: Failure) -> Failure:
        """Write down why this process ends, unless another was there before; gives the first cause."""
        if self.failure is None:
            self.failure = Failure.from_json(self._claimed("failure", json.dumps(asdict(failure), default=str)))
        return self.failure

    def cause(self, error: BaseException) -> Failure:
        """Why an exchange with the others failed: waits until a process reports it, or is seen to be gone.

        And why this process was interrupted: as all others were, or since one of them is gone.
        """
        since, interrupted = time.monotonic(), isinstance(error, KeyboardInterrupt)
        while self.failure is None and time.monotonic() - since < PATIENT:
            if interrupted and all(self.others.get(rank, {}).get("parting") for rank in self._moved):
                break
            silent, rank = max((time.monotonic() - moved, rank) for rank, moved in self._moved.items())
            if silent >= STILL:  # its last beat may be from just before its end
                return self.first(self._gone(rank, "has ended"))
            time.sleep(BEAT / 10)
        if self.failure is not None:
            return self.failure
        if interrupted:
            return self.first(Failure(self.rank, "interrupted", self.hint, INTERRUPTED))
        text = " ".join(str(error).split())
        problem = f"the processes waited for each other for too long, {self._steps_words()}: {text}"
        return self.first(Failure(self.rank, problem, self.hint))

    def reports(self, failure: Failure) -> bool:
        """Whether this process prints a failure: the first that is still there, and only once."""
        if self.lost:
            return self.rank < 2  # the first, where it is there; else the second
        now = time.monotonic()
        there = [rank for rank, moved in self._moved.items() if now - moved < STILL]
        there = [rank for rank in (*there, self.rank) if not (failure.gone and rank == failure.rank)]
        return self.rank == min(there) and self._claimed("reporter", str(self.rank)) == str(self.rank)

    def _claimed(self, key: str, value: str) -> str:
        """The first value that any process gave to a key."""
        while not self._lock.acquire(timeout=BEAT / 10):
            if self.lost:
                return value
        try:
            return self._store.compare_set(key, "", value).decode()
        except RuntimeError:  # nobody is there
            self.lost = True
            return value
        finally:
            self._lock.release()

    @property
    def steps(self) -> dict[int, int]:
        """How many steps each process had done when it was last heard."""
        found = {**{rank: one.get("step", 0) for rank, one in self.others.items()}, self.rank: self.step}
        return dict(sorted(found.items()))

    def name(self, rank: int) -> str:
        """A process, for people."""
        one = self.identity if rank == self.rank else self.others.get(rank, {})
        return f"rank {rank} (process {one.get('pid', '?')} on {one.get('host', '?')})"

    def _gone(self, rank: int, what: str) -> Failure:
        """All make the same steps, so it was at the furthest that any has done, or a step ahead."""
        problem = f"{self.name(rank)} {what} at step {max(self.steps.values())}; last heard of: {self._steps_words()}"
        return Failure(rank, problem, self.hint, gone=True)

    def _steps_words(self) -> str:
        return ", ".join(f"rank {rank} at step {step}" for rank, step in self.steps.items())

    def _send(self) -> None:
        self._number += 1
        beat = {"number": self._number, "step": self.step, "parting": self.parting}
        with self._lock:
            self._store.set(f"beat/{self.rank}", json.dumps({**beat, **self.identity}))

    def _beat(self) -> None:
        """Send and listen, at once and then each second, so that who freezes early is known by name.

        A request to a place that is frozen never returns; the guard sees that.
        """
        while not self._over.is_set() and self.failure is None:
            try:
                self._send()
                self._listen()
            except RuntimeError as error:  # of torch's store
                if not self._over.is_set():
                    self._lose(" ".join(str(error).split())[:200])
            self._over.wait(BEAT)

    def _guard(self) -> None:
        """Where there is a failure, and this process does not end by itself, since it waits for another, end it."""
        last = time.monotonic()
        while self.failure is None:
            if self._over.wait(BEAT / 2):
                return
            now = time.monotonic()
            if now - last > STILL:  # this process itself stood still, and heard nobody
                self._heard, self._moved = now, dict.fromkeys(self._moved, now)
            last = now
            if now - self._heard > self.timeout + BEAT:
                self._lose(f"no answer for {self.timeout:g} s")
        if self._over.wait(GRACE) or self.parting:
            return
        leave(self.failure, self.reports(self.failure))

    def _lose(self, why: str) -> None:
        """Nobody can be heard any more: the place where all met is the first process, or what started it."""
        self.lost = True
        who = f"what started {self.name(0)}" if self.rank == 0 else f"{self.name(0)}, or what started it,"
        problem = f"{who} has ended or is silent: {why}; last heard of: {self._steps_words()}"
        self.failure = self.failure or Failure(0, problem, self.hint, gone=True)

    def _end_if_gone(self, rank: int, silent: float) -> None:
        """End all for a process that was silent for so many seconds, and is gone or frozen."""
        one = self.others.get(rank, {})
        near = one.get("system") == self.identity["system"]
        if silent > STILL and near and sys.platform == "linux" and _state(one["pid"]) in ("", "Z", "X"):
            self.first(self._gone(rank, "has ended"))  # torchrun gives the others 30 s from here
        elif silent > self.timeout:
            self.first(self._gone(rank, f"has been silent for {self.timeout:g} s"))
            if near:  # it hears nothing else, and what started it waits for it for long
                with suppress(OSError):
                    os.kill(one["pid"], signal.SIGKILL)

    def _listen(self) -> None:
        """Take note of the others' beats, and of a failure."""
        ranks = sorted(self._moved)
        with self._lock:
            failure, *beats = self._store.multi_get(["failure", *(f"beat/{rank}" for rank in ranks)])
        now = self._heard = time.monotonic()
        if failure and self.failure is None:
            self.failure = Failure.from_json(failure)
        for rank, text in zip(ranks, beats, strict=True):
            beat = json.loads(text)
            if beat["number"] != self.others.get(rank, {}).get("number"):
                self._moved[rank], self.others[rank] = now, beat
            elif self.failure is None:
                self._end_if_gone(rank, now - self._moved[rank])


def waiting(store: Store, key: str, watch: Watch, seconds: float | None = None) -> bytes | None:
    """What stands under a key of the store, once it is there; None where it is not there in so many seconds.

    Raises:
        Ended: Meanwhile there was a failure.
    """
    since = time.monotonic()
    while seconds is None or time.monotonic() - since < seconds:
        watch.check()
        try:
            store.wait([key], timedelta(seconds=BEAT))
        except RuntimeError as error:  # torch's, after that time, or where the store is gone
            if "timeout" not in str(error).lower() and "timed out" not in str(error).lower():
                raise
            continue
        return store.get(key)
    return None
