"""The loop is a pure function of its state: the same bits twice, after any stop, with any number of workers."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.training.lab import (
    CHOICES,
    EXECUTION,
    LIVELY,
    NOISY,
    TINY,
    EpochDone,
    Seen,
    StepDone,
    bits,
    cross_entropy,
    dropout_seed,
    fresh,
    image_set,
    photo_feed,
    run,
    same,
    steps_per_epoch,
    tiny_set,
    train_loop,
    weights,
)
from vitrail.data.augmentation import Augmentation
from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViTConfig
from vitrail.runs.settings import Optimization
from vitrail.training.checkpoint import copy_state, load_state, save_state

ACCUMULATED = replace(CHOICES, accumulate=3)
EVENTS = 3 * (3 + 1)  # three epochs of three steps


@pytest.fixture(scope="module")
def unbroken() -> dict[int, Seen]:
    """The runs that all others must equal, by their number of parts."""
    return {choices.accumulate: run(fresh(choices=choices), tiny_set(), choices) for choices in (CHOICES, ACCUMULATED)}


def test_the_same_seed_twice_is_the_same_bits(unbroken: dict[int, Seen]) -> None:
    """With dropout, stochastic depth, mixup, CutMix and the average on; whatever torch's generator was at."""
    torch.manual_seed(99)
    again = run(fresh(), tiny_set())
    assert same(bits(again.state), bits(unbroken[1].state))
    assert [float(step.loss) for step in again.steps] == [float(step.loss) for step in unbroken[1].steps]
    other = run(fresh(), tiny_set(seed=1))
    assert not same(weights(other.state.network), weights(unbroken[1].state.network))


def test_dropout_belongs_to_the_step(monkeypatch: pytest.MonkeyPatch, unbroken: dict[int, Seen]) -> None:
    assert len({dropout_seed(seed, step) for seed in range(20) for step in range(50)}) == 1000
    monkeypatch.setattr("vitrail.training.loop.dropout_seed", lambda seed, step: 0)
    frozen = run(fresh(), tiny_set())
    assert not same(weights(frozen.state.network), weights(unbroken[1].state.network)), "dropout is really on"


def resumed(stop: int, choices: Optimization, folder: Path) -> Seen:
    """Stop after so many events, save, and go on with fresh objects."""
    first = run(fresh(choices=choices), tiny_set(), choices, stop)
    save_state(copy_state(first.state), folder, {})
    state = fresh(choices=choices, seed=12345)
    load_state(state, folder)
    assert same(bits(state), bits(first.state))
    torch.manual_seed(stop)
    second = run(state, tiny_set(), choices)
    return Seen(state, first.steps + second.steps, first.epochs + second.epochs)


FEW = {1: (1, 4, 11), 3: (3, 6)}  # within an epoch, behind its last step, behind its end


@pytest.mark.parametrize(
    ("accumulate", "stop"),
    [
        pytest.param(accumulate, stop, marks=() if stop in FEW[accumulate] else pytest.mark.soak)
        for accumulate in (1, 3)
        for stop in range(1, EVENTS + 1)
    ],
)
def test_a_stop_anywhere_changes_no_bit(unbroken: dict[int, Seen], accumulate: int, stop: int, tmp_path: Path) -> None:
    """Weights, average, optimizer, totals and every event, also in the middle of an epoch or behind its last step."""
    choices, whole = (CHOICES, unbroken[1]) if accumulate == 1 else (ACCUMULATED, unbroken[3])
    broken = resumed(stop, choices, tmp_path)
    assert same(bits(broken.state), bits(whole.state))
    assert broken.epochs == whole.epochs
    assert [float(step.loss) for step in broken.steps] == [float(step.loss) for step in whole.steps]
    assert [(step.step, step.epoch, step.images) for step in broken.steps] == [
        (step.step, step.epoch, step.images) for step in whole.steps
    ]


@pytest.mark.parametrize("fault", ["average", "batch", "totals", "moments", "gradient_norm"])
def test_a_forgotten_part_of_the_state_is_seen(fault: str, tmp_path: Path, unbroken: dict[int, Seen]) -> None:
    """Planted faults: each makes the resumed run differ."""
    save_state(copy_state(run(fresh(), tiny_set(), stop=3).state), tmp_path, {})
    state = fresh(seed=7)
    before = weights(state.average.network)
    load_state(state, tmp_path)
    match fault:
        case "average":
            state.average.network.load_state_dict(before)
        case "batch":
            state.batch = 0
        case "totals":
            state.totals = {}
        case "moments":
            for values in state.optimizer.state.values():
                values["exp_avg"].zero_()
        case _:
            state.gradient_norm = torch.zeros(())
    second, whole = run(state, tiny_set()), unbroken[1]
    assert not same(bits(state), bits(whole.state)) or second.epochs != whole.epochs


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_number_of_workers_changes_no_weight(photo_folder: Path, workers: int) -> None:
    choices = replace(CHOICES, epochs=2, batch_size=7)
    config = ViTConfig(image_size=(16, 20), patch_size=4, classes=3, width=16, depth=1, heads=2, dropout=0.1)
    rich = Augmentation(
        crop_scale=(0.4, 1.0), rotate=15.0, flip=0.5, trivial_augment=True, random_erasing=0.3, mixup=0.3, cutmix=1.0
    )
    shape, seen = Preprocessing((16, 20), mean=(0.4, 0.5, 0.6)), []
    for kind in (None, workers):
        feed, labels = photo_feed(photo_folder / "train", Preprocessing((24, 30)), kind)
        seen.append(run(fresh(config, choices), image_set(feed, labels, shape, rich, seed=5), choices))
    assert same(bits(seen[0].state), bits(seen[1].state))


@settings(deadline=None, max_examples=8)
@given(
    count=st.integers(1, 23),
    batch_size=st.integers(1, 10),
    accumulate=st.integers(1, 4),
    bad=st.sets(st.integers(0, 22), max_size=4),
)
def test_each_readable_image_counts_once(count, batch_size, accumulate, bad) -> None:
    choices = Optimization(epochs=2, batch_size=batch_size, accumulate=accumulate, warmup_epochs=0.0)
    seen = run(fresh(TINY, choices), tiny_set(count, LIVELY, bad=bad), choices)
    left_out = len([one for one in bad if one < count])
    assert [(epoch.counted, epoch.samples) for epoch in seen.epochs] == [(count - left_out,) * 2] * 2
    steps = steps_per_epoch(count, choices)
    assert len(seen.steps) == 2 * steps
    assert seen.state.step == 2 * steps
    for epoch in range(2):
        mine = [step for step in seen.steps if step.epoch == epoch]
        assert sum(step.images for step in mine) == count - left_out
        mean = sum(float(step.loss) * step.images for step in mine) / max(1, count - left_out)
        assert seen.epochs[epoch].loss == pytest.approx(mean, rel=1e-5)


def test_the_training_accuracy_counts_own_labels() -> None:
    data = tiny_set(22, Augmentation())
    choices = Optimization(epochs=1, batch_size=22, learning_rate=0.0, warmup_epochs=0.0)
    state = fresh(TINY, choices)
    (batch,) = data.batches(0, 22)
    right = int((state.network(batch.inputs).argmax(1) == batch.labels).sum())
    (epoch,) = run(state, data, choices).epochs
    assert epoch.measures == {"correct": right / 22}


def test_the_average_follows_every_step() -> None:
    """Computed again from the weights behind each step."""
    state = fresh()
    expected = {name: tensor.double() for name, tensor in weights(state.network).items()}
    for event in train_loop(state, tiny_set(), cross_entropy, CHOICES, EXECUTION):
        if isinstance(event, StepDone):
            decay = min(CHOICES.ema_decay, event.step / (9 + event.step))
            now = weights(state.network)
            expected = {name: decay * expected[name] + (1 - decay) * now[name] for name in now}
    for name, tensor in weights(state.average.network).items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=0)


def test_clipping_scales_the_whole_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        torch.optim.AdamW,
        "step",
        lambda self: seen.append(
            torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]]).norm().item()
        ),
    )
    for clip in (0.0, 1e-3, 1e3):
        choices = replace(CHOICES, clip_grad_norm=clip, epochs=1)
        seen.clear()
        events = run(fresh(choices=choices), tiny_set(), choices)
        for norm, step in zip(seen, events.steps, strict=True):
            before = float(step.gradient_norm)
            assert before > 0.01
            assert norm == pytest.approx(min(before, clip) if clip else before, rel=1e-3)


BRIGHT = Optimization(epochs=40, batch_size=16, learning_rate=1e-2, ema_decay=0.9)


@pytest.fixture(scope="module")
def learnt() -> Seen:
    """A training of 64 images, of three classes told by a bright bar."""
    torch.manual_seed(0)
    return run(fresh(TINY, BRIGHT), tiny_set(64, Augmentation()), BRIGHT)


def test_it_learns(learnt: Seen) -> None:
    """The point of it all: the classes are learnt, and the average is what learnt them."""
    assert learnt.epochs[0].loss > 0.9
    assert learnt.epochs[-1].loss < 0.2
    assert learnt.state.best_network is learnt.state.average.network
    (batch,) = tiny_set(64, Augmentation()).batches(0, 64)
    with torch.no_grad():
        assert float((learnt.state.best_network(batch.inputs).argmax(1) == batch.labels).float().mean()) > 0.95


def test_labels_of_another_order_teach_nothing(learnt: Seen) -> None:
    """The planted fault: labels that are shifted against their images."""
    data = tiny_set(64, Augmentation())
    shifted = replace(data, column=data.column.select(np.roll(np.arange(64), 1)))
    torch.manual_seed(0)
    shorter = replace(BRIGHT, epochs=20)
    wrong = run(fresh(TINY, shorter), shifted, shorter).epochs[-1].loss
    assert wrong > learnt.epochs[19].loss + 0.3


def test_events_come_in_order_and_the_state_is_whole_between_them() -> None:
    state, kinds = fresh(), []
    for event in train_loop(state, tiny_set(), cross_entropy, CHOICES, EXECUTION):
        kinds.append(type(event))
        assert state.step == event.step
        assert math.isfinite(float(state.gradient_norm))
        if isinstance(event, EpochDone):
            assert (state.epoch, state.batch, state.totals) == (event.epoch + 1, 0, {})
        else:
            assert (state.epoch, state.batch) == (event.epoch, event.step - 3 * event.epoch)
            assert event.seconds >= event.waiting >= 0
    assert kinds == ([StepDone] * 3 + [EpochDone]) * 3


def test_bf16_trains_by_autocast_and_keeps_fp32_weights() -> None:
    state = fresh(NOISY)
    events = list(train_loop(state, tiny_set(), cross_entropy, CHOICES, replace(EXECUTION, precision="bf16")))
    assert all(parameter.dtype == torch.float32 for parameter in state.network.parameters())
    assert events[0].loss.dtype == torch.float32
    plain = run(fresh(NOISY), tiny_set())
    assert float(events[0].loss) == pytest.approx(float(plain.steps[0].loss), rel=0.05)
    assert not same(weights(state.network), weights(plain.state.network))
