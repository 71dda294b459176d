"""All hostile files under an audit hook, in a process of their own, and 10,000 damaged ones (some ten minutes)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch

from tests.peak_memory import forget_peak, peak_memory
from tests.weights import hostile
from tests.weights.test_hostile import check_damaged

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_a_user")]

ROOT = Path(__file__).parents[2]


def test_hostile_files_touch_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.weights.hostile", str(tmp_path / "all")]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {*hostile.CASES, *(f"harmless-{name}" for name in hostile.HARMLESS)}
    assert len(hostile.CASES) >= 150
    for name, said, events, left in lines:
        assert events == [], name
        assert left == {"kept": hostile.KEPT}, name
        if name.startswith("harmless"):
            assert said == "opened", name
        else:
            assert said.startswith(("DataError: ", "UsageError: ")), name
            assert said.count("\n") == 1, name


def test_ten_thousand_damaged_files(tmp_path: Path) -> None:
    content = safetensors.torch.save(hostile.tensors())
    file, opened = tmp_path / "weights.safetensors", 0
    for seed in range(200, 300):
        check_damaged(content, seed, file)
    forget_peak()
    before = peak_memory()
    for seed in range(1000, 11_000):
        opened += check_damaged(content, seed, file)
    assert peak_memory() - before < 256 * 2**20
    assert 100 < opened < 5000
