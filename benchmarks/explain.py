"""All methods on the lab with known truth: `python -m benchmarks.explain --workers 4`, which writes the table.

For each method, on three networks with a class token and three that read the mean (`benchmarks.planted_networks`):

    pointing    pointing game: the largest value lies on the digit (4 of 64 patches)
    mass        the share of the positive map on the digit
    mIoU        the map as a segmentation of the digit, patches as pixels
    classes     two digits: the class's own gets more than the other (three networks trained on two digits)
    both        ... and that for both digits of an image
    seconds     for one image, in batches of 50, one thread, with what else the machine was doing

on images that are classified right (of two digits, both are recognised). Methods that take thousands of passes get
each image from one of the three networks of a kind, every other from all three. Beside them what needs no network:
random maps, white and as smooth as those of generic attention, the distance from the centre, and the true mask.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import machine
from benchmarks.planted_networks import PLACE, SEEDS
from benchmarks.scores.agreement import class_discrimination, pointing_game, relevance_mass, segmentation
from tests.data.lab import digit_patches
from vitrail.data.sets.planted import Variant, planted_digits
from vitrail.explain import METHODS
from vitrail.explain.scores.chance import random_maps
from vitrail.explain.scores.perturb import keys_of, stream
from vitrail.model import Model, load

BATCH = 50
CONTROLS = ("random", "random, smooth", "centre", "oracle")


def control(name: str, model: Model, masks: Tensor, images: Tensor, seed: int) -> Tensor:
    """Maps that ask no network: they are what a score is read against."""
    count, rows, columns = masks.shape
    if name == "oracle":
        return masks.float()
    if name == "centre":
        down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        away = ((down - (rows - 1) / 2) ** 2 + (across - (columns - 1) / 2) ** 2).sqrt()
        return (away.max() - away).expand(count, -1, -1)
    if name == "random":
        drawn = [stream(seed, "white", key) for key in keys_of(images)]
        return torch.stack([torch.rand(rows, columns, generator=random) for random in drawn])
    attribution = METHODS["generic_attention"].function(model.network, images)
    return random_maps(attribution.values, 1, seed, keys_of(images))[0].float()


def explained(
    name: str, model: Model, images: Tensor, masks: Tensor, classes: Tensor | None, seed: int
) -> tuple[Tensor, float]:
    """Maps (b, rows, columns), and seconds for each image."""
    began, parts = time.perf_counter(), []
    for first in range(0, len(images), BATCH):
        place = slice(first, first + BATCH)
        if name in CONTROLS:
            parts.append(control(name, model, masks[place], images[place], seed))
        else:
            asked = None if classes is None else classes[place]
            parts.append(METHODS[name].function(model.network, images[place], asked).values)
    return torch.cat(parts), (time.perf_counter() - began) / len(images)


def recognised(model: Model, variant: Variant, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images that the network gets right, with the masks (b, digits, rows, columns) and labels of their digits."""
    made = planted_digits("test", count + count // 4, variant, seed=22 if variant == "single" else 21)
    images = model.preprocessing.normalise(torch.from_numpy(made.pixels)[:, None])
    masks, labels = torch.from_numpy(digit_patches(made, model.network.config.patch)), torch.from_numpy(made.labels)
    with torch.no_grad():
        logits = torch.cat([model.network(some) for some in images.split(500)])
    found = logits.topk(labels.shape[1], dim=1).indices
    right = (found.sort(dim=1).values == labels.sort(dim=1).values).all(dim=1).nonzero()[:count, 0]
    return images[right], masks[right], labels[right]


def measure(name: str, kind: str, seed: int, count: int, place: Path) -> dict[str, object]:
    """One method on one network."""
    torch.set_num_threads(1)
    model = load(place / f"{kind}-{seed}")
    assert isinstance(model, Model)
    found = recognised(model, "double" if kind == "pairs" else "single", count)
    if name not in CONTROLS and METHODS[name].costly:  # thousands of passes: shared out among the networks
        found = tuple(each[SEEDS.index(seed) :: len(SEEDS)] for each in found)
    images, masks, labels = found
    if kind == "pairs":
        scores = told_apart(name, model, images, masks, labels, seed)
    else:
        scores = located(name, model, images, masks[:, 0], seed)
    return {"method": name, "kind": kind, "seed": seed, "n": len(images), **scores}


def told_apart(name: str, model: Model, images: Tensor, masks: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    """Of two digits, whether the map of each one's class names it rather than the other."""
    maps = [explained(name, model, images, masks[:, which], labels[:, which], seed)[0] for which in (0, 1)]
    score = class_discrimination(maps[0], maps[1], masks)
    return {"classes": float(score.mean()), "both": float((score.amin(dim=1) == 1).double().mean())}


def located(name: str, model: Model, images: Tensor, masks: Tensor, seed: int) -> dict[str, float]:
    """Whether the map of the top class, which is the digit's, lies on the digit."""
    values, seconds = explained(name, model, images, masks, None, seed)
    return {
        "pointing": float(pointing_game(values, masks).nanmean()),
        "mass": float(relevance_mass(values, masks).nanmean()),
        "mIoU": segmentation(values, masks).mean_iou,
        "seconds": seconds,
    }


def cell(rows: list[dict], kind: str, score: str, places: int = 2) -> str:
    """Mean and range over the three networks of a kind."""
    found = [row[score] for row in rows if row["kind"] == kind and score in row]
    mean = sum(found) / len(found)
    low, high = f"{min(found):.{places}f}", f"{max(found):.{places}f}"
    return f"{mean:.{places}f}" if low == high else f"{mean:.{places}f} ({low} to {high})"


def table(rows: list[dict], names: list[str]) -> list[str]:
    """In Markdown."""
    lines = [
        "| method | cost, passes | pointing, class token | mass | mIoU | pointing, mean | mass | mIoU | classes | both "
        "| ms an image |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        some = [row for row in rows if row["method"] == name]
        method = METHODS.get(name)
        title = name if method is None else f"`{name}`" + ("" if method.class_specific else ", class-agnostic")
        cells = [cell(some, kind, score) for kind in ("class", "mean") for score in ("pointing", "mass", "mIoU")]
        seconds = sum(row["seconds"] for row in some if "seconds" in row) / 6
        cells += [cell(some, "pairs", "classes", 3), cell(some, "pairs", "both"), f"{1000 * seconds:.1f}"]
        lines.append(f"| {title} | {'' if method is None else method.cost} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--methods", nargs="*", default=[*METHODS, *CONTROLS])
    parser.add_argument("--place", type=Path, default=PLACE)
    parser.add_argument("--out", type=Path, help="where all numbers go, as JSON")
    given = parser.parse_args()
    costly = [name for name in given.methods if name in METHODS and METHODS[name].costly]
    tasks = [
        (name, kind, seed, given.count, given.place)
        for name in (*costly, *(name for name in given.methods if name not in costly))
        for kind in ("class", "mean", "pairs")
        for seed in SEEDS
    ]
    with ProcessPoolExecutor(given.workers) as pool:
        rows = list(pool.map(measure, *zip(*tasks, strict=True)))
    print("\n".join(table(rows, given.methods)))
    few = f" (of {' and '.join(costly)} for the three together, a third each)" if costly else ""
    print(f"\nn = {given.count} images for each network{few}; {machine()}")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
