"""Seconds of `vitrail explain --compare`, before and after, and how right the time left is.

    python -m benchmarks.compare_speed DATA [--before SRC] [--photographs 4] [--count 3]

DATA holds `vit_ti16/model.safetensors` and `photos/imagenet100`. The command is typed whole, with one thread, for the
sources at SRC (the `src` of another checkout, with the methods that it takes by itself) and for these, in turn; one
photograph before warms caches. All that JSON has of a method there has to be equal but for seconds, files and what is
a mean over all methods; of an image without evidence, which has no map now, all but the values. Then the photographs
are explained here, and what the bar says behind the first image is held against what it took.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import vitrail
from benchmarks.measure import machine, spread
from vitrail.cli.output import TimeLeft
from vitrail.data.images import NamedImage, evenly, open_image
from vitrail.explain.methods import USUAL
from vitrail.explain.reporting.plan import ReportOptions, plan_report
from vitrail.explain.reporting.report import explain_images

OWN = Path(__file__).parents[1] / "src"
DIFFERENT = ("overlay", "seconds", "random_deletion", "random_insertion")  # files, times, means over all methods


def explain(source: Path, model: Path, files: list[Path]) -> tuple[float, float, list[dict[str, Any]]]:
    """The whole command: seconds by the clock, of the processor, and what it prints of the images."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "vitrail", "explain", model, *files, "--compare", "--threads", 1, "--json"]
        words = [*map(str, words), "--out", f"{folder}/page.html"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(source)}
        done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return seconds, processor, json.loads(done.stdout)["images"]


def check_equal(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> int:
    """Hold all that both say of a method against each other; how many maps that were.

    Raises:
        AssertionError: Something differs.
    """
    count = 0
    for one, other in zip(before, after, strict=True):
        known = {each["method"]: each for each in one["attributions"]}
        differ = [name for name in one if name != "attributions" and one[name] != other[name]]
        for each in other["attributions"]:
            theirs, left_out = known[each["method"]], DIFFERENT if each["values"] else (*DIFFERENT, "values", "notes")
            differ += [name for name in theirs if name not in (*left_out, "trust") and theirs[name] != each[name]]
            differ += [name for name, value in theirs["trust"].items() if value != each["trust"][name]]
            count += 1
        assert not differ, f"{one['file']}: {differ}"
    return count


def time_left(model: vitrail.Model, files: list[Path]) -> tuple[list[tuple[float, float]], int]:
    """What is said to be left behind the first image and what it took, by two clocks; and how many maps."""
    clocks, wanted = (time.monotonic, time.process_time), ReportOptions(methods=USUAL)
    lefts, said = [TimeLeft(2) for _ in clocks], [list[tuple[float, float]]() for _ in clocks]

    def count(done: int, total: int) -> None:
        for clock, left, each in zip(clocks, lefts, said, strict=True):
            now = clock()
            left.count(done, total, now)
            if left.ends is not None:
                each.append((now, left.ends))

    images = [NamedImage(file.name, open_image(file)) for file in files]
    found = explain_images(images, plan_report(model, wanted), progress=count)
    times = [(each[0][1] - each[0][0], each[-1][0] - each[0][0]) for each in said]
    return times, sum(one.view.drawn for one in found)


def main() -> None:
    """Print a line for each command, then medians, and the time left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--before", type=Path, help="src/ of another checkout")
    parser.add_argument("--photographs", type=int, default=4)
    parser.add_argument("--count", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    where, every = given.data / "vit_ti16" / "model.safetensors", sorted((given.data / "photos/imagenet100").iterdir())
    files = evenly(every, given.photographs)
    sources = {"after": OWN} if given.before is None else {"before": given.before, "after": OWN}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
    found = dict[str, list[dict[str, Any]]]()
    explain(OWN, where, files[:1])
    for _ in range(given.count):
        for name, source in sources.items():
            *both, found[name] = explain(source, where, files)
            times[name].append((both[0], both[1]))
            print(f"{name}: {both[0]:.1f} s, {both[1]:.1f} of the processor", flush=True)
    for name, rows in times.items():
        clock, processor = zip(*rows, strict=True)
        print(f"{name}: {spread(clock, 1)} s, {spread(processor, 1)} of the processor")
    if given.before is not None:
        print(f"{check_equal(found['before'], found['after'])} maps are equal in both")
    for _ in range(given.count):
        (by_clock, by_processor), maps = time_left(vitrail.load(where), files)
        for kind, (said, real) in (("the clock", by_clock), ("the processor", by_processor)):
            print(f"left behind the first of {maps} with maps, by {kind}: {said:.1f} s said, {real:.1f} s taken")
    print(machine())


if __name__ == "__main__":
    main()
