"""A few compiled training steps by each attention kernel, against eager ones; prints a JSON line each.

    python -m tests.training.compile_worker flash math

Annotations are not checked in this process, since compilers cannot see through the check.
"""

import json
import sys
from dataclasses import replace

import torch
from torch import Tensor
from torch.profiler import profile

from tests.training.lab import CHOICES, EXECUTION, cross_entropy, fresh, tiny_set
from vitrail.nn import ViTConfig
from vitrail.runs.settings import Execution
from vitrail.training.loop import StepDone, train_loop

SMALL = ViTConfig(image_size=8, patch_size=4, channels=1, classes=3, width=8, depth=1, heads=2)


def trained(execution: Execution) -> tuple[Tensor, Tensor, int]:
    """All weights after four steps and before, and how often the flash kernel ran."""
    choices = replace(CHOICES, ema_decay=0.0)
    state = fresh(SMALL, choices)
    before = torch.cat([parameter.detach().flatten() for parameter in state.network.parameters()])
    with profile() as profiler:
        for event in train_loop(state, tiny_set(), cross_entropy, choices, execution):
            if isinstance(event, StepDone) and event.step == 4:
                break
    calls = sum(row.count for row in profiler.key_averages() if "flash_attention" in row.key)
    return torch.cat([parameter.detach().flatten() for parameter in state.network.parameters()]), before, calls


def main(kernels: list[str]) -> None:
    eager, start, _ = trained(EXECUTION)
    for kernel in kernels:
        torch._dynamo.reset()
        weights, _, calls = trained(replace(EXECUTION, compile=True, attention_kernel=kernel))
        distance, moved = (weights - eager).abs().max().item(), (eager - start).abs().max().item()
        print(json.dumps({"kernel": kernel, "distance": distance, "moved": moved, "flash calls": calls}))


if __name__ == "__main__":
    main(sys.argv[1:])
