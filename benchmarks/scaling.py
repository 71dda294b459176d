"""Images per second of a training by one process and by two: `python -m benchmarks.scaling [rounds]`.

The same training, `--threads 1` for each process, in turn: MNIST with its recipe for an epoch, and the real ViT-Ti on
ants and bees for two. Rates are those that the run wrote for its last epoch: of the steps alone, without start,
evaluation and saves. Beside them the seconds of the whole command. The goal is 0.75 of the rate per core.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import machine, mnist_root, spread

ROOT = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
TRAININGS = {
    "MNIST, batches of 256": ("mnist", "--epochs", "1"),
    "ViT-Ti/16 on photographs, batches of 32": (
        *(str(ROOT / "photos" / "ants-bees"), "--init", str(ROOT / "vit_ti16" / "model.safetensors")),
        *("--epochs", "2", "--keep", "tuned"),
    ),
}


def timed(words: tuple[str, ...], processes: int, out: Path) -> tuple[float, float, float]:
    """Images per second of the last epoch, seconds of the command, and the loss that the run ended with."""
    command = [sys.executable, "-m", "vitrail", "train", *words, "--threads", "1", "--out", str(out)]
    command += ["--devices", str(processes), "--device", "cpu"] if processes > 1 else ["--device", "cpu"]
    environment = {**os.environ, "VITRAIL_DATA": str(mnist_root().parent)}
    began = time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    seconds = time.perf_counter() - began
    row = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return row["images_per_second"], seconds, row["training_loss"]


def main() -> None:
    """Contestants in turn."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        for name, words in TRAININGS.items():
            found: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
            for number in range(rounds):
                for processes, rows in found.items():
                    rows.append(timed(words, processes, Path(place) / f"{len(name)}-{number}-{processes}"))
                apart = abs(found[1][-1][2] / found[2][-1][2] - 1)
                print(f"round {number + 1} of {rounds}: losses {apart:.1e} apart", file=sys.stderr)
            print(name)
            for processes, rows in found.items():
                rates, seconds, _ = zip(*rows, strict=True)
                print(f"  {processes}: {spread(rates, 1)} images/s; {spread(seconds, 1)} s in all")
            ratios = [two[0] / one[0] for one, two in zip(found[1], found[2], strict=True)]
            print(f"  2 to 1: {spread(ratios, 2)}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
