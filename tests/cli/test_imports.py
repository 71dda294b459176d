"""What is asked for costs what it needs and no more: help and `import vitrail` never load torch."""

import subprocess
import sys

import pytest

from tests.cli.command import environment
from vitrail.cli.main import VERBS

HEAVY = ("torch", "torchvision", "numpy", "PIL", "safetensors", "pydantic")
HELP = """
import sys
from vitrail.cli import main
try:
    main({words!r})
except SystemExit as stop:
    assert stop.code in (0, 2), stop.code
"""


def heavy_after(code: str) -> list[str]:
    """The heavy modules that a fresh Python has loaded after running some code."""
    ask = f"\nimport sys\nprint('loaded:', *[name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", code + ask]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    assert heavy_after(HELP.format(words=words)) == []


@pytest.mark.parametrize("words", [["trian"], ["train", "--epoch", "3"], ["predict", "run"]], ids=" ".join)
def test_a_slip_of_the_fingers_loads_nothing_heavy(words: list[str]) -> None:
    assert heavy_after(HELP.format(words=words)) == []


def test_import_vitrail_loads_nothing_heavy() -> None:
    assert heavy_after("import vitrail; dir(vitrail); vitrail.__all__") == []


def test_the_check_can_fail() -> None:
    assert "torch" in heavy_after("import vitrail; vitrail.ViTConfig")
