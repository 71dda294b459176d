"""How much memory explaining a large image takes: B/16 at 1,024 pixels, 4,097 tokens, on CPU.

Each method runs in a process of its own, because the peak of a process never falls. The weights of a single layer take
0.8 GB, those of all twelve 9.7 GB, and as much again for their gradients.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import environment
from tests.shared_runs import once

MOST = 6e9  # bytes

CHILD = """
import json, sys, time
import torch
import vitrail.explain.forward
from tests.peak_memory import peak_memory
from vitrail.explain import METHODS
from vitrail.nn import ViT, ViTConfig

method, budget = sys.argv[1], int(sys.argv[2])
vitrail.explain.forward.BUDGET = budget or vitrail.explain.forward.BUDGET
torch.manual_seed(0)
network = ViT(ViTConfig.from_size("B/16", image_size=1024)).eval()
torch.nn.init.normal_(network.head.weight, std=0.02)  # an untrained head is zero, and nothing would be propagated
began = time.perf_counter()
attribution = METHODS[method].function(network, torch.randn(1, 3, 1024, 1024), 3)
print(json.dumps({
    "peak": peak_memory(),
    "seconds": time.perf_counter() - began,
    "shape": list(attribution.values.shape),
    "distinct": attribution.values.unique().numel(),
    "notes": attribution.notes[0],
}))
"""


def measured(method: str, budget: int = 0) -> dict[str, Any]:
    """Peak resident memory in bytes, and what came out; another budget for the pieces than the library's, if given.

    Once for all tests that ask.
    """

    def measure(folder: Path) -> None:
        command = [sys.executable, "-c", CHILD, method, str(budget)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=1800)
        (folder / "measured.json").write_text(done.stdout.splitlines()[-1])

    return json.loads((once(f"memory-{method}-{budget}", measure) / "measured.json").read_text())


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["generic_attention", "gradient_rollout", "rollout", "raw_attention"])
def test_a_large_image_is_explained_within_six_gigabytes(method: str) -> None:
    run = measured(method)
    print(f"{method}: {run['peak'] / 1e9:.2f} GB, {run['seconds']:.0f} s")
    assert run["shape"] == [1, 64, 64]
    assert run["distinct"] > 3000
    assert run["notes"] == []
    assert run["peak"] < MOST


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_layer_held_whole_would_be_noticed() -> None:
    """With a budget that no layer reaches, the weights of one of them and their gradient are there at once."""
    assert measured("generic_attention", budget=2**40)["peak"] > measured("generic_attention")["peak"] + 0.8e9
