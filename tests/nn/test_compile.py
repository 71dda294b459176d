"""Networks compile to one graph and export, with the same logits; all their forms do in `make soak`.

Each test starts a process without the check of annotations, which compilers cannot see through.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TABLE = ["Ti/16", "S/16"]
VARIANTS = [
    "registers",
    "distilled",
    "mean of patches",
    "sinusoidal",
    "sinusoidal-2d",
    "no positions",
    "LayerScale",
    "rectangular",
    "another grid",
    "relu, no qkv bias, free head_dim",
    "no bias",
    "recorded",
    "both heads",
]
WRITERS = ["post-norm", "pre-norm, tied", "shared, gelu", "an image"]


def compile_worker(module: str, arguments: list[str], cache: Path) -> list[dict]:
    """What a worker prints, a line each; the compiler's store is `cache`."""
    settings = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
    }
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def compiled(asked: list[str], cache: Path) -> list[dict]:
    """What the worker says of each network."""
    answers = compile_worker("tests.nn.compile_worker", asked, cache)
    assert [answer["asked"] for answer in answers] == asked
    return answers


def must_be_close(answer: dict) -> None:
    assert "error" not in answer, answer
    assert answer["distance"] <= 1e-4, answer


def test_a_network_becomes_one_graph_and_what_cannot_is_found(tmp_path: Path):
    graph, broken = compiled(["aot_eager=registers", "aot_eager=a graph break"], tmp_path)
    must_be_close(graph)
    assert "graph_break" in broken["text"]
    with pytest.raises(AssertionError):
        must_be_close(broken)


@pytest.mark.soak
@pytest.mark.parametrize("names", [TABLE, VARIANTS, WRITERS], ids=["sizes", "variants", "writers"])
@pytest.mark.parametrize("backend", ["aot_eager", "export"])
def test_every_form_becomes_one_graph(backend: str, names: list[str], tmp_path: Path):
    for answer in compiled([f"{backend}={name}" for name in names], tmp_path):
        must_be_close(answer)


@pytest.mark.soak
def test_a_network_compiles_to_machine_code_and_a_graph_break_in_a_writer_is_found(tmp_path: Path):
    asked = ["inductor=registers", "aot_eager=a graph break in a writer", "aot_eager=an image without a batch"]
    fast, broken, unbatched = compiled(asked, tmp_path)
    must_be_close(fast)
    assert "graph_break" in broken["text"]
    assert unbatched["error"] == "UsageError"
