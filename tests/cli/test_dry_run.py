"""`--dry-run` of `train` and `distill`: a table of all parameters, and nothing written."""

import json
from pathlib import Path

import vitrail
from tests.cli.command import Cli
from tests.photographs import make_photographs
from tests.training.tiny import STEPS, options, whole
from vitrail.runs.settings import Optimization
from vitrail.training.optimizer import parameter_rules


def test_groups_in_two_splits_are_named(tmp_path: Path, cli: Cli) -> None:
    files = make_photographs(tmp_path / "x", ("ant", "bee"), per_class=8, seed=0)
    rows = [f"{file},{file.parent.name},{('train', 'val')[n % 2]},p{n // 4}" for n, file in enumerate(files)]
    (tmp_path / "x.csv").write_text("\n".join(["path,label,split,patient", *rows]))
    answer = cli("train", tmp_path / "x.csv", "--config", options("photos").config, "--dry-run", "--json")
    assert answer.code == 0
    assert any("p0, p1, p2" in note for note in json.loads(answer.out)["notes"])


def test_it_is_typed(tmp_path: Path, cli: Cli) -> None:
    asked = options("digits")
    typed = ("--config", asked.config, "--epochs", 1, "--batch-size", 200, "--threads", 1, "--out", tmp_path / "run")
    answer = cli("train", "digits", *typed, "--dry-run", "--json")
    assert answer.code == 0
    said = json.loads(answer.out)
    rules = parameter_rules(vitrail.load(whole("digits")).network, Optimization())
    assert [row["names"] for row in said["parameters"]] == [list(rule.names) for rule in rules]
    assert said["steps"] * 2 == STEPS["digits"]
    taught = cli("distill", "digits", "--teacher", whole("digits"), *typed, "--dry-run")
    assert taught.code == 0
    assert f"{sum(rule.numbers for rule in rules if 'matrices' in rule.where):,}" in taught.out
    assert not list(tmp_path.iterdir())
