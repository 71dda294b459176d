"""The clauses of the contracts themselves: types are checked under test, and before them; users have no such check."""

import subprocess
import sys

import pytest


@pytest.mark.soak
def test_every_broken_object_is_told_without_the_check_of_types():
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "tests/runs/test_contracts.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
