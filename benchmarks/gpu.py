"""G4, G5, G6, G8: ViTs on one GPU against timm, torchvision, transformers and vit-pytorch (where that is installed).

    python -m benchmarks.gpu --out gpu.json [--sizes B S L] [--rows train memory infer one] [--budget 480]
    python -m benchmarks.gpu --device cpu --tiny     a rehearsal anywhere: its numbers say nothing

    train    images per second of a step: forward, cross-entropy, backward, AdamW; images lie on the device
    memory   peak of such a step in MB an image, weights and AdamW's moments left out, and in all
    infer    images per second
    one      milliseconds from one image on the device to its logits there, median of many calls

Every network is drawn, and `vitrail.convert` proves in fp32 that ours answers as it does; ours has timm's weights.
Contestants take turns in one process, and a round is one turn of each. Ratios are taken round by round.

T is tuned, alike for all: bf16 (autocast in training, bf16 weights else), the fastest attention kernel of three,
torch.compile of each block, which stands for all blocks (--compile whole for the whole network, which vit-pytorch
always gets: its blocks are no modules), fused AdamW, and for one image a CUDA graph of the whole forward pass. The
batch is the one of a few at which timm is fastest. D is what the others' documentation does: eager; training in fp16
autocast with a gradient scaler (train.py --amp of timm and torchvision) or in fp32 (transformers, vit-pytorch), all
else in fp32; at a batch of its own, since fp32 takes more memory.
"""

import argparse
import copy
import gc
import json
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_networks import (
    PEERS,
    SIZES,
    TINY,
    Shape,
    answer,
    attention_for,
    compiled,
    networks,
    seconds,
    synchronize,
)
from benchmarks.measure import machine, spread
from vitrail.weights.published import logit_gap

PACKAGES = ("torch", "triton", "timm", "torchvision", "transformers", "vit-pytorch")
ROWS = ("train", "memory", "infer", "one")
UNITS = {"train": "images/s", "memory": "MB/image", "infer": "images/s", "one": "ms"}
AMP = ("timm", "torchvision")  # whose documented training is in half precision


@dataclass
class Found:
    """What one contestant showed in one row.

    Attributes:
        values: One of each round.
        facts: Batch, graphs that were compiled, seconds of building, and what else is to be known.
    """

    size: str
    row: str
    name: str
    form: str
    values: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


# ---- one turn


def latency(call: Callable[[], Any], device: str, calls: int) -> float:
    """Median milliseconds of a call whose answer is waited for."""
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        synchronize(device)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


class Bench:
    """All contestants of one size in one row after another."""

    def __init__(self, typed: argparse.Namespace) -> None:
        self.typed, self.began = typed, time.perf_counter()
        self.device, self.least = typed.device, 0.01 if typed.tiny else 0.5
        self.found: list[Found] = []
        self.about: dict[str, Any] = {"machine": machine(), "proof": {}, "attention": {}, "arguments": vars(typed)}
        self.about["versions"] = {name: _version(name) for name in PACKAGES}
        self.about["gpu"] = _gpu() if self.device != "cpu" else "none"

    def over(self) -> bool:
        """Whether the seconds are spent."""
        return time.perf_counter() - self.began > self.typed.budget

    def write(self) -> None:
        """Everything so far."""
        self.about["seconds"] = round(time.perf_counter() - self.began)
        text = json.dumps({**self.about, "found": [asdict(one) for one in self.found]}, indent=1, default=str)
        Path(self.typed.out).write_text(text + "\n")

    # ---- contestants

    def trainer(self, name: str, form: str, shape: Shape, base: nn.Module, batch: int) -> Callable[[], Any]:
        """A step of training."""
        module = copy.deepcopy(base).train()
        tuned = form == "T"
        scaled = not tuned and name in AMP
        call = compiled(module, shape.depth, self.typed.compile if tuned else "off", self.typed.mode)
        images, labels = self.images(shape, batch), torch.randint(shape.classes, (batch,), device=self.device)
        fused = True if tuned or name == "transformers" else None
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=fused)
        scaler = torch.amp.GradScaler(self.device, enabled=scaled)
        half = torch.bfloat16 if tuned else torch.float16

        def step() -> Tensor:
            with torch.autocast(self.device, half) if tuned or scaled else nullcontext():
                loss = F.cross_entropy(call(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        return step

    def reader(self, name: str, form: str, shape: Shape, base: nn.Module, batch: int) -> Callable[[], Any]:
        """A forward pass; of one image as a CUDA graph."""
        tuned = form == "T"
        number = torch.bfloat16 if tuned else torch.float32
        module, images = copy.deepcopy(base).eval().to(number), self.images(shape, batch).to(number)
        call = compiled(module, shape.depth, self.typed.compile if tuned else "off", self.typed.mode)

        @torch.no_grad()
        def read() -> Tensor:
            return call(images)

        if batch > 1 or not tuned or self.device == "cpu":
            return read
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                read()
        torch.cuda.current_stream().wait_stream(stream)
        graph, given = torch.cuda.CUDAGraph(), images.clone()
        with torch.cuda.graph(graph):
            logits = read()

        def replay(keeps: Any = read) -> Tensor:  # the weights: a graph holds their addresses alone
            images.copy_(given)
            graph.replay()
            return logits

        return replay

    def images(self, shape: Shape, batch: int) -> Tensor:
        """Noise on the device, the same for all."""
        torch.manual_seed(batch)
        return torch.randn(batch, 3, shape.image, shape.image, device=self.device)

    # ---- rows

    def build(
        self, found: Found, shape: Shape, base: nn.Module, batch: int, make: Callable[..., Any]
    ) -> Callable[[], Any] | None:
        """A contestant that has run a few times, with what that cost; None, and why, where it does not run."""
        stats = torch._dynamo.utils.counters["stats"]
        before, graphs, began = self.allocated(), stats["unique_graphs"], time.perf_counter()
        try:
            call = make(found.name, found.form, shape, base, batch)
            for _ in range(4):
                call()
            found.facts |= self.shown(call().detach().float(), found.form, shape, base)
            if self.device != "cpu":
                held = torch.cuda.memory_allocated() - before
                torch.cuda.reset_peak_memory_stats()
                call()
                peak = torch.cuda.max_memory_allocated() - before
                found.facts |= {"peak MB": peak / 1e6, "held MB": held / 1e6}
        except Exception as error:  # the others are to run
            found.facts["failed"] = f"{type(error).__name__}: {str(error)[:500]}"
            traceback.print_exc(limit=-3)
            return None
        took = round(time.perf_counter() - began, 1)
        found.facts |= {"batch": batch, "graphs": stats["unique_graphs"] - graphs, "build s": took}
        print(f"  {found.name} {found.form}, batch {batch}: built in {took} s", flush=True)
        return call

    @torch.no_grad()
    def shown(self, given: Tensor, form: str, shape: Shape, base: nn.Module) -> dict[str, float]:
        """The loss of the fifth step; else how far the answers lie from those of the network as it was drawn."""
        if given.dim() == 0:
            return {"loss": given.item()}
        few = self.images(shape, len(given))[:8].to(torch.bfloat16 if form == "T" else torch.float32).float()
        gap = logit_gap(given[:8], answer(base, few))
        assert gap < 0.1, f"the answers lie {gap:.2f} of the largest logit gap_of"
        return {"gap": gap}

    def allocated(self) -> int:
        """Bytes on the device."""
        gc.collect()
        return torch.cuda.memory_allocated() if self.device != "cpu" else 0

    def row(self, size: str, row: str, shape: Shape, bases: dict[str, nn.Module]) -> None:
        """All contestants, in turn; the row of memory comes with that of training."""
        make = self.trainer if row == "train" else self.reader
        batches = (1,) if row == "one" else shape.train if row == "train" else shape.infer
        batch, swept = batches[0], {}
        for one in batches if len(batches) > 1 else ():
            call = self.build(Found(size, row, "timm", "T"), shape, bases["timm"], one, make)
            if call:
                swept[one] = round(one / seconds(call, self.device, self.least))
                del call
                batch = max(swept, key=swept.__getitem__)
        runs: list[tuple[Found, Callable[[], Any]]] = []
        for form in self.typed.forms:
            for name, base in bases.items():
                if self.over() or (form, name) == ("D", "vitrail"):
                    continue
                found = Found(size, row, name, form, facts={"timm's img/s by batch": swept})
                call = self.build(found, shape, base, batch if form == "T" or row == "one" else shape.default, make)
                self.found.append(found)
                if call:
                    runs.append((found, call))
        for turn in range(self.typed.rounds):
            for found, call in runs[turn % 2 * (len(runs) - 1) :: 1 - turn % 2 * 2]:  # there and back
                if row == "one":
                    value = latency(call, self.device, 5 if self.typed.tiny else 200)
                else:
                    value = found.facts["batch"] / seconds(call, self.device, self.least)
                found.values.append(value)
            self.write()
            if self.over():
                break
        if row == "train" and self.device != "cpu":
            self.found += [_memory(found) for found, _ in runs]
        self.write()

    def run(self) -> None:
        """Size by size."""
        shapes = TINY if self.typed.tiny else SIZES
        for size in self.typed.sizes:
            if self.over():
                break
            bases, proof = networks(shapes[size], self.device, self.typed.peers)
            self.about["proof"][size] = proof
            print(f"{size}: gaps in fp32 {proof}", flush=True)
            with attention_for(shapes[size], self.device) as times:
                self.about["attention"][size] = times
                print(f"{size}: attention, ms forward and backward: {times}", flush=True)
                for row in dict.fromkeys("train" if row == "memory" else row for row in self.typed.rows):
                    if not self.over():
                        print(f"{size}: {row}, {time.perf_counter() - self.began:.0f} s so far", flush=True)
                        self.row(size, row, shapes[size], bases)
                    torch._dynamo.reset()
                    gc.collect()
                    if self.device != "cpu":
                        torch.cuda.empty_cache()


def _memory(found: Found) -> Found:
    """The row of memory of one that trained."""
    batch, peak, held = found.facts["batch"], found.facts["peak MB"], found.facts["held MB"]
    facts = {"batch": batch, "in all MB": round(peak / batch, 1)}
    return Found(found.size, "memory", found.name, found.form, [(peak - held) / batch], facts)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not here"


def _gpu() -> str:
    """Name, memory, driver, clocks and power as nvidia-smi says them; the name alone where it is not there."""
    asked = "name,memory.total,driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return torch.cuda.get_device_name()


def table(about: dict[str, Any], found: list[Found]) -> str:
    """Everything as Markdown."""
    there = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines = [f"{about['gpu']}; {about['machine']}", "", there, ""]
    lines += [f"Attention, ms: {about['attention']}. Gaps in fp32: {about['proof']}", ""]
    lines += ["| row | contestant | batch | median (smallest to largest, n) | ours is so many times as good | graphs |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in found:
        ours = next((f for f in found if (f.size, f.row, f.name) == (one.size, one.row, "vitrail")), None)
        values = spread(one.values, 0 if one.row in ("train", "infer") else 3) if one.values else "-"
        ratio = ""
        if ours and ours is not one and one.values:
            pairs = zip(ours.values, one.values, strict=False)
            ratio = spread([a / b if one.row in ("train", "infer") else b / a for a, b in pairs], 2)
        note = one.facts.get("failed") or one.facts.get("graphs", "")
        what = f"{one.size}/16 {one.row}, {UNITS[one.row]}"
        lines.append(f"| {what} | {one.name} {one.form} | {one.facts.get('batch', '')} | {values} | {ratio} | {note} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="gpu.json")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["B", "S", "L"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="timm must be among them")
    parser.add_argument("--forms", nargs="+", choices=("T", "D"), default=["T", "D"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=480, help="seconds after which nothing new begins")
    parser.add_argument("--compile", choices=("blocks", "whole", "off"), default="blocks")
    parser.add_argument("--mode", default="default", help="of torch.compile, such as max-autotune-no-cudagraphs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    bench = Bench(parser.parse_args())
    torch._dynamo.config.recompile_limit = 64  # else a block behind the eighth could run eager, and nobody would know
    torch._functorch.config.enable_autograd_cache = False  # it does not know which attention kernel was chosen
    bench.run()
    print(table(bench.about, bench.found))


if __name__ == "__main__":
    main()
