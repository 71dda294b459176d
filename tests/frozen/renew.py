"""`python -m tests.frozen.renew` writes `frozen.json` anew and prints what changed; see README.md beside this file."""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from tests.frozen import collect
from tests.frozen.values import FILE, differences, machine, told

SHOWN = 40


def renew(data_root: Path) -> list[str]:
    """Collect everything, write it, and tell where it differs from what was frozen."""
    torch.set_num_threads(1)
    found = {"machine": machine()}
    with tempfile.TemporaryDirectory() as folder, collect.working_in(Path(folder)):
        for name, section in collect.SECTIONS.items():
            found[name] = section(data_root) if name == "mnist-strings" else section()
    before = json.loads(FILE.read_text()) if FILE.is_file() else {}
    FILE.write_text(told(found) + "\n")
    return list(differences(before, json.loads(FILE.read_text()), exactly=True))


def main() -> None:
    """Renew, or say what is missing for it."""
    root = Path(os.environ.get("VITRAIL_DATA", Path(__file__).parents[3] / "shared" / "data" / "mnist")).resolve()
    if not root.is_dir():
        sys.exit(f"{root} is no folder: renewing needs the real MNIST\ntry: VITRAIL_DATA=FOLDER with its four files")
    changes = renew(root)
    print("\n".join(changes[:SHOWN]))
    print(f"{len(changes)} values of {FILE.name} changed; commit it by itself, and name what was allowed to change")


if __name__ == "__main__":
    main()
