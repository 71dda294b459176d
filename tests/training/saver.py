"""A process that is killed while it saves, again and again; started by test_checkpoint.

It forks a child that saves one state after another, kills it with SIGKILL at a random moment, and loads what is left.
Every tensor of a state holds the number of its step, so a mixture of two states is seen. Prints one line a round.
"""

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tests.training.lab import TINY, bits, fresh
from vitrail.training.checkpoint import load_state, save_state
from vitrail.training.loop import State


def at_step(step: int) -> State:
    """A state whose every number is its step."""
    state = fresh(TINY)
    for parameter in state.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()
    state.step, state.epoch, state.batch = step, step, step
    state.totals = {"loss": torch.zeros((), dtype=torch.float64)}
    with torch.no_grad():
        for tensor in (*state.network.parameters(), *state.average.network.parameters(), *state.totals.values()):
            tensor.fill_(step)
        for values in state.optimizer.state.values():
            for tensor in values.values():
                tensor.fill_(step)
        state.gradient_norm.fill_(step)
    return state


def save_for_ever(folder: Path, first: int) -> None:
    """Save until somebody kills us."""
    for step in itertools.count(first):
        save_state(at_step(step), folder, {"metrics_bytes": step})


def main(folder: Path, rounds: int) -> None:
    """Kill and look, `rounds` times."""
    torch.set_num_threads(1)
    moments, reached = random.Random(0), 0
    for _ in range(2):  # the first warms up
        began = time.perf_counter()
        save_state(at_step(0), folder, {"metrics_bytes": 0})
        one = time.perf_counter() - began  # seconds of a save, on this machine and under its load
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            save_for_ever(folder, reached + 1)
        time.sleep(moments.uniform(0.2, 8.0) * one)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = at_step(10**6)
        manifest, notes = load_state(state, folder)
        assert not notes, notes
        assert manifest["metrics_bytes"] == state.step >= reached
        assert all(bool((tensor == state.step).all()) for tensor in bits(state).values()), "two states are mixed"
        reached = state.step
        print("whole", reached, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
