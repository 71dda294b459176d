"""What features say of labels, and of images far from training.

`python -m benchmarks.data_labels labels|cells|numbers|poor|unlike|curve`

All by the real ViT-Ti of $VITRAIL_DATA; its features are computed once and kept in the user's cache.

labels [N]  N draws (20): 2 % of the labels of a set (digits, 5,000 of MNIST's training images, flowers128) become
            another class; of as many as were planted, the most suspicious, how many are; how many are named, and how
            many of these were planted. The same without planting any
cells [N]   N draws (20): 2 % of the cells of coco256's labels that ten images have and lack are turned over; of as many
            as were planted, the most suspicious, how many are, and the rest as above; and with noise on the features
numbers [N] N draws (20): 2 % of the numbers of cells become the number of another image; the same
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
from typing import Any
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
from vitrail.check.suspects import curve_of, suspected_cells, suspected_labels, suspected_numbers, unlike
from vitrail.data.columns import LABELS, NUMBER, RawDataset
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


def column(model: Model, what: str, name: str) -> tuple[np.ndarray, Any]:
    """The values of a column of a set, of all splits, and all that `Looked` would say of it."""
    raw = read(str(ROOT / what))
    of = survey(raw)
    features = kept_features(model, raw, of, lambda done, total: None)
    found: list[Any] = [samples.columns[name] for samples in raw.splits.values()]
    names = tuple(dict.fromkeys(each for one in found for each in one.names))
    values = [[dict(zip(one.names, row, strict=True)).get(each, 0) for each in names] for one in found
              for row in one.values.tolist()]  # fmt: skip
    return np.array(values)[features.rows], (names, features.read, find_copies(of).chains[features.rows])


def cells(model: Model, draws: int) -> None:
    """Of several labels."""
    values, (names, read, units) = column(model, "coco256/labels.csv", LABELS)
    values = values.astype(np.int8)
    often = np.flatnonzero(np.minimum((values == 1).sum(axis=0), (values == 0).sum(axis=0)) >= suspects.SEEN)
    for noise in (0, 1, 3):
        blurred = read + noise * read.std(axis=0) * np.random.default_rng(1).normal(size=read.shape)
        blurred, found = blurred.astype(np.float32), list[tuple[float, ...]]()
        clean = suspected_cells(values, names, blurred, units)
        assert clean is not None
        print(f"noise {noise}: {len(often)} labels, {len(values) * len(often)} cells, skill {clean[0]:.3f}, "
              f"{len(clean[1])} named as it is")  # fmt: skip
        for seed in range(draws if not noise else 4):
            draw, wrong = np.random.default_rng(seed), values.copy()
            some = draw.choice(len(values) * len(often), round(RATE * len(values) * len(often)), replace=False)
            planted = {*zip((some // len(often)).tolist(), often[some % len(often)].tolist(), strict=True)}
            for cell in planted:
                wrong[cell] ^= 1
            found.append(ranked(suspected_cells, (wrong, names, blurred, units), planted, "SLIP", -1.0))
        tell(found)


def numbers(model: Model, draws: int) -> None:
    """Of numbers."""
    values, (names, read, units) = column(model, "cells/counts.csv", NUMBER)
    clean, found = suspected_numbers(values, names, read, units), list[tuple[float, ...]]()
    assert clean is not None
    print(f"{len(values)} numbers, explained {clean[0]:.3f}, {len(clean[1])} named as it is")
    for seed in range(draws):
        draw, wrong = np.random.default_rng(seed), values.copy()
        rows = draw.choice(len(values), round(RATE * len(values)), replace=False)
        wrong[rows, 0] = values[(rows + draw.integers(1, len(values), len(rows))) % len(values), 0]
        planted = {(row, 0) for row in rows.tolist()}
        found.append(ranked(suspected_numbers, (wrong, names, read, units), planted, "RESIDUAL", 0.0))
    tell(found)


def ranked(judge: Any, of: Any, planted: set[tuple[int, int]], limit: str, none: float) -> tuple[float, ...]:
    """Precision at the count of the planted ones, skill, how many are named, and how many of these are planted."""
    told = judge(*of)
    with patch.object(suspects, limit, none):  # all are ranked
        every = [*judge(*of)[1]]
    return len(planted & {*every[: len(planted)]}) / len(planted), told[0], len(told[1]), len(planted & {*told[1]})


def tell(found: Sequence[tuple[float, ...]]) -> None:
    """What draws gave."""
    precision, skill, count, true = zip(*found, strict=True)
    print(f"precision at the planted {spread(precision)}; skill or explained {np.mean(skill):.3f}")
    rate = sum(true) / max(1, sum(count))
    print(f"named {np.mean(count):.1f}, of these planted {np.mean(true):.1f} ({rate:.3f})")


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
    if what in ("labels", "cells", "numbers"):
        {"labels": labels, "cells": cells, "numbers": numbers}[what](ti, int(number[0]) if number else 20)
    else:
        {"poor": poor, "unlike": strangers, "curve": curve}[what](ti)
