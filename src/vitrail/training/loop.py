"""The training loop: it takes batches and an objective, updates the weights, and yields events.

It knows nothing of labels, teachers, logs or pages: its caller evaluates, saves and prints between two events. Every
step is a pure function of the state before it: order and augmentation come from (seed, epoch, id), dropout is seeded
by the step. So a loop that starts from a saved state continues with the same bits.

`FiniteGuard` keeps non-finite numbers out of the weights; `stuck` detects a training that learns nothing.

Where several processes train together each computes its share of every batch; gradients, losses and counts are summed
over all of them before anything is made of them, so each moves the same weights in the same way.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.arguments import check_types, typed
from vitrail.data.plan import WHOLE, Share, uniforms
from vitrail.errors import RunError
from vitrail.runs.group import ALONE, Group
from vitrail.runs.settings import Execution, Optimization
from vitrail.tasks.task import Objective
from vitrail.training.execution import halve, in_memory, memory_error, part_size
from vitrail.training.lora import merge_adapters
from vitrail.training.optimizer import Average, MicroBatches, Schedule, make_optimizer

if TYPE_CHECKING:
    from vitrail.training.distributed.shard import Shards

PATIENCE = 10  # steps until a run stops after the first non-finite number, on devices where checking has to wait
DROPOUT = 100  # the stream of random numbers that seeds dropout

Exchange = Callable[[bool], AbstractContextManager[None]]


@runtime_checkable
class TrainingData(Sized, Protocol):
    """The source of batches; its length is the samples of an epoch. `vitrail.data.batches.Batches` is one."""

    @property
    def seed(self) -> int:
        """Of order, augmentation and dropout."""

    @property
    def device(self) -> torch.device:
        """The device of the batches."""

    def batches(
        self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None, share: Share = WHOLE
    ) -> Iterator[Any]:
        """The share of the batches of an epoch, from batch (or micro-batch) `start` on, as the objective wants them.

        The length of a batch is the number of its samples; a `spare` holds samples that do not count.
        """


def gradient_norms(parameters: Sequence[Tensor]) -> Tensor:
    """(len(parameters),) the norm of each gradient; 0 where there is none."""
    gradients = [torch.zeros((), device=p.device) if p.grad is None else p.grad for p in parameters]
    return torch.stack(torch._foreach_norm(gradients))


class FiniteGuard:
    """Applies a step only if loss and gradients are finite.

    On a CPU every step is checked before it is applied. On an accelerator a check has to wait for the device, so the
    bad step and all steps after it are skipped by the optimizer's own kernel (`found_inf`) until the next check, within
    ten steps and at the end of an epoch at the latest; that check stops the run.

    Args:
        names: One name for each gradient.
        device: Of the gradients.
        processes: Of these loss and gradients; each has a guard with the same values.
    """

    def __init__(self, names: Sequence[str], device: torch.device, processes: Group = ALONE) -> None:
        self.names, self.processes = names, processes
        self.every = 1 if device.type == "cpu" else PATIENCE
        self._step = torch.full((), -1, dtype=torch.int64, device=device)
        self._loss = self._mine = torch.zeros((), device=device)
        self._norms = torch.zeros(len(names), device=device)

    def observe(self, step: int, loss: Tensor, norms: Tensor, mine: Tensor | None = None) -> Tensor:
        """1.0 if this step must be skipped, else 0.0; after a bad step all are skipped.

        Args:
            step: Counted from 0.
            loss: Of the step.
            norms: (len(names),) the norm of each gradient.
            mine: The loss of this process alone, if there are several.
        """
        bad = ~(loss.isfinite() & norms.isfinite().all())
        first = bad & (self._step < 0)
        self._step = torch.where(first, step, self._step)
        self._loss = torch.where(first, loss, self._loss)
        self._mine = torch.where(first, loss if mine is None else mine, self._mine)
        self._norms = torch.where(first, norms, self._norms)
        return (self._step >= 0).float()

    def check(self, step: int) -> None:
        """Check at every step on a CPU, at every tenth elsewhere.

        Raises:
            RunError: There was a bad step.
        """
        if (step + 1) % self.every == 0:
            self.look()

    def look(self) -> None:
        """Stop the run after a bad step.

        Raises:
            RunError: Names the step and the first tensor that is not finite.
        """
        if int(self._step) >= 0:
            wrong = [n for n, norm in zip(self.names, self._norms.tolist(), strict=True) if not math.isfinite(norm)]
            loss = float(self._loss)
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient of {wrong[0]} is not finite"
            if not math.isfinite(loss) and wrong:
                what += f", and with it the gradient of {wrong[0]}"
            fine = self.processes.gather(math.isfinite(float(self._mine)))
            if len(fine) > 1 and not all(fine):
                what += f", from what rank {fine.index(False)} computed"
            problem = f"step {int(self._step)}: {what}; the weights are still those of the step before"
            hint = "a lower --lr, or --precision fp32; at step 0, check the images and the initial weights"
            raise RunError(problem, hint)


def stuck(loss: float, chance: float, done: float, learning_rate: float, gradient: float) -> str | None:
    """A sentence on a training whose loss is still that of guessing; None if it learns.

    Args:
        loss: Mean training loss of the last epoch in nats.
        chance: Loss of guessing.
        done: Fraction of the schedule that is done, 0..1.
        learning_rate: The peak of the schedule.
        gradient: Norm of the last gradient.
    """
    if done < 0.5 or loss < 0.97 * chance:
        return None
    if learning_rate > 3e-3:
        cause = f"the learning rate {learning_rate:g} is high for AdamW; try --lr {learning_rate / 10:g}"
    elif learning_rate < 1e-5 or gradient < 1e-4:
        cause = f"the weights hardly move; try --lr {max(1e-3, learning_rate * 10):g}"
    else:
        cause = "the labels may not belong to the images, or the patches are too large; try smaller ones"
    return f"the loss is still {loss:.3f} (guessing: {chance:.3f}) after {done:.0%} of the schedule: {cause}"


@dataclass
class State:
    """All that changes in training; saved and restored as a whole.

    Attributes:
        network: The network that is trained.
        optimizer: With its moments.
        average: The moving average of the weights, or None.
        step: Optimizer steps done.
        epoch: The current epoch, from 0.
        batch: Batches of it that are done, each in one step.
        gradient_norm: Of the last step, before clipping.
        totals: float64 sums of this epoch so far: loss, count, samples, and the objective's measures.
        shards: The part of the network in this process, if it is divided among several.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None
    step: int = 0
    epoch: int = 0
    batch: int = 0
    gradient_norm: Tensor = field(default_factory=lambda: torch.zeros(()))
    totals: dict[str, Tensor] = field(default_factory=dict)
    shards: "Shards | None" = None

    @property
    def best_network(self) -> nn.Module:
        """The network that is evaluated and saved: the average, if there is one, with adapters merged."""
        return merge_adapters(self.averaged)

    @property
    def averaged(self) -> nn.Module:
        """The same with adapters; if it is divided, as it was after the last epoch."""
        if self.shards is not None:
            return self.shards.whole
        return self.network if self.average is None else self.average.network

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained; if they are divided, the part of this process."""
        moved = [(name, each) for name, each in self.network.named_parameters() if each.requires_grad]
        return [each if self.shards is None else self.shards.parts[name] for name, each in moved]


@dataclass(frozen=True)
class StepDone:
    """One optimizer step; tensors stay on their device."""

    step: int
    epoch: int
    loss: Tensor  # mean of the step
    gradient_norm: Tensor  # before clipping
    learning_rate: float
    images: int  # of all processes
    seconds: float  # of the whole step
    waiting: float  # of these, for data


@dataclass(frozen=True)
class EpochDone:
    """One pass over the training samples; means are over the samples that were used."""

    epoch: int
    step: int
    loss: float
    measures: dict[str, float]
    counted: int  # by the objective: images, or tokens of texts
    samples: int  # that were fed
    learning_rate: float
    gradient_norm: float


def start(network: nn.Module, optimization: Optimization) -> State:
    """The state before the first step."""
    average = Average(network, optimization.ema_decay) if optimization.ema_decay else None
    return State(network, make_optimizer(network, optimization), average)


def steps_per_epoch(count: int, optimization: Optimization) -> int:
    """Optimizer steps in one epoch of `count` samples."""
    return -(-count // optimization.batch_size)


@typed
def train_loop(
    state: State,
    data: TrainingData,
    objective: Objective,
    optimization: Optimization,
    execution: Execution,
    schedule: Schedule | None = None,
    processes: Group = ALONE,
) -> Iterator[StepDone | EpochDone | MicroBatches]:
    """Train from `state` to the end of the schedule.

    Args:
        state: The initial state; changes with every event.
        data: Gives the batches of an epoch.
        objective: What is minimised.
        optimization: Settings of the optimization.
        execution: Precision and compilation.
        schedule: The rate of each step, and the number of steps; that of `optimization` when None. It may be changed
            between two events.
        processes: Those that train together; each runs this loop from the same state.

    Yields:
        `StepDone` after each step and `EpochDone` after each epoch, also one that the schedule cuts short. Between two
        events the state is complete and can be saved. `MicroBatches` where memory ran out: they are added to the
        schedule, and the step is done again.

    Raises:
        RunError: A loss or gradient is not finite, or no micro-batch is small enough for the memory; the
            weights are then those of the last good step.
        UsageError: An argument is of a wrong type.
    """
    steps = _Steps(state, data, objective, optimization, execution, processes)
    return _events(steps, schedule or Schedule.of(optimization, steps_per_epoch(len(data), optimization)))


def _events(steps: "_Steps", schedule: Schedule) -> Iterator[StepDone | EpochDone | MicroBatches]:
    steps.begin()
    state, data, optimization, processes = steps.state, steps.data, steps.optimization, steps.processes
    per_epoch = steps_per_epoch(len(data), optimization)
    while (more := state.step < schedule.end) or state.totals:  # an epoch without its event
        state.network.train()
        now, smaller = schedule.at(state.step, optimization), None
        part = part_size(now)
        parts = -(-now.batch_size // part)  # micro-batches of a whole batch: `now.accumulate` or fewer
        wanted = state.epoch, optimization.batch_size, state.batch * parts, part, processes.share
        batches = data.batches(*wanted) if more else iter(())
        for group, waited, began in _grouped(batches, parts):
            rate = schedule.rate(state.step)
            taken = steps.take(group, rate, part)
            if taken is None:
                smaller = halve(now, state.step, processes.world)
                break
            loss, images = taken
            seconds = time.perf_counter() - began
            yield StepDone(state.step, state.epoch, loss, state.gradient_norm, rate, images, seconds, waited)
            if state.step >= schedule.end or schedule.at(state.step, optimization) != now:
                break
        if smaller is not None:
            schedule.micro_batches.append(smaller)
            yield smaller
        if schedule.at(state.step, optimization) != now:  # the rest of the epoch comes in other micro-batches
            continue
        steps.guard.look()
        rate, norm = schedule.rate(state.step - 1), float(state.gradient_norm)
        over = EpochDone(state.epoch, state.step, *_means(state.totals), learning_rate=rate, gradient_norm=norm)
        state.totals = {}
        if state.shards is not None:
            state.shards.gather(state.network)
        if state.batch >= per_epoch:  # else the schedule ends within an epoch, which may be continued
            state.epoch, state.batch = state.epoch + 1, 0
        yield over


@dataclass
class _Steps:
    """One step after the other: the gradients of a batch, exchanged among processes, and what they change.

    Attributes:
        state: Changes with every step.
        data: The source of the batches.
        objective: What is minimised.
        optimization: Settings of the optimization.
        execution: Precision and compilation.
        processes: Those that train together.
    """

    state: State
    data: TrainingData
    objective: Objective
    optimization: Optimization
    execution: Execution
    processes: Group

    def __post_init__(self) -> None:
        """Check every field."""
        check_types(self)

    def begin(self) -> None:
        """Divide the network where that is wanted, wrap and compile it: processes that train together meet here."""
        state, processes = self.state, self.processes
        if processes.shard and state.shards is None:
            processes.spread(state.network.state_dict())
            from vitrail.training.distributed.shard import Shards  # with all of torch's FSDP

            state.shards = Shards(state.network, state.optimizer, state.average)
        self.parameters = state.parameters
        names = [name for name, p in state.network.named_parameters() if p.requires_grad]
        self.guard = FiniteGuard(names, self.data.device, processes)
        wrapped = processes.wrap(state.network)
        self.network = torch.compile(wrapped) if self.execution.compile and not processes.shard else wrapped
        self.exchange: Exchange = partial(processes.exchanging, wrapped)
        # whether all have memory for such micro-batches; a divided network cannot be tried without an exchange
        self.tried = processes.world == 1 or processes.shard

    def take(self, group: list[Any], rate: float, size: int) -> tuple[Tensor, int] | None:
        """One step by all micro-batches of one batch.

        Args:
            group: The micro-batches.
            rate: The learning rate.
            size: Samples of a micro-batch, in all processes.

        Returns:
            Its mean loss, and the number of samples that were used, of all processes; None where memory ran out, and
            nothing has changed.

        Raises:
            RunError: A loss or gradient is not finite, or memory ran out in an exchange.
        """
        state, processes = self.state, self.processes
        if not self.tried:  # in an exchange all would wait for the one without memory
            self.tried = not processes.counts(self._gradients(group, lambda last: self.exchange(False)) is None)[0]
            if not self.tried:
                return None
        found = self._gradients(group, self.exchange)
        if found is None:
            if processes.world > 1:
                raise memory_error(state.step, size)
            return None
        sums, count = found
        count, images = processes.counts(count, sum(0 if b.spare else len(b) for b in group))
        mine, sums = sums.get("loss"), processes.totals(sums)
        loss = torch.zeros(())
        if sums:  # else nothing could be read
            numbers = torch.tensor([count, images], dtype=sums["loss"].dtype)
            _add(state.totals, {**sums, "count": numbers[0], "samples": numbers[1]})
            loss = (sums["loss"] / max(1, count)).float()
        if count:
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], count / processes.world)
            norms = processes.norms(gradient_norms(self.parameters))
            skip = self.guard.observe(state.step, loss, norms, mine)
            self.guard.check(state.step)
            state.gradient_norm = torch.linalg.vector_norm(norms)
            self._move(skip, rate)
        state.step += 1
        state.batch += 1
        return loss, images

    def _gradients(self, group: list[Any], exchange: Exchange) -> tuple[dict[str, Tensor], int] | None:
        """Gradients of all micro-batches, with their sums; None where memory ran out."""
        torch.manual_seed(dropout_seed(self.data.seed, self.state.step) + self.processes.rank)
        self.state.network.zero_grad(set_to_none=True)
        found = in_memory(partial(self._sums, group, exchange), self.state.network)
        if self.state.shards is not None:
            self.state.shards.take_gradients()
        return found

    def _sums(self, group: list[Any], exchange: Exchange) -> tuple[dict[str, Tensor], int]:
        """Backward passes; float64 sums of loss and measures, and the objective's count.

        After the last one gradients are exchanged, so every process computes it, if only with a spare sample.
        """
        totals, counted, device = dict[str, Tensor](), 0, self.data.device.type
        bf16 = self.execution.precision == "bf16"
        for number, batch in enumerate(group, start=1):
            if not len(batch):
                continue
            with exchange(number == len(group)):
                with torch.autocast(device, torch.bfloat16, enabled=bf16):
                    loss, count, measures = self.objective(self.network, batch)
                if batch.spare:
                    loss, count, measures = 0 * loss, 0, {name: 0 * value for name, value in measures.items()}
                loss.backward()
            counted += count
            kind = torch.float32 if device == "mps" else torch.float64  # MPS has no float64
            _add(totals, {name: value.detach().to(kind) for name, value in {"loss": loss, **measures}.items()})
        return totals, counted

    @torch.no_grad()
    def _move(self, skip: Tensor, rate: float) -> None:
        """Clip, step, average. A step to be skipped leaves the weights as they are."""
        state, clip = self.state, self.optimization.clip_grad_norm
        if clip:
            factor = (clip / (state.gradient_norm + 1e-6)).clamp(max=1.0)
            if factor.device.type != "cpu" or factor < 1:  # where looking costs nothing
                torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], factor)
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        state.optimizer.found_inf = skip  # pyrefly: ignore[missing-attribute]  # read by the fused kernel
        state.optimizer.step()
        if state.average is not None:
            state.average.update(state.step)


def dropout_seed(seed: int, step: int) -> int:
    """The seed of a step's dropout and stochastic depth."""
    number = uniforms(np.array([step], np.int64), 1, seed=seed, epoch=0, stream=DROPOUT)[0, 0]
    return int(number * 2**53)


def _grouped(batches: Iterator[Any], size: int) -> Iterator[tuple[list[Any], float, float]]:
    """Lists of `size` batches, the seconds spent waiting for them, and when the wait began."""
    while True:
        began = time.perf_counter()
        if not (group := list(islice(batches, size))):
            return
        yield group, time.perf_counter() - began, began


def _add(totals: dict[str, Tensor], sums: dict[str, Tensor]) -> None:
    """Add sums to totals, in place.

    Raises:
        RunError: Their names are not those of the batches before.
    """
    if totals and totals.keys() != sums.keys():
        changed = ", ".join(sorted(totals.keys() ^ sums.keys()))
        problem = f"the objective names {changed} in some batches only, and a mean needs all"
        raise RunError(problem, "the same names in each")
    for name, value in sums.items():
        totals[name] = totals[name] + value if name in totals else value


def _means(totals: dict[str, Tensor]) -> tuple[float, dict[str, float], int, int]:
    sums = {name: float(value) for name, value in totals.items()}
    loss, count, samples = (sums.pop(name, 0.0) for name in ("loss", "count", "samples"))
    means = {name: value / max(count, 1) for name, value in sums.items()}
    return loss / max(count, 1), means, int(count), int(samples)
