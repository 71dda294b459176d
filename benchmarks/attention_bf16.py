"""Attention in bf16 on a processor, written out and by torch's fused kernel: `python -m benchmarks.attention_bf16`.

Whole training steps (forward, backward, AdamW) and forward passes of several networks, in turn, on one thread: in fp32,
and in bf16 by autocast with either form of attention. Answers are compared first: how far each is from fp32.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from benchmarks.measure import machine, spread
from vitrail.nn import Attention, ViT, ViTConfig, attend
from vitrail.nn.record import Keys, Mask, Queries

SMALL = replace(ViTConfig.from_size("Ti/7", image_size=28, channels=1, classes=10), width=64, depth=6, heads=4)
NETWORKS = {
    "width 64, 17 tokens": (replace(SMALL, mlp_dim=None), 128),
    "width 64, 50 tokens": (replace(SMALL, mlp_dim=None, patch_size=4), 128),
    "Ti/16": (ViTConfig.from_size("Ti/16"), 8),
    "S/16": (ViTConfig.from_size("S/16"), 8),
    "B/16": (ViTConfig.from_size("B/16"), 8),
}


def fused(queries: Queries, keys: Keys, values: Keys, mask: Mask | None = None, dropout: float = 0.0) -> Queries:
    """What `attend` is in every other precision."""
    return F.scaled_dot_product_attention(queries, keys, values)


FORMS = {"fp32": (attend, False), "bf16, fused kernel": (fused, True), "bf16, written out": (attend, True)}


def contestants(network: ViT, images: torch.Tensor) -> tuple[dict[str, Callable[[], object]], ...]:
    """Forward passes and training steps by their names."""
    optimizer = torch.optim.AdamW(network.parameters(), 1e-6, fused=True)
    labels = torch.zeros(len(images), dtype=torch.long)

    def logits(form: str) -> torch.Tensor:
        form_of, bf16 = FORMS[form]
        for part in network.modules():
            if isinstance(part, Attention):
                part.attend = form_of
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return network(images).float()

    def step(form: str) -> None:
        F.cross_entropy(logits(form), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    forward = {form: torch.no_grad()(lambda form=form: logits(form)) for form in FORMS}
    return forward, {form: lambda form=form: step(form) for form in FORMS}


def main() -> None:
    """Print medians in milliseconds of this process's processor time, with ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(machine(), flush=True)
    for name, (config, batch) in NETWORKS.items():
        torch.manual_seed(0)
        network = ViT(config)
        torch.nn.init.normal_(network.head.weight, std=0.05)
        images = torch.randn(batch, config.channels, *config.image)
        forward, step = contestants(network, images)
        whole = forward["fp32"]()
        for form in FORMS:
            gap = (forward[form]() - whole).norm() / whole.norm()
            print(f"{name}: {form}: relative gap of the logits {gap:.1e}", flush=True)
        for what, calls in (("forward", forward), ("training step", step)):
            seconds = {form: list[float]() for form in FORMS}
            for turn in range(rounds + 1):
                for form, call in calls.items():
                    began = time.process_time()
                    call()
                    if turn:  # the first warms up
                        seconds[form].append(1000 * (time.process_time() - began))
            best = statistics.median(seconds["bf16, fused kernel"])
            for form, each in seconds.items():
                ratio = best / statistics.median(each)
                print(f"{name}, {batch} images, {what}: {form}: {spread(each)} ms, {ratio:.2f}x the kernel", flush=True)


if __name__ == "__main__":
    main()
