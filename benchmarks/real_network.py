"""Verdicts on a real ImageNet ViT-Ti and real photographs: `python -m benchmarks.real_network DATA OUT [--only ...]`.

DATA holds `vit_ti16/model.safetensors` and `photos/imagenet100`. Every photograph is explained for three networks and
targets:

    as it is       its top class: "supported" is what a user hopes for
    shuffled       blocks 6 to 11 with the numbers of every parameter in random order: "supported" is false
    wrong target   a class drawn from those below the hundredth: "supported" is false
    contrast       its top class rather than its second: "supported" is what a user hopes for
    contrast, shuffled   the same of the shuffled network, its own two classes: "supported" is false

Ants and bees (`photos/ants-bees`), fifty of each, ten at a time beside another one of their kind:

    similarity           what makes each like the other one: "supported" is what a user hopes for
    similarity, shuffled   the same of the shuffled network: "supported" is false

and with one of these backgrounds:

    photographs    the other half of the 100, fifty each
    few            ten photographs of the other half, as many as a verdict needs
    shipped        the ten photographs that come with vitrail
    noise          `benchmarks/noise.py`
    DIR            any folder of images

Answers are lines of OUT (JSON), written as they come, so that a run that was stopped goes on; the table is made of all
lines, `--table` of them alone. `--part I N` takes every Nth group of ten photographs from the Ith on, so that two
processes share the work; a group is tested together, as the verb does it, and has its background in common.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitrail
from benchmarks.measure import machine
from benchmarks.noise import noise
from benchmarks.trust_power import shuffled_weights
from vitrail.data.background import FEW, open_background, photographs
from vitrail.explain import METHODS
from vitrail.explain.target import Target, choose_target, similarity
from vitrail.explain.verdict import TrustOptions, prepare
from vitrail.features.poolings import answer_by_features
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.statistics import wilson_interval

CONDITIONS = ("as it is", "shuffled", "wrong target")
CONTRASTS = ("contrast", "contrast, shuffled")
SIMILAR = ("similarity", "similarity, shuffled")
GROUP = 10  # photographs that are tested together
FULL = ("generic_attention", "conservative")
SEED = 0


def shuffled(network: ViT, seed: int) -> ViT:
    """The network whose upper half has learnt nothing."""
    other, mixed = shuffled_weights(network, seed), network.state_dict()
    half = network.config.depth // 2
    tensors = other.state_dict()
    upper = {name for name in tensors if name.startswith("blocks.") and int(name.split(".")[1]) >= half}
    other.load_state_dict({name: tensors[name] if name in upper else mixed[name] for name in tensors})
    return other.eval()


def wrong_targets(logits: Tensor, seed: int) -> Tensor:
    """For each photograph a class below its hundredth, drawn by a seed."""
    places = torch.randint(100, logits.shape[1], (len(logits),), generator=torch.Generator().manual_seed(seed))
    return logits.argsort(dim=1, descending=True).gather(1, places[:, None])[:, 0]


def groups(count: int, part: int, of: int) -> list[list[int]]:
    """Numbers of photographs that are tested together: of one half, ten at a time."""
    halves = [list(range(half, count, 2)) for half in (0, 1)]
    found = [half[first : first + GROUP] for half in halves for first in range(0, len(half), GROUP)]
    return found[part::of]


def likenesses(data: Path) -> list[tuple[list[Path], Path]]:
    """Ten photographs at a time, and another one of their kind."""
    kinds = [sorted((data / "photos" / "ants-bees" / "train" / kind).iterdir()) for kind in ("ants", "bees")]
    return [
        (files[first : first + GROUP], files[50 + first // GROUP]) for files in kinds for first in range(0, 50, GROUP)
    ]


def answers(
    model: Model,
    images: Tensor,
    background: Tensor,
    targets: Target,
    methods: Sequence[str],
) -> list[dict[str, Any]]:
    """The verdicts of each method on each image."""
    network = model.network
    with torch.no_grad():
        chosen = choose_target(network(images), targets)
    target = chosen.function or (chosen.target if chosen.contrast is None else (chosen.target, chosen.contrast))
    test = prepare(model, images, chosen, TrustOptions(background, precision="bf16", seed=SEED))
    p, effect = (each.tolist() for each in (test.evidence.p, test.evidence.effect))
    found = [
        {"evidence": one, "effect": other, "verdicts": {}, "faithful": {}} for one, other in zip(p, effect, strict=True)
    ]
    for name in methods:
        trust = test.evaluate(METHODS[name].function(network, images, target))
        for row, (word, rank) in enumerate(zip(trust.verdict, trust.drops.faithful.tolist(), strict=True)):
            found[row]["verdicts"][name], found[row]["faithful"][name] = word, rank
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what is not answered yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    parser.add_argument("--only", nargs="*", default=("photographs", "shipped"), help="backgrounds")
    parser.add_argument("--methods", nargs="*", default=FULL)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--conditions", nargs="*", default=CONDITIONS, choices=CONDITIONS + CONTRASTS + SIMILAR)
    parser.add_argument("--seed", type=int, default=SEED, help="of the shuffling and the wrong targets")
    parser.add_argument("--table", action="store_true", help="of the lines that are there")
    given = parser.parse_args(arguments)
    if given.table:
        return table(given.out)
    torch.set_num_threads(1)
    model = vitrail.load(given.data / "vit_ti16" / "model.safetensors")
    files = sorted((given.data / "photos" / "imagenet100").iterdir())[: given.count]
    images = model.tensor(files)
    networks = {
        "as it is": model.network,
        "shuffled": shuffled(model.network, given.seed),
        "wrong target": model.network,
        "contrast": model.network,
    }
    networks["contrast, shuffled"] = networks["shuffled"]
    with torch.no_grad():
        wrong = wrong_targets(torch.cat([model.network(some) for some in images.split(20)]), given.seed)
    reads = model.preprocessing
    same = {"shipped": reads.normalise(photographs(reads)), "noise": noise(reads)}
    halves = (images[1::2], images[0::2])
    done = {(*line[:3], tuple(line[3])) for line in read(given.out)}
    asked_of = [condition for condition in given.conditions if condition not in SIMILAR]
    for numbers, name, condition in product(groups(len(files), *given.part), given.only, asked_of):
        rows = [row for row in numbers if (condition, name, files[row].name, tuple(given.methods)) not in done]
        if not rows:
            continue
        other = halves[rows[0] % 2]
        known = {"photographs": other, "few": other[:: len(other) // FEW][:FEW], **same}
        background = known[name] if name in known else open_background(Path(name), reads)
        asked = Model(networks[condition], model.input, model.output)
        targets: Target = None
        if condition == "wrong target":
            targets = wrong[rows]
        elif condition in CONTRASTS:
            with torch.no_grad():
                first, second = asked.network(images[rows]).topk(2, dim=1).indices.T
            targets = first, second
        found = answers(asked, images[rows], background, targets, given.methods)
        write(given.out, condition, name, [files[row] for row in rows], given.methods, found)
    alike = answer_by_features(model)
    bare = {"similarity": alike.network, "similarity, shuffled": shuffled(alike.network, given.seed)}
    asked_of = [condition for condition in given.conditions if condition in SIMILAR]
    some = likenesses(given.data)[given.part[0] :: given.part[1]]
    for (ten, other), name, condition in product(some, given.only, asked_of):
        if (condition, name, ten[0].name, tuple(given.methods)) in done:
            continue
        background = {"photographs": halves[0], **same}[name]
        asked = Model(bare[condition], alike.input, alike.output)
        with torch.no_grad():
            target = similarity(asked.network(asked.tensor([other]))[0])
        found = answers(asked, asked.tensor(ten), background, target, given.methods)
        write(given.out, condition, name, ten, given.methods, found)
    return table(given.out)


def write(
    out: Path, condition: str, background: str, files: Sequence[Path], methods: Sequence[str], found: list[dict]
) -> None:
    """A line for each photograph."""
    with out.open("a") as file:
        for one, said in zip(files, found, strict=True):
            file.write(json.dumps([condition, background, one.name, list(methods), said]) + "\n")


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
