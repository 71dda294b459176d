"""What writing and reading the old folders share."""

import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vitrail
from vitrail.data.preprocessing import Preprocessing

PLACE = "@PLACE@"  # stands for the folder that the images lay in
PROCESSOR = ("vendor_id", "cpu family", "model")  # lines of /proc/cpuinfo
SOURCES = ["31", "4159", "000", "9876543210"]


def machine() -> dict[str, str]:
    """What the last bits of a training on one thread hang on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "processor": " ".join([platform.machine(), *(facts.get(name, "") for name in PROCESSOR)]).strip(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def rounded(value: Any) -> Any:
    """Floats to six digits, also those in lists."""
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def teacher() -> vitrail.Teacher:
    """A teacher of the digits whose weights are written down: each digit weighs the pixels in its own way."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        network[1].weight.copy_((torch.arange(640).reshape(10, 64) * 37 % 101 - 50) / 64)  # exact in binary
        network[1].bias.zero_()
    return vitrail.Teacher(
        network, Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,)), tuple("0123456789"), "cosine"
    )
