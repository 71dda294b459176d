"""`vitrail train mnist`, no flag but the folder: test accuracy and seconds of the whole process, for three seeds.

python -m benchmarks.mnist_default [seeds]
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import machine, mnist_root, spread


def run(seed: int, out: Path) -> tuple[dict, float]:
    """One training as a user starts it: its JSON answer, and the seconds of the process."""
    command = [str(Path(sys.executable).with_name("vitrail")), "train", "mnist", "--data-root", str(mnist_root())]
    command += ["--out", str(out), "--json", *(["--seed", str(seed)] if seed else [])]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def main() -> None:
    """All seeds, one after the other."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(machine())
    accuracies, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            answer, took = run(seed, Path(folder) / str(seed))
            accuracies.append(100 * answer["accuracy"])
            seconds.append(took)
            print(f"seed {seed}: {accuracies[-1]:.2f} % of {answer['images']} test pictures, {took:.0f} s", flush=True)
    deviation = statistics.stdev(accuracies) if seeds > 1 else 0.0
    print(f"mean {statistics.mean(accuracies):.2f} %, deviation {deviation:.2f}; seconds {spread(seconds)}")


if __name__ == "__main__":
    main()
