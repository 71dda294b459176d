"""`vitrail doctor`: what is installed, whether a network runs on each device, whether explanations hold."""

import importlib.util
import os
import timeit
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from vitrail.cli.args import Doctor, Inference, WeightsOptions
from vitrail.cli.inputs import load_model
from vitrail.cli.output import duration, print_json, print_line, print_table
from vitrail.errors import UsageError, counted
from vitrail.explain import sanity_check
from vitrail.nn import ViT, ViTConfig
from vitrail.runs.folder import environment_of_run
from vitrail.runtime import processors

EXTRAS = {"digits": "sklearn", "compat": "timm", "parquet": "pyarrow"}
NETWORK = "Ti/16"


def run_doctor(options: Doctor, command: str) -> int:
    """Examine the machine, or a model; exit code 1 when a device cannot run a network, or a model fails a check."""
    if options.run is not None:
        return _check_model(options.run, options)
    report = examine()
    if options.json:
        print_json(report)
    else:
        rows = [(name, str(value)) for name, value in report["environment"].items()]
        for name, there in report["extras"].items():
            rows.append((f"extra {name}", "installed" if there else f'not installed: pip install "vitrail[{name}]"'))
        rows.append(("data root", report["data_root"]))
        rows += [(device["name"], describe(device)) for device in report["devices"]]
        print_table(rows, left=2)
    return 0 if all(device["works"] for device in report["devices"]) else 1


def _check_model(name: str, options: Doctor) -> int:
    """Check the explanations of a model; exit code 1 when a check fails."""
    known = {each.name: getattr(options, each.name) for each in fields(WeightsOptions)}
    model = load_model(name, Inference(**known, device="cpu"), 4)
    if not isinstance(model.network, ViT) or not model.output.names:
        problem = f"the model in {name} gives {model.task.help}; the checks need a classifier"
        raise UsageError(problem, "the run of a classifier")
    report = sanity_check(model)
    if options.json:
        print_json({"model": name, "passed": report.passed, "checks": [asdict(check) for check in report.checks]})
    else:
        print_table([("pass" if one.passed else "FAIL", one.name, one.detail) for one in report.checks], left=3)
        print_line("")
        failed, count = sum(not check.passed for check in report.checks), len(report.checks)
        verdict = f"{failed} of {count} checks fail" if failed else f"all {count} checks pass"
        print_line(f"{verdict}, after {duration(report.seconds)}")
    return 0 if report.passed else 1


def examine() -> dict[str, Any]:
    """Versions, extras, the folder of named sets, and of each device whether a small network runs on it."""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    root = os.environ.get("VITRAIL_DATA", "")
    return {
        "environment": {**environment_of_run(), "usable_cores": processors()},
        "extras": {name: importlib.util.find_spec(module) is not None for name, module in EXTRAS.items()},
        "data_root": (root if Path(root).is_dir() else f"{root} (missing)") if root else "VITRAIL_DATA is not set",
        "devices": [_try(name, processors()) for name in names],
    }


def describe(device: dict[str, Any]) -> str:
    """What was found of a device, in words."""
    if not device["works"]:
        return f"fails: {device['problem']}"
    times = list[str]()
    for taken in device["forward"]:
        threads = counted(taken["threads"], "thread") if taken["threads"] else ""
        times.append(f"{taken['milliseconds']:.1f} ms{f' on {threads}' if threads else ''}")
    text = f"works: {' and '.join(times)} for one image through a {NETWORK}"
    alone, together = (device["forward"][index]["milliseconds"] for index in (0, -1))
    return f"{text}; the machine is busy, --threads 1 is faster" if together > 1.5 * alone else text


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
            for count in sorted({1, threads}) if name == "cpu" else [None]:
                torch.set_num_threads(count or 1)
                taken = timeit.repeat(lambda: network(images).cpu(), number=1, repeat=3)[1:]  # one to warm up
                times.append({"threads": count, "milliseconds": 1000 * min(taken)})
    except RuntimeError as error:
        problem = str(error).splitlines()[0]
        return {"name": name, "works": False, "forward": [], "problem": problem}
    finally:
        torch.set_num_threads(before)
    gap = float((got - expected).abs().max())
    problem = "" if gap <= 1e-3 else f"logits differ from the processor's by {gap:.2g}"
    return {"name": name, "works": not problem, "forward": times, "problem": problem}
