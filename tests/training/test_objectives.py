"""Objectives return sums and counts, so parts of a batch add up to the whole."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.training.lab import (
    CHOICES,
    EXECUTION,
    LIVELY,
    NOISY,
    TINY,
    EpochDone,
    StepDone,
    cross_entropy,
    fresh,
    run,
    tiny_set,
    train_loop,
    weights,
)
from vitrail.data.augmentation import Augmentation

STILL = replace(NOISY, dropout=0.0, attention_dropout=0.0, stochastic_depth=0.0)


@pytest.mark.parametrize("augmentation", [Augmentation(), LIVELY])
def test_sums_equal_torch_s_cross_entropy(augmentation: Augmentation) -> None:
    network = fresh(STILL).network
    (batch,) = tiny_set(augmentation=augmentation).batches(0, 22)
    with torch.no_grad():
        loss, count, measures = cross_entropy(network, batch)
        logits = network(batch.inputs)
    assert float(loss) == pytest.approx(22 * float(F.cross_entropy(logits, batch.targets)), rel=1e-6)
    assert count == 22
    assert int(measures["correct"]) == int((logits.argmax(1) == batch.labels).sum())
    assert not cross_entropy(network, batch)[2]["correct"].requires_grad


def test_hard_targets_are_soft_ones_of_a_single_class() -> None:
    network = fresh(STILL).network
    (batch,) = tiny_set(augmentation=Augmentation()).batches(0, 22)
    soft = replace(batch, targets=F.one_hot(batch.targets, 3).float())
    torch.testing.assert_close(cross_entropy(network, soft)[0], cross_entropy(network, batch)[0], rtol=1e-6, atol=0)


def gradients_of(accumulate: int, bad: tuple[int, ...]) -> tuple[list[torch.Tensor], list[StepDone], EpochDone]:
    """The gradient of each step of an epoch in which no weight moves; and the events."""
    choices = replace(
        CHOICES, accumulate=accumulate, epochs=1, learning_rate=0.0, clip_grad_norm=0.0, weight_decay=0.0, ema_decay=0.0
    )
    state, gradients, steps = fresh(STILL, choices), [], []
    for event in train_loop(state, tiny_set(bad=bad), cross_entropy, choices, EXECUTION):
        if isinstance(event, EpochDone):
            return gradients, steps, event
        steps.append(event)
        gradients.append(torch.cat([p.grad.flatten() for p in state.network.parameters() if p.grad is not None]))
    raise AssertionError("no epoch came to its end")


@pytest.mark.parametrize("accumulate", [2, 3, 5, 8])
@pytest.mark.parametrize("bad", [(), (0, 5, 9, 21)])
def test_micro_batches_give_the_gradient_of_the_whole_batch(accumulate: int, bad: tuple[int, ...]) -> None:
    """Batches of 8 of 22 images: micro-batches that do not divide the batch, an uneven end, and images left out."""
    whole, steps, epoch = gradients_of(1, bad)
    parts, steps_in_parts, epoch_in_parts = gradients_of(accumulate, bad)
    assert len(whole) == len(parts) == 3
    for one, other in zip(whole, parts, strict=True):
        assert (one - other).abs().max() <= 2e-6
        assert one.abs().max() > 1e-3
    for one, other in zip(steps, steps_in_parts, strict=True):
        assert one.images == other.images
        assert float(one.loss) == pytest.approx(float(other.loss), rel=1e-5)
    assert (epoch.counted, epoch.samples) == (epoch_in_parts.counted, epoch_in_parts.samples) == (22 - len(bad),) * 2
    assert epoch.loss == pytest.approx(epoch_in_parts.loss, rel=1e-5)
    assert epoch.measures == pytest.approx(epoch_in_parts.measures, rel=1e-6)


@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_a_training_in_parts_is_the_training(accumulate: int) -> None:
    one, other = (
        run(fresh(STILL, choices), tiny_set(), choices)
        for choices in (CHOICES, replace(CHOICES, accumulate=accumulate))
    )
    assert [step.images for step in one.steps] == [step.images for step in other.steps]
    assert [step.learning_rate for step in one.steps] == [step.learning_rate for step in other.steps]
    for ours, theirs in zip(weights(one.state.network).values(), weights(other.state.network).values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
    for ours, theirs in zip(one.epochs, other.epochs, strict=True):
        assert ours.counted == ours.samples == theirs.counted == theirs.samples == 22
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-3)


@torch.no_grad()
def test_a_mean_in_place_of_a_sum_would_be_seen() -> None:
    """The planted fault: an objective that divides by its own part of the batch."""
    network = fresh(TINY).network
    parts = list(tiny_set().batches(0, 8, 0, 3))[:3]
    sums = torch.stack([cross_entropy(network, part)[0] for part in parts])
    means = torch.stack([cross_entropy(network, part)[0] / len(part.labels) for part in parts])
    whole = cross_entropy(network, next(tiny_set().batches(0, 8)))[0] / 8
    assert float(sums.sum() / 8) == pytest.approx(float(whole), rel=1e-6)
    assert abs(float(means.mean()) - float(whole)) > 1e-4  # a hundred times the rounding
