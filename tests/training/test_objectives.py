"""Objectives return sums and counts, so parts of a batch add up to the whole."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from vitrail.training.objectives import classification

from tests.training.lab import CHOICES, EXECUTION, LIVELY, NOISY, TINY, fresh, run, tiny_set, weights
from vitrail.data.augmentation import Augmentation
from vitrail.training.loop import _gradients, part_size

STILL = replace(NOISY, dropout=0.0, attention_dropout=0.0, stochastic_depth=0.0)


@pytest.mark.parametrize("augmentation", [Augmentation(), LIVELY])
def test_sums_equal_torch_s_cross_entropy(augmentation: Augmentation) -> None:
    network = fresh(STILL).network
    (batch,) = tiny_set(augmentation=augmentation).batches(0, 22)
    with torch.no_grad():
        loss, count, measures = classification(network, batch)
        logits = network(batch.images)
    assert float(loss) == pytest.approx(22 * float(F.cross_entropy(logits, batch.targets)), rel=1e-6)
    assert count == 22
    assert int(measures["correct"]) == int((logits.argmax(1) == batch.labels).sum())
    assert not classification(network, batch)[2]["correct"].requires_grad


def test_hard_targets_are_soft_ones_of_a_single_class() -> None:
    network = fresh(STILL).network
    (batch,) = tiny_set(augmentation=Augmentation()).batches(0, 22)
    soft = replace(batch, targets=F.one_hot(batch.targets, 3).float())
    torch.testing.assert_close(classification(network, soft)[0], classification(network, batch)[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("accumulate", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("bad", [(), (0, 5, 9, 21)])
def test_parts_give_the_gradient_of_the_whole_batch(accumulate: int, bad: tuple[int, ...]) -> None:
    """Batches of 8 of 22 pictures: parts that do not divide the batch, an uneven end, and pictures left out."""
    choices = replace(CHOICES, accumulate=accumulate)
    data = tiny_set(bad=bad)
    network = fresh(STILL).network.double()
    whole = list(data.batches(0, 8))
    parts = list(data.batches(0, 8, 0, part_size(choices)))
    per_batch = -(-8 // part_size(choices))
    assert len(parts) >= len(whole) * min(per_batch, 2) - 1
    for number, batch in enumerate(whole):
        results = []
        for group in ([batch], parts[number * per_batch : (number + 1) * per_batch]):
            totals: dict[str, torch.Tensor] = {}
            doubled = [replace(one, images=one.images.double(), targets=one.targets.double()) for one in group]
            network.zero_grad()
            loss, count = _gradients(network, doubled, classification, EXECUTION, "cpu", totals)
            gradients = torch.cat([p.grad.flatten() / count for p in network.parameters() if p.grad is not None])
            results.append((float(loss), count, gradients, {name: float(value) for name, value in totals.items()}))
        (loss, count, gradients, totals), (loss_in_parts, count_in_parts, in_parts, totals_in_parts) = results
        assert count == count_in_parts == len(batch.labels)
        assert loss_in_parts == pytest.approx(loss, rel=1e-6)
        assert (gradients - in_parts).abs().max() <= 1e-6
        assert gradients.abs().max() > 1e-3
        assert totals_in_parts == pytest.approx(totals, rel=1e-6)


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
    sums = torch.stack([classification(network, part)[0] for part in parts])
    means = torch.stack([classification(network, part)[0] / len(part.labels) for part in parts])
    whole = classification(network, next(tiny_set().batches(0, 8)))[0] / 8
    assert float(sums.sum() / 8) == pytest.approx(float(whole), rel=1e-6)
    assert abs(float(means.mean()) - float(whole)) > 1e-3
