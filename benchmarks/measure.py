"""What every benchmark shares: the machine in a line, contestants in turn, medians with their spread."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.libraries.sides import machine

__all__ = ("machine", "mnist_root", "spread", "worker")


def worker(module: str, *arguments: str, threads: int | None = None) -> dict:
    """Run one contestant in a process of its own; its last line of output is a JSON object.

    Args:
        module: A module of this package.
        arguments: Its command line.
        threads: OMP_NUM_THREADS, or None for what a user gets.
    """
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(values: Sequence[float], places: int = 0) -> str:
    """Median (smallest to largest, n)."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{places}f} ({low:,.{places}f} to {high:,.{places}f}, n={len(values)})"


def mnist_root() -> Path:
    """The folder of the real MNIST's IDX files: $VITRAIL_DATA, or data/mnist in `shared` beside the checkout."""
    for root in (os.environ.get("VITRAIL_DATA", ""), "../shared/data/mnist", "../shared/data"):
        for folder in (Path(root), Path(root) / "mnist"):
            if root and (folder / "train-images-idx3-ubyte.gz").is_file():
                return folder
    raise SystemExit("the MNIST files are not there\ntry: VITRAIL_DATA=folder-with-the-four-IDX-files")
