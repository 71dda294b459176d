"""`vitrail doctor`: what is installed, what this machine has, and whether a network runs on it."""

import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.cli.parse import parse

EXTRAS = {"digits": "sklearn", "compat": "timm"}


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What can be typed behind `vitrail doctor`."""

    json: bool = False
    """Print one JSON object."""


def run(words: Sequence[str]) -> int:
    """Look, try, and print; exit code 1 when a device cannot run a network."""
    typed = parse(Doctor, "doctor", words, "Versions, devices, and whether everything works here.")

    from vitrail.cli.output import console, print_json

    report = examine()
    if typed.json:
        print_json(report)
    else:
        screen = console()
        for name, value in report["environment"].items():
            screen.print(f"{name:<14} {value}", markup=False)
        for name, there in report["extras"].items():
            screen.print(
                f"{'extra ' + name:<14} {'there' if there else f'not there: pip install vitrail[{name}]'}", markup=False
            )
        screen.print(f"{'data':<14} {report['data_root']}", markup=False)
        for device in report["devices"]:
            verdict = (
                f"{device['milliseconds']:.1f} ms for one picture, Ti/16" if device["works"] else device["problem"]
            )
            screen.print(f"{device['name']:<14} {'works: ' if device['works'] else 'fails: '}{verdict}", markup=False)
    return 0 if all(device["works"] for device in report["devices"]) else 1


def examine() -> dict[str, Any]:
    """Everything that the doctor looks at."""
    import torch

    from vitrail.training.execution import processors
    from vitrail.training.run import environment

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    root = os.environ.get("VITRAIL_DATA", "")
    return {
        "environment": {**environment(), "usable processors": processors()},
        "extras": {name: importlib.util.find_spec(module) is not None for name, module in EXTRAS.items()},
        "data_root": (root if Path(root).is_dir() else f"{root} (missing)") if root else "VITRAIL_DATA is not set",
        "devices": [_try(name) for name in names],
    }


def _try(name: str) -> dict[str, Any]:
    """One forward pass of a small network on a device, finite and equal to the processor's to 1e-3."""
    import torch

    from vitrail.nn import ViT, ViTConfig
    from vitrail.training.execution import processors

    torch.manual_seed(0)
    torch.set_num_threads(max(1, processors() // 2))
    network = ViT(ViTConfig.from_size("Ti/16")).eval()
    torch.nn.init.normal_(network.get_parameter("head.weight"), std=0.02)
    images = torch.randn(1, 3, 224, 224)
    try:
        with torch.no_grad():
            expected = network(images)
            network, images = network.to(name), images.to(name)
            got = network(images).cpu()
            began = time.perf_counter()
            network(images).cpu()
            seconds = time.perf_counter() - began
    except RuntimeError as error:
        return {"name": name, "works": False, "milliseconds": None, "problem": str(error).splitlines()[0]}
    gap = float((got - expected).abs().max())
    problem = "" if gap <= 1e-3 else f"logits differ from the processor's by {gap:.2g}"
    return {"name": name, "works": not problem, "milliseconds": 1000 * seconds, "problem": problem}
