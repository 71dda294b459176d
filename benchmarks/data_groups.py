"""Recordings that are planted in photographs, and what is found in clean ones: `python -m benchmarks.data_groups N`.

Of N photographs (300) of each source six frames are made: crops of 75 to 100 % of a side, turned by up to 4 degrees,
light 15 % up or down, JPEG quality 85; three in training, three in validation, under names that count
(`rec00012_000003`) or under names that say nothing. Then every source is checked as it is: what is found there is
false, and images that are called dark, blurred and so on are counted.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.data_copies import ROOT, SETS, say, surveyed
from benchmarks.measure import machine, mnist_root
from vitrail.check.check import check
from vitrail.check.copies import find_copies
from vitrail.check.groups import found_groups
from vitrail.data.columns import TRAIN, VALIDATION

FRAMES = 6
CLEAN = ("flowers128", "photos/imagenet100", "photos/ants-bees", "coco256/labels.csv", "cells/counts.csv")


def frame_of(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """One frame of a camera that moves a little."""
    turned = image.rotate(draw.uniform(-4, 4), Image.Resampling.BICUBIC)
    sides = [round(side * part) for side, part in zip(image.size, draw.uniform(0.75, 1, 2), strict=True)]
    left, top = (int(draw.integers(0, side - part + 1)) for side, part in zip(image.size, sides, strict=True))
    cut = turned.crop((left, top, left + sides[0], top + sides[1]))
    return ImageEnhance.Brightness(cut).enhance(draw.uniform(0.85, 1.15))


def planted(count: int) -> None:
    """How many recordings on both sides are found: by names, and by copies alone."""
    for source in SETS:
        files, draw = sorted((ROOT / source).rglob("*.jpg")), np.random.default_rng(5)
        chosen = [files[row] for row in draw.permutation(len(files))[:count]]
        with tempfile.TemporaryDirectory() as place:
            frames = dict[Path, int]()
            for number, file in enumerate(chosen):
                image = Image.open(file).convert("RGB")
                for frame in range(FRAMES):
                    out = Path(place) / (TRAIN, VALIDATION)[frame % 2] / f"rec{number:05}_{frame:06}.jpg"
                    out.parent.mkdir(exist_ok=True)
                    frame_of(image, draw).save(out, quality=85)
                    frames[out] = number
            sides = {split: [file for file in frames if file.parent.name == split] for split in (TRAIN, VALIDATION)}
            of = surveyed(Path(place), **sides)
            number_of = [frames[Path(place) / name] for name in of.names]
            groupings = found_groups(of, [""] * len(of))
            by_names = [{*map(number_of.__getitem__, rows)} for each in groupings for rows in each.groups.values()]
            whole = sum(len(rows) == FRAMES for each in groupings for rows in each.groups.values())
            say(f"{source:<20} by names", whole if all(len(each) == 1 for each in by_names) else 0, len(chosen))
            chains, split = find_copies(of).chains, of.rows["split"]
            tied = {
                number_of[row]
                for row in range(len(of))
                for other in np.flatnonzero(chains == chains[row])
                if split[row] != split[other] and number_of[row] == number_of[other]
            }
            say(f"{source:<20} by copies alone", len(tied), len(chosen))


def clean() -> None:
    """What is found in data as they are."""
    for what in (*(str(ROOT / name) for name in CLEAN), "digits", "mnist"):
        report = check(what, data_root=mnist_root() if what == "mnist" else None)
        told = {each.kind: sum(map(len, each.sets)) for each in report.findings}
        rates = ", ".join(f"{kind} {number} ({100 * number / report.count:.2f} %)" for kind, number in told.items())
        found = f"{len(report.groupings)} groupings; {rates or 'nothing'}"
        print(f"{what.removeprefix(str(ROOT)):<24} n={report.count:,}: {found}")


if __name__ == "__main__":
    print(machine())
    planted(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
    clean()
