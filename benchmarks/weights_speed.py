"""Seconds until other people's ViT-B/16 is a model: `python -m benchmarks.weights_speed [rounds]`.

timm makes the network with random numbers, saves it as its hub has it, and three contestants run in turn, each with
all numbers read to their end:

    reading     the file's tensors, and nothing else
    the folder  `vitrail.load`: reading, names, shapes, the network, whose weights they are, a digest of all numbers
    live        `vitrail.convert` of the live network: the same, and the proof that both answer alike

The goal is three seconds above reading.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf

import vitrail
from benchmarks.measure import machine, spread
from vitrail.weights.files import read_weights

NAME = "vit_base_patch16_224.augreg_in21k_ft_in1k"


def main() -> None:
    """Contestants in turn."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    module = timm.create_model(NAME, pretrained=False).eval()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_for_hf(module, folder, safe_serialization=True)
        contestants: dict[str, Callable[[], Any]] = {
            "reading": lambda: sum(float(each.sum()) for each in read_weights(folder / "model.safetensors").values()),
            "the folder": lambda: vitrail.load(folder),
            "live": lambda: vitrail.convert(module),
        }
        taken: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds + 1):  # the first warms up
            for name, call in contestants.items():
                began = time.perf_counter()
                call()
                if number:
                    taken[name].append(time.perf_counter() - began)
    print(machine(), f"threads {torch.get_num_threads()}")
    for name, values in taken.items():
        print(f"{name:<12} {spread(values, 2)} s")


if __name__ == "__main__":
    main()
