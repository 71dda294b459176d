"""Libraries side by side: the same network, its figures from their turns."""

import copy
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.libraries.__main__ import main
from benchmarks.libraries.sides import Bench, Side, bench
from benchmarks.libraries.turn import (
    FORMS,
    MATRICES,
    OWN,
    PEERS,
    RATE,
    Job,
    contestant,
    own_step,
    present,
    runs,
    written_step,
)
from tests.errors import must_raise
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.nn import ViTConfig

TINY = ViTConfig.from_size("Ti/16", classes=5, image_size=32)
JOB = Job("", "", "Ti/16", 2, image_size=32)


def of(name: str, *rates: float, form: str = "default") -> Side:
    return Side(name, form, "1", 0.0, rates)


def test_every_library_that_is_here_builds_the_same_network() -> None:
    assert set(present()) <= set(PEERS)
    for name in (OWN, *present()):
        network, gap = contestant(name, TINY)
        assert not network.training
        assert gap < 1e-5
        assert sum(each.numel() for each in network.parameters()) > 5e6


def test_a_library_that_answers_otherwise_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    if "timm" not in present():
        pytest.skip("timm is not installed")
    build = PEERS["timm"]

    def other(config: ViTConfig) -> torch.nn.Module:
        module = build(config)
        module.register_forward_hook(lambda module, given, answer: 1.01 * answer)
        return module

    monkeypatch.setitem(PEERS, "timm", other)
    with must_raise(DataError):
        contestant("timm", TINY)


def test_what_a_turn_calls_counts_its_images() -> None:
    for name in (OWN, MATRICES):
        for form in FORMS:
            call, _ = runs(Job(name, form, "Ti/16", 2, image_size=32), TINY)
            assert call() == 2
    for how in ("apart", "chosen"):
        call, _ = runs(Job(OWN, "default", "Ti/16", 2, image_size=32, how=how), TINY)
        assert call() == 4 * torch.get_num_threads()


def test_a_step_of_its_own_loop_moves_the_weights_as_one_that_is_written_out_does() -> None:
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    network, _ = contestant(OWN, TINY)
    network.train()
    moved = []
    for step in (partial(own_step, classes=5), written_step):
        twin = copy.deepcopy(network)
        assert step(twin, images, labels, bf16=False)() == 4
        moved.append(torch.cat([(after - before).flatten() for after, before in parameters(twin, network)]))
    own, written = moved
    assert (written.abs() > RATE / 2).double().mean() > 0.9, "Adam's first step is the rate, whatever the gradient"
    assert ((own - written).abs() < RATE / 5).double().mean() > 0.99


def parameters(one: torch.nn.Module, other: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of both, in pairs."""
    return zip((each.detach() for each in one.parameters()), other.parameters(), strict=True)


def test_ratios_are_taken_round_by_round_to_the_best_other() -> None:
    rates = {MATRICES: (100.0,) * 3, OWN: (20.0, 30.0, 60.0), "timm": (10.0, 10.0, 30.0), "torchvision": (1.0,) * 3}
    sides = tuple(of(name, *each) for name, each in rates.items())
    found = Bench(JOB, "here", sides)
    assert found.ratio(sides[1]) == 2, "20 of 10, 30 of 10, 60 of 30: the one in the middle"
    assert found.ratio(sides[2]) == 10, "the best other is torchvision"
    assert found.fraction(sides[1]) == 0.3
    assert found.fraction(of(OWN, 1.0, form="bf16")) is None
    told = json.loads(json.dumps(found.to_dict()))
    assert [side["name"] for side in told["sides"]] == [MATRICES, OWN, "timm", "torchvision"]
    assert told["sides"][1]["ratio"] == 2


@pytest.mark.parametrize(
    "words", ["--peers tim", "X/16", "--rounds 0", "--batch-size 0", "--device cuda:99", "--image-size 100"]
)
def test_what_cannot_run_is_refused_before_a_process_is_started(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.libraries.sides.Process", None)
    with must_raise(VitrailError):
        main(words.split())


def test_it_says_that_no_other_library_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.libraries.sides.present", list)
    with must_raise(UsageError):
        bench(Job("", "", "Ti/16", 2))


@pytest.mark.soak
def test_processes_take_turns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All libraries in the first form, twice; and one of them in every form."""
    made = list[Bench]()

    def kept(*given: Any) -> Bench:
        made.append(bench(*given))
        return made[-1]

    monkeypatch.setattr("benchmarks.libraries.__main__.bench", kept)
    small = ["Ti/16", "--image-size", "32", "--batch-size", "2"]
    main([*small, "--rounds", "2", "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(made[0].to_dict()))
    main([*small, "--rounds", "1", "--peers", "timm", "--tuned", "--train"])
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("timm", *FORMS.values()))
    assert {side.name for side in made[0].sides} >= {MATRICES, OWN, *present()}
    assert {side.form for side in made[1].sides if side.name == "timm"} == set(FORMS)
    for rounds, found in zip((2, 1), made, strict=True):
        for side in found.sides:
            assert side.problem == "", side
            assert len(side.rates) == rounds
            assert min(side.rates) > 0
