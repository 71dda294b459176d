"""vit-pytorch's networks as a reference: a version is installed into a folder beside the environment, and runs there.

It is no requirement of the tests, since two versions of it are asked: the one that the lab of D2 pins, and today's.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import vitrail

PINNED, TODAY = "0.29.0", "1.26.11"
EINOPS = "einops==0.8.2"
SMALL = {"image_size": 16, "patch_size": 8, "num_classes": 5, "dim": 24, "depth": 2, "heads": 3, "mlp_dim": 20}
SIMPLE = {**SMALL, "kind": "SimpleViT", "image_size": 32}
WORKER = Path(__file__).with_name("vit_pytorch_worker.py")


class NotInstallable(Exception):
    """There is no package index, or not this version in it; says why."""


@dataclass(frozen=True, eq=False)
class Answered:
    """What a network of vit-pytorch answered.

    Attributes:
        state: Its tensors, by their names.
        images: What it was asked.
        logits: What it said.
        gap: How far the network that was converted from it, as it lived there, lies from it.
    """

    state: dict[str, Tensor]
    images: Tensor
    logits: Tensor
    gap: float


def install(version: str, folder: Path) -> None:
    """Put one version into a folder, if it is not there.

    Raises:
        NotInstallable: pip cannot.
    """
    if (folder / f"vit_pytorch-{version}.dist-info" / "RECORD").is_file() and (folder / "einops").is_dir():
        return
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check", "-q"]
    wanted = ["--upgrade", "--target", str(folder), f"vit-pytorch=={version}", EINOPS]
    run = subprocess.run([*pip, *wanted], capture_output=True, text=True, timeout=240)
    if run.returncode:
        raise NotInstallable((run.stderr.strip() or "pip failed").splitlines()[-1])


def ask(version: str, forms: dict[str, dict[str, Any]], folder: Path, out: Path) -> dict[str, Answered]:
    """Make networks, every number redrawn, and ask them.

    Args:
        version: Of vit-pytorch.
        forms: By name, the arguments of each network; `kind` is its class.
        folder: Where the version lies, or is put.
        out: An empty folder, which is left empty.
    """
    install(version, folder)
    ours = Path(vitrail.__file__).parents[1]
    paths = os.pathsep.join(map(str, (folder, ours, WORKER.parents[2])))
    command = [sys.executable, str(WORKER), str(out), json.dumps(forms)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True, timeout=200)
    return {path.stem: _answered(path) for path in sorted(out.iterdir())}


def _answered(path: Path) -> Answered:
    """What the worker wrote; the file is removed."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        gap, empty = float(file.metadata()["gap"]), json.loads(file.metadata()["empty"])
    path.unlink()
    state = {name.removeprefix("state."): each for name, each in tensors.items() if name.startswith("state.")}
    state |= {name: torch.empty(shape) for name, shape in empty.items()}
    return Answered(state, tensors["images"], tensors["logits"], gap)


def sizes(arguments: dict[str, Any]) -> dict[str, Any]:
    """What no tensor says of a network, as it is stated."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
        if name in ("image_size", "patch_size", "heads")
    }
