"""Memory that runs out: the step is done again in smaller micro-batches, nothing of the first try stays, and a run that
goes on takes the same steps.

The memory here is a network that refuses more images at a time than a number.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.shared_runs import stored
from tests.training.lab import (
    CHOICES,
    EXECUTION,
    ON_CPU,
    bits,
    cross_entropy,
    fresh,
    memory_for,
    same,
    tiny_set,
    train_loop,
)
from tests.training.tiny import AGAIN, Killed, ended_at, options, rows, saved, states, what_was_learnt
from vitrail.errors import RunError, out_of_memory
from vitrail.nn import ViT
from vitrail.training.loop import EpochDone, State, StepDone
from vitrail.training.optimizer import MicroBatches, Schedule

TIMED = 4  # passes before the first step of a run, see tests/spared.py
ASKED = partial(options, "digits", accumulate=1)
FULL: list[Callable[[], BaseException]] = [
    lambda: RuntimeError(ON_CPU),
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError,
]


class Counted(nn.Module):
    """Counts the images that it has seen in training, as batch norm counts batches."""

    def __init__(self, network: ViT) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        self.seen += len(images)
        return self.network(images)


def trained(state: State, schedule: Schedule | None = None) -> list[StepDone | EpochDone | MicroBatches]:
    return list(train_loop(state, tiny_set(), cross_entropy, CHOICES, EXECUTION, schedule))


@pytest.mark.parametrize("error", FULL)
def test_micro_batches_are_halved_and_nothing_else_changes(error: Callable[[], BaseException]) -> None:
    """Eight at once do not fit, nor four: from the fifth step on, in the middle of an epoch, two at a time."""
    with memory_for(2, error, first=4) as tried:
        state = fresh()
        state.network = Counted(state.network)  # type: ignore[arg-type]
        events = trained(state)
    assert tried[:8] == [8, 8, 6, 8, 8, 4, 2, 2]
    smaller = [each for each in events if isinstance(each, MicroBatches)]
    assert [(each.first, each.accumulate) for each in smaller] == [(4, 2), (4, 4)]
    assert int(state.network.seen) == 3 * 22
    planned = Schedule.of(CHOICES, 3)
    planned.micro_batches += smaller
    again = fresh()
    replayed = trained(again, planned)
    assert same(bits(again) | {"seen": torch.tensor(66)}, named(state)), "as if it had been known"
    assert [each for each in replayed if isinstance(each, EpochDone)] == [
        each for each in events if isinstance(each, EpochDone)
    ]
    plain = fresh()
    alike = [each for each in trained(plain) if isinstance(each, StepDone)]
    for one, other in zip(alike, [each for each in replayed if isinstance(each, StepDone)], strict=True):
        assert (one.step, one.epoch, one.images, one.learning_rate) == (
            other.step,
            other.epoch,
            other.images,
            other.learning_rate,
        )
        same_until = one.step <= 4
        assert torch.equal(one.loss, other.loss) == same_until, "dropout is drawn for other micro-batches"


def named(state: State) -> dict[str, Tensor]:
    """The bits of a state whose network stands in a `Counted`."""
    found = {name.replace("network.network.", "network."): value for name, value in bits(state).items()}
    return {("seen" if name == "network.seen" else name): value for name, value in found.items()}


def test_one_image_that_does_not_fit_is_an_error_that_leaves_the_weights() -> None:
    state, before = fresh(), bits(fresh())
    with memory_for(0) as tried, must_raise(RunError):
        trained(state)
    assert tried == [8, 4, 2, 1]
    assert same(bits(state), before)
    assert all(parameter.grad is None for parameter in state.network.parameters())


def test_another_error_is_not_taken_for_it() -> None:
    assert not any(map(out_of_memory, (RuntimeError("a shape"), ValueError("out of memory"), KeyError())))
    with pytest.raises(RuntimeError, match="a shape"), memory_for(0, lambda: RuntimeError("a shape")):
        trained(fresh())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose memory is full at its third step."""
    with memory_for(100, first=TIMED + 2):
        return vitrail.train("digits", tmp_path_factory.mktemp("full") / "run", ASKED()).folder


@pytest.mark.parametrize("often", [True, False])
def test_a_run_that_goes_on_takes_the_same_steps(
    unbroken: Path, often: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with a state behind the step where memory ran out, and with none; where it goes on there is enough."""
    (smaller,) = json.loads((unbroken / "schedule.json").read_text())["micro_batches"]
    assert (smaller["first"], smaller["accumulate"]) == (2, 2)
    assert any(smaller["why"] in note for note in json.loads((unbroken / "data.json").read_text())["notes"])
    saved(monkeypatch, often)
    with memory_for(100, first=TIMED + 2), pytest.raises(Killed):
        vitrail.train("digits", tmp_path / "run", ASKED(), ended_at(5))
    assert bool(states(tmp_path / "run")) == often
    with memory_for(200) as tried:
        again = vitrail.train("digits", tmp_path / "run", AGAIN)
    assert 200 in tried[TIMED:] or often, "the steps before are what they were"
    assert again.weights == stored(unbroken)["weights"]
    assert what_was_learnt(again.folder) == what_was_learnt(unbroken)
    assert [row["samples"] for row in rows(again.folder)] == [1258, 1258]


def test_what_does_not_fit_before_the_first_step_is_a_choice_of_the_run(tmp_path: Path) -> None:
    said: list[object] = []
    with memory_for(100) as tried:
        folder = vitrail.train("digits", tmp_path / "run", ASKED(epochs=1), said.append).folder
    assert [size for size in tried if size > 2][:2] == [200, 100]
    assert max(tried[3:]) == 100
    assert yaml.safe_load((folder / "config.yaml").read_text())["optimization"]["accumulate"] == 2
    assert not (folder / "schedule.json").exists()
