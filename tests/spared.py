"""Work that is spared, since no test can see it."""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from vitrail.data import loader, pictures
from vitrail.training import execution
from vitrail.weights import files

SMALL = 32  # pixels
READER = """
import json, os, runpy, sys
import safetensors.torch, torch
for line in sys.stdin:
    words, folder = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = words
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            os.write(2, str(end).encode())
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def spare(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Neither a file, a seed nor a digit of this process waits for what no test asks for.

    `fsync` is for power that fails: what a process that is killed has written is there. That it is called, and what
    follows where it fails, is shown by tests which put their own in its place. And at each seed torch formats the stack
    for three kinds of devices, in case that one of them fails later: a millisecond and more, as deep as under pytest.
    A pass of a training to come is timed once, and not three times for the best. Small grey images are hashed once,
    since hundreds of trainings read the same digits: a tenth of the time of each. And a pickle is read by a fork of one
    process, which has imported torch once; `test_hostile.py` starts one for each.
    """
    patch(os, "fsync", lambda handle: None)
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        patch(kind, "traceback", SimpleNamespace(format_stack=list))
    patch(execution, "TIMED_SECONDS", 0.0)
    patch(loader, "picture_hash", picture_hash_once)
    if os.name == "posix":
        patch(files, "subprocess", SimpleNamespace(run=_read_apart, TimeoutExpired=subprocess.TimeoutExpired))


def picture_hash_once(image: Image.Image, bits: int | None = None) -> bytes:
    if image.mode != "L" or max(image.size) > SMALL:
        return pictures.picture_hash(image, bits)
    return _hash_of(image.size, image.tobytes())


@cache
def _hash_of(size: tuple[int, int], pixels: bytes) -> bytes:
    return pictures.picture_hash(Image.frombytes("L", size, pixels))


def _read_apart(command: list[str], *, cwd: str, **_: object) -> Any:
    """In the place of `subprocess.run`: the same file is run, with the same limits of its own."""
    reader = _reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(json.dumps([command[2:], cwd]) + "\n")
    reader.stdin.flush()
    return SimpleNamespace(returncode=int(reader.stdout.readline()), stderr=Path(cwd, "err").read_text())


@cache
def _reader() -> subprocess.Popen:
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    reader = subprocess.Popen([sys.executable, "-P", "-c", READER, str(files.CONVERT)], **ends)
    atexit.register(reader.communicate)
    return reader
