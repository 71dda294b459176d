"""The small networks of the lab with known truth: `python -m benchmarks.planted_networks [NAME ...]`.

They are what tests and benchmarks of explanations run on; the committed ones lie in tests/explain/networks, in half
precision. For each of three seeds:

    class-S     the recipe `planted`: a class token, one digit in a picture
    mean-S      the same network without a class token, which reads the mean of its patches
    pairs-S     two digits in a picture, both labels: each class by itself, yes or no

and three that know nothing of digits:

    shuffled-0  learnt from labels that were dealt out at random, of 120,000 pictures: too many to know by heart
    memorised-0 learnt 1,000 pictures by heart, whose labels were dealt out at random
    untrained-0 as before training; heads, which are then zero, are drawn too, as no map would show anything otherwise
"""

import argparse
import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import vitrail
from benchmarks.measure import machine
from vitrail.data.batches import Batch
from vitrail.data.pictures import ArrayPictures
from vitrail.data.readers.planted import CLASSES, COUNTS, planted_digits
from vitrail.data.references import make_references
from vitrail.data.source import Source, Split, open_source
from vitrail.explain.lending import without_evidence
from vitrail.explain.scores.sanity import scrambled
from vitrail.model import Model
from vitrail.training.loop import EpochDone, start, train_loop
from vitrail.training.objectives import Network, Objective, classification
from vitrail.training.prepare import build, resolve

PLACE = Path(__file__).parent.parent / "tests" / "explain" / "networks"
SEEDS = (0, 1, 2)
TAUGHT = tuple(f"{kind}-{seed}" for kind in ("class", "mean", "pairs") for seed in SEEDS)
NAMES = (*TAUGHT, "shuffled-0", "memorised-0", "untrained-0")
BY_HEART = 1000  # pictures that `memorised-0` knows
PAIRS = len(CLASSES)  # a pair of labels is one number: first * PAIRS + second


def pairs_source() -> Source:
    """Pictures with two digits; the label is the number of the pair."""
    splits = {}
    for name, count in COUNTS.items():
        made = planted_digits(name, count, "double")
        labels = made.labels[:, 0] * PAIRS + made.labels[:, 1]
        splits[name] = Split(ArrayPictures(made.pixels, f"planted-double/{name}"), labels)
    one = open_source("planted")
    return replace(
        one, name="planted-double", train=splits["train"], validation=splits["validation"], test=splits["test"]
    )


def shuffled_source() -> Source:
    """The set `planted` with its training labels dealt out at random."""
    one = open_source("planted")
    labels = np.random.default_rng(0).permutation(one.train.labels)
    return replace(one, train=Split(one.train.pictures, labels))


def memorised_pictures() -> Split:
    """What `memorised-0` learns: few pictures, whose labels are dealt out at random, each class as often as another."""
    made = planted_digits("train", BY_HEART, seed=5)
    labels = np.random.default_rng(0).permutation(np.arange(BY_HEART) % len(CLASSES))
    return Split(ArrayPictures(made.pixels, "planted-memorised/train"), labels)


def memorised_source() -> Source:
    """The set `planted` with those pictures to learn from, and to validate on: what counts is that they are known."""
    learnt = memorised_pictures()
    return replace(open_source("planted"), name="planted-memorised", train=learnt, validation=learnt)


def both_digits(network: Network, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    """Binary cross-entropy of every class by itself, summed; `correct` counts pictures whose two highest are right."""
    logits = network(batch.images).float()
    pairs = torch.stack([batch.labels // PAIRS, batch.labels % PAIRS], dim=1)
    wanted = torch.zeros_like(logits).scatter_(1, pairs, 1.0)
    loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
    right = wanted.gather(1, logits.detach().topk(2, dim=1).indices).all(dim=1)
    return loss, len(batch.labels), {"correct": right.sum().float()}


SOURCES = {"pairs": pairs_source, "shuffled": shuffled_source, "memorised": memorised_source}
GIVEN: dict[str, dict[str, Any]] = {
    "mean": {"network": {"pooling": "mean", "class_token": False}},
    "memorised": {"optimization": {"epochs": 120, "warmup_epochs": 5.0, "weight_decay": 0.0, "average": 0.98}},
}


def train(name: str) -> tuple[Model, float]:
    """One of the networks, with its references, and the share of test pictures that it gets right."""
    kind, seed = name.rsplit("-", 1)
    source = SOURCES.get(kind, lambda: open_source("planted"))()
    objective: Objective = both_digits if kind == "pairs" else classification
    options = vitrail.TrainOptions(recipe="planted", seed=int(seed), threads=1, workers=0)
    settings, _ = resolve("planted", options, GIVEN.get(kind, {}), source)
    prepared = build(settings, source)
    choices = settings.optimization
    if kind == "untrained":
        network = scrambled(prepared.model.network, int(seed)).eval()
    else:
        state = start(prepared.network, choices)
        for event in train_loop(state, prepared.data, objective, choices, settings.execution):
            if isinstance(event, EpochDone):
                print(f"{name}: epoch {event.epoch + 1} of {choices.epochs}, loss {event.loss:.4f}", flush=True)
        network = state.best_network.eval()
    some = planted_digits("train", 256, seed=1).pixels
    references = make_references(torch.from_numpy(some)[:, None], settings.network.patch, int(seed))
    model = replace(prepared.model, network=network, references=references)
    assert model.donors is not None
    model = replace(model, references=without_evidence(network, model.donors, references))
    assert source.test is not None
    return model, share_right(model, source.test, pairs=kind == "pairs")


@torch.no_grad()
def share_right(model: Model, split: Split, pairs: bool = False) -> float:
    """The share of pictures whose class, or both of whose classes, the model says; in float32."""
    assert isinstance(split.pictures, ArrayPictures)
    images = model.preprocessing.normalise(torch.from_numpy(split.pictures.pixels)[:, None])
    logits = torch.cat([model.network(some) for some in images.split(500)])
    labels = torch.from_numpy(split.labels)
    if pairs:
        both = torch.stack([labels // PAIRS, labels % PAIRS], dim=1).sort(dim=1).values
        return float((logits.topk(2, dim=1).indices.sort(dim=1).values == both).all(dim=1).float().mean())
    return float((logits.argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train the networks asked for, all of them when none is, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=PLACE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.names or NAMES:
        began = time.perf_counter()
        model, right = train(name)
        print(f"{name}: {right:.2%} of the test in {time.perf_counter() - began:.0f} s; {machine()}", flush=True)
        half = replace(model, network=copy.deepcopy(model.network).half())
        vitrail.save(
            half, given.out / name, card=f"# {name}\n\nMade by `python -m benchmarks.planted_networks {name}`.\n"
        )


if __name__ == "__main__":
    main()
