"""Several labels, numbers and rare classes on real data: `python -m benchmarks.labels coco|cells|rare`.

coco     a probe of the real ViT-Ti on coco256: mean average precision over labels with 5 training images, and micro F1
         at fitted thresholds against 0.5, over 20 halvings of validation (one half fits, the other is counted)
cells    a probe of the same on cells: R2, as the images are and with each multiplied by a factor of 0.4 to 1.6; beside
         it a regression on the mean grey value alone
rare     the eights of MNIST, 3 % of 4,000 training images, against all other digits: a small ViT as it is, with class
         weights, balanced sampling and logit adjustment, 5 seeds; each beside the first one with its threshold moved to
         the same recall, and how far the probabilities are from what they say (ECE)
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrail
from benchmarks.data_copies import ROOT
from benchmarks.measure import machine, mnist_root
from vitrail.data.columns import LABELS, NUMBER
from vitrail.data.dataset import pixels_of
from vitrail.data.readers.idx import read_idx
from vitrail.data.sources import read
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.ranking import average_precisions, figures_by_label
from vitrail.tasks.regression import Standardized

HALVINGS, LEAST = 20, 5


def probed(listed: Path, folder: Path) -> vitrail.Model:
    """The model of a probe of the real ViT-Ti, and how long it took."""
    began = time.process_time()
    options = vitrail.TrainOptions(init=str(ROOT / "vit_ti16" / "model.safetensors"), probe=True, background=False)
    model = vitrail.train(str(listed), folder / "run", options).model
    print(f"{listed.parent.name}: trained in {time.process_time() - began:.0f} s of processors")
    return model


def outputs_of(model: vitrail.Model, images: list[Image.Image]) -> torch.Tensor:
    """What the network says of images."""
    with torch.no_grad():
        parts = [images[first : first + 32] for first in range(0, len(images), 32)]
        return torch.cat([model.network(model.tensor(part)) for part in parts]).double()


def coco(folder: Path) -> None:
    """Several labels."""
    listed = ROOT / "coco256" / "labels.csv"
    model, splits = probed(listed, folder), read(str(listed)).splits
    codec = model.output
    assert isinstance(codec, MultiLabels)
    samples = splits["validation"]
    outputs = outputs_of(model, [samples.images.open(row) for row in range(len(samples))])
    targets = codec.targets(codec.match(samples.column(LABELS)).column.take(np.arange(len(samples)))).double()
    precisions = average_precisions(outputs.numpy(), targets.numpy())
    many = np.array(codec.rates) * len(splits["train"]) >= LEAST - 0.5
    found = precisions[many & ~np.isnan(precisions)]
    chance = targets.numpy()[:, many].mean(axis=0)
    print(f"mean average precision {found.mean():.3f} over {len(found)} labels with {LEAST} training images or more")
    print(f"of all {np.isfinite(precisions).sum()} labels {np.nanmean(precisions):.3f}; by chance {chance.mean():.3f}")
    gains = list[tuple[float, float]]()
    for seed in range(HALVINGS):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(targets)))
        fit, count = order[::2], order[1::2]
        both = (codec.settle(outputs[fit], targets[fit]), replace(codec, thresholds=()))
        said = (each.says(outputs[count]).numpy() for each in both)
        pair = outputs[count].numpy(), targets[count].numpy()
        fitted, even = (figures_by_label(codec.names, *pair, each)[1] for each in said)
        gains.append((fitted, even))
    fitted, even = np.array(gains).T
    print(f"micro F1 {fitted.mean():.3f} fitted, {even.mean():.3f} at 0.5: {(fitted - even).mean():+.3f}")
    print(f"from {(fitted - even).min():+.3f} to {(fitted - even).max():+.3f} in {HALVINGS} halvings")


def cells(folder: Path) -> None:
    """Numbers."""
    listed = ROOT / "cells" / "counts.csv"
    splits, draw = read(str(listed)).splits, np.random.default_rng(0)
    for name, low, high in (("as they are", 1.0, 1.0), ("of random brightness", 0.4, 1.6)):
        place, rows, greys = folder / name.replace(" ", "-"), ["path,count,split"], dict[str, list[float]]()
        place.mkdir()
        for split, samples in splits.items():
            counts = samples.column(NUMBER).values[:, 0]
            for row in range(len(samples)):
                pixels = np.asarray(samples.images.open(row).convert("RGB")) * draw.uniform(low, high)
                file = f"{split}{row}.png"
                Image.fromarray(np.rint(pixels.clip(0, 255)).astype(np.uint8)).save(place / file)
                rows.append(f"{file},{counts[row]:g},{split}")
                greys.setdefault(split, []).append(float(pixels.clip(0, 255).mean()))
        (place / "list.csv").write_text("\n".join(rows))
        model = probed(place / "list.csv", place)
        codec = model.output
        assert isinstance(codec, Standardized)
        truths = {split: samples.column(NUMBER).values[:, 0] for split, samples in splits.items()}
        test = [Image.open(place / f"test{row}.png") for row in range(len(truths["test"]))]
        found = codec.in_unit(outputs_of(model, test))[:, 0].numpy()
        line = np.polyfit(greys["train"], truths["train"], 1)
        grey = np.polyval(line, greys["test"])
        print(f"{name}: R2 {r2(truths['test'], found):.3f}; of the mean grey value {r2(truths['test'], grey):.3f}")


def r2(true: np.ndarray, found: np.ndarray) -> float:
    """The share of the spread that is explained."""
    return float(1 - ((true - found) ** 2).sum() / ((true - true.mean()) ** 2).sum())


MINORITY, PART, SEEDS = 8, 0.03, 5
SIZES = {"train": 4_000, "val": 500, "test": 10_000}
SMALL = (
    "network: {image_size: 28, patch_size: 7, width: 48, depth: 3, heads: 3, mlp_dim: 96}\n"
    "optimization: {epochs: 15, batch_size: 64, learning_rate: 0.002, ema_decay: 0.0}\n"
    "augmentation: {shift: 0.06, rotate: 8.0, zoom: [0.92, 1.08]}\n"
)
WAYS = {
    "plain": {},
    "class weights": {"class_weights": "auto"},
    "balance": {"balance": True},
    "logit adjustment": {"logit_adjustment": 1.0},
}


def rare(folder: Path) -> None:
    """A rare class."""
    splits = read_idx("mnist", mnist_root()).splits.values()
    pixels = np.concatenate([pixels_of(each) for each in splits])
    eight = np.concatenate([np.array(each.labels) == str(MINORITY) for each in splits])
    (folder / "small.yaml").write_text(SMALL)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in WAYS}
    for seed in range(SEEDS):
        draw = np.random.default_rng(seed)
        pools, arrays = [draw.permutation(np.flatnonzero(eight == is_eight)) for is_eight in (False, True)], {}
        for split, size in SIZES.items():
            taken = [size - round(PART * size), round(PART * size)]
            rows = draw.permutation(np.concatenate([pool[:count] for pool, count in zip(pools, taken, strict=True)]))
            pools = [pool[count:] for pool, count in zip(pools, taken, strict=True)]
            arrays |= {f"{split}_images": pixels[rows], f"{split}_labels": eight[rows].astype(np.uint8)}
        data, truth = folder / f"{seed}.npz", arrays["test_labels"] > 0
        np.savez(data, **{key: each for key, each in arrays.items() if not key.startswith("test")})
        plain = np.zeros(0)
        for name, way in WAYS.items():
            asked = {"config": folder / "small.yaml", "recipe": "mnist", "background": False, "check": False, **way}
            options = vitrail.TrainOptions(seed=seed, threads=1, **asked)
            model = vitrail.train(str(data), folder / f"{seed} {name}", options).model
            images = [Image.fromarray(each) for each in arrays["test_images"]]
            odds = outputs_of(model, images).diff(dim=1)[:, 0].numpy()
            plain = plain if len(plain) else odds
            recall, specific = (odds[truth] > 0).mean(), (odds[~truth] <= 0).mean()
            kept = int((odds[truth] > 0).sum())
            moved = np.sort(plain[truth])[::-1][max(0, kept - 1)]  # of the first one, for as many eights
            at_recall = (recall + (plain[~truth] < moved).mean()) / 2
            both = odds[:, None], truth[:, None].astype(float)
            row = (recall, (recall + specific) / 2, at_recall, float(average_precisions(*both)[0]), ece(odds, truth))
            found[name].append(row)
            print(f"seed {seed} {name}: " + ", ".join(f"{value:.4f}" for value in row), flush=True)
    base = np.array(found["plain"])
    print("| | recall | balanced accuracy | of plain, threshold moved to that recall | average precision | ECE | won |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in found.items():
        own = np.array(rows)
        won = (own[:, 0] > base[:, 0]) & (own[:, 1] >= own[:, 2]) & (own[:, 3] >= base[:, 3])
        cells = [f"{each.mean():.4f} ({each.min():.4f} to {each.max():.4f})" for each in own.T]
        print(f"| {name} | {' | '.join(cells)} | {won.sum()} of {SEEDS} |")


def ece(odds: np.ndarray, truth: np.ndarray) -> float:
    """Mean distance of confidence from accuracy, over 15 ranges of equal width."""
    sure = 1 / (1 + np.exp(-np.abs(odds)))
    place, right = np.minimum((sure * 15).astype(int), 14), (odds > 0) == truth
    gaps = [abs((sure[place == each] - right[place == each]).sum()) for each in np.unique(place)]
    return float(np.sum(gaps) / len(odds))


if __name__ == "__main__":
    print(machine())
    with tempfile.TemporaryDirectory() as made:
        {"coco": coco, "cells": cells, "rare": rare}[sys.argv[1]](Path(made))
