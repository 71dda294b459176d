"""The small networks of the lab with known truth: `python -m benchmarks.planted_networks [NAME ...]`.

They are what tests and benchmarks of explanations run on; the committed ones lie in tests/explain/networks, in half
precision. For each of three seeds:

    class-S     the recipe `planted`: a class token, one digit in an image
    mean-S      the same network without a class token, which reads the mean of its patches
    pairs-S     two digits in an image, both labels: each class by itself, yes or no

and three that know nothing of digits:

    shuffled-0  learnt from labels that were dealt out at random, of 120,000 images: too many to know by heart
    memorised-0 learnt 1,000 images by heart, whose labels were dealt out at random
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
from jaxtyping import Int64, UInt8
from torch import Tensor

import vitrail
from benchmarks.measure import machine
from vitrail.data import ArrayImages, Dataset, Samples
from vitrail.data.background import make_background
from vitrail.data.batches import Batch
from vitrail.data.dataset import DIGITS, Counts, label_inputs, labels_of
from vitrail.data.sets.planted import COUNTS, planted_digits
from vitrail.explain.evidence import without_evidence
from vitrail.explain.sanity_check import scramble
from vitrail.model import Model
from vitrail.tasks import TASKS
from vitrail.tasks.task import Network
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import resolve
from vitrail.training.loop import EpochDone, start, train_loop
from vitrail.training.prepared import open_data, prepare_run

PLACE = Path(__file__).parent.parent / "tests" / "explain" / "networks"
SEEDS = (0, 1, 2)
TAUGHT = tuple(f"{kind}-{seed}" for kind in ("class", "mean", "pairs") for seed in SEEDS)
NAMES = (*TAUGHT, "shuffled-0", "memorised-0", "untrained-0")
BY_HEART = 1000  # images that `memorised-0` knows
PAIRS = len(DIGITS)  # a pair of labels is one number: first * PAIRS + second


def planted() -> Dataset:
    """The set `planted`."""
    return open_data("planted", "auto", None, 0, Counts())[0]


def with_splits(name: str, **splits: Samples) -> Dataset:
    """The set `planted` with other splits."""
    usual = planted()
    return replace(usual, name=name, splits={**usual.splits, **splits})


def samples_of(pixels: UInt8[np.ndarray, "n h w"], name: str, labels: Int64[np.ndarray, " n"], names: Any) -> Samples:
    """Images in memory, with a class each."""
    return label_inputs(ArrayImages(pixels, name), labels, tuple(names))


def pairs() -> Dataset:
    """Images with two digits; the label is the number of the pair."""
    names, splits = [f"{one} and {other}" for one in DIGITS for other in DIGITS], {}
    for name, count in COUNTS.items():
        made = planted_digits(name, count, "double")
        numbers = made.labels[:, 0] * PAIRS + made.labels[:, 1]
        splits[name] = samples_of(made.pixels, f"planted-double/{name}", numbers, names)
    return with_splits("planted-double", **splits)


def shuffled() -> Dataset:
    """The set `planted` with its training labels dealt out at random."""
    train = planted().train
    labels = np.random.default_rng(0).permutation(labels_of(train))
    return with_splits("planted", train=label_inputs(train.inputs, labels, DIGITS))


def memorised_images() -> Samples:
    """What `memorised-0` learns: few images, whose labels are dealt out at random, each class as often as another."""
    made = planted_digits("train", BY_HEART, seed=5)
    labels = np.random.default_rng(0).permutation(np.arange(BY_HEART) % len(DIGITS))
    return samples_of(made.pixels, "planted-memorised/train", labels, DIGITS)


def memorised() -> Dataset:
    """The set `planted` with those images to learn from, and to validate on: what counts is that they are known."""
    learnt = memorised_images()
    return with_splits("planted-memorised", train=learnt, validation=learnt)


def both_digits(network: Network, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    """Binary cross-entropy of every class by itself, summed; `correct` counts images whose two highest are right."""
    logits = network(batch.inputs).float()
    pairs = torch.stack([batch.labels // PAIRS, batch.labels % PAIRS], dim=1)
    wanted = torch.zeros_like(logits).scatter_(1, pairs, 1.0)
    loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
    right = wanted.gather(1, logits.detach().topk(2, dim=1).indices).all(dim=1)
    return loss, len(batch.labels), {"correct": right.sum().float()}


DATASETS = {"pairs": pairs, "shuffled": shuffled, "memorised": memorised}
GIVEN: dict[str, dict[str, Any]] = {
    "mean": {"network": {"pooling": "mean", "class_token": False}},
    "memorised": {"optimization": {"epochs": 120, "warmup_epochs": 5.0, "weight_decay": 0.0, "ema_decay": 0.98}},
}


def train(name: str) -> tuple[Model, float]:
    """One of the networks, with its background, and the fraction of test images that it gets right."""
    kind, seed = name.rsplit("-", 1)
    dataset, task = DATASETS.get(kind, planted)(), TASKS["classify"]
    options = vitrail.TrainOptions(recipe="planted", seed=int(seed), threads=1, workers=0, device="cpu")
    settings, _ = resolve(Request(data="planted", options=options, config=GIVEN.get(kind, {})), dataset, task)
    prepared = prepare_run(settings, dataset, task)
    objective = both_digits if kind == "pairs" else prepared.objective
    choices = settings.optimization
    if kind == "untrained":
        network = scramble(prepared.model.network, int(seed)).eval()
    else:
        state = start(prepared.network, choices)
        for event in train_loop(state, prepared.data, objective, choices, settings.execution):
            if isinstance(event, EpochDone):
                print(f"{name}: epoch {event.epoch + 1} of {choices.epochs}, loss {event.loss:.4f}", flush=True)
        network = state.best_network.eval()
    some = planted_digits("train", 256, seed=1).pixels
    background = make_background(torch.from_numpy(some)[:, None], network.config.patch, int(seed))
    model = replace(prepared.model, network=network, background=background)
    assert model.background_images is not None
    model = replace(model, background=without_evidence(network, model.background_images, background))
    return model, share_right(model, dataset.splits["test"], pairs=kind == "pairs")


@torch.no_grad()
def share_right(model: Model, samples: Samples, pairs: bool = False) -> float:
    """The fraction of images whose class, or both of whose classes, the model says; in float32."""
    assert isinstance(samples.inputs, ArrayImages)
    images = model.preprocessing.normalise(torch.from_numpy(samples.inputs.pixels)[:, None])
    logits = torch.cat([model.network(some) for some in images.split(500)])
    labels = torch.from_numpy(labels_of(samples))
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
