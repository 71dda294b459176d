"""The optimizer: learning rate and weight decay of each parameter, AdamW, and the moving average of the weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.training.configuration.settings import Optimization
from vitrail.training.tuning.lora import FACTORS, sharing

ADAPTERS = 20.0  # learning rate of adapters as a multiple of that of the schedule

BEHIND = ("norm", "pool", "head", "head_dist")  # after the blocks of a ViT
NO_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed")


def layer_of(name: str, depth: int) -> int:
    """The layer of a parameter of a ViT by its name: 0 before the blocks, depth + 1 after them."""
    first, _, rest = name.partition(".")
    if first == "blocks":
        return 1 + int(rest.partition(".")[0])
    return depth + 1 if first in BEHIND else 0


Kind = Literal["trained", "LoRA", "frozen"]
KINDS: dict[tuple[bool, bool], Kind] = {(False, False): "trained", (False, True): "LoRA", (True, False): "frozen"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How some parameters are trained.

    Attributes:
        kind: trained, frozen, or LoRA for adapters of a frozen map.
        where: Their part of the network, for people.
        names: Of the parameters.
        numbers: Their number of values.
        rate: Their learning rate as a multiple of that of the schedule.
        weight_decay: AdamW's.
    """

    kind: Kind
    where: str
    names: tuple[str, ...]
    numbers: int
    rate: float
    weight_decay: float


def parameter_rules(network: nn.Module, choices: Optimization) -> list[Rule]:
    """The rows of all parameters, each in one row, from which the optimizer's groups are made.

    Matrices decay; biases, norms, LayerScale, tokens and positions do not. If `choices.layer_decay` is below 1, the
    rate shrinks by it from layer to layer, from the head to the patches (Clark, Luong, Le and Manning, "ELECTRA",
    2020). Adapters have the rate `ADAPTERS` in every layer.
    """
    blocks = getattr(network, "blocks", None) if choices.layer_decay < 1 else None
    depth = 0 if blocks is None else len(blocks)
    rows: dict[tuple[bool, bool, int, bool], list[tuple[str, Tensor]]] = {}
    for name, parameter in network.named_parameters():
        frozen, leaf = not parameter.requires_grad, name.rpartition(".")[2]
        adapts = leaf in FACTORS
        layer = 1 if blocks is None or frozen or adapts else layer_of(name, depth)
        kept = frozen or parameter.ndim < 2 or leaf in NO_DECAY
        rows.setdefault((frozen, adapts, -layer, kept), []).append((name, parameter))
    found = []
    for (frozen, adapts, layer, kept), own in sorted(rows.items(), key=lambda row: row[0]):
        names, kind = tuple(name for name, _ in own), KINDS[frozen, adapts]
        what = "" if kind != "trained" else ": biases, norms, tokens" if kept else ": matrices"
        found.append(
            Rule(
                kind=kind,
                where=_where(names) + what,
                names=names,
                numbers=sum(parameter.numel() for _, parameter in own),
                rate=0.0 if frozen else ADAPTERS if adapts else choices.layer_decay ** (depth + 1 + layer),
                weight_decay=0.0 if kept else choices.weight_decay,
            )
        )
    return found


def _where(names: Sequence[str]) -> str:
    """The parts of a network that these parameters belong to, blocks by their numbers."""
    parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    numbers = sorted({int(name.split(".")[1]) for name in names if name.startswith("blocks.")})
    many = f"blocks.{numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "") if numbers else ""
    return ", ".join(many if part == "blocks" else part for part in parts)


def rates_words(rules: Sequence[Rule]) -> str:
    """A sentence on learning rates that differ from that of the schedule; empty if none does."""
    by_rate = dict[float, list[Rule]]()
    for rule in sorted(rules, key=lambda rule: -rule.rate):
        if rule.kind != "frozen":
            by_rate.setdefault(rule.rate, []).append(rule)
    if set(by_rate) <= {1.0}:
        return ""
    words = []
    for rate, own in by_rate.items():
        adapters = " (LoRA)" if own[0].kind == "LoRA" else ""
        words.append(f"{_where([name for rule in own for name in rule.names])}{adapters} at {rate:.3g}")
    if len(words) > 3:
        words[1:-1] = ["decreasing from layer to layer"]
    return f"Parameters learn at multiples of the learning rate that is plotted: {'; '.join(words)}."


def groups_of(network: nn.Module, rules: Sequence[Rule]) -> list[dict]:
    """The optimizer's parameter groups; `scale` is the rate of a group as a multiple of that of the schedule."""
    own = dict(network.named_parameters())
    return [
        {"params": [own[name] for name in rule.names], "weight_decay": rule.weight_decay, "scale": rule.rate}
        for rule in rules
        if rule.kind != "frozen"
    ]


def make_optimizer(network: nn.Module, choices: Optimization) -> torch.optim.AdamW:
    """AdamW ("Decoupled weight decay regularization", 2017) in one fused kernel; without decay it is Adam."""
    groups = groups_of(network, parameter_rules(network, choices))
    return torch.optim.AdamW(groups, lr=choices.learning_rate, betas=choices.betas, fused=True)


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
        self.network = sharing(network).requires_grad_(False).eval()
        both = zip(self.network.parameters(), network.parameters(), strict=True)
        moving = [(averaged, current) for averaged, current in both if averaged is not current]
        self._averaged: list[Tensor] = [averaged for averaged, _ in moving]
        self._current: list[Tensor] = [current for _, current in moving]
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
