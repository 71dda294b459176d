"""What is asked for costs what it needs and no more: help and `import vitrail` never load torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.cli.command import environment
from tests.cli.planted import planted_model
from tests.shared_runs import run_of
from vitrail.cli.main import VERBS
from vitrail.explain.methods import DEFAULT, METHODS, METHODS_OF_TEXTS

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
LOADED = """
import sys
from vitrail.cli import main
try:
    main({words!r})
except SystemExit as stop:
    assert stop.code == 0
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "vitrail"))
"""
RAY = ("jobs.cluster", "jobs.on_ray")
UNUSED = [f"explain.methods.{name}" for name in (*METHODS, *METHODS_OF_TEXTS) if name != DEFAULT]
# how many modules of the library a verb loads at most, and which it has no use for; predict loads 4 of weights,
# by whose names files of ours are read
MODULES = {
    "predict": (43, ("training", "runs", "explain", "pages.", "data.loader", "data.dataset", *RAY)),
    "explain": (100, ("training", "runs.evaluate", "explain.reporting.job", *UNUSED, *RAY)),
    "evaluate": (75, ("training", "explain", "features", *RAY)),
}
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


def loaded_by(*words: str) -> list[str]:
    """The modules of the library that a command has loaded in the end, without the library's own name."""
    code = LOADED.format(words=list(words))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=240, check=True
    )
    return [name.removeprefix("vitrail.") for name in done.stdout.splitlines()[-1].split()]


def test_a_verb_loads_few_modules_and_none_of_what_it_has_no_use_for(tmp_path: Path) -> None:
    """What trains is not loaded where a run is explained or evaluated, and no file is there by accident."""
    vitrail.save(planted_model(background=True), tmp_path / "model")
    Image.new("L", (32, 32)).save(tmp_path / "a.png")
    run = str(run_of("digits"))
    found = {
        "predict": loaded_by("predict", str(tmp_path / "model"), str(tmp_path / "a.png")),
        "explain": loaded_by("explain", run, "digits", "--count", "1", "--out", str(tmp_path / "page.html")),
        "evaluate": loaded_by("evaluate", run),
    }
    for verb, (most, elsewhere) in MODULES.items():
        assert len(found[verb]) <= most, (verb, found[verb])
        assert [name for name in found[verb] if name.startswith(elsewhere)] == [], verb


def test_the_check_of_modules_can_fail(tmp_path: Path) -> None:
    Image.new("L", (32, 32)).save(tmp_path / "a.png")
    run, out = str(run_of("digits")), str(tmp_path / "maps.jsonl")
    assert "explain.reporting.job" in loaded_by("explain", run, str(tmp_path / "a.png"), "--out", out)
    assert "features.similar" in loaded_by("evaluate", run, "--neighbours", "3")
