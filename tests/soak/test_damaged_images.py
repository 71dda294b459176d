"""10,000 damaged images, by two processes at a time (some ten seconds)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import mutated

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
EACH = 2500


def test_ten_thousand_are_decoded_or_refused_by_name() -> None:
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    found: list[str] = []
    for first in range(1000, 11_000, 2 * EACH):
        commands = [
            [sys.executable, "-m", mutated.__name__, str(one), str(one + EACH)] for one in (first, first + EACH)
        ]
        running = [
            subprocess.Popen(each, cwd=ROOT, env=around, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for each in commands
        ]
        for one in running:
            out, err = one.communicate()
            *lines, memory = out.splitlines()
            assert one.returncode == 0, f"{one.returncode} at {memory}: {err[-2000:]}"
            assert int(memory.removeprefix("memory ")) < mutated.MEMORY
            found += [line.split()[1] for line in lines]
    assert len(found) == 10_000
    assert min(found.count("decoded"), found.count("refused")) > 2000
