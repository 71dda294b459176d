"""When memory runs out: what was begun leaves nothing behind, and is done again in micro-batches of half the size.

The batch stays what it is, and with it the rate, the steps, and who is seen in which of them. What is computed in other
micro-batches is rounded otherwise; so the step from which on they are smaller is written before it is taken
(`Schedule.micro_batches`), and a run that goes on takes the same steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from vitrail.errors import RunError, out_of_memory
from vitrail.training.schedule import MicroBatches
from vitrail.training.settings import Optimization

Found = TypeVar("Found")


def part_size(choices: Optimization) -> int:
    """Samples in each of the `choices.accumulate` micro-batches of a batch; the last may be smaller."""
    return -(-choices.batch_size // choices.accumulate)


def in_memory(work: Callable[[], Found], network: nn.Module) -> Found | None:
    """What some forward and backward passes give; None where memory ran out, and then nothing of them stays.

    Args:
        work: Moves no weight.
        network: Whose gradients and buffers it may change.
    """
    before = [buffer.detach().clone() for buffer in network.buffers()]
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    # behind the error, which holds all that was computed until then
    for parameter in network.parameters():
        parameter.grad = None
    with torch.no_grad():
        for buffer, value in zip(network.buffers(), before, strict=True):
            buffer.copy_(value)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def halved(choices: Optimization, step: int, processes: int = 1) -> MicroBatches:
    """Micro-batches of half the size, from a step on.

    Args:
        choices: As they are; `accumulate` as it was until then.
        step: Steps that are done.
        processes: That share each micro-batch.

    Raises:
        RunError: They hold one sample.
    """
    size = part_size(choices)
    if size <= processes:
        raise full(step, size)
    accumulate = min(choices.batch_size, 2 * choices.accumulate)
    smaller = part_size(replace(choices, accumulate=accumulate))
    why = f"memory ran out with micro-batches of {size}: {smaller} at a time, and batches of {choices.batch_size} still"
    return MicroBatches(first=step, accumulate=accumulate, why=why)


def full(step: int, size: int) -> RunError:
    """What is said where smaller micro-batches help no more."""
    problem = f"memory ran out at step {step}, with micro-batches of {size}; the weights are those of the step before"
    return RunError(problem, "a smaller --size or --image-size; or a machine with more memory: vitrail doctor")
