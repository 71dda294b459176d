"""`vitrail doctor`: what is installed, what this machine has, whether a network runs on it, and a model explains."""

import importlib.util
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vitrail.cli.args import Doctor
from vitrail.cli.inputs import open_model
from vitrail.cli.output import duration, print_json, print_table, say
from vitrail.data.columns import Classes
from vitrail.errors import UsageError
from vitrail.explain import selftest
from vitrail.nn import ViT, ViTConfig
from vitrail.runtime import processors
from vitrail.training.run import environment

EXTRAS = {"digits": "sklearn", "compat": "timm", "parquet": "pyarrow"}
NETWORK = "Ti/16"


def run(typed: Doctor, command: str) -> int:
    """Look, try, and print; exit code 1 when a device cannot run a network, or a model fails a check."""
    if typed.model is not None:
        return _examine_model(typed.model, typed)
    report = examine()
    if typed.json:
        print_json(report)
    else:
        rows = [(name, str(value)) for name, value in report["environment"].items()]
        for name, there in report["extras"].items():
            rows.append((f"extra {name}", "installed" if there else f'not installed: pip install "vitrail[{name}]"'))
        rows.append(("data root", report["data_root"]))
        rows += [(device["name"], _verdict(device)) for device in report["devices"]]
        print_table(rows, left=2)
    return 0 if all(device["works"] for device in report["devices"]) else 1


def _examine_model(path: str, typed: Doctor) -> int:
    """Check the explanations of a model; exit code 1 when a check fails."""
    model = open_model(path, typed, 4)
    if not isinstance(model.network, ViT) or not isinstance(model.output, Classes):
        raise UsageError(f"the model in {path} gives {model.task.help}, and classes are checked", "a model of classes")
    report = selftest(model)
    if typed.json:
        print_json({"model": path, "passed": report.passed, "checks": [asdict(check) for check in report.checks]})
    else:
        print_table([("pass" if one.passed else "FAIL", one.name, one.saw) for one in report.checks], left=3)
        say("")
        failed, count = sum(not check.passed for check in report.checks), len(report.checks)
        verdict = f"{failed} of {count} checks fail" if failed else f"all {count} checks pass"
        say(f"{verdict}, after {duration(report.seconds)}")
    return 0 if report.passed else 1


def examine() -> dict[str, Any]:
    """Everything that the doctor looks at."""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    root = os.environ.get("VITRAIL_DATA", "")
    return {
        "environment": {**environment(), "usable processors": processors()},
        "extras": {name: importlib.util.find_spec(module) is not None for name, module in EXTRAS.items()},
        "data_root": (root if Path(root).is_dir() else f"{root} (missing)") if root else "VITRAIL_DATA is not set",
        "devices": [_try(name, processors()) for name in names],
    }


def _verdict(device: dict[str, Any]) -> str:
    if not device["works"]:
        return f"fails: {device['problem']}"
    times = [f"{ms:.1f} ms{f' on {n} thread' + 's' * (n > 1) if n else ''}" for n, ms in device["milliseconds"]]
    text = f"works: {' and '.join(times)} for one image through a {NETWORK}"
    (_, alone), (_, together) = device["milliseconds"][0], device["milliseconds"][-1]
    return f"{text}; it is busy, --threads 1 is faster" if together > 1.5 * alone else text


def _try(name: str, threads: int) -> dict[str, Any]:
    """Forward passes of a small network on a device: finite and equal to the processor's to 1e-3, and how long."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ViT(ViTConfig.from_size(NETWORK)).eval()
        torch.nn.init.normal_(network.get_parameter("head.weight"), std=0.02)
        images = torch.randn(1, 3, 224, 224)
    before = torch.get_num_threads()
    times = []
    try:
        torch.set_num_threads(1)
        with torch.no_grad():
            expected = network(images)
            network, images = network.to(name), images.to(name)
            got = network(images).cpu()
            for count in sorted({1, threads}) if name == "cpu" else [0]:
                torch.set_num_threads(count or 1)
                times.append((count, _milliseconds(network, images)))
    except RuntimeError as error:
        problem = str(error).splitlines()[0]
        return {"name": name, "works": False, "milliseconds": [], "problem": problem}
    finally:
        torch.set_num_threads(before)
    gap = float((got - expected).abs().max())
    problem = "" if gap <= 1e-3 else f"logits differ from the processor's by {gap:.2g}"
    return {"name": name, "works": not problem, "milliseconds": times, "problem": problem}


def _milliseconds(network: torch.nn.Module, images: torch.Tensor) -> float:
    """Of one forward pass, the better of two after one to warm up."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        network(images).cpu()
        taken.append(1000 * (time.perf_counter() - began))
    return min(taken[1:])
