"""`--dry-run` of `train` and `distill`: a table of all parameters, and nothing written."""

import json
from pathlib import Path

import vitrail
from tests.cli.command import Cli
from tests.training.tiny import STEPS, options, whole
from vitrail.runs.settings import Optimization
from vitrail.training.optimizer import parameter_rules


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
