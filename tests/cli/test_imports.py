"""What is asked for costs what it needs and no more: help and `import vitrail` never load torch."""

import subprocess
import sys

import pytest

from tests.cli.command import environment
from vitrail.cli.main import VERBS

HEAVY = ("torch", "torchvision", "numpy", "PIL", "safetensors", "pydantic")
EVERY = """
import contextlib, io, sys
from vitrail.cli import main
for words in {lines!r}:
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(words.split())
    except SystemExit as stop:
        assert stop.code in (0, 2), (words, stop.code)
    heavy = [name for name in {heavy!r} if name in sys.modules]
    assert not heavy, (words, heavy)
"""
HELP = ["--help", "--version", *(f"{verb} --help" for verb in VERBS)]
SLIPS = ["trian", "train --epoch 3", "train", "predict run", "explain run", "generate run 12"]


def heavy_after(code: str) -> list[str]:
    """The heavy modules that a fresh Python has loaded after running some code."""
    ask = f"\nimport sys\nprint('loaded:', *[name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", code + ask]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_help_and_a_slip_of_the_fingers_load_nothing_heavy() -> None:
    """One process for all of them: each is looked at right after it."""
    assert heavy_after(EVERY.format(lines=[*HELP, *SLIPS], heavy=HEAVY)) == []


def test_import_vitrail_loads_nothing_heavy() -> None:
    assert heavy_after("import vitrail; dir(vitrail); vitrail.__all__") == []


def test_the_check_can_fail() -> None:
    assert "numpy" in heavy_after("import vitrail; vitrail.Classes")
    with pytest.raises(AssertionError, match="numpy"):
        heavy_after("import numpy" + EVERY.format(lines=HELP[:1], heavy=HEAVY))
