"""A small model whose every number matters, and its export, which a pytest session makes once."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import vitrail
from tests.shared_runs import once
from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import Rotary
from vitrail.tasks.calibration import Calibration
from vitrail.tasks.classify import Classes

READS = Preprocessing((24, 32), "crop", 0.875, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
LIMITS = tuple(None if level == 198 else level / 200 for level in range(199))
NAMES = ("añil", "bleu clair", "c,d", "e|f", "g")


def small_model(output: object = None, task: vitrail.tasks.Task | None = None, depth: int = 1) -> vitrail.Model:
    """Of one block, as torch traces each for seconds; every parameter redrawn, and a loud head: answers differ."""
    output = output or Classes(NAMES, calibration=Calibration("select", 60, 1.7, 0.8, (LIMITS,)))
    config = vitrail.ViTConfig(
        image_size=(24, 32),
        patch_size=8,
        width=32,
        depth=depth,
        heads=2,
        mlp_dim=64,
        classes=output.outputs,
        rotary=Rotary(),
    )
    torch.manual_seed(3)
    network = vitrail.ViT(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5))
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    facts = {"licence": "apache-2.0", "data": "/home/somebody/photos/bees"}
    more = {} if task is None else {"task": task}
    return vitrail.Model(network.eval(), READS, output, facts=facts, **more)


def exported() -> Path:
    """The file of the small model for images of any size; look, do not write.

    It is made by a process that checks no shapes: these are numbers there, and torch traces them as unknowns.
    """
    code = "import sys; from tests.deploy.small import make; make(sys.argv[1])"

    def made(folder: Path) -> None:
        root = Path(__file__).parents[2]
        subprocess.run(
            [sys.executable, "-c", code, str(folder)], check=True, cwd=root, env=os.environ | {"PYTHONPATH": "src"}
        )

    return once("exported", made) / "model.onnx"


def make(folder: str) -> None:
    """Export the small model into a folder."""
    vitrail.export(small_model(), out=Path(folder) / "model.onnx", size="any")
