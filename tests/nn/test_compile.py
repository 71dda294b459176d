"""Networks compile to one graph and export, with the same logits.

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
    "patches",
    "recorded",
    "both heads",
]


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
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def compiled(backend: str, names: list[str], cache: Path) -> dict[str, dict]:
    """What the worker says of each network."""
    answers = compile_worker("tests.nn.compile_worker", [backend, *names], cache)
    return {answer["name"]: answer for answer in answers}


def must_be_close(answers: dict[str, dict], names: list[str]) -> None:
    assert list(answers) == names
    for name, answer in answers.items():
        assert "error" not in answer, answer
        assert answer["distance"] <= 1e-4, name


@pytest.mark.parametrize("names", [TABLE, VARIANTS], ids=["sizes", "variants"])
@pytest.mark.parametrize("backend", ["aot_eager", "export"])
def test_networks_become_one_graph(backend: str, names: list[str], tmp_path: Path):
    must_be_close(compiled(backend, names, tmp_path), names)


def test_a_network_compiles_to_machine_code(tmp_path: Path):
    must_be_close(compiled("inductor", ["registers"], tmp_path), ["registers"])


def test_a_graph_break_is_found_and_a_picture_without_a_batch_is_a_usage_error(tmp_path: Path):
    names = ["a graph break", "a picture without a batch"]
    broken, unbatched = compiled("aot_eager", names, tmp_path).values()
    assert "graph_break" in broken["text"]
    with pytest.raises(AssertionError):
        must_be_close({"a graph break": broken}, names[:1])
    assert unbatched["error"] == "UsageError"
    assert "(b, 3, h, w), got (3, 32, 32)" in unbatched["text"]
