"""Copies among images, and what a look at all costs: `python -m benchmarks.data_copies planted|crops|strangers|speed`.

planted    every photograph of $VITRAIL_DATA (flowers128, photos, coco256), and four copies of each across a split:
           its bytes, JPEG quality 60, half its size, its mirror image; then the photographs alone, where what is
           found and does not stand in tests/check/flowers128_copies.txt is false
strangers  how widely the distances of random pairs are spread, of photographs, digits and MNIST, and how many
           pairs of these would be taken for copies
speed      a survey of generated JPEG files of 256 pixels (5,000, or as many as are asked for), in processes; the
           same from the cache; the search through 100,000 thumbnails. Processor seconds stand beside those of the
           clock: cores are shared.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image

from benchmarks.measure import machine, mnist_root
from tests.check.planted import PLANTED, plant, plant_crop
from vitrail.check.copies import find_copies, near_pairs
from vitrail.check.survey import Survey, survey
from vitrail.data.columns import ALL, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.images import FileImages
from vitrail.data.pictures import GREY, WIDEST, picture_hashes, random_spread
from vitrail.data.sources import read
from vitrail.statistics import wilson_interval

ROOT = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
SETS = ("flowers128", "photos/imagenet100", "photos/ants-bees", "coco256/images")
LISTED = Path("tests/check/flowers128_copies.txt")
SEARCHED = 100_000


def surveyed(root: Path, **splits: list[Path]) -> Survey:
    """Of these files, without what is kept."""
    inputs = {name: Samples(FileImages(files, root), {}) for name, files in splits.items()}
    return survey(RawDataset(str(root), inputs), cache=False)


def planted() -> None:
    """How many copies are found, and what else."""
    originals = {name: sorted((ROOT / name).rglob("*.jpg")) for name in SETS}
    files = [file for each in originals.values() for file in each]
    alone = surveyed(ROOT, **{ALL: files})
    known = {tuple(f"flowers128/{name}" for name in line.split()[:2]) for line in LISTED.read_text().splitlines()}
    pairs = {tuple(sorted(alone.names[row] for row in pair)) for pair in find_copies(alone).pairs}
    print(
        f"{len(files):,} photographs alone: {len(pairs & known)} of {len(known)} listed pairs, others: {pairs - known}"
    )
    with tempfile.TemporaryDirectory() as place:
        made = {file: plant(file, Path(place) / str(number)) for number, file in enumerate(files)}
        of = surveyed(ROOT, **{TRAIN: files, VALIDATION: [copy for each in made.values() for copy in each.values()]})
        chains, row = find_copies(of).chains, {name: number for number, name in enumerate(of.names)}
        for name, some in originals.items():
            for kind in PLANTED:
                tied = [chains[row[str(made[file][kind])]] == chains[row[str(file.relative_to(ROOT))]] for file in some]
                low, high = wilson_interval(sum(tied), len(tied))
                print(
                    f"{name:<20} {kind:<10} {sum(tied):,} of {len(tied):,} (95 % {100 * low:.2f} to {100 * high:.2f})"
                )


def say(what: str, found: int, count: int) -> None:
    """A rate with its interval."""
    low, high = wilson_interval(found, count)
    print(f"{what} {found:,} of {count:,} (95 % {100 * low:.2f} to {100 * high:.2f})")


def crops(count: int) -> None:
    """How many parts are found, and what else."""
    files, draw = [file for name in SETS for file in sorted((ROOT / name).rglob("*.jpg"))], np.random.default_rng(11)
    with tempfile.TemporaryDirectory() as place:
        chosen = [files[row] for row in draw.permutation(len(files))[:count]]
        made = {
            same: [plant_crop(file, Path(place) / str(same) / str(row), draw, same) for row, file in enumerate(chosen)]
            for same in (True, False)
        }
        of = surveyed(ROOT, **{TRAIN: files, VALIDATION: [*made[True], *made[False]]})
        began = spent()
        found = find_copies(of, crops=True)
        print(f"copies and parts among {len(of):,}: {took(began)}")
    row = {name: number for number, name in enumerate(of.names)}
    for same, some in made.items():
        both = zip(chosen, some, strict=True)
        tied = [found.chains[row[str(file.relative_to(ROOT))]] == found.chains[row[str(crop)]] for file, crop in both]
        say("the same aspect" if same else "another aspect", sum(tied), count)
    parts = found.pairs[(found.kinds == 3) & (found.pairs < len(files)).all(axis=1)]
    print(f"{len(parts)} parts among {len(files):,} photographs:", *[[of.names[one] for one in pair] for pair in parts])


def strangers() -> None:
    """The spread of each set, and what a search finds where it is too wide."""
    sets = {name: surveyed(ROOT, **{ALL: sorted((ROOT / name).rglob("*.jpg"))}) for name in SETS}
    sets["cells"] = surveyed(ROOT, **{ALL: sorted((ROOT / "cells").rglob("*.png"))})
    sets["digits"] = survey(read("digits"), cache=False)
    sets |= {name: survey(read(name, mnist_root()), cache=False, most=3000) for name in ("mnist", "mnist-m", "planted")}
    for name, of in sets.items():
        _, spread = random_spread(picture_hashes(of.rows["grey"][of.readable]))
        found = len(find_copies(of, near=True).pairs)
        print(f"{name:<20} n={len(of):,} spread {spread:.2f} bits ({WIDEST} at most), by picture {found:,} pairs")


def waves(count: int, side: int, seed: int) -> Float[np.ndarray, "n s s"]:
    """Grey as smooth as photographs are: random phases under an amplitude of 1 / frequency, from 0 to 255."""
    across = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    noise = np.random.default_rng(seed).normal(size=(count, *across.shape, 2))
    planes = np.fft.irfft2((noise[..., 0] + 1j * noise[..., 1]) / np.maximum(across, 1 / side), s=(side, side))
    return np.clip(128 + 60 * planes / planes.std(axis=(1, 2), keepdims=True), 0, 255)


def write_jpegs(folder: Path, count: int) -> None:
    """Coloured ones of 256 pixels."""
    for number in range(count):
        planes = waves(3, 256, number) * 0.3 + waves(1, 256, number + count) * 0.7
        grainy = planes + np.random.default_rng(number).normal(0, 4, planes.shape)
        image = Image.fromarray(np.clip(grainy, 0, 255).astype(np.uint8).transpose(1, 2, 0))
        image.save(folder / f"{number:06d}.jpg", quality=90)


def spent() -> tuple[float, float]:
    """Seconds by the clock, and of processors, of this process and those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)


def took(began: tuple[float, float]) -> str:
    """Since then."""
    clock, processors = (now - before for now, before in zip(spent(), began, strict=True))
    return f"{clock:.1f} s by the clock, {processors:.1f} s of processors"


def speed(count: int) -> None:
    """A survey, the cache, and the search."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        folder = Path(place) / "images"
        folder.mkdir()
        write_jpegs(folder, count)
        size = sum(file.stat().st_size for file in folder.iterdir()) / count
        files = sorted(folder.iterdir())
        for turns in (1, 1, -(-SEARCHED // count)):
            began = spent()
            of = survey(RawDataset(f"{place} {turns}", {ALL: Samples(FileImages(files * turns, folder), {})}))
            print(f"{len(of):,} JPEG files of 256 pixels, {size / 1000:.0f} kB each: {took(began)}")
    peaks = [resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"peak {peaks[0]:.2f} GB, and {peaks[1]:.2f} GB the largest process beside it (which shares most of that)")
    grey = np.empty((SEARCHED, GREY, GREY), np.uint8)
    for first in range(0, SEARCHED, 1000):
        grey[first : first + 1000] = waves(1000, GREY, first)
    began = spent()
    found = near_pairs(grey, picture_hashes(grey))
    print(f"all pairs of {SEARCHED:,}: {took(began)}, {len(found.pairs)} found")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak {peak:.2f} GB")


if __name__ == "__main__":
    print(machine())
    match sys.argv[1:]:
        case ["planted"]:
            planted()
        case ["crops", *given]:
            crops(int((given or ["1000"])[0]))
        case ["strangers"]:
            strangers()
        case ["speed", *given]:
            speed(int((given or ["5000"])[0]))
        case _:
            raise SystemExit("planted, strangers or speed\ntry: python -m benchmarks.data_copies planted")
