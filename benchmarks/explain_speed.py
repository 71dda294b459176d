"""One image explained and scored: `python -m benchmarks.explain_speed [--threads 4]`.

A B/16 at 224 pixels with random weights (they change no timing), generic attention, then the whole of `trust`: 39
random maps, 10 draws, composites and surrogates. In float32, and with the scores' passes in bfloat16. The head is set
to the image, so that there is evidence: an image without any is settled sooner.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import machine
from vitrail.explain import generic_attention, trust
from vitrail.nn import Record, ViT, ViTConfig


@dataclass(frozen=True)
class WithBackground:
    """A network with background images."""

    network: ViT
    background_images: Tensor


def main() -> None:
    """Print the seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fp32", action="store_true", help="the score in float32 too, once: it takes minutes")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    network = ViT(ViTConfig.from_size("B/16")).eval()
    image, background = torch.randn(1, 3, 224, 224), torch.randn(16, 3, 224, 224)
    with torch.no_grad():
        record = Record()
        network(torch.cat([image, background]), record=record)
        pooled = record["pooled"]
        torch.nn.init.normal_(network.get_parameter("head.weight"), std=0.001)[0] += pooled[0] - pooled[1:].mean(dim=0)
    seconds: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        began = time.perf_counter()
        attribution = generic_attention(network, image)
        seconds.setdefault("map, fp32", []).append(time.perf_counter() - began)
        for name, on in (("score, bf16", True), ("score, fp32", False)):
            if not on and (not given.fp32 or name in seconds):
                continue
            began = time.perf_counter()
            held = trust(WithBackground(network, background), image, attribution, precision="bf16" if on else "fp32")
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            asked = f"p = {float(held.evidence):.2f} of {int(held.composites)} and {int(held.surrogates)}"
            print(f"{name}: {seconds[name][-1]:.1f} s, evidence {asked}", flush=True)
    for name, found in seconds.items():
        low, high = min(found), max(found)
        print(f"{name}: {statistics.median(found):.1f} s ({low:.1f} to {high:.1f}, n={len(found)})")
    print(machine())


if __name__ == "__main__":
    main()
