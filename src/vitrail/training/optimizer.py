"""The optimizer: AdamW, the learning rate of each parameter and each step, and the moving average of the weights.

The learning rate of a step is that of its schedule; a parameter learns at a multiple of it (`parameter_rules`).

    cosine       a linear warm-up, then half a cosine that would be 0 one step after the last
    constant     a linear warm-up, then the peak
    linear       from the peak in a straight line, which would be 0 one step after the last

A training has one phase. If its steps change on the way (a time limit, a late run, or more epochs after its end),
another phase holds from that step on; if memory ran out, micro-batches are smaller from a step on. `schedule.json` of a
run has all of these. Each is written before its first step, so that a killed run repeats the same steps.

What a time limit decides (`budget.py`) is one more `Phase`, so a resumed run needs no clock to repeat it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.errors import DataError, Hint
from vitrail.io import read_json
from vitrail.runs.settings import Optimization
from vitrail.training.lora import FACTORS, copy_trained

ADAPTERS = 20.0  # learning rate of adapters as a multiple of that of the schedule

BEHIND = ("norm", "pool", "head", "head_dist")  # after the blocks of a ViT
NO_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed")

Shape = Literal["cosine", "constant", "linear"]


def layer_of(name: str, depth: int) -> int:
    """The layer of a parameter of a ViT by its name: 0 before the blocks, depth + 1 after them."""
    first, _, rest = name.partition(".")
    if first == "blocks":
        return 1 + int(rest.partition(".")[0])
    return depth + 1 if first in BEHIND else 0


@dataclass(frozen=True, kw_only=True)
class ParameterRule:
    """How some parameters are trained.

    Attributes:
        kind: trained, frozen, or LoRA for adapters of a frozen map.
        where: Their part of the network, for people.
        names: Of the parameters.
        numbers: Their number of values.
        rate: Their learning rate as a multiple of that of the schedule.
        weight_decay: AdamW's.
    """

    kind: Literal["trained", "LoRA", "frozen"]
    where: str
    names: tuple[str, ...]
    numbers: int
    rate: float
    weight_decay: float


def parameter_rules(network: nn.Module, optimization: Optimization) -> list[ParameterRule]:
    """The rows of all parameters, each in one row, from which the optimizer's groups are made.

    Matrices decay; biases, norms, LayerScale, tokens and positions do not. If `optimization.layer_decay` is below 1,
    the rate shrinks by it from layer to layer, from the head to the patches (Clark, Luong, Le and Manning, "ELECTRA",
    2020). Adapters have the rate `ADAPTERS` in every layer.
    """
    blocks = getattr(network, "blocks", None) if optimization.layer_decay < 1 else None
    depth = 0 if blocks is None else len(blocks)
    rows: dict[tuple[bool, bool, int, bool], list[tuple[str, Tensor]]] = {}
    for name, parameter in network.named_parameters():
        frozen, leaf = not parameter.requires_grad, name.rpartition(".")[2]
        adapts = leaf in FACTORS
        layer = 1 if blocks is None or frozen or adapts else layer_of(name, depth)
        kept = frozen or parameter.ndim < 2 or leaf in NO_DECAY
        rows.setdefault((frozen, adapts, -layer, kept), []).append((name, parameter))
    found = []
    for (frozen, adapts, layer, kept), members in sorted(rows.items(), key=lambda row: row[0]):
        names, kind = tuple(name for name, _ in members), "frozen" if frozen else "LoRA" if adapts else "trained"
        what = "" if kind != "trained" else ": biases, norms, tokens" if kept else ": matrices"
        count, where = sum(parameter.numel() for _, parameter in members), _where(names) + what
        rate = 0.0 if frozen else ADAPTERS if adapts else optimization.layer_decay ** (depth + 1 + layer)
        decay = 0.0 if kept else optimization.weight_decay
        rule = ParameterRule(kind=kind, where=where, names=names, numbers=count, rate=rate, weight_decay=decay)
        found.append(rule)
    return found


def _where(names: Sequence[str]) -> str:
    """The parts of a network that these parameters belong to, blocks by their numbers."""
    parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    numbers = sorted({int(name.split(".")[1]) for name in names if name.startswith("blocks.")})
    many = f"blocks.{numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "") if numbers else ""
    return ", ".join(many if part == "blocks" else part for part in parts)


def rates_words(rules: Sequence[ParameterRule]) -> str:
    """A sentence on learning rates that differ from that of the schedule; empty if none does."""
    rates = sorted({rule.rate for rule in rules if rule.kind != "frozen"})
    if set(rates) <= {1.0}:
        return ""
    multiples = " to ".join(f"{rate:.3g}" for rate in dict.fromkeys([rates[0], rates[-1]]))
    return f"Parameters learn at {multiples} times the learning rate that is plotted; --dry-run shows which."


def groups_of(network: nn.Module, rules: Sequence[ParameterRule]) -> list[dict]:
    """The optimizer's parameter groups; `scale` is the rate of a group as a multiple of that of the schedule."""
    parameters = dict(network.named_parameters())
    return [
        {"params": [parameters[name] for name in rule.names], "weight_decay": rule.weight_decay, "scale": rule.rate}
        for rule in rules
        if rule.kind != "frozen"
    ]


def make_optimizer(network: nn.Module, optimization: Optimization) -> torch.optim.AdamW:
    """AdamW ("Decoupled weight decay regularization", 2017) in one fused kernel; without decay it is Adam."""
    groups = groups_of(network, parameter_rules(network, optimization))
    return torch.optim.AdamW(groups, lr=optimization.learning_rate, betas=optimization.betas, fused=True)


class Average:
    """An exponential moving average of a network's parameters, with its buffers unchanged; it is evaluated and saved.

    average <- d * average + (1 - d) * weights, with d = min(decay, (1 + step) / (10 + step)), so that the first
    steps weigh little.

    Frozen parameters are shared with the network that is trained.

    Attributes:
        network: A network like the one that is trained, with the averaged parameters.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.network = copy_trained(network).requires_grad_(False).eval()
        current = dict(network.named_parameters())
        averaged = self.network.named_parameters()
        self.follow(current, {name: each for name, each in averaged if each is not current[name]})
        self._buffers = list(zip(self.network.buffers(), network.buffers(), strict=True))

    def follow(self, current: Mapping[str, Tensor], averaged: Mapping[str, Tensor]) -> None:
        """From now on average other tensors, by name: shards of the same parameters."""
        self._averaged = list(averaged.values())
        self._current = [current[name] for name in averaged]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of step `step` (counted from 0) to the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        if self._averaged:
            torch._foreach_lerp_(self._averaged, self._current, 1 - decay)
        for kept, current in self._buffers:  # such as running means, which are averages already
            kept.copy_(current)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a schedule.

    Attributes:
        first: The step from which it holds, counted from 0.
        origin: The step from which it counts: that, or one before it.
        steps: From its origin to its end.
        warmup: Of these, steps in which the rate rises linearly from 0.
        peak: Its highest rate.
        shape: After the warm-up.
        why: The reason, for logs.
    """

    first: int = 0
    origin: int = 0
    steps: int
    warmup: int = 0
    peak: float
    shape: Shape = "cosine"
    why: str = ""

    def rate(self, step: int) -> float:
        """The rate of a step, counted from the first of the training."""
        local = step - self.origin
        if local < self.warmup:
            return self.peak * (local + 1) / (self.warmup + 1)
        if self.shape == "constant":
            return self.peak
        done = min(1.0, (local - self.warmup) / max(1, self.steps - self.warmup))
        return self.peak * (1 - done) if self.shape == "linear" else self.peak * 0.5 * (1 + math.cos(math.pi * done))


def phase_of(optimization: Optimization, steps: int, first: int = 0, origin: int = 0, why: str = "") -> Phase:
    """The whole schedule of the settings in so many steps, with their fraction of warm-up; the rest as in `Phase`."""
    warmup = round(optimization.warmup_epochs * (steps / optimization.epochs))
    peak, shape = optimization.learning_rate, optimization.schedule
    return Phase(first=first, origin=origin, steps=steps, warmup=warmup, peak=peak, shape=shape, why=why)


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """The number of micro-batches per batch, from a step on.

    Attributes:
        first: That step, counted from 0.
        accumulate: Their number.
        why: The reason, for logs.
    """

    first: int
    accumulate: int
    why: str = ""


class Schedule:
    """The phases of a training; more may be added in the course of it.

    Args:
        phases: In order.
        micro_batches: Those that differ from the settings, in order.
    """

    def __init__(self, phases: Sequence[Phase], micro_batches: Sequence[MicroBatches] = ()) -> None:
        self.phases, self.micro_batches = list(phases), list(micro_batches)

    @classmethod
    def of(cls, optimization: Optimization, steps_per_epoch: int) -> "Schedule":
        """The schedule of the settings.

        Args:
            optimization: With epochs, warm-up, rate and shape.
            steps_per_epoch: Optimizer steps in one epoch.
        """
        return cls([phase_of(optimization, optimization.epochs * steps_per_epoch)])

    @property
    def end(self) -> int:
        """Steps of the whole training."""
        return self.phases[-1].origin + self.phases[-1].steps

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return next(phase for phase in reversed(self.phases) if phase.first <= step or phase.first == 0).rate(step)

    def at(self, step: int, optimization: Optimization) -> Optimization:
        """The settings at a step, with its micro-batches."""
        found = [each.accumulate for each in self.micro_batches if each.first <= step]
        return replace(optimization, accumulate=found[-1]) if found else optimization

    def become(self, other: "Schedule") -> None:
        """Take the phases of another one."""
        self.phases[:], self.micro_batches[:] = other.phases, other.micro_batches

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        smaller = {"micro_batches": [asdict(each) for each in self.micro_batches]} if self.micro_batches else {}
        return {"steps": self.end, "phases": [asdict(phase) for phase in self.phases], **smaller}

    @classmethod
    def read(cls, file: Path, hint: str | Hint) -> "Schedule":
        """The schedule of `schedule.json`.

        Args:
            file: Of a run.
            hint: What to try if that cannot be used.

        Raises:
            DataError: It is missing or damaged.
        """
        try:
            found = cls.from_dict(read_json(file, hint))
            found.rate(found.end)
        except (LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{file} is damaged ({type(error).__name__}: {error})", hint) from error
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Schedule":
        """From what `to_dict` gave.

        Raises:
            KeyError, TypeError: The values are others.
        """
        smaller = [MicroBatches(**each) for each in values.get("micro_batches", ())]
        return cls([Phase(**phase) for phase in values["phases"]], smaller)


def extension(optimization: Optimization, step: int, steps: int) -> Phase:
    """A phase after the end of a schedule: the same again, as a warm restart ("SGDR", 2017).

    Args:
        optimization: With the epochs of the whole training.
        step: Steps that are done.
        steps: How many more.
    """
    found = phase_of(optimization, steps, first=step, origin=step)
    again = f"{found.shape}, up to {found.peak:g} again in {found.warmup} of them"
    return replace(found, why=f"{steps} more steps, in a schedule of their own: {again}")
