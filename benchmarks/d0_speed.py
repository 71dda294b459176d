"""G1: images per second of D0's network while training on MNIST, batch 128: the document's loop against `d0-mnist`.

    python -m benchmarks.d0_speed [rounds]

Each contestant runs in a process of its own, in turn, with one thread and as a user starts it. The recipe's network is
D0's in its right form: it also has an output projection after the heads and a final norm (1,994 numbers against 1,642),
so it does a little more work for each image, and its outputs cannot equal the document's. Images lie in memory
for both. A step is everything from the batch's pixels to the moved weights.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.measure import machine, mnist_root, spread, worker

WARMUP, LOOP_STEPS, OUR_STEPS = 10, 60, 300


def loop() -> float:
    """Images per second of the document's loop."""
    from benchmarks.documents.d0_loop import train_images_per_second
    from benchmarks.documents.mnist_arrays import load_digits

    digits = load_digits(mnist_root(), "train")
    return train_images_per_second(digits.images, digits.labels, LOOP_STEPS, warmup=WARMUP)


def ours(compiled: bool, threads: int | None) -> tuple[float, int]:
    """Images per second of vitrail's loop, and its threads; None lets vitrail choose them."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch is loaded
    import torch

    from vitrail.data.dataset import Counts
    from vitrail.options import TrainOptions
    from vitrail.training.configuration.request import Request
    from vitrail.training.configuration.resolve import resolve
    from vitrail.training.loop import StepDone, start, train_loop
    from vitrail.training.prepared import open_data, prepare_run

    root = Path(mnist_root())
    dataset, task = open_data("mnist", "auto", root, 0, Counts())
    options = TrainOptions(
        recipe="d0-mnist", threads=threads, compile="on" if compiled else "off", data_root=root, epochs=2
    )
    settings, _ = resolve(Request(data="mnist", options=options), dataset, task)
    prepared = prepare_run(settings, dataset, task)
    torch.set_num_threads(settings.execution.threads)
    state = start(prepared.network, settings.optimization)
    events = train_loop(state, prepared.data, prepared.objective, settings.optimization, settings.execution)
    images, began = 0, 0.0
    for event in events:
        if isinstance(event, StepDone):
            images += event.images
            if event.step == WARMUP:
                images, began = 0, time.perf_counter()
            if event.step == WARMUP + OUR_STEPS:
                break
    return images / (time.perf_counter() - began), settings.execution.threads


def main() -> None:
    """Rounds of all contestants in turn; a worker when called with a contestant's name."""
    if sys.argv[1:2] == ["loop"]:
        import torch

        print(json.dumps({"rate": loop(), "threads": torch.get_num_threads()}))
        return
    if sys.argv[1:2] == ["ours"]:
        rate, threads = ours(sys.argv[2] == "compiled", int(sys.argv[3]) if sys.argv[3] != "auto" else None)
        print(json.dumps({"rate": rate, "threads": threads}))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(machine())
    contestants = {
        "document, 1 thread": (("loop",), 1),
        "d0-mnist, 1 thread": (("ours", "eager", "1"), 1),
        "d0-mnist compiled, 1 thread": (("ours", "compiled", "1"), 1),
        "document, as started": (("loop",), None),
        "d0-mnist, as started": (("ours", "eager", "auto"), None),
        "d0-mnist compiled, as started": (("ours", "compiled", "auto"), None),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    threads: dict[str, int] = {}
    for _ in range(rounds):
        for name, (arguments, count) in contestants.items():
            answer = worker("d0_speed", *arguments, threads=count)
            rates[name].append(answer["rate"])
            threads[name] = answer["threads"]
    for name, values in rates.items():
        rival = rates["document, 1 thread" if "1 thread" in name else "document, as started"]
        ratios = [value / other for value, other in zip(values, rival, strict=True)]
        print(f"{name:<30} {threads[name]} threads  {spread(values)} images/s  ratio {spread(ratios, 1)}")


if __name__ == "__main__":
    main()
