"""Verdicts on a real ImageNet ViT-Ti and real photographs: `python -m benchmarks.real_network DATA OUT [--only ...]`.

DATA holds `vit_ti16/model.safetensors` and `photos/imagenet100`. Every photograph is explained for three networks and
targets, with two backgrounds:

    as it is       its top class: "supported" is what a user hopes for
    shuffled       blocks 6 to 11 with the numbers of every parameter in random order: "supported" is false
    wrong target   a class drawn from those below the hundredth: "supported" is false

    photographs    the other half of the 100, fifty each
    noise          `noise_background`, which is the same for everybody

Each answer is a line of OUT (JSON), written as it comes, so that a run that was stopped goes on; the table is made of
all lines. `--part I N` takes every Nth photograph from the Ith on, so that two processes share the work.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import vitrail
from benchmarks.measure import machine
from benchmarks.trust_power import shuffled_weights
from vitrail.data.background import noise_background
from vitrail.explain import METHODS
from vitrail.explain.target import choose_target
from vitrail.explain.trial import begin
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.tasks.task import wilson_interval

CONDITIONS = ("as it is", "shuffled", "wrong target")
BACKGROUNDS = ("photographs", "noise")
FULL = ("generic_attention", "conservative")
SEED = 0


class Case(NamedTuple):
    """What one line of the file answers."""

    condition: str
    background: str
    photograph: str


def shuffled(network: ViT) -> ViT:
    """The network whose upper half has learnt nothing."""
    other, mixed = shuffled_weights(network, SEED), network.state_dict()
    half = network.config.depth // 2
    tensors = other.state_dict()
    upper = {name for name in tensors if name.startswith("blocks.") and int(name.split(".")[1]) >= half}
    other.load_state_dict({name: tensors[name] if name in upper else mixed[name] for name in tensors})
    return other.eval()


def wrong_targets(logits: Tensor) -> Tensor:
    """For each photograph a class below its hundredth, drawn by a seed."""
    places = torch.randint(100, logits.shape[1], (len(logits),), generator=torch.Generator().manual_seed(SEED))
    return logits.argsort(dim=1, descending=True).gather(1, places[:, None])[:, 0]


def cases(files: Sequence[Path], part: int, of: int, only: Sequence[str]) -> Iterator[tuple[int, Case]]:
    """All that is asked, with the photograph's number."""
    for number in range(part, len(files), of):
        for background in BACKGROUNDS:
            for condition in CONDITIONS:
                if not only or background in only or condition in only:
                    yield number, Case(condition, background, files[number].name)


def answer(model: Model, images: Tensor, background: Tensor, target: int | None, methods: Sequence[str]) -> dict:
    """The verdict of each method on one image."""
    network = model.network
    chosen = None if target is None else torch.tensor([target])
    with torch.no_grad():
        aim = choose_target(network(images), chosen)
    trial = begin(model, images, aim, references=background, precision="bf16", seed=SEED)
    verdicts = {name: trial.judge(METHODS[name].function(network, images, aim.target)).verdict[0] for name in methods}
    return {"verdicts": verdicts, "evidence": float(trial.evidence.p[0])}


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what is not answered yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--methods", nargs="*", default=FULL)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = vitrail.load(given.data / "vit_ti16" / "model.safetensors")
    files = sorted((given.data / "photos" / "imagenet100").iterdir())[: given.count]
    images = model.tensor(files)
    networks = {"as it is": model.network, "shuffled": shuffled(model.network), "wrong target": model.network}
    with torch.no_grad():
        wrong = wrong_targets(torch.cat([model.network(some) for some in images.split(20)]))
    noise, halves = noise_background(model.preprocessing), (images[1::2], images[0::2])
    done = {(*line[:3], tuple(line[3])) for line in read(given.out)}
    for number, case in cases(files, *given.part, given.only):
        if (*case, tuple(given.methods)) in done:
            continue
        asked = Model(networks[case.condition], model.input, model.output)
        background = noise if case.background == "noise" else halves[number % 2]
        target = int(wrong[number]) if case.condition == "wrong target" else None
        found = answer(asked, images[number : number + 1], background, target, given.methods)
        with given.out.open("a") as file:
            file.write(json.dumps([*case, list(given.methods), found]) + "\n")
    table(given.out)


def read(out: Path) -> list[list]:
    """The lines that are there."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []


def table(out: Path) -> None:
    """Shares of "supported" with their intervals."""
    counts: dict[tuple[str, str, str], list[bool]] = {}
    for condition, background, _, _, found in read(out):
        for method, verdict in found["verdicts"].items():
            counts.setdefault((method, background, condition), []).append(verdict == "supported")
    print("| method | background | network, target | supported | of |\n|---|---|---|---|---|")
    for (method, background, condition), supported in sorted(counts.items()):
        low, high = wilson_interval(sum(supported), len(supported))
        share = f"{100 * sum(supported) / len(supported):.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        print(f"| {method} | {background} | {condition} | {share} | {len(supported)} |")
    print(machine())


if __name__ == "__main__":
    main()
