"""Optimizer, schedule and average against torch's plain AdamW and closed forms."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.training.lab import CHOICES, NOISY, fresh, weights
from vitrail.nn import ViT
from vitrail.runs.settings import Optimization
from vitrail.training.loop import gradient_norms
from vitrail.training.lora import adapt
from vitrail.training.optimizer import (
    ADAPTERS,
    Average,
    Schedule,
    groups_of,
    make_optimizer,
    parameter_rules,
    rates_words,
)

FULL = replace(NOISY, distillation_token=True, registers=2)


def test_only_matrices_decay() -> None:
    network = ViT(FULL)
    decayed, kept = groups_of(network, parameter_rules(network, replace(CHOICES, weight_decay=0.3)))
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    name_of = {id(parameter): name for name, parameter in network.named_parameters()}
    names = {name_of[id(parameter)] for parameter in decayed["params"]}
    linear = [name for name, module in network.named_modules() if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)]
    assert names == {f"{name}.weight" for name in linear}
    rest = {name_of[id(parameter)] for parameter in kept["params"]}
    assert rest | names == set(name_of.values())
    assert not rest & names
    for tail in ("cls_token", "dist_token", "reg_token", "pos_embed", "norm.weight", "ls1.gamma", "head.bias"):
        assert any(name.endswith(tail) for name in rest), tail


def test_frozen_parameters_are_in_no_group() -> None:
    network = ViT(FULL)
    network.patch_embed.requires_grad_(False)
    grouped = {
        id(parameter)
        for group in groups_of(network, parameter_rules(network, CHOICES))
        for parameter in group["params"]
    }
    assert not grouped & {id(parameter) for parameter in network.patch_embed.parameters()}


def test_the_caption_names_each_rate_that_is_not_the_schedules() -> None:
    """Of adapters and heads, of layers from the first to the last; and there is none where all learn alike."""
    network = ViT(replace(FULL, depth=3))
    assert rates_words(parameter_rules(network, CHOICES)) == ""
    decayed = rates_words(parameter_rules(network, replace(CHOICES, layer_decay=0.5)))
    assert "0.0625 to 1 times" in decayed  # patches and tokens, four layers below the head; the head
    adapt(network, 2, seed=0)
    adapted = rates_words(parameter_rules(network, replace(CHOICES, layer_decay=0.5, lora=2)))
    assert f"1 to {ADAPTERS:g} times" in adapted


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_steps_equal_torch_s_plain_adamw(weight_decay: float) -> None:
    choices = replace(CHOICES, weight_decay=weight_decay, betas=(0.8, 0.95), learning_rate=0.01)
    ours, theirs = fresh(FULL, choices).network.double(), fresh(FULL, choices).network.double()
    fused = make_optimizer(ours, choices)
    plain = torch.optim.AdamW(
        groups_of(theirs, parameter_rules(theirs, choices)), lr=0.01, betas=(0.8, 0.95), fused=False, foreach=False
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            other.grad = one.grad.clone()
        fused.step()
        plain.step()
    for one, other in zip(weights(ours).values(), weights(theirs).values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_the_fused_kernel_skips_a_bad_step(bad: float) -> None:
    """What the watchdog relies on: `found_inf` = 1 leaves weights, moments and step counts; 0 does not."""
    state = fresh()
    optimizer = state.optimizer

    def step(value: float, found: float) -> None:
        for parameter in state.network.parameters():
            parameter.grad = torch.full_like(parameter, value)
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()

    step(0.5, 0.0)
    before, moments = weights(state.network), optimizer.state_dict()["state"]
    kept = {(index, name): value.clone() for index, values in moments.items() for name, value in values.items()}
    step(float("nan") if bad else 0.5, bad)
    after = weights(state.network)
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    moments = optimizer.state_dict()["state"]
    still = all(torch.equal(value, moments[index][name]) for (index, name), value in kept.items())
    assert (unchanged, still) == ((True, True) if bad else (False, False))


@settings(deadline=None, max_examples=60)
@given(
    epochs=st.integers(1, 20),
    per_epoch=st.integers(1, 50),
    warmup=st.floats(0, 5),
    peak=st.floats(1e-6, 1.0),
    schedule=st.sampled_from(["cosine", "constant"]),
)
def test_the_schedule_is_its_closed_form(epochs, per_epoch, warmup, peak, schedule) -> None:
    choices = Optimization(epochs=epochs, learning_rate=peak, warmup_epochs=warmup, schedule=schedule)
    rising, total = round(warmup * per_epoch), epochs * per_epoch
    rates = [Schedule.of(choices, per_epoch).rate(step) for step in range(total + 1)]
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    for step, rate in enumerate(rates):
        if step < rising:
            expected = peak * (step + 1) / (rising + 1)
        elif schedule == "constant":
            expected = peak
        else:
            expected = peak / 2 * (1 + math.cos(math.pi * min(1, (step - rising) / max(1, total - rising))))
        assert rate == pytest.approx(expected, rel=1e-12, abs=1e-15)
    if rising < total:
        assert rates[rising] == peak, "the top comes right after the warm-up"
        if schedule == "cosine":
            assert rates[total] == pytest.approx(0, abs=1e-15)
            assert rates[total - 1] > 0, "the last step still moves the weights"
            assert all(a >= b for a, b in zip(rates[rising:], rates[rising + 1 :], strict=False))
    if rising:
        assert rates[0] > 0, "no step is wasted"


def test_the_average_is_its_closed_form() -> None:
    network = fresh(choices=replace(CHOICES, ema_decay=0.0)).network
    average = Average(network, 0.9)
    expected = {name: tensor.double() for name, tensor in weights(network).items()}
    for step in range(200):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.01 * math.sin(step))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = {name: decay * expected[name] + (1 - decay) * tensor for name, tensor in weights(network).items()}
    for name, tensor in weights(average.network).items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-5, rtol=0)
        assert not torch.equal(tensor, weights(network)[name])
    assert not average.network.training
    assert not any(parameter.requires_grad for parameter in average.network.parameters())


def test_norms_of_gradients() -> None:
    network = fresh().network
    parameters = list(network.parameters())
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, float(number)) if number % 2 else None
    norms = gradient_norms(parameters)
    for number, (parameter, norm) in enumerate(zip(parameters, norms, strict=True)):
        assert float(norm) == pytest.approx(number * parameter.numel() ** 0.5 if number % 2 else 0.0, rel=1e-5)
