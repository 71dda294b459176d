"""Device, threads and memory of this machine; needs torch only, and `io`.

Threads go by the size of the work and by who else is running: on shared virtual cores a small network gains little
from more threads when the machine is quiet, and runs up to ten times slower when it is not. The number of threads can
change the last bits of weights, so a training stores it and uses it again.
"""

import math
import os
import platform
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from vitrail.errors import Hint, UsageError, parse_device
from vitrail.io import cores

Answer = TypeVar("Answer")

BF16_LEAST_GAIN = 1.15  # times as fast as fp32, by timed passes, from which on bf16 is taken
TURNS = 3  # of passes that are timed
DECIDED = 2.0  # times more or less than that gain, from which on one turn is enough
TIMED_SECONDS = 1.0  # of a pass, from which on no further one is timed: long ones differ little
STEP_FLOPS_PER_THREAD = 10e9  # training work that keeps one thread busy
MOMENT, MINUTE = 0.2, 60.0  # seconds
SMALL_THREADS = 2  # for anything smaller; half of the processors at most (2 gained 1.1 to 1.5, 4 up to 1.6 or 0.1)


def processors() -> int:
    """Processors that this process may use: those of its affinity, at most OMP_NUM_THREADS where that is set."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(limit)) if limit.isdecimal() and int(limit) else cores()


class Spent(NamedTuple):
    """Seconds that were spent until a moment.

    Attributes:
        at: The moment, on `time.monotonic`.
        busy: Of the processors that this process may use, by anybody.
        own: By this process.
    """

    at: float
    busy: float
    own: float


def _spent() -> Spent | None:
    """As Linux counts it; None elsewhere."""
    if sys.platform != "linux":
        return None
    mine, ticks = {f"cpu{number}" for number in os.sched_getaffinity(0)}, os.sysconf("SC_CLK_TCK")
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
        counts = [[int(number) for number in row[1:9]] for row in rows if row[0] in mine]
    except (OSError, ValueError):
        return None
    busy = sum(sum(row) - row[3] - row[4] for row in counts) / ticks  # but idle, and waiting for disks
    return Spent(time.monotonic(), busy, time.process_time())


_last = _spent()


def busy_processors() -> float:
    """How many processors others keep busy: since this was asked, or this file read, a moment ago; else for a moment.

    Where the system does not count that, the load of the last minute, of which this process is a part.
    """
    global _last
    before, now = _last, _spent()
    if before is None or now is None:
        return 0.0 if sys.platform == "win32" else os.getloadavg()[0]
    if not MOMENT <= now.at - before.at <= MINUTE:
        time.sleep(MOMENT)
        before, now = now, _spent() or now
    _last = now
    others = now.busy - before.busy - (now.own - before.own)
    return max(0.0, others / max(MOMENT, now.at - before.at))


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" takes CUDA, then MPS, then the processor.

    Raises:
        UsageError: If the device is unknown or not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, present in there.items() if present))
    kind, number = parse_device(name)
    if not there[kind] or number >= (torch.cuda.device_count() if kind == "cuda" else 1):
        present = ", ".join(kind for kind, present in there.items() if present)
        raise UsageError(f"there is no device '{name}'; this machine has {present}", Hint({"device": "auto"}))
    return torch.device(name)


def read_stated(file: str) -> dict[str, str]:
    """What a file of Linux in /proc states, a name and a value in each line; of several parts the first."""
    info = Path(file)
    lines = info.read_text().partition("\n\n")[0].splitlines() if info.is_file() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def device_name(device: torch.device) -> str:
    """The name that its maker gave an accelerator, or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return read_stated("/proc/cpuinfo").get("model name") or platform.processor() or platform.machine()


def processor_kind() -> str:
    """Maker, family and model of the processor, as numbers where Linux has them, and what torch takes from it."""
    facts = read_stated("/proc/cpuinfo")
    model = [facts.get(name, "") for name in ("vendor_id", "cpu family", "model")]
    return " ".join([platform.machine(), *model, torch.backends.cpu.get_cpu_capability()])


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a device may be faster in bf16: a processor of x86 that has no units for it is up to 16 times slower."""
    if device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def time_bf16(
    seconds: Callable[[Literal["fp32", "bf16"], int], float], count: int, most: float = math.inf
) -> tuple[float, float]:
    """Seconds of a pass over `count` samples in fp32 and in bf16, timed in turn until it is decided which to take.

    Two samples come first: where one of both takes twice as long for these, and would take long for all, it is not
    timed again. Where both would take too long, these two are timed three times, and decide.

    Args:
        seconds: Times a pass over so many samples, in either precision.
        count: At least 1.
        most: Seconds of a pass that are too long.
    """
    few = min(2, count)

    def by_few(before: Sequence[float] = (math.inf, math.inf)) -> tuple[float, float]:
        now = [seconds(precision, few) * count / few for precision in ("fp32", "bf16")]
        return min(before[0], now[0]), min(before[1], now[1])

    full, half = by_few()
    if half > max(TIMED_SECONDS, DECIDED * full):
        return full, half
    if min(full, half) > most:  # one look at two samples may be chance, where others use the processor
        return by_few(by_few((full, half)))
    if full > max(TIMED_SECONDS, DECIDED * BF16_LEAST_GAIN * half):
        gain, half = full / half, seconds("bf16", count)
        return gain * half, half
    full, half = math.inf, math.inf
    for _ in range(TURNS):
        full, half = min(full, seconds("fp32", count)), min(half, seconds("bf16", count))
        if not 1 / DECIDED < full / half / BF16_LEAST_GAIN < DECIDED or full + half > TIMED_SECONDS:
            break
    return full, half


def pick_threads(work: float, busy: float | None = None) -> tuple[int, str]:
    """Threads for a step of so many FLOPs, and why.

    Args:
        work: FLOPs of a step.
        busy: Processors that others keep busy; `busy_processors` when None.
    """
    cores = processors()
    busy = busy_processors() if busy is None else busy
    small = max(1, min(SMALL_THREADS, cores // 2))
    by_size = max(small, min(cores, int(work / STEP_FLOPS_PER_THREAD)))
    free = max(1, cores - round(busy))
    if free < by_size:
        return free, f"{free} of {cores} threads: others use {busy:.1f} cores (this size would use {by_size})"
    return by_size, f"{by_size} of {cores} threads, chosen by the size of a step ({work / 1e9:.2g} GFLOP)"


def free_memory(device: torch.device) -> int:
    """Bytes that a training may take on a device; a very large number where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = read_stated("/proc/meminfo").get("MemAvailable")  # what the kernel could free counts, too
    return int(available.split()[0]) * 1024 if available else 2**62


def peak_memory(device: torch.device) -> int | None:
    """Bytes that this process has taken on a device at most so far; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = read_stated("/proc/self/status").get("VmHWM")  # of the children, such as workers that decode, it has nothing
    return int(peak.split()[0]) * 1024 if peak else None


@contextmanager
def handling(handle: Any, *numbers: int) -> Iterator[None]:
    """Signals of these numbers are handled so for a time; in the main thread, which alone can say so."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in numbers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Torch's threads for a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_order(tasks: Iterable[Callable[[], Answer]], threads: int, ahead: int | None = None) -> Iterator[Answer]:
    """What each task returns, in turn; so many are worked on at a time, each on one thread of torch.

    A task alone on all threads has them wait for each other at the end of every operation, for the slowest where others
    use the processor, too. Tasks beside each other wait for nothing, and one decodes while another computes. What a
    task returns does not depend on how many are worked on.

    Args:
        tasks: Taken by this thread, a few ahead of what was returned.
        threads: At least 1.
        ahead: How many are taken ahead, where tasks take unequal time; as many as threads when None.
    """
    before, waiting = torch.get_num_threads(), deque[Future[Answer]]()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > (ahead or threads):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
            torch.set_num_threads(before)  # torch's next threads begin with what was set last, by whichever thread


@contextmanager
def whole_fp32() -> Iterator[None]:
    """For a time a GPU rounds no factor of a product in fp32 to TF32, whose 10 bits move answers by up to 1e-3.

    By itself torch lets it do so in convolutions; elsewhere on request.
    """
    places = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # pyrefly: ignore[missing-attribute]
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "ieee"
    try:
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
