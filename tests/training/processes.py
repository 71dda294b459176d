"""Some processes that train together, as torchrun would start them; and what each of them did.

    python -m tests.training.processes FOLDER

runs in each of them: all trainings that FOLDER/asked.json names, one behind the other, into FOLDER/NAME. What each
process computed in which step lies behind it in FOLDER/NAME.RANK.json.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import vitrail
from vitrail.data import loader
from vitrail.data.batches import Batch
from vitrail.training import job, loop
from vitrail.training.events import Finished

ROOT = Path(__file__).parents[2]
Steps = list[list[list[int]]]  # of each step, of each micro-batch: the ids of the samples that count


def noted(batches: Iterator[Batch], size: int, into: Steps, grouped: Any = loop._grouped) -> Iterator[Any]:
    """In the place of the loop's own: the micro-batches of each step, whose ids are noted."""
    for group, waited, began in grouped(batches, size):
        into.append([[] if batch.spare else batch.ids.tolist() for batch in group])
        yield group, waited, began


def trained(folder: Path, asked: Mapping[str, Any]) -> tuple[Finished, Steps]:
    """One training in this process, or by all that were started with it, and what this one computed.

    Args:
        folder: Of the run.
        asked: `data` and `options`; `teacher`, where there is one; whether images are `streamed`.
    """
    steps: Steps = []
    before = loader.RESIDENT_BYTES, job.LOG_STEPS, loop._grouped
    loop._grouped = lambda batches, size: noted(batches, size, steps)
    loader.RESIDENT_BYTES, job.LOG_STEPS = (0 if asked.get("streamed") else before[0]), 1
    how = {name: Path(value) if name == "config" else value for name, value in asked["options"].items()}
    try:
        if "teacher" in asked:
            options = vitrail.DistillOptions(**how)
            finished = vitrail.distill(asked["data"], asked["teacher"], folder, options)
        else:
            finished = vitrail.train(asked["data"], folder, vitrail.TrainOptions(**how))
    finally:
        loader.RESIDENT_BYTES, job.LOG_STEPS, loop._grouped = before
    return finished, steps


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def begun(*words: object, world: int = 2, **environment: object) -> list[subprocess.Popen[str]]:
    """So many processes of a Python command, which meet at a port of this machine."""
    place = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
    place |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **environment}

    def one(rank: int) -> subprocess.Popen[str]:
        own = {name: str(value) for name, value in ({"RANK": rank, "LOCAL_RANK": rank} | place).items()}
        command = [sys.executable, *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **own}, stdout=pipe, stderr=pipe, text=True)

    return [one(rank) for rank in range(world)]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """The exit code of each, what it wrote to stdout, and to stderr, once all have ended."""
    found = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, found, strict=True)]


def main(folder: Path) -> None:
    for name, asked in json.loads((folder / "asked.json").read_text()).items():
        finished, steps = trained(folder / name, asked)
        done = {"steps": steps, "found": finished.evaluated.to_dict(), "weights": finished.weights}
        (folder / f"{name}.{os.environ['RANK']}.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
