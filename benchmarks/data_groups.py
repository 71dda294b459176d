"""Recordings that are planted in photographs, and what is found in clean ones: `python -m benchmarks.data_groups`.

`names N` and `model N` have the number of recordings of each source, 300 and 50 where it is left out; `clean` has none.

Of N photographs (300) of each source six frames are made: crops of 75 to 100 % of a side, turned by up to 4 degrees,
light 15 % up or down, JPEG quality 85; three in training, three in validation, under names that count
(`rec00012_000003`). With the real ViT-Ti names are not looked at, and three times as many other photographs of the
source stand beside: a group of different ones is false. Clean sets are checked as they are: what is found there is
false, and images that are called dark, blurred and so on are counted.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.data_copies import ROOT, SETS, say, surveyed
from benchmarks.measure import machine, mnist_root
from vitrail.check.check import check_data
from vitrail.check.copies import find_copies
from vitrail.check.groups import found_groups
from vitrail.check.neighbours import groups_by_features, kept_features
from vitrail.check.survey import Survey, survey
from vitrail.data.columns import TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.images import FileImages
from vitrail.model import load

FRAMES = 6
CLEAN = ("flowers128", "photos/imagenet100", "photos/ants-bees", "coco256/labels.csv", "cells/counts.csv")


def frame_of(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """One frame of a camera that moves a little."""
    turned = image.rotate(draw.uniform(-4, 4), Image.Resampling.BICUBIC)
    sides = [round(side * part) for side, part in zip(image.size, draw.uniform(0.75, 1, 2), strict=True)]
    left, top = (int(draw.integers(0, side - part + 1)) for side, part in zip(image.size, sides, strict=True))
    cut = turned.crop((left, top, left + sides[0], top + sides[1]))
    return ImageEnhance.Brightness(cut).enhance(draw.uniform(0.85, 1.15))


def plant(files: list[Path], place: Path, draw: np.random.Generator) -> dict[Path, int]:
    """Frames of each of these photographs, on both sides, with its number."""
    frames = dict[Path, int]()
    for number, file in enumerate(files):
        image = Image.open(file).convert("RGB")
        for frame in range(FRAMES):
            out = place / (TRAIN, VALIDATION)[frame % 2] / f"rec{number:05}_{frame:06}.jpg"
            out.parent.mkdir(exist_ok=True)
            frame_of(image, draw).save(out, quality=85)
            frames[out] = number
    return frames


def across(of: Survey, groups: list[list[int]], number_of: list[int]) -> set[int]:
    """The recordings of which some frame of either side is in one group."""
    found = set[int]()
    for rows in groups:
        sides = {(number_of[row], of.rows["split"][row]) for row in rows}
        found |= {number for number, split in sides if (number, 1 - split) in sides}
    return found


def planted(count: int) -> None:
    """How many recordings on both sides are found: by names, and by copies alone."""
    for source in SETS:
        files, draw = sorted((ROOT / source).rglob("*.jpg")), np.random.default_rng(5)
        chosen = [files[row] for row in draw.permutation(len(files))[:count]]
        with tempfile.TemporaryDirectory() as place:
            frames = plant(chosen, Path(place), draw)
            sides = {split: [file for file in frames if file.parent.name == split] for split in (TRAIN, VALIDATION)}
            of = surveyed(Path(place), **sides)
            number_of = [frames[Path(place) / name] for name in of.names]
            groups = [rows for each in found_groups(of, [""] * len(of)) for rows in each.groups.values()]
            whole = sum(len(rows) == FRAMES and len({number_of[row] for row in rows}) == 1 for rows in groups)
            say(f"{source:<20} by names", whole if whole == len(groups) else 0, len(chosen))
            say(f"{source:<20} by copies alone", len(across(of, find_copies(of).groups(), number_of)), len(chosen))


def by_model(count: int) -> None:
    """How many recordings on both sides are found by features, and how many groups are of different photographs."""
    model = load(ROOT / "vit_ti16" / "model.safetensors")
    for source in SETS:
        files, draw = sorted((ROOT / source).rglob("*.jpg")), np.random.default_rng(6)
        chosen = [files[row] for row in draw.permutation(len(files))[: 4 * count]]
        some = chosen[: len(chosen) // 4]
        with tempfile.TemporaryDirectory() as place:
            frames = plant(some, Path(place), draw)
            sides = {split: [file for file in frames if file.parent.name == split] for split in (TRAIN, VALIDATION)}
            sides[TRAIN] += chosen[len(some) :]
            raw = RawDataset(
                place, {split: Samples(FileImages(each, Path(place)), {}) for split, each in sides.items()}
            )
            of = survey(raw, cache=False)
            number_of = [frames.get(Path(place) / name, -1 - row) for row, name in enumerate(of.names)]
            seen = kept_features(model, raw, of, lambda done, total: None)
            found = groups_by_features(seen, of, find_copies(of))
            groups = [] if found is None else [*found.groups.values()]
            say(f"{source:<20} by features", len(across(of, groups, number_of)), len(some))
            mixed = [[of.names[row] for row in rows] for rows in groups if len({number_of[row] for row in rows}) > 1]
            print(f"{source:<20} groups of different photographs among {len(of):,} images: {len(mixed)}", *mixed)


def clean() -> None:
    """What is found in data as they are."""
    for what in (*(str(ROOT / name) for name in CLEAN), "digits", "mnist"):
        report = check_data(what, data_root=mnist_root() if what == "mnist" else None)
        told = {each.kind: sum(map(len, each.sets)) for each in report.findings}
        rates = ", ".join(f"{kind} {number} ({100 * number / report.count:.2f} %)" for kind, number in told.items())
        found = f"{len(report.groupings)} groupings; {rates or 'nothing'}"
        print(f"{what.removeprefix(str(ROOT)):<24} n={report.count:,}: {found}")


if __name__ == "__main__":
    print(machine())
    what, *number = sys.argv[1:]
    if what == "clean":
        clean()
    else:
        {"names": planted, "model": by_model}[what](int(number[0]) if number else {"names": 300, "model": 50}[what])
