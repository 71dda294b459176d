"""Threads, precision, compilation and micro-batches of a training: chosen once, stored in the run.

Threads depend on the size of the work (`vitrail.runtime`), micro-batches on the free memory. Precision is timed, where
bf16 can be faster.

If memory still runs out, a step is undone and repeated in micro-batches of half the size. The batch is the same, and
with it the learning rate and the steps. Micro-batches of another size are rounded differently, so their first step is
written down before it is made (`Schedule.micro_batches`), and a resumed run makes the same steps.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from vitrail.errors import RunError, byte_size, out_of_memory
from vitrail.nn import ImageToSequenceConfig, TransformerConfig, ViTConfig
from vitrail.nn.cost import flops
from vitrail.nn.networks import NetworkConfig
from vitrail.runs.settings import Execution, Optimization
from vitrail.runtime import (
    BF16_LEAST_GAIN,
    TIMED_SECONDS,
    TURNS,
    multiplies_bf16,
    pick_device,
    pick_threads,
    processors,
    time_bf16,
)
from vitrail.tasks.task import Objective
from vitrail.training.optimizer import MicroBatches

LONG_STEPS = 2000  # of a training on CUDA, from which on compiling pays
BF16_LEAST_WIDTH = 96  # what autocast itself costs leaves narrower networks too little to gain (64: 1.0 to 2.0 times)

LONG = 3.0  # seconds of a pass: a longer one is not timed twice, nor tried with more than two samples

Found = TypeVar("Found")


class Work(NamedTuple):
    """Work and memory of one sample.

    Attributes:
        flops: Of a forward pass.
        activations: Bytes stored for the backward pass, in fp32.
        weights: Bytes of a network that runs beside it, such as a teacher.
    """

    flops: float = 0.0
    activations: int = 0
    weights: int = 0


NO_WORK = Work()  # of no teacher


@cache
def work_of(network: NetworkConfig, read: int = 1) -> Work:
    """An estimate for one sample: each token of each block stores about 10 times the width and 3 times the MLP's.

    Args:
        network: Its configuration.
        read: Tokens of the longest input text; 1 for images.
    """
    match network:
        case ViTConfig():
            rows, columns = network.grid
            tokens = rows * columns + network.prefix
            return Work(flops(network), 4 * tokens * network.depth * (10 * network.width + 3 * network.mlp_width))
        case ImageToSequenceConfig(encoder=encoder):
            reader, written = work_of(encoder), network.max_length
            per_token = network.decoder_depth * (8 * encoder.width**2 + 2 * encoder.width * network.mlp_width)
            kept = 4 * written * network.decoder_depth * (16 * encoder.width + 3 * network.mlp_width)
            return Work(reader.flops + 2.0 * written * per_token, reader.activations + kept)
        case TransformerConfig(width=width, mlp_dim=mlp):
            written, per_token = 1.5 * network.decoder_depth * network.max_length, 4 * width**2 + 2 * width * mlp
            done = network.encoder_depth * read + written
            return Work(2.0 * per_token * done, int(4 * done * (10 * width + 3 * mlp)))


def pick_execution(
    chosen: Mapping[str, Any], network: NetworkConfig, optimization: Optimization, steps: int, read: int = 1
) -> tuple[Execution, list[str]]:
    """What the size of the work decides, and a sentence for each choice; precision is fp32 until it is timed.

    Args:
        chosen: Fields of `Execution` that are chosen already, by options or a configuration file.
        network: Its configuration.
        optimization: With the size of a batch.
        steps: Of the whole training.
        read: Tokens of the longest input text; 1 for images.
    """
    device = pick_device(chosen.get("device", "auto"))
    work = 3.0 * work_of(network, read).flops * optimization.batch_size
    threads, why = (chosen["threads"], "threads as requested") if "threads" in chosen else pick_threads(work)
    compiling = chosen.get("compile", device.type == "cuda" and steps >= LONG_STEPS)
    notes = [why] if device.type == "cpu" else []
    if compiling:
        notes.append("torch.compile is on")
    made: dict[str, Any] = {"compile": compiling, "workers": max(1, processors() - 1)}
    made |= {**chosen, "device": str(device), "threads": threads}
    return Execution(**made), notes


def pick_micro_batches(
    work: Work, optimization: Optimization, memory: int, beside: Work = NO_WORK
) -> tuple[int, list[str]]:
    """The number of micro-batches with which the activations of a batch take at most half of the memory.

    Args:
        work: Of one sample.
        optimization: With the size of a batch.
        memory: Bytes that are free before anything is loaded.
        beside: Of a teacher.
    """
    activations = optimization.batch_size * work.activations
    parts = max(1, -(-activations // max(1, (memory - beside.weights) // 2)))
    parts = min(optimization.batch_size, 2 ** (parts - 1).bit_length())
    if parts == 1:
        return 1, []
    need = byte_size(activations + beside.weights)
    note = f"each batch of {optimization.batch_size:,} in {parts} micro-batches: at once it would take about {need}"
    return parts, [f"{note} with the teacher" if beside != NO_WORK else note]


def sample_seconds(network: nn.Module, batch: Any, objective: Objective, precision: str, turns: int = TURNS) -> float:
    """Seconds of a forward and backward pass for each sample, after one to warm up if short, the best of a few.

    No weight moves.
    """
    device = next(network.parameters()).device
    best, start = float("inf"), time.perf_counter()
    for turn in range(turns + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss, _, _ = objective(network, batch)
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        if turn or took > LONG:
            best = min(best, took)
            if time.perf_counter() - start > TIMED_SECONDS:
                break
    return best / max(1, len(batch))


def pick_precision(
    execution: Execution,
    wanted: str,
    width: int,
    network: nn.Module,
    batch: Any,
    pair: Any,
    objective: Objective,
    most: float = math.inf,
) -> tuple[Execution, list[str], float]:
    """The faster of fp32 and bf16 by timed trial steps on a copy, where bf16 can pay at all.

    Args:
        execution: As chosen so far.
        wanted: The precision, or "auto".
        width: Of the network.
        network: Left as it is.
        batch: Samples of a trial step.
        pair: Two of them, or one, for a first look.
        objective: Of the training.
        most: Seconds of a pass that are too long.

    Returns:
        The execution with its precision, notes on it, and the seconds for each sample.
    """
    trial = copy.deepcopy(network)
    can = wanted == "auto" and width >= BF16_LEAST_WIDTH
    if not can or not multiplies_bf16(next(network.parameters()).device):
        each = sample_seconds(trial, pair, objective, execution.precision, turns=1)
        if (fit := int(min(LONG, most) / each)) > len(pair):  # what is timed here is taken from the training
            some = batch if fit >= len(batch) else batch.only(torch.arange(len(batch)) < fit)
            each = sample_seconds(trial, some, objective, execution.precision)
        return execution, ["fp32: this processor has no units for bf16"] if can else [], each

    def seconds(precision: str, count: int) -> float:
        return count * sample_seconds(trial, batch if count == len(batch) else pair, objective, precision, turns=1)

    full, half = time_bf16(seconds, len(batch), most)
    if (gain := full / half) < BF16_LEAST_GAIN:
        return execution, [f"fp32: bf16 would have {gain:.2f} times its speed (timed)"], full / len(batch)
    return replace(execution, precision="bf16"), [f"bf16: {gain:.1f} times as fast as fp32 (timed)"], half / len(batch)


def part_size(optimization: Optimization) -> int:
    """Samples in each of the `optimization.accumulate` micro-batches of a batch; the last may be smaller."""
    return -(-optimization.batch_size // optimization.accumulate)


def in_memory(work: Callable[[], Found], network: nn.Module) -> Found | None:
    """The result of some forward and backward passes; None if memory ran out, and then they are undone.

    Args:
        work: Changes no weight.
        network: Whose gradients and buffers it may change.
    """
    before = [buffer.detach().clone() for buffer in network.buffers()]
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    # after the error is gone, which holds all that was computed
    for parameter in network.parameters():
        parameter.grad = None
    with torch.no_grad():
        for buffer, value in zip(network.buffers(), before, strict=True):
            buffer.copy_(value)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def halve(optimization: Optimization, step: int, processes: int = 1) -> MicroBatches:
    """Micro-batches of half the size, from a step on.

    Args:
        optimization: The current ones.
        step: Steps that are done.
        processes: That share each micro-batch.

    Raises:
        RunError: They have one sample.
    """
    size = part_size(optimization)
    if size <= processes:
        raise memory_error(step, size)
    accumulate = min(optimization.batch_size, 2 * optimization.accumulate)
    smaller = part_size(replace(optimization, accumulate=accumulate))
    whole = optimization.batch_size
    why = f"memory ran out with micro-batches of {size}: {smaller} at a time, and batches of {whole} still"
    return MicroBatches(first=step, accumulate=accumulate, why=why)


def memory_error(step: int, size: int) -> RunError:
    """The error when micro-batches cannot be smaller."""
    problem = f"memory ran out at step {step}, with micro-batches of {size}; the weights are those of the step before"
    return RunError(problem, "a smaller --size or --image-size; or a machine with more memory: vitrail doctor")
