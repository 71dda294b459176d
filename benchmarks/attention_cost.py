"""What attention costs beside the fused kernel: `python -m benchmarks.attention_cost`.

S/16 at 224 pixels. A plain forward pass, the same with a record, with the weights of the last layer for the row that is
read out (raw attention) and with those of all layers (rollout); beside them the default explanation, which also goes
back. They run in turn, so that a change of load meets them all; the ratio is that of one turn, its median what counts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.measure import machine, spread
from vitrail.explain import generic_attention, raw_attention, rollout
from vitrail.nn import Record, ViT, ViTConfig

TURNS = 25
WARM = 3


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def contestants(network: ViT, images: torch.Tensor) -> dict[str, Callable[[], object]]:
    """A forward pass, and what is asked of attention beside it."""

    def plain() -> torch.Tensor:
        with torch.no_grad():
            return network(images)

    def recorded() -> Record:
        record = Record("blocks.*.attention")
        with torch.no_grad():
            network(images, record)
        return record

    def row_of_last() -> torch.Tensor:
        with torch.no_grad():
            return recorded().attention(f"blocks.{network.config.depth - 1}", queries=[0])

    return {
        "forward": plain,
        "forward with a record": recorded,
        "record, readout row of the last layer": row_of_last,
        "raw_attention": lambda: raw_attention(network, images),
        "rollout": lambda: rollout(network, images),
        "generic_attention": lambda: generic_attention(network, images),
    }


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    network = ViT(ViTConfig.from_size("S/16")).eval().requires_grad_(False)
    torch.nn.init.normal_(network.head.weight, std=0.02)  # an untrained head is zero, and nothing would flow back
    calls = contestants(network, torch.randn(given.batch, 3, 224, 224))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM + given.turns):
        for name, call in calls.items():
            milliseconds = timed(call)
            if turn >= WARM:
                taken[name].append(milliseconds)
    ratios = {
        name: [one / plain for one, plain in zip(times, taken["forward"], strict=True)] for name, times in taken.items()
    }
    for name in calls:
        print(f"{name}: {spread(taken[name], 1)} ms, {spread(ratios[name], 2)} forward passes")
    print(f"batch {given.batch}, {given.threads} thread(s); {machine()}")
    print(json.dumps({name: statistics.median(values) for name, values in ratios.items()}))


if __name__ == "__main__":
    main()
