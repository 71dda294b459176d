"""What a person passes to `train` as an object instead of a name, and what each of these objects promises."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from vitrail.data.batches import Batch
from vitrail.data.columns import Codec
from vitrail.data.dataset import RawDataset
from vitrail.data.readers import Reader
from vitrail.errors import DataError, UsageError
from vitrail.nn import Parts, ViT, check_parts, evaluating, names_of
from vitrail.nn.networks import NETWORKS, NetworkConfig, build
from vitrail.tasks import Result, Task
from vitrail.tasks.task import Input, Objective


@dataclass(frozen=True)
class Own:
    """What was passed to `train` as an object instead of a name; see there."""

    task: Task | None = None
    network: nn.Module | None = None
    parts: Parts | None = None
    objective: Objective | None = None
    reader: Reader | None = None

    @property
    def config(self) -> NetworkConfig | None:
        """The configuration of an own network, where it has one of the library's kind."""
        found = getattr(self.network, "config", None)
        return found if isinstance(found, NetworkConfig) else None

    def names(self) -> dict[str, str]:
        """What the run stores of them."""
        given = {name: getattr(self, name) for name in ("task", "network", "parts", "objective", "reader")}
        return {name: _name(value) for name, value in given.items() if value is not None}


def _name(value: object) -> str:
    match value:
        case Task():
            return value.name
        case Parts():
            return ", ".join(f"{slot}={name}" for slot, name in names_of(value).items())
        case nn.Module():
            return type(value).__name__
    return str(getattr(value, "__qualname__", type(value).__name__))


NOTHING_OWN = Own()


def network_of(config: NetworkConfig, own: Own) -> nn.Module:
    """The network that was passed, or one with fresh weights whose own parts are tried.

    Raises:
        UsageError: A part breaks its contract; says which.
    """
    if own.network is not None:
        return own.network
    network = build(config, own.parts)
    if own.parts is not None and isinstance(network, ViT):
        check_parts(network)
    return network


def own_name(network: nn.Module, own: Mapping[str, str]) -> str:
    """What a network is called that no configuration builds; empty for one of the library's."""
    return "" if type(network) in [known for _, known in NETWORKS.values()] else own["network"]


def check_raw(raw: object, data: str) -> None:
    """Hold what an own reader gave against its contract.

    Raises:
        DataError: Says what it breaks.
    """
    if not isinstance(raw, RawDataset):
        raise DataError(
            f"the reader gave {type(raw).__name__} for {data}, which breaks its contract", "a vitrail.data.RawDataset"
        )
    for name, samples in raw.splits.items():
        for column in samples.columns:
            if len(samples.column(column)) != len(samples):
                raise DataError(f"the reader's split {name} has a column {column} of another length", "one value each")


def check_objective(objective: Objective, network: nn.Module, batch: Batch, own: Mapping[str, str]) -> None:
    """Try an objective of one's own, or that of an own task or network, on a few samples.

    Raises:
        UsageError: It breaks its contract; says which.
    """
    if not own:
        return
    names = ", ".join(f"{kind} {name}" for kind, name in own.items())
    try:
        loss, count, measures = objective(network, batch)
        problem = _broken(loss, count, measures)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        problem = f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if problem:
        raise UsageError(
            f"the objective of {names} breaks its contract: {problem}",
            "objective(network, batch) -> (summed loss as a tensor (), count as an int, {name: sum as a tensor ()})",
        )


def check_metrics(task: Task, model_input: Input, output: Codec, network: nn.Module, batch: Batch) -> None:
    """Try the metrics of a task of one's own on a few samples.

    Raises:
        UsageError: They break their contract; says how.
    """
    problem = ""
    try:
        metrics = task.metrics(model_input, output)
        with evaluating(network), torch.no_grad():
            metrics.update(network, batch)
        result = metrics.result(str)
        if not isinstance(result, Result):
            problem = f"result() gave {type(result).__name__}, and a Result is wanted"
        elif result.metric != task.metric:
            problem = f"result() is of the metric {result.metric.key}, the task's is {task.metric.key}"
        elif not (math.isfinite(result.value) and math.isfinite(result.loss)):
            problem = f"value {result.value} and loss {result.loss} are not both finite"
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        problem = f"they raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if problem:
        raise UsageError(
            f"the metrics of the task {task.name} break their contract: {problem}",
            "update(network, batch), then result(name) -> Result with the task's metric, a value and a loss",
        )


def _broken(loss: object, count: object, measures: object) -> str:
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.requires_grad:
        return "the loss must be a tensor without axes through which a gradient flows"
    if not bool(loss.isfinite()):
        return f"the loss is {float(loss.detach())}"
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return f"the count must be a whole number above 0, got {count!r}"
    if not isinstance(measures, dict) or not all(isinstance(each, torch.Tensor) for each in measures.values()):
        return "the measures must be tensors by name"
    return ""
