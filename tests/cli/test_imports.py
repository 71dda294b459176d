"""What is asked for costs what it needs and no more: help and `import vitrail` never load torch."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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
for words, codes, heavy in {lines!r}:
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
            main(words.split())
    except SystemExit as stop:
        assert stop.code in codes, (words, stop.code)
    assert codes == (0,) or told.getvalue().count("\\n") == 2, (words, told.getvalue())
    loaded = [name for name in heavy if name in sys.modules]
    assert not loaded, (words, loaded)
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
# by whose names files of ours are read; explain embeds training images, as a job could
MODULES = {
    "predict": (53, ("training", "runs", "explain", "pages.", "data.loader", "data.dataset", *RAY)),
    "explain": (117, ("training", "runs.evaluate", "explain.reporting.job", *UNUSED, "jobs.on_ray")),
    "evaluate": (86, ("training", "explain", "features", *RAY)),
}
HELP = ["--help", "--version", *(f"{verb} --help" for verb in VERBS)]
SLIPS = ["trian", "train --epoch 3", "train", "predict run", "explain run", "generate run 12"]
WORDS = {  # what each verb is told that is there, and is not
    "train": ["nosuch", "./nosuch", "nosuch.csv", "PHOTOS"],
    "distill": ["nosuch --teacher torchvision:resnet18", "digits --teacher ./nosuch"],
    "evaluate": ["runs/nosuch", "HERE ./nosuch"],
    "predict": [
        *("runs/nosuch a.png", "HERE nosuch.png", "HERE ./nosuch", "nosuch.pth HERE", "owner/nosuch HERE"),
        *("OURS nosuch", "LABELS digits --coverage 0.9", "HERE digits --out HERE/p.csv"),
    ],
    "explain": [
        *("nosuch a.png", "HERE nosuch.png", "HERE digits --masks nosuch", "HERE digits --background ./nosuch"),
        *("HERE digits --nearest nosuch.npz", "OURS digits nosuch", "OURS digits --target b"),
        *("OURS digits --contrast b", "OURS digits --target a --contrast a", "LABELS digits --target nosuch"),
        "HERE digits --out HERE/page.html",
    ],
    "audit": ["nosuch", "HERE ./nosuch", "HERE digits --masks nosuch", "HERE digits --background ./nosuch"],
    "embed": ["nosuch digits --out f.npz", "HERE nosuch.csv --out f.npz"],
    "similar": ["nosuch a.png digits", "HERE nosuch.png digits", "HERE digits ./nosuch", "HERE digits nosuch.npz"],
    "export": ["nosuch --to onnx", "nosuch.onnx --to timm", "HERE --to onnx --check ./nosuch"],
    "serve": ["nosuch", "digits=nosuch", "nosuch.onnx", "OURS --features nosuch.npz", "OURS --token-file nosuch"],
    "data": ["pack nosuch --out p", "pack OURS --out p"],
    "models": ["nosuch", "nosuch.pth"],
    "doctor": ["nosuch", "HERE --class-names nosuch.txt"],
}
OPTIONS = {  # and values that are none
    "train digits": [
        *("--config nosuch.yaml", "--init nosuch", "--max-time soon", "--size Q/4", "--epochs 0", "--top 3"),
        *("--recipe nosuch", "--recipe sort-digits", "--task nosuch", "--device nosuch", "--out OURS"),
        *("--workers -1", "--bits 9", "--class-weights nosuch.csv"),
    ],
    "train sort-digits": ["--recipe digits"],
    "train mnist": ["--data-root ./nosuch"],
    "distill digits --teacher torchvision:resnet18": ["--student Q/4", "--batch-size 0", "--alpha many"],
    "predict HERE digits": [
        "--threads 0",
        "--top 0",
        "--top some",
        "--beam 0",
        "--ray local",
        "--out p.txt",
        "--coverage 2",
    ],
    "explain HERE digits": ["--method nosuch", "--compare --methods rollout,nosuch", "--count 0", "--precision half"],
    "explain HERE mnist": ["--out page.pdf"],
    "similar HERE digits digits": ["--out page.pdf"],
    "audit HERE digits": [
        "--count 0",
        "--method nosuch",
        "--max-time soon",
        "--fail-under supported",
        "--against nosuch",
    ],
    "embed HERE digits": ["--out f.csv"],
    "serve OURS": ["--port 70000", "--workers 0", "--device nosuch", "--timeout 0"],
    "train OURS": ["--epochs 3"],
    "export HERE --to onnx": ["--weights int4", "--explain nosuch", "--conservative", "--size wide"],
    "evaluate HERE mnist": ["--out page.pdf", "--data-root ./nosuch", "--device 0"],
    "embed HERE mnist --out f.npz": ["--data-root ./nosuch"],
    "evaluate": ["STOPPED", "HERE --split=", "HERE --std 0"],
    "evaluate HERE": ["--neighbours 0", "--class-names nosuch.txt", "--image-size wide"],
}


def heavy_after(code: str) -> list[str]:
    """The heavy modules that a fresh Python has loaded after running some code."""
    ask = f"\nimport sys\nprint('loaded:', *[name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", code + ask]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_help_and_a_slip_of_the_fingers_load_nothing_heavy() -> None:
    """One process for all of them: each is looked at right after it."""
    lines = [(words, codes, HEAVY) for codes, some in {(0,): HELP, (2,): SLIPS}.items() for words in some]
    assert heavy_after(EVERY.format(lines=lines)) == []


def test_what_is_not_there_and_no_value_are_refused_without_torch(tmp_path: Path) -> None:
    """By every verb. pydantic, which reads numbers, and the table of methods may be loaded."""
    places = {"HERE": tmp_path / "model.safetensors", "OURS": tmp_path / "ours"}
    places["HERE"].touch()
    for name in ("STOPPED", "LABELS", "PHOTOS"):
        places[name] = tmp_path / name.lower()
    for name in places.keys() - {"HERE"}:
        places[name].mkdir()
    (places["PHOTOS"] / "a.png").touch()
    (places["LABELS"] / "config.json").write_text('{"vitrail": {"input": {}, "output": {"labels": ["a", "c"]}}}')
    (places["STOPPED"] / "config.yaml").write_text("data: digits\n")
    (places["OURS"] / "config.json").write_text('{"vitrail": {"input": null, "output": {"classes": ["a", "c"]}}}')
    refused = [f"{verb} {words}" for table in (WORDS, OPTIONS) for verb, some in table.items() for words in some]
    assert {words.split()[0] for words in refused} == VERBS.keys() - {"completion"}
    here = [re.sub("|".join(places), lambda found: str(places[found[0]]), words) for words in refused]
    assert heavy_after(EVERY.format(lines=[(words, (2, 3), HEAVY[:5]) for words in here])) == ["pydantic"]


def test_import_vitrail_loads_nothing_heavy() -> None:
    assert heavy_after("import vitrail; dir(vitrail); vitrail.__all__") == []


def test_the_check_can_fail() -> None:
    assert heavy_after("import vitrail, PIL") == ["PIL"]
    with pytest.raises(AssertionError, match="numpy"):
        heavy_after("import numpy" + EVERY.format(lines=[("predict nosuch a.png", (3,), HEAVY[:5])]))


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
    """What is forbidden is there, and is seen where another verb loads it."""
    names = {name.removesuffix(".") for _, elsewhere in MODULES.values() for name in elsewhere}
    assert [name for name in names if find_spec(f"vitrail.{name}") is None] == []
    for verb in ("predict", "evaluate"):
        assert [name for name in loaded["explain"] if name.startswith(MODULES[verb][1])]
