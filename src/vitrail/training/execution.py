"""Where and how a training is computed: device, threads, precision, compilation. Chosen once, stored in the run.

Threads go by the size of the work and by who else is running: on shared virtual cores a small network gains little
from more threads when the machine is quiet, and runs up to ten times slower when it is not. The number of threads can
change the last bits of the weights, so it is stored and used again. Precision is timed, but only where bf16 can pay.
"""

import copy
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.data.batches import Batch
from vitrail.data.feed import cores
from vitrail.errors import UsageError
from vitrail.nn import ViTConfig
from vitrail.nn.cost import flops
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.training.objectives import Objective
from vitrail.training.options import TrainOptions
from vitrail.training.settings import Execution, Optimization

STEP_FLOPS_PER_THREAD = 10e9  # training work that keeps one thread busy
SMALL_THREADS = 2  # for anything smaller; half of the processors at most (2 gained 1.1 to 1.5, 4 up to 1.6 or 0.1)
BF16_LEAST_WIDTH = 192  # narrower networks ran at 0.4 to 0.8 of their fp32 speed in bf16
BF16_LEAST_GAIN = 1.15
MATH_MOST_TOKENS = 64  # up to here, compiled on a processor, torch's math kernel took 0.8 of the flash kernel's time
MATH_MOST_HEAD_DIM = 24  # (50 tokens of 4 or 16, 17 of 24); at 50 of 32 and 197 of 16 it gained nothing or lost


def processors() -> int:
    """Processors that this process may use: those of its affinity, at most OMP_NUM_THREADS where that is set."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(limit)) if limit.isdecimal() and int(limit) else cores()


def pick_device(asked: str) -> torch.device:
    """The device asked for; "auto" takes CUDA, then MPS, then the processor.

    Raises:
        UsageError: If the device is unknown or not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return torch.device(next(kind for kind, present in there.items() if present))
    kind, _, number = asked.partition(":")
    counts = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": 1}
    numbered = not number or (number.isdecimal() and int(number) < counts.get(kind, 0))
    if not there.get(kind, False) or not numbered:
        present = ", ".join(kind for kind, present in there.items() if present)
        raise UsageError(f"device '{asked}' is not there, this machine has: {present}", "--device auto")
    return torch.device(asked)


def pick_threads(work: float, busy: float | None = None) -> tuple[int, str]:
    """Threads for a step of so many FLOPs, and why.

    Args:
        work: FLOPs of a step.
        busy: Processors that others keep busy; the load of the last minute when None.
    """
    cores = processors()
    if busy is None:
        busy = 0.0 if sys.platform == "win32" else os.getloadavg()[0]
    small = max(1, min(SMALL_THREADS, cores // 2))
    by_size = max(small, min(cores, int(work / STEP_FLOPS_PER_THREAD)))
    free = max(1, cores - round(busy))
    if free < by_size:
        return free, f"{free} of {cores} threads: others keep {busy:.1f} busy (this size would take {by_size})"
    return by_size, f"{by_size} of {cores} threads, by size: {work / 1e9:.2g} GFLOP a step"


def pick_execution(
    options: TrainOptions, network: ViTConfig, choices: Optimization, steps: int
) -> tuple[Execution, list[str]]:
    """Everything that size decides, and a sentence for each choice; precision stays fp32 until it is timed."""
    work = 3.0 * flops(network) * choices.batch_size
    return execution_for(options, work, steps, pick_attention_kernel(network, pick_device(options.device)))


def execution_for(
    options: TrainOptions, work: float, steps: int, kernel: Literal["flash", "math"] = "flash"
) -> tuple[Execution, list[str]]:
    """Where and how steps of so much work are computed, and a sentence for each choice.

    Args:
        options: What was asked for.
        work: FLOPs of a step.
        steps: Of the whole training.
        kernel: Which of torch's kernels stands behind attention where the network is compiled.
    """
    device = pick_device(options.device)
    threads, why = pick_threads(work) if options.threads is None else (options.threads, "threads as asked for")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}", "--threads 1")
    notes = [why] if device.type == "cpu" else []
    compiling = options.compile == "on" or (options.compile == "auto" and device.type == "cuda" and steps >= 2000)
    if compiling:
        notes.append("torch.compile is on" + ("; attention by torch's math kernel: small heads" * (kernel == "math")))
    workers = options.workers if options.workers is not None else max(1, processors() - 1)
    precision = "bf16" if options.precision == "bf16" else "fp32"
    execution = Execution(
        device=str(device),
        threads=threads,
        precision=precision,
        compile=compiling,
        attention_kernel=kernel if compiling else "flash",
        workers=workers,
    )
    return execution, notes


def pick_attention_kernel(network: ViTConfig, device: torch.device) -> Literal["flash", "math"]:
    """The faster kernel of torch's attention in a compiled network, by its size."""
    rows, columns = network.grid
    small = rows * columns + network.prefix <= MATH_MOST_TOKENS and network.head_width <= MATH_MOST_HEAD_DIM
    return "math" if device.type == "cpu" and small else "flash"


def compiled(network: nn.Module, execution: Execution) -> Callable[..., Tensor]:
    """The network as it is trained: compiled where that was chosen, with the attention kernel that was chosen.

    The kernel is named inside of what is compiled: the compiler's store on disk would else hand out a graph that was
    made for another one.
    """
    if not execution.compile:
        return network
    if execution.attention_kernel == "flash":
        return torch.compile(network)

    def by_math(*inputs: Tensor, record: AnyRecord = SILENT) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return network(*inputs, record=record)

    return torch.compile(by_math)


def free_memory(device: torch.device) -> int:
    """Bytes that a training may take on a device; a very large number where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")  # Linux; what the kernel could free counts as available
    lines = meminfo.read_text().splitlines() if meminfo.is_file() else []
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return available[0] if available else 2**62


class Beside(NamedTuple):
    """What works in every step beside the network that is trained: a teacher, where it is asked anew each time."""

    weights: int = 0  # bytes
    activations: int = 0  # bytes for each picture, at the most
    flops: int = 0  # for each picture


ALONE = Beside()


def pick_parts(network: ViTConfig, choices: Optimization, memory: int, beside: Beside = ALONE) -> tuple[int, list[str]]:
    """In how many parts a batch must be computed so that its activations take at most half of the memory.

    Per token and block about 10 times the width and 3 times the MLP's width are kept for the backward pass, in fp32.

    Args:
        network: What is trained.
        choices: With the size of a batch.
        memory: Bytes that are free before anything is loaded.
        beside: What takes some of them, too.
    """
    rows, columns = network.grid
    tokens = rows * columns + network.prefix
    own = 4 * tokens * network.depth * (10 * network.width + 3 * network.mlp_width)
    per_picture = own + beside.activations
    parts = max(1, -(-choices.batch_size * per_picture // max(1, (memory - beside.weights) // 2)))
    parts = min(choices.batch_size, 2 ** (parts - 1).bit_length())
    if parts == 1:
        return 1, []
    need = (choices.batch_size * per_picture + beside.weights) / 2**30
    said = f"each batch of {choices.batch_size:,} in {parts} parts: at once it would take about {need:.1f} GiB"
    return parts, [f"{said} with the teacher" if beside != ALONE else said]


def step_seconds(network: nn.Module, batch: Any, objective: Objective, precision: str, repeats: int = 3) -> float:
    """Seconds of one forward and backward pass, the best of a few after one to warm up; no weight moves."""
    device = next(network.parameters()).device
    best = float("inf")
    for turn in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss, _, _ = objective(network, batch)
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn:
            best = min(best, time.perf_counter() - began)
    return best


def pick_precision(
    execution: Execution, asked: str, config: ViTConfig, network: nn.Module, batch: Batch, objective: Objective
) -> tuple[Execution, list[str], float]:
    """The faster of fp32 and bf16 by timed trial steps on a copy, where bf16 can pay at all.

    Returns:
        The execution with its precision, what to say about it, and the seconds of one step as timed.
    """
    trial = copy.deepcopy(network)
    seconds = step_seconds(trial, batch, objective, execution.precision)
    if asked != "auto" or config.width < BF16_LEAST_WIDTH:
        return execution, [], seconds
    half = step_seconds(trial, batch, objective, "bf16")
    gain = seconds / half
    if gain < BF16_LEAST_GAIN:
        return execution, [f"fp32: bf16 would run at {gain:.2f} times its speed (timed)"], seconds
    return replace(execution, precision="bf16"), [f"bf16: {gain:.1f} times as fast as fp32 (timed)"], half
