"""Several labels and numbers on real data: `python -m benchmarks.labels coco|cells`.

coco     a probe of the real ViT-Ti on coco256: mean average precision over labels with 5 training images, and micro F1
         at fitted thresholds against 0.5, over 20 halvings of validation (one half fits, the other is counted)
cells    a probe of the same on cells: R2, as the images are and with each multiplied by a factor of 0.4 to 1.6; beside
         it a regression on the mean grey value alone
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
from benchmarks.measure import machine
from vitrail.data.columns import LABELS, NUMBER
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


if __name__ == "__main__":
    print(machine())
    with tempfile.TemporaryDirectory() as made:
        {"coco": coco, "cells": cells}[sys.argv[1]](Path(made))
