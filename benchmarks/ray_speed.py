"""Images per second of `vitrail predict` by workers of Ray: `python -m benchmarks.ray_speed [rounds] [copies]`.

The real ViT-Ti on the hundred photographs, copied so often; one thread for each process. Contestants in turn, each
writes a table, and all tables are the same bytes:

    here     this process, without Ray
    1, 2     workers of a local Ray, which is started and stopped each time

Two rates: of all images in all of the time, with the start of Ray and of its workers (which load torch and the model)
and the end; and behind the start, from the first range that is done to the last. A range is 16 images here, so that
what the other worker has done by then is little. The goal is 1.5 times the rate of one worker with two on two cores.
Beside them milliseconds of a processor an image, behind the start, of those who compute: what dividing the work costs
even where others use the processors, too.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

import vitrail
from benchmarks.measure import machine, spread
from vitrail.data.images import FileImages
from vitrail.jobs import answers
from vitrail.jobs.cluster import Cluster
from vitrail.jobs.precision import Opening, identity_of

ROOT = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
MODEL = ROOT / "vit_ti16" / "model.safetensors"
ROWS = 16


class Timed(NamedTuple):
    """Images per second in all, and behind the start; and milliseconds of a processor an image there."""

    whole: float
    behind: float
    cost: float


def spent(workers: int) -> float:
    """Seconds of a processor that those who compute have taken: workers of Ray on this machine, or this process."""
    if not workers:
        return time.process_time()
    ticks = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(b"ray::Worker"):
                ticks += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(files: list[Path], model: vitrail.Model, out: Path, workers: int) -> Timed:
    """Predict all files by so many workers; by this process for 0."""
    done: list[tuple[float, float, int]] = []
    opening = Opening(str(MODEL.resolve()), "cpu", {}, identity_of(model))
    cluster = Cluster("local", workers, opening=opening) if workers else None
    began = time.perf_counter()

    def progress(images: int, total: int) -> None:
        done.append((time.perf_counter(), spent(workers), images))

    answers.answer_all([FileImages(files)], model, out, cluster=cluster, progress=progress)
    whole = len(files) / (time.perf_counter() - began)
    _, (first, took, before), *_, (last, taken, count) = done
    return Timed(whole, (count - before) / (last - first), 1000 * (taken - took) / (count - before))


def main() -> None:
    """Contestants in turn."""
    given = [int(word) for word in sys.argv[1:]]
    rounds, copies = given + [3, 12][len(given) :]
    torch.set_num_threads(1)
    answers.ROWS = ROWS
    model = vitrail.load(MODEL)
    rates: dict[int, list[Timed]] = {0: [], 1: [], 2: []}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        files = []
        for copy in range(copies):
            for file in sorted((ROOT / "photos" / "imagenet100").glob("*.jpg")):
                files.append(Path(shutil.copy(file, Path(place) / f"{copy:02d}-{file.name}")))
        print(machine())
        for number in range(rounds):
            tables = []
            for workers, found in rates.items():
                out = Path(place) / f"{workers}.csv"
                found.append(timed(files, model, out, workers))
                tables.append(out.read_bytes())
            assert tables == tables[:1] * len(tables), "the tables differ"
            ratios.append(rates[2][-1].behind / rates[1][-1].behind)
            print(f"round {number + 1} of {rounds}: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        print(f"{len(files)} photographs: images per second in all, behind the start, and ms of a processor an image")
        for workers, found in rates.items():
            name = f"{workers} worker{'s' * (workers > 1)}" if workers else "here"
            print(f"  {name:<10}", *(f"{spread(values, 1):<28}" for values in zip(*found, strict=True)))
        print(f"  2 workers to 1, behind the start: {spread(ratios, 2)}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
