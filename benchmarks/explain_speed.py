"""Processor seconds of a verdict, and of as many timed passes, on one thread: `python -m benchmarks.explain_speed`.

With an argument DATA (`vit_ti16/model.safetensors`, `photos/imagenet100`): a ViT-Ti and seven photographs, against
the background that comes with vitrail. Without: a B/16 with random weights at 224 pixels, whose head is set to the
image, so that there is evidence. All of generic attention, in bfloat16. The composites, which are kept, are computed
by a verdict before those that count; how long that one takes is printed by itself. A timed pass is one of 19 images
at a time, once before and once after each verdict, divided by 19.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import vitrail
from benchmarks.measure import machine, spread
from vitrail.explain import generic_attention, trust
from vitrail.nn import Record, ViT, ViTConfig, in_bf16

TOGETHER = 19


@dataclass(frozen=True)
class WithBackground:
    """A network with background images."""

    network: ViT
    background_images: Tensor


def of_random_weights() -> tuple[WithBackground, list[Tensor]]:
    """A B/16, and an image that it finds evidence in."""
    torch.manual_seed(0)
    network = ViT(ViTConfig.from_size("B/16")).eval()
    image, background = torch.randn(1, 3, 224, 224), torch.randn(16, 3, 224, 224)
    with torch.no_grad():
        record = Record()
        network(torch.cat([image, background]), record=record)
        pooled = record["pooled"]
        torch.nn.init.normal_(network.get_parameter("head.weight"), std=0.001)[0] += pooled[0] - pooled[1:].mean(dim=0)
    return WithBackground(network, background), [image]


def seconds_of(work: Callable[[], object]) -> float:
    """Of the processor, for all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print a line for each verdict, then medians with their ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=7, help="verdicts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.data is None:
        model, images = of_random_weights()
    else:
        model = vitrail.load(given.data / "vit_ti16" / "model.safetensors")
        files = sorted((given.data / "photos" / "imagenet100").iterdir())
        images = [model.tensor([file]) for file in files[2 :: max(1, len(files) // given.count)][: given.count]]
    half, rows = in_bf16(model.network), list[tuple[int, float, float]]()
    for number in range(given.count + 1):
        image = images[max(0, number - 1) % len(images)]
        attribution, several = generic_attention(model.network, image), image.bfloat16().expand(TOGETHER, -1, -1, -1)

        def passes(several: Tensor = several) -> None:
            with torch.no_grad():
                half(several)

        if number == 0:
            passes()
        before = seconds_of(passes)
        began = time.process_time()
        found = trust(model, image, attribution, precision="bf16")
        seconds, count = time.process_time() - began, int(found.passes[0])
        one = (before + seconds_of(passes)) / 2 / TOGETHER
        of = "with the composites" if number == 0 else f"{seconds / count / one:.2f} x {count} x {1000 * one:.1f} ms"
        print(f"{found.verdict[0]}: {count} passes, {seconds:.2f} s, {of}", flush=True)
        if number:
            rows.append((count, seconds, one))
    counts, verdicts, each = zip(*rows, strict=True)
    print(
        f"passes {spread(counts)}; seconds {spread(verdicts, 2)}; a pass {spread([1000 * one for one in each], 1)} ms"
    )
    times = [seconds / count / one for count, seconds, one in rows]
    print(f"seconds / (passes x a pass): {spread(times, 2)}; of 175 passes or more: ", end="")
    print(spread([ratio for ratio, count in zip(times, counts, strict=True) if count >= 175], 2))
    print(machine())


if __name__ == "__main__":
    main()
