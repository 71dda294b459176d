"""A few compiled training steps, against eager ones; prints a JSON line.

    python -m tests.training.compile_worker

Annotations are not checked in this process, since compilers cannot see through the check.
"""

import json
from dataclasses import replace

import torch
from torch import Tensor

from tests.training.lab import CHOICES, EXECUTION, cross_entropy, fresh, tiny_set
from vitrail.nn import ViTConfig
from vitrail.runs.settings import Execution
from vitrail.training.loop import StepDone, train_loop

SMALL = ViTConfig(image_size=8, patch_size=4, channels=1, classes=3, width=8, depth=1, heads=2)


def trained(execution: Execution) -> tuple[Tensor, Tensor]:
    """All weights after four steps and before."""
    choices = replace(CHOICES, ema_decay=0.0)
    state = fresh(SMALL, choices)
    before = torch.cat([parameter.detach().flatten() for parameter in state.network.parameters()])
    for event in train_loop(state, tiny_set(), cross_entropy, choices, execution):
        if isinstance(event, StepDone) and event.step == 4:
            break
    return torch.cat([parameter.detach().flatten() for parameter in state.network.parameters()]), before


def main() -> None:
    eager, start = trained(EXECUTION)
    weights, _ = trained(replace(EXECUTION, compile=True))
    distance, moved = (weights - eager).abs().max().item(), (eager - start).abs().max().item()
    print(json.dumps({"distance": distance, "moved": moved}))


if __name__ == "__main__":
    main()
