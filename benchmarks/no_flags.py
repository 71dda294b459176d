"""`vitrail train SET` with no flag but its folder and a seed: test accuracy, and seconds of the whole process.

python -m benchmarks.no_flags [SET] [SEEDS] [FIRST] [RECIPE]    mnist, 3 seeds, from seed 0 when left out

RECIPE is for the recipes that have to be asked for, such as d2-lab.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import machine, mnist_root, spread

FROM_MNIST = ("mnist", "mnist-m", "mnist-strings")  # sets that are, or are made of, MNIST's files
KEYS = (("accuracy", "images"), ("exact_match", "sequences"))  # in the answer of a classifier, and of what writes


def run(data: str, seed: int, out: Path, recipe: str = "") -> tuple[dict, float]:
    """One training as a user starts it: its JSON answer, and the seconds of the process."""
    command = [str(Path(sys.executable).with_name("vitrail")), "train", data, "--out", str(out), "--json"]
    command += ["--data-root", str(mnist_root())] if data in FROM_MNIST else []
    command += ["--recipe", recipe] if recipe else []
    began = time.perf_counter()
    done = subprocess.run([*command, "--seed", str(seed)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def all_seeds(data: str, count: int, first: int, recipe: str = "") -> None:
    """All seeds, one after the other."""
    accuracies, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            answer, took = run(data, seed, Path(folder) / str(seed), recipe)
            right, count = (answer[key] for key in KEYS["accuracy" not in answer])
            accuracies.append(100 * right)
            seconds.append(took)
            print(f"seed {seed}: {accuracies[-1]:.2f} % of {count} test samples, {took:.0f} s", flush=True)
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    name = f"{data}, recipe {recipe}" if recipe else data
    print(f"{name}: mean {statistics.mean(accuracies):.2f} %, deviation {deviation:.2f}; seconds {spread(seconds)}")


def main() -> None:
    """What the command line asks for."""
    data, count, first, recipe = [*sys.argv[1:], *("mnist", "3", "0", "")[len(sys.argv) - 1 :]]
    print(machine())
    all_seeds(data, int(count), int(first), recipe)


if __name__ == "__main__":
    main()
