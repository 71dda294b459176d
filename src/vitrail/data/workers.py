"""Processes that decode images, of which one may die: it is started again, and what it was at is named.

    open_apart        one image, by a process that decodes for this one
    of_each           what is made of each of some images, by processes or threads
    in_workers        what processes answer to many numbers
    begin_worker      what such a process does first
    signals_blocked   how it is started

A process that dies may have been killed for lack of memory: only an image at which two died is held to be the cause.
"""

import ctypes
import math
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from PIL import Image

from vitrail.data.images import PIXEL_LIMIT, Images, open_image
from vitrail.errors import DataError
from vitrail.io import is_command

FORK = "fork" if sys.platform == "linux" else None  # how processes are started; elsewhere as Python does it
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h: the signal that a process gets when its parent ends
STOPS = (signal.SIGINT, signal.SIGTERM)  # a stop; on a cluster, or by Ctrl-C, each process gets it
TOGETHER = 64  # numbers that a process is given at a time
FORKED = 16  # images in files from which on several processes decode them, where they can be forked
WIDEST = 4  # bytes that a decoded pixel takes at most
KEPT_INFO = bytes, str, int, float, tuple  # what an image says of itself that is handed on


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that are started within are not stopped by a signal: what started them is, and may still need them."""
    if sys.platform != "linux":  # there it is torch that ends them
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def child_handler_kept() -> Iterator[None]:
    """The handler of SIGCHLD that torch sets within is taken away: it raises wherever this process is at that moment.

    Whoever waits for a worker that ended is told within 5 s all the same.
    """
    kept = FORK is not None and threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD) if kept else None
    yield
    if kept:
        signal.signal(signal.SIGCHLD, before)


def begin_worker(worker: int) -> None:
    """One thread decodes; only the parent ends this process, by SIGTERM (as torch does) or by its own end.

    Torch's workers look for their parent every 5 s, between two batches; one whose parent ended before, never.
    """
    torch.set_num_threads(1)
    if sys.platform != "linux":
        return
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_await_end, args=(parent.pid,), daemon=True).start()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:
        os._exit(0)


def _await_end(parent: int) -> None:
    while signal.sigwaitinfo(STOPS).si_pid != parent:
        pass
    os._exit(0)


class _Worker:
    """A process that answers numbers, or other values, and those that it still has to answer."""

    def __init__(self, work: Callable[[Any], Any], left: Sequence[Any], alone: bool = False) -> None:
        context, self.left = multiprocessing.get_context(FORK), deque[Any]()
        self.pipe, theirs = context.Pipe()
        self.owner = os.getpid()
        self.process: BaseProcess = context.Process(target=_serve, args=(work, theirs, alone), daemon=True)
        with signals_blocked():
            self.process.start()
        theirs.close()
        self.give(left)

    def give(self, numbers: Sequence[Any]) -> None:
        """More to answer."""
        self.left.extend(numbers)
        with suppress(OSError):  # it is dead, which its answer shows
            self.pipe.send([*numbers])

    def answer(self) -> Any:
        """To the first that is left; how it ended, if it did."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return how_ended(self.process)

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(work: Callable[[Any], Any], pipe: Connection, alone: bool) -> None:
    """What a process does: an answer for each number that it is given, or the error that ends everything.

    One that is alone outlives what it is forked for, and holds no open file of its parent: else another process that
    waits for the end of a pipe would wait for it.
    """
    begin_worker(0)
    parent = multiprocessing.parent_process()
    if alone and parent is not None:
        kept = {0, 1, 2, pipe.fileno(), parent.sentinel}
        for opened in {*map(int, os.listdir("/proc/self/fd"))} - kept:
            with suppress(OSError):
                os.close(opened)
    warnings.simplefilter("ignore")  # of Pillow's on odd files
    with suppress(EOFError, OSError):
        while True:
            for number in pipe.recv():
                try:
                    answer = work(number)
                except Exception as error:
                    answer = error
                pipe.send(answer)


def how_ended(process: BaseProcess) -> str:
    """How a process ended that was at an image."""
    process.join()
    code = process.exitcode or 0
    return f"the process that decoded it ended ({signal.Signals(-code).name if code < 0 else f'code {code}'})"


def can_fork() -> bool:
    """Whether this process can have others that decode: not where it is such a one itself."""
    return FORK is not None and not multiprocessing.current_process().daemon


def decodes_apart() -> bool:
    """Whether another process decodes image by image: for a command; it is not forked from a program of a person."""
    return can_fork() and is_command()


class _Apart(threading.local):
    """Of a thread: the process that decodes for it, and the memory that both see."""

    worker: _Worker | None = None
    room: mmap.mmap

    def begin(self) -> _Worker:
        """The process, also after a fork of this one, which has none of its own."""
        if self.worker is None or self.worker.owner != os.getpid():
            self.room = mmap.mmap(-1, PIXEL_LIMIT * WIDEST)  # of which only what is filled is taken
            self.worker = _Worker(partial(_open_into, self.room), (), alone=True)
        return self.worker

    def end(self) -> None:
        """What decodes next is another process."""
        if self.worker is not None:
            self.worker.end()
        self.worker = None


APART = _Apart()


def open_apart(name: object, content: bytes, least: int | None = None) -> Image.Image:
    """`open_image`, by a process that may die of it; by this one where none is forked.

    The process is started once for a thread. Pixels come back through memory that both see.

    Args:
        name: Of the image, for messages.
        content: The bytes of its file.
        least: As for `open_image`.

    Raises:
        DataError: As `open_image`; or two processes died of it.
    """
    if not decodes_apart():
        return open_image(name, content, least)
    found: Any = None
    for _ in range(2):
        try:
            worker = APART.begin()
        except OSError:  # there is no room for another process
            if found is not None:  # of which one died
                break
            return open_image(name, content, least)
        try:
            worker.give([(name, content, least)])
            found = worker.answer()
        except BaseException:  # a stop, after which an answer to this would come to the next
            APART.end()
            raise
        if not isinstance(found, str):
            break
        APART.end()
    if isinstance(found, str):
        raise DataError(f"{name}: {found}", "remove the file or replace it by a readable one")
    if isinstance(found, Exception):
        raise found
    mode, size, palette, info, count = found
    image = Image.frombytes(mode, size, memoryview(APART.room)[:count])
    if palette:
        image.putpalette(palette)
    image.info = info
    return image


def _open_into(room: mmap.mmap, what: tuple[object, bytes, int | None]) -> tuple[Any, ...]:
    """What that process does: mode, size, palette, what the image says of itself, and how many bytes its pixels are."""
    image = open_image(*what)
    pixels = image.tobytes()
    room[: len(pixels)] = pixels
    info = {key: value for key, value in image.info.items() if isinstance(value, KEPT_INFO)}
    return image.mode, image.size, image.getpalette(), info, len(pixels)


def in_workers(
    work: Callable[[int], Any],
    numbers: Sequence[int],
    workers: int,
    patience: float = math.inf,
    until: float = math.inf,
) -> Iterator[tuple[int, Any]]:
    """What processes answer to each number, in any order.

    Args:
        work: From a number to the answer, which is no text; what it raises is raised here.
        numbers: All of them.
        workers: Processes.
        patience: Seconds for a number, when no process answers any more.
        until: When it ends, whatever is left, by `time.monotonic`.

    Yields:
        The number and its answer; a text where two processes died of it, or none answered in time. One may have been
        killed for lack of memory, so that the first is not held against it.
    """
    waiting = deque(numbers[first : first + TOGETHER] for first in range(0, len(numbers), TOGETHER))
    running = [_Worker(work, waiting.popleft()) for _ in range(min(workers, len(waiting)))]
    fatal = set[int]()
    try:
        while running and (left := until - time.monotonic()) > 0:
            longest = min(patience, left)
            answered = wait([each.pipe for each in running], None if longest == math.inf else longest)
            if not answered and left < patience:
                return
            for worker in [each for each in running if each.pipe in answered or not answered]:
                number, found = worker.left.popleft(), f"not decoded within {patience:.0f} s"
                found = worker.answer() if answered else found
                if isinstance(found, str):  # it is gone, or is to go
                    worker.end()
                    running.remove(worker)
                    again = [number] * (bool(answered) and number not in fatal)
                    fatal.add(number)
                    worker = _Worker(work, [*again, *worker.left])
                    running.append(worker)
                    if again:
                        continue
                if isinstance(found, Exception):
                    raise found
                yield number, found
                if not worker.left and waiting:
                    worker.give(waiting.popleft())
                elif not worker.left:
                    running.remove(worker)
                    worker.end()
    finally:
        for worker in running:
            worker.end()


def of_each(
    work: Callable[[int], Any], images: Images, numbers: Sequence[int], workers: int
) -> Iterator[tuple[int, Any]]:
    """What is made of each of some images, in any order; a text as of `in_workers` where a process died of it.

    Several processes decode files. Few files are read one by one, by the process that decodes for a command; few in a
    program of a person, and what is no file, by threads.

    Args:
        work: From the number of an image to what is made of it.
        images: All of them.
        numbers: Of those that are wanted.
        workers: Processes, or threads.
    """
    if images.encoded and len(numbers) >= FORKED and can_fork():
        yield from in_workers(work, numbers, workers)
    elif images.encoded and decodes_apart():
        yield from ((number, work(number)) for number in numbers)
    else:
        with ThreadPoolExecutor(workers) as pool:
            yield from zip(numbers, pool.map(work, numbers), strict=True)
