"""What features say of labels, and of images far from training.

`python -m benchmarks.data_labels labels|poor|unlike|curve`

All by the real ViT-Ti of $VITRAIL_DATA; its features are computed once and kept in the user's cache.

labels [N]  N draws (20): 2 % of the labels of a set (digits, 5,000 of MNIST's training images, flowers128) become
            another class; of as many as were planted, the most suspicious, how many are; how many are named, and how
            many of these were planted. The same without planting any
poor        the same precision of 1,500 images (4 draws), with noise of 0 to 5 standard deviations on the features
unlike      AUROC of the distance to the nearest training image: a fifth of flowers128 against other sets, with four
            fifths for training; and against each class of flowers128 when it is left out of training. How many of that
            fifth are named, alone and beside ten others
curve       accuracy by distance of a probe of flowers128, four fifths in training
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from jaxtyping import Float, Int64

from benchmarks.data_copies import ROOT
from benchmarks.measure import machine, mnist_root
from vitrail.check import suspects
from vitrail.check.copies import find_copies
from vitrail.check.neighbours import kept_features
from vitrail.check.survey import survey
from vitrail.check.suspects import curve_of, suspected_labels, unlike
from vitrail.data.columns import RawDataset
from vitrail.data.sources import read
from vitrail.features.similar import nearest_rows
from vitrail.model import Model, load
from vitrail.tasks import Classes
from vitrail.tasks.linear import map_features

RATE = 0.02
OTHERS = ("photos/ants-bees", "photos/imagenet100", "coco256/labels.csv", "cells/counts.csv", "digits")
MNIST = 5000

Vectors = Float[np.ndarray, "n d"]


def known(model: Model, what: str) -> tuple[Vectors, np.ndarray, Int64[np.ndarray, " n"]]:
    """Features of a set, the classes of its images, and what each image is a copy of."""
    raw = read(what if what in ("digits", "mnist") else str(ROOT / what), mnist_root() if what == "mnist" else None)
    if what == "mnist":
        rows = np.sort(np.random.default_rng(0).permutation(len(raw.splits["train"]))[:MNIST])
        raw = RawDataset(raw.root, {"train": raw.splits["train"].select(rows)})
    of, began = survey(raw), time.process_time()
    seen = kept_features(model, raw, of, lambda done, total: None)
    print(f"{what}: features of {len(seen.rows):,} images in {time.process_time() - began:.1f} s of processors")
    labels = [label for samples in raw.splits.values() for label in samples.labels or [""] * len(samples)]
    return seen.read, np.array(labels)[seen.rows], find_copies(of).chains[seen.rows]


def flipped(labels: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, set[int]]:
    """Another class for some."""
    names, numbers = np.unique(labels, return_inverse=True)
    rows = draw.choice(len(labels), round(RATE * len(labels)), replace=False)
    numbers[rows] = (numbers[rows] + draw.integers(1, len(names), len(rows))) % len(names)
    return names[numbers], {*rows.tolist()}


def spread(values: Sequence[float]) -> str:
    """The mean, with the standard deviation of the draws."""
    return f"{np.mean(values):.3f} (standard deviation {np.std(values):.3f}, {min(values):.3f} to {max(values):.3f})"


def labels(model: Model, draws: int) -> None:
    """Of each set."""
    for what in ("digits", "mnist", "flowers128"):
        judge(what, draws, *known(model, what))


def judge(what: str, draws: int, read: Vectors, given: np.ndarray, units: Int64[np.ndarray, " n"]) -> None:
    """How many planted errors are found."""
    began = time.process_time()
    told = suspected_labels(given, read, units)
    assert told is not None
    took = time.process_time() - began
    print(f"{what} as it is: {len(told[2])} of {len(given):,} named, features right on {told[0]:.3f}, {took:.1f} s")
    found = list[tuple[float, float, float, float]]()
    for seed in range(draws):
        wrong, rows = flipped(given, np.random.default_rng(seed))
        with patch.object(suspects, "SLIP", -1.0):  # all are ranked
            told = suspected_labels(wrong, read, units)
        assert told is not None
        first, named = [*told[2]][: len(rows)], {row for row, facts in told[2].items() if facts["slip"] > suspects.SLIP}
        found.append((len(rows & {*first}) / len(rows), told[0], len(named), len(rows & named)))
    precision, right, count, true = zip(*found, strict=True)
    print(f"{what}: precision at the {len(rows)} planted {spread(precision)}; features right on {np.mean(right):.3f}")
    print(f"{what}: named {np.mean(count):.1f}, of these planted {np.mean(true):.1f} ({sum(true) / sum(count):.3f})")


def poor(model: Model) -> None:
    """Precision where features know less."""
    for what in ("flowers128", "digits"):
        read, given, units = known(model, what)
        for noise in (0, 1, 2, 3, 5):
            found = list[tuple[float, float, float]]()
            for seed in range(4):
                draw = np.random.default_rng(seed)
                some = draw.permutation(len(given))[:1500]
                blurred = read[some] + noise * read.std(axis=0) * draw.normal(size=read[some].shape)
                wrong, rows = flipped(given[some], draw)
                with patch.object(suspects, "SLIP", -1.0):
                    told = suspected_labels(wrong, blurred.astype(np.float32), units[some])
                assert told is not None
                found.append((told[0], told[1], len(rows & {*[*told[2]][: len(rows)]}) / len(rows)))
            right, skill, precision = np.mean(found, axis=0)
            print(f"{what}, noise {noise}: features right on {right:.3f}, skill {skill:.2f}, precision {precision:.3f}")


def auroc(own: np.ndarray, others: np.ndarray) -> float:
    """How often one of the others has more, of two drawn; half of the ties."""
    order = np.sort(own)
    below, above = (np.searchsorted(order, others, side) for side in ("left", "right"))
    return float((below + above).mean()) / (2 * len(own))


def distances(train: Vectors, others: Vectors) -> Float[np.ndarray, " n"]:
    """To the nearest of training."""
    return 1 - nearest_rows(torch.from_numpy(train), torch.from_numpy(others), 1)[0][:, 0].numpy()


def among(train: Vectors) -> Float[np.ndarray, " n"]:
    """Of training images to the nearest other."""
    return 1 - nearest_rows(torch.from_numpy(train), torch.from_numpy(train), 2)[0][:, 1].numpy()


def divided(read: Vectors, units: Int64[np.ndarray, " n"]) -> np.ndarray:
    """Which images are in training: four fifths, copies on one side."""
    chosen = np.random.default_rng(0).permutation(len(read)) < 0.8 * len(read)
    return chosen[units]


def strangers(model: Model) -> None:
    """Other photographs, and classes that are left out."""
    read, given, units = known(model, "flowers128")
    train = divided(read, units)
    own, usual = distances(read[train], read[~train]), among(read[train])
    print(f"flowers128 alone: {len(unlike(own, usual))} of {len(own)} named")
    for what in OTHERS:
        theirs = distances(read[train], known(model, what)[0])
        some = np.concatenate([theirs[:: max(1, len(theirs) // 10)][:10], own])
        found = unlike(some, usual)
        hits = f"beside ten of them {len(found)} named, {(found < 10).sum()} of the ten"
        print(f"{what}: AUROC {auroc(own, theirs):.4f} of {len(own)} against {len(theirs)}; {hits}")
    for name in np.unique(given):
        rest = train & (given != name)
        inside, outside = ~train & (given != name), ~train & (given == name)
        near, far = (distances(read[rest], read[which]) for which in (inside, outside))
        print(f"{name} left out: AUROC {auroc(near, far):.3f} of {len(near)} against {len(far)}")


def curve(model: Model) -> None:
    """Of a probe."""
    read, given, units = known(model, "flowers128")
    train, codec = divided(read, units), Classes(tuple(np.unique(given).tolist()))
    targets = torch.tensor([codec.number_of[each] for each in given])
    fitted = codec.fit(torch.from_numpy(read[train]), targets[train])
    right = (codec.error(map_features(torch.from_numpy(read[~train]), fitted.weights), targets[~train]) == 0).numpy()
    for each in curve_of(distances(read[train], read[~train]), right):
        ends = "{:.3f} to {:.3f}".format(*each["interval"])
        print(f"{each['from']:.3f} to {each['to']:.3f}: {each['accuracy']:.3f} ({ends}) of {each['images']}")


if __name__ == "__main__":
    print(machine())
    ti, (what, *number) = load(Path(ROOT) / "vit_ti16" / "model.safetensors"), sys.argv[1:]
    if what == "labels":
        labels(ti, int(number[0]) if number else 20)
    else:
        {"poor": poor, "unlike": strangers, "curve": curve}[what](ti)
