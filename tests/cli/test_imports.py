"""What is asked for costs what it needs and no more: help and `import vitrail` never load torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.cli.command import environment
from tests.cli.planted import planted_model
from vitrail.cli.main import VERBS

HEAVY = ("torch", "torchvision", "numpy", "PIL", "safetensors", "pydantic", "jinja2")
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
PREDICT = """
import sys
from vitrail.cli import main
try:
    main({words!r})
except SystemExit as stop:
    assert stop.code == 0
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "vitrail"))
"""
MODULES = 43  # of the library, that answer for one image: 4 of weights, by whose names files of ours are read
ELSEWHERE = ("training", "explain", "pages.", "data.loader", "data.dataset")
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
    assert heavy_after("import vitrail, PIL") == ["PIL"]
    with pytest.raises(AssertionError, match="numpy"):
        heavy_after("import numpy" + EVERY.format(lines=HELP[:1], heavy=HEAVY))


def test_one_image_is_predicted_with_few_modules(tmp_path: Path) -> None:
    """Nothing that trains, explains or writes pages is loaded, and no file is there by accident."""
    vitrail.save(planted_model(background=True), tmp_path / "model")
    Image.new("L", (32, 32)).save(tmp_path / "a.png")
    code = PREDICT.format(words=["predict", str(tmp_path / "model"), str(tmp_path / "a.png")])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=240, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert len(loaded) <= MODULES, loaded
    parts = {name.removeprefix("vitrail.") for name in loaded}
    assert [name for name in parts if name.startswith(ELSEWHERE)] == []
