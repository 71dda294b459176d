"""The contracts of a user's own task, reader, network and objective: each is tried once before anything is written.

    check_kinds     each argument is of its class
    read_own        a reader: its splits, their samples, its facts
    check_codec     a task's codec: to a file and back, to targets, and what it makes of outputs
    check_network   a network: its parameters and state
    rehearse        network, objective, metrics, predictions: all that a run calls, on a few samples

Parts of a network are tried by `vitrail.nn.check_parts`. An object that raises, or returns what its contract does not
allow, is reported in one line that names it; the hint is the contract.
"""

import copy
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vitrail.arguments import check_kind, contract, demand, type_misfit
from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch
from vitrail.data.columns import ALL, SPLITS, Column, Match, RawDataset, Samples, split_of
from vitrail.data.images import Images
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.sources import Reader
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.io import plain, to_json
from vitrail.model import Model
from vitrail.nn import Parts, evaluating
from vitrail.nn.networks import NETWORKS
from vitrail.pages import evaluation_page
from vitrail.pages.run_views import Section
from vitrail.tasks import TASKS, ChosenTarget, Codec, Example, Hub, Metric, Prediction, Result, Task
from vitrail.tasks.target import TINY
from vitrail.tasks.task import Input, Objective

KNOWN = (*SPLITS, ALL)
FEW = 4  # samples of each split
SUMS = {"loss", "count", "samples"}  # what the loop sums beside the measures of an objective
ROW = {"kind", "epoch", "step", "samples", "seconds", "learning_rate", "gradient_norm", "images_per_second"}
NAME = re.compile(r"\w[\w.-]*")

READER = (
    '(data, data_root) -> RawDataset(root, {"train": Samples(inputs, {"label": Labels.of(names)}), ...}), '
    f"the splits called {', '.join(KNOWN)}"
)
CODEC = "a vitrail.tasks.Codec, as its docstring says, which task.codec_from_dict makes again of to_dict()"
NETWORK = "network(inputs) -> a row of logits for each sample, as many as the codec has outputs"
OBJECTIVE = "objective(network, batch) -> (summed loss as a tensor (), count as an int, {name: sum as a tensor ()})"
METRICS = (
    "answers(network, batch) -> values by name, as JSON has them; result([answers, ...], name) -> Result with the "
    "task's metric, a value and a loss"
)
PREDICT = "task.predict(network, output, inputs, names, search, facts) -> a vitrail.tasks.Prediction for each input"
TASK = "as the docstrings of vitrail.tasks.Task say"


def expect(what: str, value: Any, kind: Any) -> None:
    """Demand that a value is of a type, and so the fields of a dataclass; see `type_misfit`."""
    problem = type_misfit(what, value, kind)
    demand(not problem, problem)
    for name, hint in (get_type_hints(kind, localns={"Section": Section}) if is_dataclass(kind) else {}).items():
        expect(f"{what}.{name}", getattr(value, name), hint)


def check_own_kinds(task: object, network: object, parts: object, objective: object, reader: object) -> None:
    """Check that each argument is of the class that it must be.

    Raises:
        UsageError: One is of another class; names it.
    """
    check_kind("task", task, Task, "task=MyTask(); TrainOptions(task=...) names one of the library")
    check_kind("network", network, nn.Module, "network=MyNetwork(...), a module that is made already")
    check_kind("parts", parts, Parts, "vitrail.nn.Parts(norm=lambda config: torch.nn.RMSNorm(config.width))")
    check_kind("objective", objective, Callable, OBJECTIVE)
    check_kind("reader", reader, Callable, READER)
    if not isinstance(task, Task):
        return
    with contract(f"the task {type(task).__name__}", f"name, column, help, metric, counted and networks {TASK}"):
        for name, kind in {"name": str, "column": str | None, "help": str, "counted": str, "metric": Metric}.items():
            expect(name, getattr(task, name, None), kind)
        demand(bool(NAME.fullmatch(task.name)) and task.name != "auto", f"its name {task.name!r} is no word")
        taken = task.counted in ROW or task.counted.startswith(("training_", "validation_"))
        demand(not taken, f"counted is {task.counted}, which the metrics file calls something else")
        known = len(task.networks) > 0 and set(task.networks) <= NETWORKS.keys()
        demand(known, f"its networks must be of {', '.join(NETWORKS)}, got {task.networks}")


def read_own(reader: Reader, data: str, root: Path | None, layout: Layout = AS_FOUND) -> RawDataset:
    """The data that a user's own reader finds, checked against its contract.

    Args:
        reader: (data, data root) -> `RawDataset`.
        data: What it reads.
        root: Where named sets lie.
        layout: As for `vitrail.data.sources.read`; columns are for data that are an object.

    Raises:
        DataError: It breaks its contract; names the clause.
    """
    called = getattr(reader, "__qualname__", type(reader).__name__)
    with contract(f"the reader {called}", READER, DataError):
        raw = reader(data, root, layout) if getattr(reader, "takes_layout", False) else reader(data, root)
        raw = replace(raw, root=str(raw.root)) if isinstance(raw, RawDataset) else raw
        expect("what it returned", raw, RawDataset)
        demand(len(raw.splits) > 0, "it has no splits by name")
        for name, samples in raw.splits.items():
            meant = split_of(str(name))
            better = f"which is called {meant} here" if meant else f"and is none of {', '.join(KNOWN)}"
            demand(name in KNOWN, f"it has a split {name}, {better}")
            _check_samples(f"its split {name}", samples)
            demand(list(samples.columns) == list(raw.columns()), f"its split {name} has other columns")
        to_json(dict(raw.facts))
    return layout.apply(raw)


def _check_samples(what: str, samples: Samples) -> None:
    inputs = samples.inputs
    expect(f"{what}: columns", samples.columns, Mapping[str, Column])
    for name, column in samples.columns.items():
        demand(len(column) == len(inputs), f"{what} has {len(inputs)} samples, and its column {name} {len(column)}")
        expect(f"{what}: the digest of {name}", column.digest(), bytes)
    demand(len(inputs) > 0, f"{what} is empty")
    expect(f"{what}: the name of an input", inputs.name(0), str)
    if isinstance(inputs, Images):
        expect(f"{what}: the digest of its images", inputs.digest(), bytes)
        for index in {0, len(inputs) // 2, len(inputs) - 1}:
            with suppress(DataError, OSError):  # a damaged image is left out, and named
                expect(f"{what}: an image that is opened", inputs.open(index), Image.Image)


def check_codec(
    task: Task, raw: RawDataset, splits: Mapping[str, Samples], separator: str, outputs: bool = True
) -> Codec:
    """The codec that a user's own task makes of data, checked against its contract.

    Args:
        task: A user's own.
        raw: The data as it was found.
        splits: The same, divided.
        separator: Between two tokens of a text.
        outputs: Whether networks return (b, v), so that it can be asked without one what outputs mean.

    Raises:
        UsageError: It breaks its contract; names the clause.
    """
    with contract(f"the codec of the task {task.name}", CODEC):
        codec = task.codec(raw, splits, separator)
        expect("what task.codec returned", codec, Codec)
        demand(type(codec.outputs) is int and codec.outputs > 0, f"outputs is {codec.outputs!r}, and no int above 0")
        expect("describe()", codec.describe(), tuple[str, str])
        stored = to_json(codec.to_dict())
        json.dumps(codec.to_dict(), default=plain, allow_nan=False)  # what is not finite is lost in a file
        again = task.codec_from_dict(json.loads(stored))
        expect("what task.codec_from_dict returned", again, Codec)
        demand(again.outputs == codec.outputs, f"it has {again.outputs} outputs when it is opened again")
        demand(to_json(again.to_dict()) == stored, "task.codec_from_dict(codec.to_dict()) is another codec")
        for name, samples in splits.items():
            match = codec.match(samples.column(task.column))
            expect("match()", match, Match)
            expect("the column of match()", match.column, Column)
            some = min(FEW, len(match.column))
            targets = codec.targets(match.column.take(np.arange(some, dtype=np.int64), 0))
            expect("targets()", targets, Tensor)
            demand(len(targets) == some, f"targets() gave {len(targets)} rows for {some} samples of {name}")
            if outputs and not codec.generates:
                drawn = torch.randn(2, some, codec.outputs, generator=torch.Generator().manual_seed(0))
                _check_meaning(codec, drawn[0], drawn[1], targets)
                said, opened = (
                    to_json([answer.to_dict() for answer in each.answer(drawn[0], tuple(map(str, range(some))))])
                    for each in (codec, again)
                )
                demand(said == opened, "task.codec_from_dict(codec.to_dict()) answers otherwise than the codec")
    return codec


def _check_meaning(codec: Codec, outputs: Tensor, others: Tensor, targets: Tensor) -> None:
    """Ask a codec what outputs mean: all that it has, each of the shape that its docstring says."""
    rows, names = len(outputs), tuple(map(str, range(len(outputs))))
    expect("hub", codec.hub, Hub | None)
    expect("names", codec.names, tuple[str, ...])
    demand(len(codec.names) in (0, codec.outputs), f"it has {len(codec.names)} names for {codec.outputs} outputs")
    for name in ("loss", "vote", "divergence"):
        demand(getattr(codec, name) is None or codec.error is not None, f"it has {name}, and no error to measure it by")
    _check_predictions(codec.answer(outputs, names), names)
    same, margin = codec.agree(outputs, others)
    asked = dict[str, tuple[Any, tuple[int, ...]]]()
    asked |= {"agree()": (same, (rows,)), "the margin of agree()": (margin, (rows,))}
    k, leaf = torch.ones(rows, 1), outputs.clone().requires_grad_()
    calls: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {  # what it may have, with what it is asked
        "error": ((outputs, targets), (rows,)),
        "confidence": ((outputs,), (rows,)),
        "strata": ((targets,), (rows,)),
        "vote": ((targets[:, None], k), (rows, codec.outputs)),
        "divergence": ((leaf, others, "soft", 1.0), ()),
    }
    for name, (given, shape) in calls.items():
        if getattr(codec, name) is not None:
            asked[f"{name}()"] = getattr(codec, name)(*given), shape
    if (loss := codec.loss) is not None:
        asked |= {f"loss(reduction={each!r})": (loss(leaf, targets, reduction=each), ()) for each in ("mean", "sum")}
    if codec.choose is not None:
        chosen = codec.choose(outputs)
        demand(isinstance(chosen, ChosenTarget), f"choose() gave {chosen!r:.60}, and no ChosenTarget")
        demand(chosen.unit in (None, *TINY), f"the unit of choose() is {chosen.unit!r}, and none of {', '.join(TINY)}")
        demand(chosen.least is None or chosen.unit is not None, "choose() has a least effect without a unit")
        asked |= {
            "the number of choose()": (chosen(outputs), (rows,)),
            "the effect of choose()": (chosen.effect(outputs, others), (rows,)),
            "the number of choose().select()": (chosen.select(slice(0, 1))(outputs[:1]), (1,)),
        }
    for name, (value, shape) in asked.items():
        expect(name, value, Tensor)
        demand(tuple(value.shape) == shape, f"{name} is of shape {tuple(value.shape)}, and not {shape}")
    for name in (name for name in asked if name.startswith(("loss", "divergence"))):
        demand(asked[name][0].requires_grad, f"no gradient flows through {name}")
    if codec.error is not None:
        errors = asked["error()"][0]
        right = ((errors == 0) | (errors == 1) if codec.is_wrong else errors >= 0).all()
        wanted = "0 or 1, as is_wrong says" if codec.is_wrong else "a distance, 0 or more"
        demand(bool(right), f"error() gave {errors.tolist()}, and not {wanted}")


def check_facts(
    task: Task, others: Mapping[str, Any], input: Input, augmentation: Augmentation, train: Samples
) -> None:
    """Check the facts of a training by a user's own task: plain values, by names of their own.

    Args:
        task: A user's own.
        others: What a model keeps of every training.
        input: The preprocessing or the source vocabulary of the network.
        augmentation: Of the training images.
        train: The training samples.

    Raises:
        UsageError: It breaks its contract.
    """
    with contract(f"the task {task.name}", f"facts(...), measures and metric {TASK}"):
        facts = task.facts(input, augmentation, train)
        expect("facts()", facts, Mapping[str, Any])
        to_json(facts)
        demand(not others.keys() & facts.keys(), f"facts() names {', '.join(others.keys() & facts.keys())} again")
        taken = "loss" in (task.metric.key, *task.measures.values())
        demand(not taken, "a metric or measure is called loss, as the objective's is")


def check_own_network(network: nn.Module) -> None:
    """Check that a user's own network can be trained, copied, saved and loaded.

    Raises:
        UsageError: It cannot be.
    """
    wanted = "a module with parameters that are trained, which copy.deepcopy copies and whose state_dict holds tensors"
    with contract(f"the network {type(network).__name__}", wanted):
        parameters = dict(network.named_parameters())
        late = [name for name, value in parameters.items() if is_lazy(value)]
        demand(not late, f"{', '.join(late)} has no shape before it is called once")
        demand(any(value.requires_grad for value in parameters.values()), "it has no parameter that is trained")
        bad = [name for name, value in parameters.items() if not bool(value.isfinite().all())]
        demand(not bad, f"{', '.join(bad)} is not finite")
        expect("state_dict()", network.state_dict(), Mapping[str, Tensor])
        copy.deepcopy(network)


def rehearse(model: Model, objective: Objective, batch: Batch, own: Mapping[str, str]) -> None:
    """Ask of a user's own objects all that a run will ask of them, on a few samples.

    Args:
        model: What is trained; left as it was.
        objective: What is minimised.
        batch: A few samples.
        own: Names of the objects, by argument; see `Own.names`.

    Raises:
        UsageError: One breaks its contract; names it and the clause.
    """
    if not own:
        return
    network, task = copy.deepcopy(model.network), model.task
    model = replace(model, network=network)  # a forward in train mode moves running means
    if "network" in own and "ViT" in task.networks and not model.reads_text:
        with contract(f"the network {own['network']}", NETWORK), evaluating(network), torch.no_grad():
            logits, wanted = network(batch.inputs), (len(batch), model.output.outputs)
            expect("what it returned", logits, Tensor)
            shape = tuple(logits.shape)  # a user's own task may want other numbers of each sample
            right = shape == wanted if task.name in TASKS or len(shape) == 2 else shape[:1] == wanted[:1]
            demand(right, f"it gave {shape} for {len(batch)} samples, and not {wanted}")
            demand(bool(logits.isfinite().all()), "it gave logits that are not finite")
    whose = ", ".join(f"{kind} {name}" for kind, name in own.items() if kind != "reader") or f"task {task.name}"
    with contract(f"the objective of {whose}", OBJECTIVE):
        inside = list(objective.parameters()) if isinstance(objective, nn.Module) else []
        demand(not inside, "it has parameters of its own, which nothing trains; they belong into the network")
        _check_objective(objective(network, batch), batch)
    others = ", ".join(f"{kind} {name}" for kind, name in own.items() if kind in ("network", "parts"))
    if "task" in own or others:
        whose = f"the metrics of the task {task.name}" if "task" in own else f"the {others}, as the metrics ask it,"
        with contract(whose, METRICS if "task" in own else NETWORK):
            _check_metrics(model, batch)
    if "task" in own:
        with contract(f"the task {task.name}", f"about and chance_loss {TASK}"):
            chance = task.chance_loss(model.output)
            expect("about()", task.about(model.output, model.facts), str)
            demand(chance is None or math.isfinite(chance), f"chance_loss() gave {chance!r}")
        with contract(f"the predictions of the task {task.name}", PREDICT), evaluating(network):
            for names in (list(map(str, range(len(batch)))), ["alone"]):
                some = batch.inputs[: len(names)]
                _check_predictions(task.predict(network, model.output, some, names, None, model.facts), names)


def _check_objective(found: Any, batch: Batch) -> None:
    expect("what it returned", found, tuple[Tensor, int, Mapping[str, Tensor]])
    loss, count, measures = found
    demand(not loss.ndim and loss.requires_grad, "the loss must have no axes, and a gradient must flow through it")
    if not bool(loss.isfinite()):
        bad = batch.targets.is_floating_point() and not bool(batch.targets.isfinite().all())
        demand(False, f"the loss is {float(loss.detach())}{', and so are targets of the data' * bad}")
    demand(type(count) is int and count > 0, f"the count must be an int above 0, got {count!r}")
    demand(not any(value.ndim for value in measures.values()), "the measures must have no axes")
    taken = ", ".join(SUMS & measures.keys())
    demand(not taken, f"the loop sums {taken} itself, so no measure may be called so")


def _check_metrics(model: Model, batch: Batch) -> None:
    task = model.task
    metrics = task.metrics(model.input, model.output)
    with evaluating(model.network), torch.no_grad():
        answers = metrics.answers(model.network, batch)
    expect("answers()", answers, Mapping[str, Any])
    result = metrics.result([json.loads(json.dumps(answers))], str)  # as another process may send them
    expect("result()", result, Result)
    demand(result.metric == task.metric, f"result() is of the metric {result.metric.key}, not {task.metric.key}")
    numbers = (result.value, result.loss, *(result.interval or ()))
    demand(all(map(math.isfinite, numbers)), f"value, loss and interval are not all finite: {numbers}")
    for one in result.examples:
        expect("an example", one, Example)
        demand(one.id in batch.ids.tolist(), f"it has the example {one!r}, which is no sample")
    demand(len(result.errors) in (0, len(batch)), f"it has {len(result.errors)} errors for {len(batch)} samples")
    to_json(result.to_dict())
    evaluation_page(result)


def _check_predictions(found: Any, names: Sequence[str]) -> None:
    """What a codec answers about inputs of these names."""
    expect("answer()", found, Sequence)
    demand(len(found) == len(names), f"it gave {len(found)} predictions for {len(names)} inputs")
    for one, name in zip(found, names, strict=True):
        expect("a prediction", one, Prediction)
        demand(one.name == name, f"it calls the input {name} {one.name}")
        said = str(next(iter(one.brief().values()), ""))
        shown = one.sentence() or (one.top and one.top[0][0] == said)
        demand(bool(shown), f"sentence() is empty, and what is predicted, '{said}', is not the first of top")
        expect("cells()", one.cells(), tuple[str, ...])
        expect("row()", one.row(), dict)
        to_json(one.to_dict())


def guard(own: Mapping[str, str], kind: type[VitrailError] = UsageError) -> AbstractContextManager[None]:
    """A block in which a user's own objects are called; nothing is done where there are none.

    Args:
        own: Their names, by argument.
        kind: The error that is raised if one fails.
    """
    whose = ", ".join(f"{name} {value}" for name, value in own.items())
    return contract(f"one of {whose}", "docs/own-objects.md, with the contract of each", kind) if own else nullcontext()
