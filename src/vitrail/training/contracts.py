"""What a person's own task, network, objective and reader must keep to, tried once before anything is written.

    check_kinds     each is of the class that is wanted
    read_own        a reader: its splits, their samples, its facts
    check_codec     a task's codec: to a file and back, to targets, to words
    rehearse        network, objective, metrics, predictions, facts: all that a run asks of them, on a few samples

A part is tried by `vitrail.nn.check_parts`. Everything that raises, or gives what its contract does not say, is
reported in one line that names it; the hint is the contract.
"""

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch
from vitrail.data.columns import Codec, Column, Match, Texts
from vitrail.data.dataset import ALL, SPLIT_NAMES, TEST, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.formats import Reader
from vitrail.data.images import Images
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.io import plain, to_json
from vitrail.model import Model
from vitrail.nn import Parts, evaluating
from vitrail.nn.networks import NETWORKS
from vitrail.own import check_kind, contract, demand
from vitrail.pages import ClassTable, Confusion, Table
from vitrail.tasks import TASKS, Example, Metric, Prediction, Result, Task
from vitrail.tasks.task import Input, Objective

KNOWN = (TRAIN, VALIDATION, TEST, ALL)
FEW = 4  # samples that are asked for
SUMS = ("loss", "count", "samples")  # what the loop sums beside the measures of an objective
ROW = (
    "kind",
    "epoch",
    "step",
    "samples",
    "seconds",
    "learning_rate",
    "gradient_norm",
    "images_per_second",
)  # of metrics
_NAME = re.compile(r"\w[\w.-]*")

READER = (
    '(data, data_root) -> RawDataset(root, {"train": Samples(inputs, {"label": Labels.of(names)}), ...}), '
    f"the splits called {', '.join(KNOWN)}"
)
CODEC = "a Codec with outputs, match, targets, describe and to_dict, which task.codec_from_dict makes again"
NETWORK = "network(inputs) -> a row of logits for each sample, as many as the codec has outputs"
OBJECTIVE = "objective(network, batch) -> (summed loss as a tensor (), count as an int, {name: sum as a tensor ()})"
METRICS = (
    "answers(network, batch) -> values by name, as JSON has them; update(answers); then result(name) -> Result with "
    "the task's metric, a value and a loss"
)
PREDICT = "task.predict(network, output, inputs, names, search, facts) -> a vitrail.tasks.Prediction for each input"
TASK = "as the docstrings of vitrail.tasks.Task say"


def check_kinds(task: object, network: object, parts: object, objective: object, reader: object) -> None:
    """Hold what a person passes instead of a name against what each must be.

    Raises:
        UsageError: One is of another class; names it.
    """
    check_kind("task", task, Task, "task=MyTask(); TrainOptions(task=...) names one of the library")
    check_kind("network", network, nn.Module, "network=MyNetwork(...), a module that is made already")
    check_kind("parts", parts, Parts, "vitrail.nn.Parts(norm=lambda config: torch.nn.RMSNorm(config.width))")
    check_kind("objective", objective, Callable, OBJECTIVE)
    check_kind("reader", reader, Callable, READER)
    if isinstance(task, Task):
        with contract(f"the task {type(task).__name__}", f"name, column, help, metric, counted and networks {TASK}"):
            for name in ("name", "column", "help", "counted"):
                demand(isinstance(getattr(task, name, None), str), f"its {name} is no text")
            demand(bool(_NAME.fullmatch(task.name)) and task.name != "auto", f"its name {task.name!r} is no word")
            taken = task.counted in ROW or task.counted.startswith(("training_", "validation_"))
            demand(not taken, f"counted is {task.counted}, which the metrics file calls something else")
            demand(isinstance(getattr(task, "metric", None), Metric), "its metric is no vitrail.tasks.Metric")
            unknown = [name for name in task.networks if name not in NETWORKS]
            demand(
                not unknown and len(task.networks) > 0,
                f"its networks must be of {', '.join(NETWORKS)}, got {task.networks}",
            )


def read_own(reader: Reader, data: str, root: Path | None) -> RawDataset:
    """What an own reader finds, held against its contract.

    Args:
        reader: (data, data root) -> `RawDataset`.
        data: What it is asked for.
        root: Where named sets lie.

    Raises:
        DataError: It breaks its contract; names the clause.
    """
    with contract(f"the reader {called(reader)}", READER, DataError):
        raw = reader(data, root)
        demand(isinstance(raw, RawDataset), f"it gave {type(raw).__name__} for {data}")
        demand(isinstance(raw.root, str | Path), f"its root is a {type(raw.root).__name__}")
        demand(isinstance(raw.splits, Mapping) and len(raw.splits) > 0, "it has no splits by name")
        for name, samples in raw.splits.items():
            meant = SPLIT_NAMES.get(str(name).lower())
            better = f", which is called {meant} here" if meant else f", and is none of {', '.join(KNOWN)}"
            demand(name in KNOWN, f"it has a split {name}{better}")
            _check_samples(f"its split {name}", samples)
            demand(list(samples.columns) == list(raw.columns()), f"its split {name} has other columns")
        for what, words in (("notes", raw.notes), ("classes", raw.classes or ())):
            listed = isinstance(words, tuple | list) and all(isinstance(word, str) for word in words)
            demand(listed, f"its {what} are {words!r}, and no tuple of texts")
        to_json(dict(raw.facts))
    return replace(raw, root=str(raw.root))


def _check_samples(what: str, samples: object) -> None:
    demand(isinstance(samples, Samples), f"{what} is a {type(samples).__name__}, and no Samples")
    assert isinstance(samples, Samples)
    inputs, kind = samples.inputs, type(samples.inputs).__name__
    demand(isinstance(inputs, Images | Texts), f"the inputs of {what} are a {kind}, and no Images or Texts")
    demand(isinstance(samples.columns, Mapping), f"the columns of {what} have no names")
    for name, column in samples.columns.items():
        demand(isinstance(column, Column), f"the column {name} of {what} is a {type(column).__name__}, and no Column")
        demand(len(column) == len(inputs), f"{what} has {len(inputs)} samples, and its column {name} {len(column)}")
    demand(len(inputs) > 0, f"{what} is empty")
    demand(isinstance(inputs.name(0), str), f"the inputs of {what} have no names")
    hashed = (column.digest() for column in samples.columns.values())
    demand(all(isinstance(each, bytes) for each in hashed), f"a column of {what} has a digest that is no bytes")
    if isinstance(inputs, Images):
        demand(isinstance(inputs.digest(), bytes), f"the images of {what} have a digest that is no bytes")
        for index in {0, len(inputs) // 2, len(inputs) - 1}:
            with suppress(DataError, OSError):  # a damaged image is left out, and named
                opened = inputs.open(index)
                demand(isinstance(opened, Image.Image), f"the images of {what} do not open as PIL images")
    else:
        demand(all(isinstance(text, str) for text in inputs.values), f"the texts of {what} are no str")


def check_codec(task: Task, raw: RawDataset, splits: Mapping[str, Samples], separator: str) -> Codec:
    """The codec that an own task makes of data, held against its contract.

    Args:
        task: A person's own.
        raw: The data as it was found.
        splits: The same, divided.
        separator: Between two tokens of a text.

    Raises:
        UsageError: It breaks its contract; names the clause.
    """
    with contract(f"the codec of the task {task.name}", CODEC):
        codec = task.codec(raw, splits, separator)
        demand(isinstance(codec, Codec), f"task.codec gave {type(codec).__name__}")
        demand(type(codec.outputs) is int and codec.outputs > 0, f"outputs is {codec.outputs!r}, and no int above 0")
        words = codec.describe()
        two = isinstance(words, tuple) and len(words) == 2 and all(isinstance(word, str) for word in words)
        demand(two, f"describe() gave {words!r}, and not two texts")
        stored = to_json(codec.to_dict())
        json.dumps(codec.to_dict(), default=plain, allow_nan=False)  # what is not finite is lost in a file
        again = task.codec_from_dict(json.loads(stored))
        same = isinstance(again, Codec) and to_json(again.to_dict()) == stored
        demand(same, "task.codec_from_dict(codec.to_dict()) is another codec")
        for name, samples in splits.items():
            match = codec.match(samples.column(task.column))
            demand(isinstance(match, Match), f"match() gave {type(match).__name__}, and no Match")
            demand(isinstance(match.column, Column), "match() gave a Match without a Column")
            some = min(FEW, len(match.column))
            targets = codec.targets(match.column.take(np.arange(some, dtype=np.int64), 0))
            demand(isinstance(targets, Tensor), f"targets() gave {type(targets).__name__}, and no tensor")
            demand(len(targets) == some, f"targets() gave {len(targets)} rows for {some} samples of {name}")
    return codec


def check_facts(
    task: Task, others: Mapping[str, Any], input: Input, augmentation: Augmentation, train: Samples
) -> None:
    """Hold the facts of a training by an own task against its contract: plain values, by names of their own.

    Args:
        task: A person's own.
        others: What a model keeps of every training.
        input: As for `Task.facts`; so are
        augmentation: and
        train:.

    Raises:
        UsageError: It breaks it.
    """
    with contract(f"the task {task.name}", f"facts(...), measures and metric {TASK}"):
        facts = task.facts(input, augmentation, train)
        demand(isinstance(facts, Mapping), f"facts() gave {type(facts).__name__}, and no values by name")
        to_json(facts)
        demand(not others.keys() & facts.keys(), f"facts() names {', '.join(others.keys() & facts.keys())} again")
        for kind, name in (("metric", task.metric.key), *(("measure", name) for name in task.measures.values())):
            demand(name != "loss", f"a {kind} is called loss, as the objective's is")


def rehearse(model: Model, objective: Objective, batch: Batch, own: Mapping[str, str]) -> None:
    """Ask of a person's own objects all that a run will ask of them, on a few samples.

    Args:
        model: What is trained; left as it was.
        objective: What is minimised.
        batch: A few samples.
        own: Names of the objects, by what they are; see `Own.names`.

    Raises:
        UsageError: One breaks its contract; names it and the clause.
    """
    if not own:
        return
    network, task, ours = copy.deepcopy(model.network), model.task, own.keys() & {"task", "network", "parts"}
    model = replace(model, network=network)  # a forward in train mode moves running means
    if "network" in own and "ViT" in task.networks and not model.reads_text:
        with contract(f"the network {own['network']}", NETWORK), evaluating(network), torch.no_grad():
            logits = network(batch.inputs)
            demand(isinstance(logits, Tensor), f"it gave {type(logits).__name__}, and no tensor")
            wanted = (len(batch), model.output.outputs)
            maps = logits.ndim != 2 and task.name not in TASKS  # an own task may want other numbers of each sample
            right = logits.shape[:1] == wanted[:1] if maps else tuple(logits.shape) == wanted
            demand(right, f"it gave {tuple(logits.shape)} for {len(batch)} samples, and not {wanted}")
            demand(bool(logits.isfinite().all()), "it gave logits that are not finite")
    whose = ", ".join(f"{kind} {name}" for kind, name in own.items() if kind != "reader") or f"task {task.name}"
    with contract(f"the objective of {whose}", OBJECTIVE):
        inside = [] if not isinstance(objective, nn.Module) else [*objective.parameters()]
        demand(not inside, "it has parameters of its own, which nothing trains; they belong into the network")
        _check_objective(objective(network, batch), batch)
    if ours:
        others = ", ".join(f"{kind} {name}" for kind, name in own.items() if kind in ours)
        whose = f"the metrics of the task {task.name}" if "task" in own else f"the {others}, as the metrics ask it,"
        with contract(whose, METRICS if "task" in own else NETWORK):
            _check_metrics(model, batch)
    if "task" in own:
        with contract(f"the task {task.name}", f"about and chance_loss {TASK}"):
            about, chance = task.about(model.output, model.facts), task.chance_loss(model.output)
            demand(isinstance(about, str), f"about() gave {about!r}, and no text")
            demand(chance is None or math.isfinite(chance), f"chance_loss() gave {chance!r}")
        with contract(f"the predictions of the task {task.name}", PREDICT):
            _check_predictions(model, batch)


def _check_objective(found: Any, batch: Batch) -> None:
    demand(isinstance(found, tuple) and len(found) == 3, "it gave no loss with a count and measures")
    loss, count, measures = found
    right = isinstance(loss, Tensor) and not loss.ndim and loss.requires_grad
    demand(right, "the loss must be a tensor without axes through which a gradient flows")
    if not bool(loss.isfinite()):
        bad = batch.targets.is_floating_point() and not bool(batch.targets.isfinite().all())
        demand(False, f"the loss is {float(loss.detach())}{', and so are targets of the data' * bad}")
    demand(type(count) is int and count > 0, f"the count must be a whole number above 0, got {count!r}")
    named = isinstance(measures, dict) and all(
        isinstance(value, Tensor) and not value.ndim for value in measures.values()
    )
    named = named and all(isinstance(name, str) for name in measures)
    demand(named, "the measures must be tensors without axes, by name")
    taken = [name for name in SUMS if name in measures]
    demand(not taken, f"the loop sums {', '.join(taken)} itself, so no measure may be called so")


def _check_metrics(model: Model, batch: Batch) -> None:
    task = model.task
    metrics = task.metrics(model.input, model.output)
    with evaluating(model.network), torch.no_grad():
        answers = metrics.answers(model.network, batch)
    demand(isinstance(answers, Mapping), f"answers() gave {type(answers).__name__}, and no values by name")
    metrics.update(json.loads(json.dumps(answers)))  # as another process may send them
    result = metrics.result(str)
    demand(isinstance(result, Result), f"result() gave {type(result).__name__}, and no Result")
    demand(result.metric == task.metric, f"result() is of the metric {result.metric.key}, not {task.metric.key}")
    finite = math.isfinite(result.value) and math.isfinite(result.loss)
    demand(finite, f"value {result.value} and loss {result.loss} are not both finite")
    to_json(result.to_dict())
    task.metric.shown(result.value)
    demand(isinstance(result.sentence, str), f"its sentence is {result.sentence!r}, and no text")
    demand(type(result.count) is int, f"its count is {result.count!r}, and no int")
    two = result.interval is None or (len(result.interval) == 2 and all(map(math.isfinite, result.interval)))
    demand(two, f"its interval is {result.interval!r}, and not two numbers")
    about = len(result.about) == 2 and all(isinstance(words, str) for words in result.about)
    demand(about, f"its about is {result.about!r}, and not two texts")
    for one in result.examples:
        demand(isinstance(one, Example) and one.id in batch.ids.tolist(), f"it has the example {one!r}")
    for table in result.tables:
        demand(
            isinstance(table, Table | ClassTable | Confusion), f"it has the table {table!r}, and no vitrail.pages.Table"
        )
    result.view()


def _check_predictions(model: Model, batch: Batch) -> None:
    for some in (len(batch), 1):
        names = [str(number) for number in range(some)]
        with evaluating(model.network):
            found = model.task.predict(model.network, model.output, batch.inputs[:some], names, None, model.facts)
        demand(len(found) == some, f"it gave {len(found)} for {some} inputs")
        for one, name in zip(found, names, strict=True):
            demand(isinstance(one, Prediction), f"it gave a {type(one).__name__}, which is no Prediction")
            demand(one.name == name, f"it calls the input {name} {one.name}")
            demand(all(isinstance(cell, str) for cell in one.cells()), f"cells() gave {one.cells()!r}, and not texts")
            demand(isinstance(one.row(), dict), f"row() gave {type(one.row()).__name__}, and no values by column")
            to_json(one.to_dict())


def check_network(network: nn.Module) -> None:
    """Hold what an own network is made of against what a run does with it: train, copy, save and load it.

    Raises:
        UsageError: It cannot be; says why.
    """
    wanted = "a module with parameters that are trained, which copy.deepcopy copies and whose state_dict holds tensors"
    with contract(f"the network {type(network).__name__}", wanted):
        parameters = dict(network.named_parameters())
        late = [name for name, value in parameters.items() if is_lazy(value)]
        demand(not late, f"{', '.join(late)} has no shape before it is called once")
        demand(any(value.requires_grad for value in parameters.values()), "it has no parameter that is trained")
        bad = [name for name, value in parameters.items() if not bool(value.isfinite().all())]
        demand(not bad, f"{', '.join(bad)} is not finite")
        others = [name for name, value in network.state_dict().items() if not isinstance(value, Tensor)]
        demand(not others, f"{', '.join(others)} of its state_dict is no tensor")
        copy.deepcopy(network)


def guarded(own: Mapping[str, str], kind: type[VitrailError] = UsageError) -> AbstractContextManager[None]:
    """A block in which own objects are called; nothing is done where there are none.

    Args:
        own: Their names, by what they are.
        kind: What is raised where one fails.
    """
    whose = ", ".join(f"{name} {value}" for name, value in own.items())
    return contract(f"one of {whose}", "docs/own-objects.md, with the contract of each", kind) if own else nullcontext()


def called(thing: Callable[..., Any]) -> str:
    """The name of a function, or of the kind of a value."""
    return str(getattr(thing, "__qualname__", type(thing).__name__))
