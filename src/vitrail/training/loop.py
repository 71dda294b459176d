"""The loop: it takes batches and an objective, moves the weights, and yields events.

It knows nothing of labels, teachers, logs or pages; whoever iterates over it evaluates, saves and prints between
two events. Every step is a pure function of the state before it: order and augmentation come from (seed, epoch, id),
dropout is seeded by the step. So a loop that starts from a saved state goes on with the same bits.
"""

import time
from collections.abc import Iterator, Sized
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.plan import uniforms
from vitrail.tasks.task import Network, Objective
from vitrail.training.execution import compiled
from vitrail.training.optimizer import Average, gradient_norms, learning_rate, make_optimizer
from vitrail.training.settings import Execution, Optimization
from vitrail.training.watchdog import FiniteGuard

DROPOUT = 100  # the stream of random numbers that seeds dropout


@runtime_checkable
class AnyBatch(Sized, Protocol):
    """Some samples, as an objective wants them; the length is their number. `vitrail.data.batches.Batch` is one."""

    @property
    def unreadable(self) -> int:
        """Samples that were left out because they could not be read."""
        ...


@runtime_checkable
class TrainingData(Sized, Protocol):
    """What batches come from; the length is the samples of an epoch. `vitrail.data.batches.Batches` is one."""

    @property
    def seed(self) -> int:
        """Of order, augmentation and dropout."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the batches go."""
        ...

    def batches(self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None) -> Iterator[Any]:
        """The batches of an epoch, from batch (or micro-batch) `start` on."""
        ...


@dataclass
class State:
    """All that changes while training; saved and restored as a whole.

    Attributes:
        network: What is trained.
        optimizer: With its moments.
        average: The moving average of the weights, or None.
        step: Optimizer steps done.
        epoch: The epoch that is under way, from 0.
        batch: Batches of it that are done; where a batch is computed in micro-batches, these.
        gradient_norm: Of the last step, before clipping.
        totals: float64 sums of this epoch so far: loss, count, samples, and the objective's measures.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None
    step: int = 0
    epoch: int = 0
    batch: int = 0
    gradient_norm: Tensor = field(default_factory=lambda: torch.zeros(()))
    totals: dict[str, Tensor] = field(default_factory=dict)

    @property
    def best_network(self) -> nn.Module:
        """What is evaluated and saved: the average where there is one."""
        return self.network if self.average is None else self.average.network


@dataclass(frozen=True)
class StepDone:
    """One optimizer step; tensors stay on their device until somebody looks."""

    step: int
    epoch: int
    batches: int  # done in this epoch, as `State.batch` counts them
    loss: Tensor  # mean of the step
    gradient_norm: Tensor  # before clipping
    learning_rate: float
    images: int
    unreadable: int
    seconds: float  # of the whole step
    waiting: float  # of these, for data


@dataclass(frozen=True)
class EpochDone:
    """One pass over the training samples; the means are over what was really seen."""

    epoch: int
    step: int
    loss: float
    measures: dict[str, float]
    counted: int  # what the objective counts: images, or the tokens of texts
    samples: int  # that were fed
    learning_rate: float
    gradient_norm: float


def start(network: nn.Module, choices: Optimization) -> State:
    """The state before the first step."""
    average = Average(network, choices.average) if choices.average else None
    return State(network, make_optimizer(network, choices), average)


def part_size(choices: Optimization) -> int:
    """Samples in each of the `choices.accumulate` micro-batches of a batch; the last may be smaller."""
    return -(-choices.batch_size // choices.accumulate)


def steps_per_epoch(count: int, choices: Optimization) -> int:
    """Optimizer steps in one epoch of `count` samples."""
    return -(-count // choices.batch_size)


def train_loop(
    state: State, data: TrainingData, objective: Objective, choices: Optimization, execution: Execution
) -> Iterator[StepDone | EpochDone]:
    """Train from `state` to the end of the schedule.

    Args:
        state: Where to start; moves on with every event.
        data: Gives the batches of an epoch.
        objective: What is learnt.
        choices: How the weights move.
        execution: Precision and compilation.

    Yields:
        `StepDone` after each step and `EpochDone` after each epoch. Between two events the state is whole and can be
        saved.

    Raises:
        RunError: If a loss or gradient is not finite; the weights are then those of the last good step.
    """
    parameters = [p for p in state.network.parameters() if p.requires_grad]
    names = [name for name, p in state.network.named_parameters() if p.requires_grad]
    guard = FiniteGuard(names, data.device)
    network = compiled(state.network, execution)
    per_epoch = steps_per_epoch(len(data), choices)
    part = part_size(choices)
    while state.epoch < choices.epochs:
        state.network.train()
        batches = data.batches(state.epoch, choices.batch_size, state.batch, part)
        for group, waited, began in _grouped(batches, -(-choices.batch_size // part)):
            rate = learning_rate(choices, state.step, per_epoch)
            torch.manual_seed(dropout_seed(data.seed, state.step))
            for parameter in parameters:
                parameter.grad = None
            loss, count = _gradients(network, group, objective, execution, data.device.type, state.totals)
            if count:
                torch._foreach_div_([p.grad for p in parameters if p.grad is not None], float(count))
                norms = gradient_norms(parameters)
                skip = guard.judge(state.step, loss, norms)
                guard.check(state.step)
                state.gradient_norm = torch.linalg.vector_norm(norms)
                _move(state, parameters, skip, rate, choices.clip)
            state.step += 1
            state.batch += len(group)
            images, unreadable = sum(len(b) for b in group), sum(b.unreadable for b in group)
            seconds = time.perf_counter() - began
            norm = state.gradient_norm
            yield StepDone(state.step, state.epoch, state.batch, loss, norm, rate, images, unreadable, seconds, waited)
        guard.look()
        rate, norm = learning_rate(choices, state.step - 1, per_epoch), float(state.gradient_norm)
        done = EpochDone(state.epoch, state.step, *_means(state.totals), learning_rate=rate, gradient_norm=norm)
        state.epoch, state.batch, state.totals = state.epoch + 1, 0, {}
        yield done


def dropout_seed(seed: int, step: int) -> int:
    """The seed of a step's dropout and stochastic depth."""
    number = uniforms(np.array([step], np.int64), 1, seed=seed, epoch=0, stream=DROPOUT)[0, 0]
    return int(number * 2**53)


def _grouped(batches: Iterator[AnyBatch], size: int) -> Iterator[tuple[list[AnyBatch], float, float]]:
    """Lists of `size` batches, the seconds spent waiting for them, and when the wait began."""
    began, group = time.perf_counter(), []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group, time.perf_counter() - began, began
            began, group = time.perf_counter(), []
    if group:
        yield group, time.perf_counter() - began, began


def _gradients(
    network: Network,
    group: list[AnyBatch],
    objective: Objective,
    execution: Execution,
    device: str,
    totals: dict[str, Tensor],
) -> tuple[Tensor, int]:
    """Summed gradients of all micro-batches of one batch, their mean loss, and the objective's count of them."""
    losses, counted = [], 0
    for batch in group:
        if not len(batch):
            continue
        half = torch.autocast(device, torch.bfloat16) if execution.precision == "bf16" else nullcontext()
        with half:
            loss, count, measures = objective(network, batch)
        loss.backward()
        losses.append(loss.detach())
        counted += count
        sums = {"loss": loss.detach(), "count": torch.tensor(count), "samples": torch.tensor(len(batch)), **measures}
        for name, value in sums.items():
            value = value.to(torch.float32 if device == "mps" else torch.float64)  # MPS has no float64
            totals[name] = totals[name] + value if name in totals else value
    return (torch.stack(losses).sum() / counted if counted else torch.zeros(())), counted


@torch.no_grad()
def _move(state: State, parameters: list[nn.Parameter], skip: Tensor, rate: float, clip: float) -> None:
    """Clip, step, average. A step to be skipped leaves the weights as they are."""
    if clip:
        factor = (clip / (state.gradient_norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.optimizer.found_inf = skip  # pyrefly: ignore[missing-attribute]  # read by the fused kernel
    state.optimizer.step()
    if state.average is not None:
        state.average.update(state.step)


def _means(totals: dict[str, Tensor]) -> tuple[float, dict[str, float], int, int]:
    sums = {name: float(value) for name, value in totals.items()}
    loss, count, samples = (sums.pop(name, 0.0) for name in ("loss", "count", "samples"))
    means = {name: value / max(count, 1) for name, value in sums.items()}
    return loss / max(count, 1), means, int(count), int(samples)
