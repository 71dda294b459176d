"""How long a training waits for its state to be saved: vitrail's copy beside `torch.save` in the loop.

python -m benchmarks.checkpoint_stall OUT [--size B/16] [--rounds 5]

The state is whole: weights, moving average and AdamW's two moments of each. In each round, in turn:

    torch.save   what a plain loop does: all of it into one file, before the next step; nothing is flushed to the disk
    vitrail      the copy that the loop waits for; one thread then hashes, writes and flushes it (`Saver`)

and the steps that are made meanwhile, beside as many when nothing is written: what the writing costs them. One copy is
written at a time, so a save also waits for the rest of the one before it: that is timed where the next save comes at
once, and behind these steps. The end of a run, and a stop, wait like the first of the two.
"""

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.measure import machine, spread
from vitrail.nn import ViT, ViTConfig
from vitrail.runs.settings import Optimization
from vitrail.training.checkpoint import Saver, copy_state, save_state
from vitrail.training.loop import State, start


def state_of(size: str) -> State:
    """A training's state behind its first step."""
    torch.manual_seed(0)
    state = start(ViT(ViTConfig.from_size(size, classes=1_000)), Optimization(ema_decay=0.999))
    for parameter in state.network.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    state.optimizer.step()
    state.totals = {"loss": torch.zeros((), dtype=torch.float64)}
    return state


def step(network: nn.Module, images: torch.Tensor) -> None:
    """What a step computes; no weight moves."""
    network(images).logsumexp(1).sum().backward()
    network.zero_grad()


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="B/16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    state, images = state_of(asked.size), torch.randn(2, 3, 224, 224)
    assert state.average is not None
    plain = {
        "network": state.network.state_dict(),
        "average": state.average.network.state_dict(),
        "optimizer": state.optimizer.state_dict(),
    }
    kept: dict[str, list[float]] = {
        name: [] for name in ("torch.save", "vitrail", "at once", "rest", "quiet", "beside")
    }
    step(state.network, images)
    for turn in range(asked.rounds + 1):
        found = {"torch.save": seconds(lambda: torch.save(plain, asked.out / "plain.pt"))}
        (asked.out / "plain.pt").unlink()
        found["quiet"] = sum(seconds(lambda: step(state.network, images)) for _ in range(asked.steps))
        with Saver() as saver:

            def save() -> None:
                copy = copy_state(state)
                saver.later(lambda: save_state(copy, asked.out / "resume", {}))

            found["vitrail"] = seconds(save)
            found["at once"] = seconds(saver.wait)
            save()
            found["beside"] = sum(seconds(lambda: step(state.network, images)) for _ in range(asked.steps))
            found["rest"] = seconds(saver.wait)
        for name, value in found.items():
            kept[name] += [value] if turn else []  # the first warms up
    size = sum(file.stat().st_size for file in (asked.out / "resume").rglob("*.safetensors")) / 2 / 1e9
    shutil.rmtree(asked.out / "resume")
    print(machine())
    print(f"{asked.size}: {size:.2f} GB, {asked.rounds} rounds, {torch.get_num_threads()} threads")
    for name, words in (
        ("torch.save", "the loop waits for torch.save"),
        ("vitrail", "the loop waits for the copy"),
        ("quiet", f"{asked.steps} steps, nothing is written"),
        ("beside", f"{asked.steps} steps beside the writing"),
        ("at once", "a save at once waits for the former"),
        ("rest", "a save behind these steps does"),
    ):
        print(f"    {words:<36} {spread(kept[name], 3)} s")
    for words, own in (
        ("torch.save / copy", ("vitrail",)),
        ("torch.save / copy and wait at once", ("vitrail", "at once")),
    ):
        ratios = [plain / sum(kept[name][turn] for name in own) for turn, plain in enumerate(kept["torch.save"])]
        print(f"    {words:<36} {spread(ratios, 1)}")


if __name__ == "__main__":
    main()
