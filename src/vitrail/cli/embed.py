"""`vitrail embed DATA --model M --out FILE`: what a network says of images before its head, in a file."""

import time
from pathlib import Path

from vitrail.cli.args import Embed
from vitrail.cli.jobs import cluster_of, opening_of, shown_progress
from vitrail.cli.output import duration, print_json, print_table, say, warn
from vitrail.cli.sources import load_on
from vitrail.cli.weights import typed_hints
from vitrail.errors import DataError, counted
from vitrail.features.embed import embed
from vitrail.features.file import FeatureSet, check_ending
from vitrail.jobs.passes import LARGE_BATCH

NAMED_PROBLEMS = 5


def run(typed: Embed, command: str) -> int:
    """Write the file, and say what is in it."""
    assert typed.out is not None
    check_ending(typed.out)
    cluster = cluster_of(typed, typed.threads)
    model = load_on(typed.model, typed.device, typed.threads, LARGE_BATCH, typed, [typed.data], typed.data_root)
    began = time.perf_counter()
    with shown_progress() as progress, typed_hints(typed):
        found = embed(
            typed.data,
            model,
            out=typed.out,
            patches=typed.patches,
            split=typed.split,
            data_root=typed.data_root,
            workers=None if cluster is not None else typed.workers,
            progress=progress,
            cluster=cluster,
            opening=opening_of(typed.model, typed, model) if cluster is not None else None,
            precision=typed.precision,
            run=typed.model,
            tell=warn,
        )
    seconds = time.perf_counter() - began
    if typed.json:
        told = {"out": str(typed.out), "model": typed.model, **found.to_dict(), "bytes": typed.out.stat().st_size}
        print_json({**told, "seconds": seconds})
    else:
        _tell(found, typed.out, seconds)
    return name_unreadable(found, typed.strict)


def _tell(found: FeatureSet, out: Path, seconds: float) -> None:
    """What the file holds, for people."""
    classes = f", {counted(len(set(found.labels)), 'class', 'classes')}" if found.labels is not None else ""
    say(f"{counted(len(found), 'image')}{classes}, in {duration(seconds)}")
    print_table([(name, " x ".join(map(str, shape))) for name, shape in found.about["columns"].items()])
    size = out.stat().st_size
    say(f"{out}  {size / 1e6:.1f} MB" if size >= 1e5 else f"{out}  {size / 1e3:.1f} kB")


def name_unreadable(found: FeatureSet, strict: bool) -> int:
    """Name the images that were left out.

    Raises:
        DataError: There is one, and none may be.
    """
    for problem in found.unreadable[:NAMED_PROBLEMS]:
        warn(f"Left out: {problem}.")
    if len(found.unreadable) > NAMED_PROBLEMS:
        warn(f"Left out: {counted(len(found.unreadable) - NAMED_PROBLEMS, 'more image')} (--json names them all).")
    if strict and found.unreadable:
        problem = f"{counted(len(found.unreadable), 'image')} left out, and --strict allows none"
        raise DataError(problem, "mend the data, or leave --strict out to take the others only")
    return 0
