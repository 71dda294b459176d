"""G13: seconds of `vitrail --help`, and what `import vitrail` adds to `import torch`.

python -m benchmarks.startup [rounds]
"""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import machine, spread


def seconds(*command: str) -> float:
    """Of one process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Contestants in turn."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    vitrail = str(Path(sys.executable).with_name("vitrail"))
    commands = {
        "vitrail --help": (vitrail, "--help"),
        "vitrail train --help": (vitrail, "train", "--help"),
        "import torch": (sys.executable, "-c", "import torch"),
        "import torch, vitrail.load": (sys.executable, "-c", "import torch, vitrail; vitrail.load"),
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            taken[name].append(seconds(*command))
    print(machine())
    for name, values in taken.items():
        print(f"{name:<28} {spread(values, 3)} s")


if __name__ == "__main__":
    main()
