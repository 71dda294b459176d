"""Processes that train together, as torchrun would start them; what each of them computed, and how it ended.

    python -m tests.training.processes FOLDER ...

does what FOLDER/asked.json says: rounds, one behind the other, of launches, all at once. A launch is so many processes,
which meet at a port of their own, and train one thing behind the other. They are forked from one process, so that torch
is imported once, and the templates of pages are read once. Of launch NAME lies in FOLDER/NAME what process RANK
computed in which step (TRAINING.RANK.json), what it wrote to stderr (err.RANK) and its exit code (code.RANK); the run
of a training lies in FOLDER/TRAINING.
"""

import errno
import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

import vitrail
from tests import spared
from tests.training.lab import PLAIN, PatchyLoader, fresh, image_set, memory_for, some_images, split_of
from tests.training.tiny import save
from vitrail.data import loader, tensor_files
from vitrail.data.batches import Batch
from vitrail.data.sources import read
from vitrail.errors import VitrailError
from vitrail.pages.render import template_environment
from vitrail.runs import evaluate
from vitrail.runs.group import ALONE, Group
from vitrail.training import job, loop, prepared
from vitrail.training.distributed import meeting, shard
from vitrail.training.events import Finished

Steps = list[list[list[int]]]  # of each step, of each micro-batch: the ids of the samples that count
Fault = Callable[[list[Batch]], None]

GROUPED = loop._grouped
_filled = ExitStack()


def noted(batches: Iterator[Batch], size: int, into: Steps, fault: Mapping[str, Any]) -> Iterator[Any]:
    """In the place of the loop's own: the micro-batches of each step, whose ids are noted; a fault at one of them."""
    for group, waited, began in GROUPED(batches, size):
        into.append([[] if batch.spare else batch.ids.tolist() for batch in group])
        if fault and len(into) == fault["step"] and int(os.environ["RANK"]) == fault["rank"]:
            FAULTS[fault["kind"]](group)
        yield group, waited, began


def _raise(group: list[Batch]) -> None:
    raise ValueError("planted")


def _fill_memory(group: list[Batch]) -> None:
    """From now on until this process ends there is memory for half of this."""
    _filled.enter_context(memory_for(-(-len(group[0]) // 2)))


def _fill_disk(group: list[Batch]) -> None:
    """From now on this process can write no part of a state."""

    def full(*given: object, **named: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "parts")

    shard.write_tensors = full


def _fill_memory_of_saves(group: list[Batch]) -> None:
    """From now on this process has memory for some tensors of a state alone."""
    buffer, calls = tensor_files._buffer, itertools.count()

    def scarce(tensor: Tensor) -> memoryview:
        if next(calls) > 20:
            raise MemoryError
        return buffer(tensor)

    tensor_files._buffer = scarce


FAULTS: dict[str, Fault] = {
    "disk": _fill_disk,
    "kill": lambda group: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda group: os.kill(os.getpid(), signal.SIGSTOP),
    "terminate": lambda group: os.kill(os.getpid(), signal.SIGTERM),
    "nan": lambda group: group[0].inputs.fill_(torch.nan),  # type: ignore[arg-type]
    "raise": _raise,
    "memory": _fill_memory,
    "save": _fill_memory_of_saves,
}


class Idle(nn.Module):
    """A network of one's own: some parameters are never used, others in some steps only, by the seed of the step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.read, self.some, self.never = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The seed differs by the rank of the process."""
        logits = self.read(images.flatten(1))
        return logits + self.some(logits) if torch.initial_seed() // 64 % 2 and self.training else logits


def trained(folder: Path, asked: Mapping[str, Any]) -> tuple[Finished, Steps]:
    """One training in this process, or by all that were started with it, and what this one computed.

    Args:
        folder: Of the run.
        asked: `data` and `options`; `teacher`, where there is one; whether images are `streamed`; the `fault` of a
            process, of a run that saves a state behind every step; `after` which run it goes on, as that was left;
            what `else` a process is asked, by its rank.
    """
    steps: Steps = []
    before = loader.RESIDENT_BYTES, job.LOG_STEPS, loop._grouped, job.SAVE_SECONDS, job.SAVE_WITHIN_EPOCH_SECONDS
    loop._grouped = lambda batches, size: noted(batches, size, steps, asked.get("fault", {}))
    loader.RESIDENT_BYTES, job.LOG_STEPS = (0 if asked.get("streamed") else before[0]), 1
    measured, prepared.MEASURED = prepared.MEASURED, 2  # so that most images are read by one process alone
    save(often="fault" in asked)
    how = {name: Path(value) if name == "config" else value for name, value in asked["options"].items()}
    try:
        if "own" in asked:
            options = vitrail.TrainOptions(**how)
            finished = vitrail.train(asked["data"], folder, options, network=Idle())
        elif "teacher" in asked:
            options = vitrail.DistillOptions(**how)
            finished = vitrail.distill(asked["data"], asked["teacher"], folder, options)
        else:
            finished = vitrail.train(asked["data"], folder, vitrail.TrainOptions(**how))
    finally:
        prepared.MEASURED = measured
        loader.RESIDENT_BYTES, job.LOG_STEPS, loop._grouped, job.SAVE_SECONDS, job.SAVE_WITHIN_EPOCH_SECONDS = before
    return finished, steps


def evaluated(counts: list[int], batch: int, group: Group = ALONE) -> list[Any]:
    """What is counted of so many images each, in batches of a size, of which some cannot be read."""
    found, before = [], evaluate.BATCH
    evaluate.BATCH = batch
    model = vitrail.Model(fresh().network, PLAIN, vitrail.Classes(tuple("abc")))
    for count in counts:
        pixels, labels = some_images(count)
        data = image_set(PatchyLoader(pixels, {2, 5} & set(range(count))), labels)
        result = evaluate.evaluate_split(model, split_of(pixels, labels), data, processes=group)
        found.append([result.to_dict(), result.ids.tolist(), result.answers.tolist()])
    evaluate.BATCH = before
    return found


# ---- in the processes of a launch


def child(folder: Path, name: str, launch: Mapping[str, Any]) -> None:
    """All that one process of a launch does."""
    here, rank = folder / name, os.environ["RANK"]
    if rank in launch.get("torch", {}):
        torch.__version__ = launch["torch"][rank]
    for training, asked in launch.get("trainings", {}).items():
        asked = {**asked, **asked.get("else", {}).get(rank, {})}
        finished, steps = trained(folder / training, asked)
        done = {"steps": steps, "found": finished.evaluated.to_dict(), "weights": finished.weights}
        (here / f"{training}.{rank}.json").write_text(json.dumps(done))
    if "counts" in launch:
        with meeting.join_processes("cpu") as group:
            done = [evaluated(launch["counts"], batch, group) for batch in launch["batches"]]
        (here / f"counts.{rank}.json").write_text(json.dumps(done))


def forked(folder: Path, name: str, launch: Mapping[str, Any], rank: int, port: int) -> int:
    """Start one process; gives its id."""
    pid = os.fork()
    if pid:
        return pid
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": launch["world"]}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **launch.get("environment", {})}
    os.environ.update({key: str(value) for key, value in place.items()})
    code = 0
    with open(folder / name / f"err.{rank}", "w") as err:
        os.dup2(err.fileno(), 2)
        try:
            child(folder, name, launch)
        except VitrailError as error:
            sys.stderr.write(f"vitrail: {error.problem}\ntry: {error.hint}\n")
            code = error.exit_code
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stderr.flush()
    os._exit(code)


def free_port() -> socket.socket:
    """A socket at a port that is free, and stays so when it is closed: no connection is given one below 32768."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 200):
        found = socket.socket()
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            found.close()
        else:
            return found
    raise OSError("no port is free")


def launched(folder: Path, launches: Mapping[str, Any]) -> None:
    """All launches of a round at once, until the last process has ended; who is frozen when all others of its launch
    have ended is ended, too."""
    left: dict[str, dict[int, int]] = {}
    taken: list[socket.socket] = []
    for name, launch in launches.items():
        (folder / name).mkdir()
        for training, asked in launch.get("trainings", {}).items():
            if "after" in asked:
                shutil.copytree(folder / asked["after"], folder / training)
        with free_port() as found:
            port = int(found.getsockname()[1])
            if launch.get("taken"):
                found.listen()
                taken.append(found.dup())
        ranks = launch.get("only", range(launch["world"]))
        left[name] = {forked(folder, name, launch, rank, port): rank for rank in ranks}
    while left:
        pid, status = os.waitpid(-1, 0)
        for name, ranks in list(left.items()):
            if pid not in ranks:
                continue
            code = os.waitstatus_to_exitcode(status)
            (folder / name / f"code.{ranks.pop(pid)}").write_text(str(code))
            frozen = launches[name].get("frozen")
            if list(ranks.values()) == [frozen]:
                os.kill(next(iter(ranks)), signal.SIGKILL)
            if not ranks:
                del left[name]


def load_all() -> None:
    """What the processes would load each for itself; nothing that starts a thread."""
    assert all(getattr(vitrail, name) is not None for name in vitrail.__all__)
    for split in read("digits").splits.values():
        for row in range(len(split)):
            spared.picture_hash_once(split.images.open(row))
    evaluated([1], 1)
    for name in template_environment().list_templates(["html"]):
        template_environment().get_template(name)


def main(folders: Sequence[Path]) -> None:
    """All rounds of all folders."""
    torch.set_num_threads(1)
    spared.spare()
    load_all()
    for folder in folders:
        for launches in json.loads((folder / "asked.json").read_text()):
            launched(folder, launches)


if __name__ == "__main__":
    main([*map(Path, sys.argv[1:])])
