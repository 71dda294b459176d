"""A dry run: what it says is what a run does, and it leaves nothing behind."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.errors import must_raise
from tests.training.lab import fresh, memory_for, tiny_set
from tests.training.test_initial import OPTIONS, source
from tests.training.tiny import STEPS, options, whole
from vitrail.errors import RunError, UsageError
from vitrail.features.linear_probe import fit_probe
from vitrail.features.poolings import head_features
from vitrail.nn import ViT
from vitrail.runs.settings import read_yaml, settings_from_dict, settings_to_dict
from vitrail.training import setup
from vitrail.training.configuration.request import Request
from vitrail.training.train import plan_training

pytestmark = pytest.mark.usefixtures("few_penalties", "as_a_user")


def test_it_says_what_a_run_does_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = plan_training("digits", tmp_path / "run", options("digits"))
    assert not list(tmp_path.iterdir())
    network = vitrail.load(whole("digits")).network
    assert sum(rule.numbers for rule in found.rules) == sum(each.numel() for each in network.parameters())
    assert [rule.kind for rule in found.rules] == ["trained", "trained"]
    assert found.rate(found.rules[0]) == found.settings.optimization.learning_rate
    assert found.steps == STEPS["digits"]
    assert 0 < found.seconds < 60
    assert found.timed is not None
    assert found.timed.steps == min(STEPS["digits"], 20)
    assert found.timed.sample > 0
    assert found.timed.scoring > 0
    epochs = 2 * (found.samples["train"] * found.timed.sample + found.timed.scoring)
    assert found.seconds > epochs + found.timed.scoring, "reading the data, and the evaluation at the end"
    assert found.timed.memory is None or found.timed.memory > 2**27, "torch alone takes more"
    with must_raise(UsageError):
        plan_training("digits", whole("digits"), options("digits"))
    with must_raise(UsageError):
        plan_training("digits", None, options("digits", resume="auto"))


def test_settings_and_notes_are_those_of_the_run(tmp_path: Path) -> None:
    """Of a run that selects by validation, too, whose samples are then cut."""
    asked = options("digits", patience=1, epochs=1)
    found, folder = plan_training("digits", None, asked), vitrail.train("digits", tmp_path / "run", asked).folder
    assert settings_to_dict(found.settings) == settings_to_dict(settings_from_dict(read_yaml(folder / "config.yaml")))
    assert list(found.notes) == json.loads((folder / "data.json").read_text())["notes"]


def test_what_does_not_fit_is_said_before_it_is_begun() -> None:
    """Memory that runs out in a step on trial, behind those that chose the micro-batches."""
    with memory_for(100, first=8) as tried:
        found = plan_training("digits", None, options("digits", accumulate=1))
    assert tried[8] == 200
    assert tried[9] == 100
    assert any("100" in note for note in found.notes)
    with memory_for(0, first=8), must_raise(RunError):
        plan_training("digits", None, options("digits", accumulate=1))


def test_a_probe_trains_the_head_and_adapters_stand_in_the_table() -> None:
    names = dict(vitrail.load(source()).network.named_parameters())
    alone = {"probe": True, "epochs": None}
    for changes, kinds in ((alone, {"trained", "frozen"}), ({"lora": 2}, {"trained", "LoRA", "frozen"})):
        found = plan_training("digits", None, replace(OPTIONS, init=str(source()), **changes))
        assert {rule.kind for rule in found.rules} == kinds
        assert {name for rule in found.rules if rule.kind == "trained" for name in rule.names} == {
            "head.weight",
            "head.bias",
        }
        assert {name for rule in found.rules if rule.kind == "frozen" for name in rule.names} == {
            name for name in names if not name.startswith("head")
        }
        assert (found.steps == 0) == ("probe" in changes) == (found.timed is None)
        assert all((found.row(rule)["rate"] is None) == ("probe" in changes) for rule in found.rules)


def test_it_leaves_out_a_probe_that_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "MANY", 0)
    probes: list[int] = []
    monkeypatch.setattr(setup, "fit_probe", lambda *given: probes.append(1) or fit_probe(*given))
    for limit, probed in ((0.0, False), (1e9, True)):
        monkeypatch.setattr(setup, "LONG", limit)
        found = plan_training("digits", None, replace(OPTIONS, init=str(source())))
        assert bool(probes) == probed
        assert found.steps > 0
        assert found.seconds > 0


def test_a_probe_leaves_a_third_of_a_limited_time_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has fewer images where all would take too long, of every class, and says so."""
    asked: list[tuple[int, int]] = []

    def enough(unseen: int, known: int) -> bool:
        asked.append((unseen, known))
        return known >= 100

    monkeypatch.setattr(setup, "probe_enough", lambda *given: enough)
    request = Request(data="digits", options=replace(OPTIONS, init=str(source()), max_time="1h"))
    found = setup.new_run(request, lambda event: None)
    assert found.probed is not None
    assert 100 <= found.probed.trained <= 116
    assert [known for _, known in asked] == sorted(known for _, known in asked)
    assert asked[-1][0] == found.probed.images == len(found.validation), "none is spared of those that judge it"
    assert any({str(found.probed.trained), "1,258"} <= {*note.split()} for note in found.notes)


def test_the_images_that_are_read_first_lie_evenly_among_all() -> None:
    """Of a folder whose classes follow each other each is there; to read all of them is as if nobody had asked."""
    network, data = fresh().network, tiny_set()
    assert isinstance(network, ViT)
    every, all_asked = head_features(network, data), head_features(network, data, lambda count: False)
    assert torch.equal(every.labels, all_asked.labels)
    assert torch.allclose(every.values, all_asked.values, atol=1e-6)
    many = data.subset(np.sort(np.tile(np.arange(len(data)), 40)))
    few = head_features(network, many, lambda count: count >= 64)
    assert len(few.labels) == 64
    counts, wanted = (np.bincount(each.labels.numpy()) / len(each.labels) for each in (few, every))
    assert np.abs(counts - wanted).max() < 0.05


def test_some_images_keep_their_own_labels() -> None:
    """Of a part of the images, in any order, the features and labels are those of the same images among all."""
    network, data, some = fresh().network, tiny_set(), np.array([9, 1, 20, 4])
    assert isinstance(network, ViT)
    every, part = head_features(network, data), head_features(network, data.subset(some))
    assert torch.equal(part.labels, every.labels[some])
    assert torch.allclose(part.values, every.values[some], atol=1e-6)
    assert len(every.labels.unique()) > 1
