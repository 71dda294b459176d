"""Images per second by threads and batch: what choosing these by timed passes, as the precision is, would gain.

python -m benchmarks.choices [--sizes Ti/16 S/16 B/16] [--rounds 5]

    a thread each      as many batches under way as torch has threads, each one thread's (what vitrail does, with 16)
    all on one         one batch at a time, its matrix products shared among all threads

The forms run in turn within each round; given are the median of the rounds and their range.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from benchmarks.measure import machine
from vitrail.nn import ViT, ViTConfig, in_bf16

BATCHES = (1, 2, 4, 8, 16, 32)
IMAGES = {"Ti/16": 64, "S/16": 32, "B/16": 32}


def a_thread_each(network: nn.Module, batch: int, images: int, threads: int) -> float:
    """Images per second with as many batches under way as there are threads."""
    torch.set_num_threads(1)
    inputs = torch.randn(batch, 3, 224, 224)

    def one(_: int) -> None:
        with torch.no_grad():
            network(inputs)

    tasks = max(threads, images // batch)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(one, range(threads)))
        began = time.perf_counter()
        list(pool.map(one, range(tasks)))
        return tasks * batch / (time.perf_counter() - began)


def all_on_one(network: nn.Module, batch: int, images: int, threads: int) -> float:
    """Images per second with all threads at one batch."""
    torch.set_num_threads(threads)
    inputs = torch.randn(batch, 3, 224, 224)
    with torch.no_grad():
        network(inputs)
        began = time.perf_counter()
        for _ in range(max(1, images // batch)):
            network(inputs)
        return max(1, images // batch) * batch / (time.perf_counter() - began)


def main() -> None:
    """Print a table for each size and precision."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", default=list(IMAGES))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    threads = torch.get_num_threads()
    print(machine())
    for size in asked.sizes:
        torch.manual_seed(0)
        network = ViT(ViTConfig.from_size(size, classes=1000)).eval()
        for precision, made in (("fp32", network), ("bf16", in_bf16(network))):
            rates: dict[tuple[str, int], list[float]] = {}
            for _ in range(asked.rounds):
                for batch in BATCHES:
                    for name, form in (("a thread each", a_thread_each), ("all on one", all_on_one)):
                        rates.setdefault((name, batch), []).append(form(made, batch, IMAGES[size], threads))
            usual = statistics.median(rates["a thread each", 16])
            print(f"\n{size} {precision}, {threads} threads, n={asked.rounds}")
            for (name, batch), found in rates.items():
                middle = statistics.median(found)
                spread = f"({min(found):.1f} to {max(found):.1f})"
                print(f"  {name:14} {batch:3}  {middle:7.1f} images/s {spread:18} {middle / usual:.2f}", flush=True)


if __name__ == "__main__":
    main()
