"""What is asked for costs what it needs and no more: help and `import vitrail` never load torch."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

import vitrail
from tests.cli.command import environment
from tests.cli.planted import planted_model
from tests.training.tiny import whole
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
import json, os, sys
import jinja2, pydantic, safetensors.torch, sklearn.datasets, torch, torchvision  # for all commands at once
for place, words in json.loads(sys.argv[1]).items():
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, words
        continue
    from vitrail.cli import main
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code == 0
    with open(place, "w") as file:
        print(*sorted(name for name in sys.modules if name.partition(".")[0] == "vitrail"), file=file)
    os._exit(0)  # to take the modules down takes longer than a command
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


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The modules of the library that commands have loaded in the end, without the library's own name."""
    folder, run = tmp_path_factory.mktemp("loaded"), str(whole("digits"))
    vitrail.save(planted_model(background=True), folder / "model")
    Image.new("L", (32, 32)).save(folder / "a.png")
    model, image = str(folder / "model"), str(folder / "a.png")
    commands = {
        "predict": ["predict", model, image],
        "explain": ["explain", run, "digits", "--count", "1", "--out", str(folder / "page.html")],
        "evaluate": ["evaluate", run],
        "maps of many": ["explain", run, image, "--no-trust", "--out", str(folder / "maps.jsonl")],
        "neighbours": ["evaluate", run, "--neighbours", "3"],
    }
    asked = json.dumps({str(folder / f"{name}.txt"): words for name, words in commands.items()})
    command = [sys.executable, "-c", LOADED, asked]
    subprocess.run(command, env=environment(), capture_output=True, timeout=240, check=True)
    found = {name: (folder / f"{name}.txt").read_text().split() for name in commands}
    return {name: [each.removeprefix("vitrail.") for each in some] for name, some in found.items()}


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_a_verb_loads_few_modules_and_none_of_what_it_has_no_use_for(loaded: dict[str, list[str]]) -> None:
    """What trains is not loaded where a run is explained or evaluated, and no file is there by accident."""
    for verb, (most, elsewhere) in MODULES.items():
        assert len(loaded[verb]) <= most, (verb, loaded[verb])
        assert [name for name in loaded[verb] if name.startswith(elsewhere)] == [], verb


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_the_check_of_modules_can_fail(loaded: dict[str, list[str]]) -> None:
    assert "explain.reporting.job" in loaded["maps of many"]
    assert "features.similar" in loaded["neighbours"]
