"""Does a network that learnt nothing get a verdict? `python -m benchmarks.trust_unlearnt RUN DATA`.

The lab (`benchmarks.trust_power`) knows the truth, but its images are alike in brightness and smoothness. Here the
images are any: those of a set or a folder. For the network of a run, and for networks of its kind whose weights are
drawn anew or shuffled, how often "supported", and how often each question alone says yes:

    composites    the number is exceptional among images put together of patches alone (5 %)
    evidence      and among surrogates of the image too, with the minimum effect: the first question
    supported     and the map is faithful
    small         exceptional among composites, with too small an effect: all that the minimum effect can have taken

The background is the run's own. With weights that hold nothing, the first three should be near 5 % or below.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vitrail
from benchmarks.measure import machine, spread
from benchmarks.trust_power import shuffled_weights
from vitrail.data.dataset import Counts
from vitrail.data.images import Images
from vitrail.data.loader import load_resident
from vitrail.data.plan import uniforms
from vitrail.explain import METHODS
from vitrail.explain.evidence import EVIDENCE, as_high, composites_of, large_enough
from vitrail.explain.sanity_check import scramble
from vitrail.explain.target import choose_target
from vitrail.explain.verdict import trust
from vitrail.model import Model
from vitrail.training.prepared import open_data

COLUMNS = ("composites", "evidence", "supported", "small")


def held_out(model: Model, data: str, root: Path | None, count: int) -> Tensor:
    """Images that training did not see, drawn at random, as the network reads them."""
    dataset, _ = open_data(data, model.task.name, root, 0, Counts())
    images = (dataset.test or dataset.validation).inputs
    assert isinstance(images, Images)
    some = uniforms(np.arange(len(images), dtype=np.int64), 1, seed=0, epoch=0, stream=0)[:, 0].argsort()[:count]
    (loaded,) = load_resident(images.select(some), model.preprocessing, 1).fetch([np.arange(len(some))])
    return model.preprocessing.normalise(loaded.pixels)


def measure(model: Model, images: Tensor, method: str, seed: int) -> dict[str, float]:
    """Shares of images that pass."""
    network, background = model.network, model.background_images
    assert background is not None, "the run has no background"
    with torch.no_grad():
        logits = torch.cat([network(some) for some in images.split(50)])
    alone = composites_of(network, background, seed)
    among = (1 + as_high(logits, choose_target(logits, None), alone, len(background))).double() / 500
    held = trust(model, images, METHODS[method].function(network, images), seed=seed)
    found = held.evidence
    rare, large = found.p <= EVIDENCE, large_enough(found.effect, found.minimum_effect)
    composites, evidence, small = (
        float(one.double().mean()) for one in (among <= EVIDENCE, rare & large, rare & ~large)
    )
    supported = Counter(held.verdict)["supported"] / len(images)
    return dict(zip(COLUMNS, (composites, evidence, supported, small), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the shares for the trained network and for the networks that learnt nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--count", type=int, default=100, help="images, for the trained network")
    parser.add_argument("--networks", type=int, default=10, help="of each kind that learnt nothing, 20 images each")
    parser.add_argument("--method", default="generic_attention")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = vitrail.load(given.run)
    assert isinstance(model, Model)
    images = held_out(model, given.data, given.data_root, given.count)
    found = measure(model, images, given.method, 0)
    print(f"{given.data}, {given.method}, n = {len(images)}")
    print("  as trained         " + ", ".join(f"{name} {share:.1%}" for name, share in found.items()), flush=True)
    for name, way in (("weights drawn anew", scramble), ("weights shuffled", shuffled_weights)):
        rows = []
        for seed in range(given.networks):
            some = images[torch.arange(20 * seed, 20 * seed + 20) % len(images)]
            rows.append(measure(replace(model, network=way(model.network, seed)), some, given.method, seed))
        text = ", ".join(f"{column} {spread([100 * row[column] for row in rows])} %" for column in COLUMNS)
        mean = ", ".join(f"{sum(row[column] for row in rows) / len(rows):.1%}" for column in COLUMNS)
        print(f"  {name:<18} mean {mean}; by network {text}", flush=True)
    print(machine())


if __name__ == "__main__":
    main()
