"""Numbers that are not finite never reach the weights, and the run says at which step and in which tensor."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.training.lab import (
    CHOICES,
    EXECUTION,
    Batch,
    State,
    bits,
    cross_entropy,
    fresh,
    run,
    same,
    tiny_set,
    train_loop,
    weights,
)
from vitrail.errors import RunError
from vitrail.training.loop import PATIENCE, FiniteGuard, stuck

BAD = [math.nan, math.inf, -math.inf]
AT = 4


Objective = Callable[[nn.Module, Batch], tuple[Tensor, int, dict[str, Tensor]]]


def wrong_at(step: int, fault: Objective) -> Objective:
    """Classification that goes wrong at one step."""
    calls = iter(range(1000))

    def objective(network: nn.Module, batch: Batch):
        return fault(network, batch) if next(calls) == step else cross_entropy(network, batch)

    return objective


def scaled(value: float) -> Objective:
    def fault(network: nn.Module, batch: Batch):
        loss, count, measures = cross_entropy(network, batch)
        return loss * value, count, measures

    return fault


def without_totals(state: State) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in bits(state).items() if not name.startswith("totals")}


def run_out(events: Iterator[object]) -> None:
    for _ in events:
        pass


def text_of(fault: Objective, step: int = AT) -> str:
    """The error of a training that goes wrong at a step; weights, moments and average are then those of before."""
    state = fresh()
    loop = train_loop(state, tiny_set(), wrong_at(step, fault), CHOICES, EXECUTION)
    while state.step < step:
        next(loop)
    before = without_totals(state)
    with pytest.raises(RunError) as caught:
        run_out(loop)
    assert same(without_totals(state), before)
    assert len(str(caught.value).splitlines()) == 2
    return caught.value.problem


@pytest.mark.parametrize("value", BAD)
def test_a_bad_loss_stops_before_the_weights(value: float) -> None:
    problem = text_of(scaled(value))
    assert problem.startswith(f"step {AT}: ")
    assert str(value) in problem


@pytest.mark.parametrize("value", BAD)
def test_a_bad_pixel_stops_before_the_weights(value: float) -> None:
    def fault(network, batch):
        images = batch.inputs.clone()
        images[-1, 0, 3, 3] = value
        return cross_entropy(network, replace(batch, inputs=images))

    problem = text_of(fault)
    assert problem.startswith(f"step {AT}: ")
    assert "nan" in problem


def test_a_bad_gradient_is_named() -> None:
    name = "blocks.1.mlp.fc1.weight"

    def fault(network, batch):
        network.get_parameter(name).register_hook(lambda gradient: gradient * math.nan)
        return cross_entropy(network, batch)

    problem = text_of(fault)
    assert problem.startswith(f"step {AT}: ")
    assert name in problem


def test_a_bad_weight_is_noticed_in_its_step() -> None:
    state = fresh()
    run(state, tiny_set(), stop=2)
    with torch.no_grad():
        state.network.blocks[0].norm1.weight[3] = math.nan
    before = weights(state.network)
    with pytest.raises(RunError, match=r"step 2: .*nan"):
        run(state, tiny_set())
    after = weights(state.network)
    assert all(torch.equal(before[name].nan_to_num(7), after[name].nan_to_num(7)) for name in before)


def test_without_the_guard_the_weights_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault."""
    monkeypatch.setattr(FiniteGuard, "observe", lambda self, step, loss, norms, own: torch.zeros(()))
    state = fresh()
    run_out(train_loop(state, tiny_set(), wrong_at(AT, scaled(math.nan)), CHOICES, EXECUTION))
    assert not all(bool(tensor.isfinite().all()) for tensor in weights(state.network).values())


@pytest.mark.parametrize("first", [0, 3, 9, 10])
def test_where_looking_costs_the_run_stops_within_ten_steps(first: int) -> None:
    """The guard as an accelerator uses it: a bad step and all behind it are skipped until the next look."""
    guard = FiniteGuard(["a", "b"], torch.device("cpu"))
    guard.every = PATIENCE
    look = next(step for step in range(30) if step >= first and (step + 1) % PATIENCE == 0)
    assert look - first < PATIENCE
    for step in range(look + 1):
        skip = guard.observe(step, torch.tensor(0.5), torch.tensor([1.0, math.nan if step == first else 2.0]))
        assert float(skip) == float(step >= first), "nothing is applied on top of a bad step"
        if step < look:
            guard.check(step)
    with pytest.raises(RunError, match=f"step {first}: .* b "):
        guard.check(look)


def test_a_bad_step_near_the_end_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine steps in all, the eighth is bad, and the guard would look at the tenth: the end of the epoch looks too."""
    monkeypatch.setattr(FiniteGuard, "check", lambda self, step: None)
    state = fresh()
    loop = train_loop(state, tiny_set(), wrong_at(7, scaled(math.nan)), CHOICES, EXECUTION)
    while state.step < 7:
        next(loop)
    before = weights(state.network)
    with pytest.raises(RunError, match=r"step 7: .*nan"):
        run_out(loop)
    assert same(weights(state.network), before)


@pytest.mark.parametrize(
    ("loss", "done", "rate", "gradient", "hint"),
    [
        (2.30, 0.8, 1e-3, 1.0, ""),
        (2.30, 0.8, 0.1, 1.0, "--lr 0.01"),
        (2.30, 0.8, 1e-6, 1.0, "--lr 0.001"),
        (2.30, 0.8, 1e-3, 1e-6, "--lr 0.01"),
        (2.30, 0.3, 1e-3, 1.0, None),
        (2.00, 0.8, 1e-3, 1.0, None),
    ],
)
def test_a_run_that_learns_nothing_says_so(loss, done, rate, gradient, hint) -> None:
    """And names another learning rate where that is the likely cause."""
    sentence = stuck(loss, math.log(10), done, rate, gradient)
    if hint is None:
        assert sentence is None
        return
    assert sentence is not None
    assert "\n" not in sentence
    assert sentence.endswith(hint)
    assert ("--lr" in sentence) == bool(hint)
