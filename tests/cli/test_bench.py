"""`vitrail bench`: what it refuses, and that its processes take turns."""

import json

import pytest

from tests.cli.command import USAGE, Cli, must_refuse
from tests.errors import must_raise
from vitrail.bench.sides import bench
from vitrail.bench.turn import FORMS, Job
from vitrail.errors import UsageError


def test_what_cannot_run_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("--peers tim", "X/16", "--rounds 0", "--batch-size 0", "--device cuda:99", "--image-size 100x100"):
        must_refuse(cli("bench", *words.replace("x100", "").split()), USAGE, words.split()[-1])
    monkeypatch.setattr("vitrail.bench.sides.present", list)
    with must_raise(UsageError):
        bench(Job("", "", "Ti/16", 2))


@pytest.mark.soak
def test_processes_take_turns(cli: Cli) -> None:
    small = ["bench", "Ti/16", "--image-size", "32", "--batch-size", "2"]
    told = json.loads(cli(*small, *["--rounds", "2", "--tuned", "--train", "--json"]).out)
    assert {side["form"] for side in told["sides"]} == set(FORMS)
    for side in told["sides"]:
        assert side["problem"] == "", side
        assert len(side["rates"]) == 2
        assert min(side["rates"]) > 0
    assert "timm" in cli(*small, *["--rounds", "1", "--peers", "timm"]).out
