"""No option of evaluate, predict, explain and doctor is swallowed: each changes the answer, or is refused in words.

The options are walked, not listed: a new one must be given a value here, or this file fails. Those of a training are
walked by tests/training/configuration/test_options.py.
"""

import re
import shutil
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch

from tests import shared_runs as runs
from tests.cli.command import DATA, USAGE, Cli
from vitrail.cli.main import VERBS

Typed = tuple[str, str]  # what is typed before and after: the second adds the option
TRUSTED = (
    "full",
    "background",
    "masks",
    "precision",
)  # for the test that the other words leave out: refused beside --no-trust
OF_ALL = {"device": ("", "--device cuda:7"), "threads": ("--threads 1", "--threads 2"), "json": ("", "--json")}
FOREIGN: dict[str, Typed] = {  # of pretrained weights, and refused for a model that says all of it itself
    "mean": ("", "--mean 0.5"),
    "std": ("", "--std 0.5"),
    "class_names": ("", "--class-names {names}"),
    "assume": ("", "--assume heads=2"),
}
SIZE: dict[str, Typed] = {"image_size": ("", "--image-size {size}"), "channels": ("", "--channels {channels}")}
BITS: dict[str, Typed] = {"bits": ("", "--bits 13")}  # refused; of images of 16 bits: test_sixteen_bits.py
JOB: dict[str, Typed] = {  # refused without a file: tests/jobs
    "ray": ("", "--ray local"),
    "workers": ("", "--workers 1"),
    "deadline": ("", "--deadline 5"),
}
COLUMNS: dict[str, Typed] = {  # refused of a folder, and where there is no such column: tests/data/test_tables.py
    f"{column}_column": ("", f"--{column}-column nosuch") for column in ("path", "label", "split")
}
OPTIONS: dict[str, dict[str, Typed]] = {
    "evaluate": {
        **OF_ALL,
        **FOREIGN,
        **SIZE,
        **BITS,
        **COLUMNS,
        "group_column": ("", "--group-column nosuch"),
        "group_pattern": ("", "--group-pattern (.+)"),
        "split": ("--split all", "--split train"),
        "neighbours": ("", "--neighbours 3"),
        "out": ("", "--out {new}"),
        "precision": ("", "--precision bf16"),
        "data_root": ("", "--data-root {empty}"),
        "strict": ("", "--strict"),
    },
    "predict": {
        **OF_ALL,
        **FOREIGN,
        **SIZE,
        **BITS,
        **JOB,
        **COLUMNS,
        "data_root": ("", "--data-root {empty}"),
        "beam": ("--json", "--json --beam 7"),
        "top": ("--top 1", "--top all"),
        "coverage": ("", "--coverage 0.9"),
        "sample": ("", "--sample --temperature 50"),
        "temperature": ("--sample", "--sample --temperature 50"),
        "seed": ("--sample --temperature 50", "--sample --temperature 50 --seed 7"),
        "out": ("", "--out {new}/p.csv"),
        "precision": ("--json", "--json --precision bf16"),
    },
    "explain": {
        **OF_ALL,
        **FOREIGN,
        **SIZE,
        **BITS,
        **JOB,
        **COLUMNS,
        "method": ("", "--method rollout"),
        "option": ("--method raw_attention", "--method raw_attention --option layer=0"),
        "compare": ("", "--compare --methods rollout,legrad"),
        "methods": ("--compare --methods rollout", "--compare --methods legrad"),
        "target": ("--target 4", "--target 3"),
        "top_labels": ("", "--top-labels 2"),
        "similar_to": ("", "--similar-to {photo}"),
        "contrast": ("--target 4", "--target 4 --contrast 3"),
        "no_trust": ("", "--no-trust"),
        "full": ("", "--full"),
        "background": ("", "--background {run}"),
        "masks": ("", "--masks {empty}"),
        "precision": ("", "--precision bf16"),
        "count": ("--count 1", "--count 2"),
        "nearest": ("", "--nearest {empty}"),
        "out": ("", "--out {new}/page.html"),
        "data_root": ("", "--data-root {empty}"),
    },
    "doctor": {**FOREIGN, **SIZE, **BITS, "json": OF_ALL["json"]},
}
ASKED = {  # of a model of classes, one that writes what images show, and one that reads texts
    "evaluate": {"photos": "{other}", "strings": "", "sort-digits": ""},
    "predict": {"photos": "{photo}", "strings": "{image}", "sort-digits": "30713"},
    "explain": {"digits": "digits", "strings": "{image}"},
    "doctor": {"digits": ""},
}
SIZES = {"photos": ("40", "1"), "digits": ("16", "3"), "strings": ("32", "1"), "sort-digits": ("32", "1")}
WRITES = {
    "similar_to",
    "count",
    "method",
    "option",
    "compare",
    "methods",
    "target",
    "contrast",
    "no_trust",
    *TRUSTED,
}
REFUSED = {  # beside `device`, which is not there, `data_root`, since no set lies anywhere here, and FOREIGN
    ("predict", "photos"): {"beam", "sample", "temperature", "seed"},
    ("evaluate", "photos"): {"neighbours"},  # of data that is not split
    ("evaluate", "strings"): {"neighbours", "precision", *SIZE},
    ("evaluate", "sort-digits"): {"neighbours", "precision", *SIZE},
    ("predict", "strings"): {"precision", "top", "coverage", *SIZE},
    ("predict", "sort-digits"): {"precision", "top", "coverage", *SIZE},
    ("explain", "digits"): {"channels", "top_labels", *TRUSTED},
    ("explain", "strings"): {*WRITES, "top_labels", *SIZE},
    ("doctor", "digits"): {"channels"},
}
IDLE = {"strict"}  # where nothing is left out


OFTEN = {("predict", "photos")}
EVERY = [
    pytest.param(verb, name, marks=() if (verb, name) in OFTEN else pytest.mark.soak)
    for verb, asked in ASKED.items()
    for name in asked
]


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_option_is_walked(verb: str):
    names = {field.name for field in fields(VERBS[verb].options) if "positional" not in field.metadata}
    assert names == OPTIONS[verb].keys(), "say in OPTIONS what the new option may be"


@pytest.mark.parametrize(("verb", "name"), EVERY)
def test_every_option_changes_the_answer_or_is_refused(verb: str, name: str, cli: Cli, tmp_path: Path):
    for folder in ("empty", "new"):
        (tmp_path / folder).mkdir()
    photographs, texts = runs.photographs(), runs.strings()
    places = {
        "run": runs.run_of(name),
        "other": photographs / "bcd",
        "image": texts / "3.png",
        "photo": photographs / "abc" / "val" / "a" / "a_000.jpg",
        **{folder: tmp_path / folder for folder in ("empty", "new")},
        "names": tmp_path / "names.txt",
        "size": SIZES[name][0],
        "channels": SIZES[name][1],
    }
    (tmp_path / "names.txt").write_text("a\nb\n")

    def answer(option: str, more: str) -> tuple[object, ...]:
        words = f"{verb} {{run}} {ASKED[verb][name]} {more}"
        if verb == "explain":
            words += "" if "--out" in more else f" --out {tmp_path}/page.html"
            words += " --no-trust" if name == "digits" else ""
            words += " --count 1" if name == "digits" and option != "count" else ""
            words += " --json" if option != "json" else ""
        shutil.rmtree(tmp_path / "new")
        (tmp_path / "new").mkdir()
        torch.set_num_threads(1)
        found = cli(*(word.format(**places) for word in words.split()))
        new = sorted(path.name for path in (tmp_path / "new").iterdir())
        return (
            found.code,
            re.sub(r'("seconds": |after )[\d.e-]+', "", found.out),
            found.err,
            torch.get_num_threads(),
            new,
        )

    usually = cache(answer)  # most options are added to the same words; those of explain hang on the option, too
    refused = set()
    for option, (before, after) in OPTIONS[verb].items():
        if (name, option) == ("digits", "no_trust"):
            continue  # the test that it leaves out takes long: tests/cli/explain/test_run.py
        usual, found = usually(option if verb == "explain" else "", before), answer(option, after)
        if found[0] == USAGE:
            refused.add(option)
            continue
        assert found[0] in (0, DATA), found
        assert found != usual or (option in IDLE and name != "photos"), f"{option} is swallowed"
    everywhere = {"device", "data_root", "group_column", *COLUMNS, *FOREIGN, *BITS, *JOB}
    assert refused == (everywhere | REFUSED.get((verb, name), set())) & OPTIONS[verb].keys()
