"""An own task, reader, network or objective that breaks its contract is told which clause, in two lines."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.own_objects import (
    MAE,
    OPTIONS,
    Columns,
    Errors,
    Number,
    NumberPrediction,
    PredictNumber,
    read_bars,
    squared_error,
)
from vitrail.data import ArrayImages, Column, RawDataset, Samples, Texts, Values
from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch, Batches
from vitrail.data.images import Images
from vitrail.data.loader import open_loader
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, RunError, UsageError, VitrailError
from vitrail.model import Model
from vitrail.runs.contracts import FEW, check_codec, check_facts, check_own_kinds, check_own_network, read_own, rehearse
from vitrail.tasks import Agreement, ChosenTarget, Example, Hub, Metric, Result

BARS = read_bars("bars")
TRAIN = BARS.splits["train"]
INPUT = Preprocessing(size=(16, 16), channels=1, mean=(0.5,), std=(0.5,))
AUGMENTATION = Augmentation()


def task_with(**members: Any) -> Any:
    """The task of a number with other members."""
    return type("Broken", (PredictNumber,), members)()


def number_with(**members: Any) -> Any:
    """The codec of a number with other members."""
    return type("OtherNumber", (Number,), members)(0.0)


def neither_way() -> Metric:
    """A metric of no direction, as it can be made where types are not checked."""
    metric = replace(MAE)
    object.__setattr__(metric, "better", "more")
    return metric


def raises(*_: Any, **__: Any) -> Any:
    raise LookupError("nothing there\nand more")


class Unopened(Images):
    """Images that open as arrays."""

    def __len__(self) -> int:
        return 3

    def name(self, index: int) -> str:
        return f"{index}"

    def open(self, index: int) -> Any:
        return np.zeros((16, 16), np.uint8)

    def select(self, indices: Any) -> "Unopened":
        return self

    def digest(self) -> bytes:
        return b""


def of(**splits: Any) -> RawDataset:
    return RawDataset("bars", splits)


class Texted(Column):
    """A column whose digest is a text."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, ids: Any, epoch: int = 0) -> Any:
        return self.values[ids]

    def select(self, ids: Any) -> Any:
        return Texted(self.values[ids])

    def digest(self) -> Any:
        return "the same"


HEIGHTS = {"height": Values(np.zeros(96, np.float32))}
READERS: dict[str, Callable[[], Any]] = {
    "it raises": raises,
    "no data set": lambda: {"train": TRAIN},
    "no split": of,
    "a split that nobody reads": lambda: of(train=TRAIN, val=TRAIN),
    "a split by another name": lambda: of(train=TRAIN, holdout=TRAIN),
    "a list for a column": lambda: of(train=Samples(TRAIN.inputs, {"height": [0.0] * 96})),
    "a column of another length": lambda: of(train=Samples(TRAIN.inputs, {"height": Values(np.zeros(3))})),
    "other columns in a split": lambda: of(train=TRAIN, test=Samples(TRAIN.inputs, {})),
    "an empty split": lambda: of(train=Samples(ArrayImages(np.zeros((0, 16, 16), np.uint8)), {})),
    "images that do not open": lambda: of(train=Samples(Unopened(), {})),
    "facts that no file holds": lambda: replace(BARS, facts={"made by": read_bars}),
    "a digest that is a text": lambda: of(train=Samples(TRAIN.inputs, {"height": Texted(np.zeros(96))})),
}


@pytest.mark.parametrize("make", READERS.values(), ids=list(READERS))
def test_a_reader(make: Callable[[], Any]):
    def my_reader(what: str, data_root: Path | None) -> Any:
        return make()

    with must_raise(DataError, "my_reader"):
        read_own(my_reader, "bars", None)


WRONG_TYPES: dict[str, Callable[[], Any]] = {
    "no samples": lambda: of(train=TRAIN.inputs),
    "a list for inputs": lambda: of(train=Samples([1, 2], {})),  # type: ignore[arg-type]
    "an array for inputs": lambda: of(train=Samples(np.zeros((96, 16, 16), np.uint8), HEIGHTS)),  # type: ignore[arg-type]
    "texts that are numbers": lambda: of(train=Samples(Texts((1, 2)), {})),  # type: ignore[arg-type]
    "notes as one text": lambda: replace(BARS, notes="hello"),  # type: ignore[arg-type]
    "classes as one text": lambda: replace(BARS, classes="ab"),  # type: ignore[arg-type]
    "notes that are no words": lambda: replace(BARS, notes=(1,)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", WRONG_TYPES.values(), ids=list(WRONG_TYPES))
def test_values_of_another_type_are_refused_where_a_reader_makes_them(make: Callable[[], Any]):
    def my_reader(what: str, data_root: Path | None) -> Any:
        return make()

    with must_raise(VitrailError):  # under the check of types already where they are made
        read_own(my_reader, "bars", None)


def test_a_reader_of_other_arguments():
    with must_raise(DataError, "lambda"):
        read_own(lambda: BARS, "bars", None)


def test_what_a_file_can_hold_is_no_fault():
    raw = replace(BARS, facts={"noise": np.float32(0.5), "sizes": np.arange(3)})
    object.__setattr__(raw, "root", Path("bars"))  # whose type is checked under test only

    def my_reader(what: str, data_root: Path | None) -> Any:
        return raw

    assert read_own(my_reader, "bars", None).root == "bars"
    check_facts(task_with(facts=lambda *_: {"scale": np.float32(0.5)}), {"data": "bars"}, INPUT, AUGMENTATION, TRAIN)


def loss_of(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.mse_loss(outputs[:, 0], targets, reduction=reduction)


def divergence_of(self: Number, outputs: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
    return (outputs - teacher).square().sum()


@dataclass(frozen=True)
class Scaled(Number):
    """Its file has only the mean."""

    scale: float = 1.0

    def to_dict(self) -> dict[str, float]:
        return {"mean": self.mean}

    def answer(self, outputs: Tensor, names: Sequence[str], *_: Any) -> Any:
        return super().answer(outputs * self.scale, names)


@dataclass(frozen=True)
class Unsaid:
    """A prediction that says nothing, so that a page shows the likeliest label."""

    name: str
    top: tuple[tuple[str, float], ...] = (("red", 0.1),)
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        return ""

    def brief(self) -> dict[str, Any]:
        return {"labels": ""}

    def cells(self) -> tuple[str, ...]:
        return (self.name,)

    row = to_dict = brief


def chooses(**members: Any) -> Callable[..., Any]:
    """What a codec chooses: its first output, with other members."""
    members = {"__call__": lambda self, outputs: outputs[..., 0], **members}
    kind = type("Chosen", (ChosenTarget,), members)
    return lambda self, outputs, wanted=None: kind(torch.zeros(len(outputs), dtype=torch.long))


CODECS: dict[str, Callable[[], Any]] = {
    "none": lambda: task_with(codec=lambda *_: None),
    "it raises": lambda: task_with(codec=raises),
    "no outputs": lambda: number_with(outputs=0),
    "a number that no file holds": lambda: Number(float("nan")),
    "half an output": lambda: number_with(outputs=1.5),
    "words as one text": lambda: number_with(describe=lambda self: "number"),
    "values that no file holds": lambda: number_with(to_dict=lambda self: {"mean": read_bars}),
    "no way back": lambda: task_with(codec_from_dict=raises),
    "another on the way back": lambda: task_with(codec_from_dict=lambda self, values: Number(-1.0)),
    "no match": lambda: number_with(match=lambda self, column: column),
    "a match of a list": lambda: number_with(match=lambda self, column: vitrail.data.Match([0.0])),  # type: ignore[arg-type]
    "targets as an array": lambda: number_with(targets=lambda self, values: np.asarray(values)),
    "one target for all": lambda: number_with(targets=lambda self, values: torch.zeros(1)),
    "names for other outputs": lambda: number_with(names=("a", "b")),
    "names that are no texts": lambda: number_with(names=(1,)),
    "a hub as a word": lambda: number_with(hub="image-classification"),
    "one answer too few": lambda: number_with(
        answer=lambda self, outputs, names, *_: Number.answer(self, outputs, names)[1:]
    ),
    "answers that are no predictions": lambda: number_with(answer=lambda self, outputs, names, *_: [*names]),
    "no answer": lambda: number_with(answer=lambda self, *_: None),
    "an error for all": lambda: number_with(
        error=lambda self, outputs, targets: (outputs[:, 0] - targets).abs().mean()
    ),
    "an error for each output": lambda: number_with(
        error=lambda self, outputs, targets: (outputs - targets[:, None]).abs()
    ),
    "an error below 0": lambda: number_with(error=lambda self, outputs, targets: -(outputs[:, 0] - targets).abs()),
    "a distance that says it is wrong or right": lambda: number_with(is_wrong=True),
    "an error as a list": lambda: number_with(error=lambda self, outputs, targets: [0.0] * len(outputs)),
    "a loss without an error": lambda: number_with(loss=staticmethod(loss_of), error=None),
    "a vote without an error": lambda: number_with(vote=lambda self, targets, cosines: targets.mean(dim=1), error=None),
    "a divergence without an error": lambda: number_with(divergence=divergence_of, error=None),
    "a loss of each sample": lambda: number_with(loss=lambda self, outputs, targets, reduction="mean": outputs[:, 0]),
    "a loss without a gradient": lambda: number_with(
        loss=lambda self, outputs, targets, reduction="mean": outputs.detach().mean()
    ),
    "a loss of other arguments": lambda: number_with(loss=lambda self, outputs: outputs.mean()),
    "a loss that knows no reduction": lambda: number_with(loss=lambda self, outputs, targets: outputs.square().mean()),
    "a loss that knows no sum": lambda: number_with(
        loss=lambda self, outputs, targets, reduction: {"mean": outputs.square().mean()}[reduction]
    ),
    "one of fewer outputs on the way back": lambda: task_with(
        codec=lambda *_: number_with(outputs=2), codec_from_dict=lambda self, values: Number(**values)
    ),
    "a scale that is lost on the way": lambda: task_with(
        codec=lambda *_: Scaled(0.5, 3.0), codec_from_dict=lambda self, values: Scaled(values["mean"])
    ),
    "likely labels for none": lambda: number_with(answer=lambda self, outputs, names, *_: list(map(Unsaid, names))),
    "a divergence of each sample": lambda: number_with(
        divergence=lambda self, outputs, teacher, kind, temperature: outputs - teacher
    ),
    "a vote for each sample": lambda: number_with(vote=lambda self, targets, cosines: targets[:, 0]),
    "a vote that raises": lambda: number_with(vote=raises),
    "strata of other samples": lambda: number_with(strata=lambda self, targets: targets[:1]),
    "a confidence for all": lambda: number_with(confidence=lambda self, outputs: outputs.mean()),
    "an agreement without a margin": lambda: number_with(agree=lambda self, outputs, others: outputs == others),
    "an agreement for all": lambda: number_with(
        agree=lambda self, outputs, others: Agreement(outputs[:1, 0] > 0, outputs[:1, 0])
    ),
    "a choice that is an index": lambda: number_with(choose=lambda self, outputs, wanted=None: 0),
    "a number for all": lambda: number_with(choose=chooses(__call__=lambda self, outputs: outputs.mean())),
    "an effect for all": lambda: number_with(choose=chooses(effect=lambda self, outputs, without: torch.zeros(()))),
    "a unit of one's own": lambda: number_with(choose=chooses(unit="metres")),
    "a least effect without a unit": lambda: number_with(choose=chooses(least=1.0)),
    "samples that are not selected": lambda: number_with(
        choose=chooses(__call__=lambda self, outputs: outputs[:, 0] * self.target.new_ones(FEW))
    ),
}


@pytest.mark.parametrize("make", CODECS.values(), ids=list(CODECS))
def test_a_codec(make: Callable[[], Any]):
    made = make()
    task = made if isinstance(made, PredictNumber) else task_with(codec=lambda *_: made)
    if not isinstance(made, PredictNumber) and "to_dict" not in vars(type(made)):
        task = task_with(codec=lambda *_: made, codec_from_dict=lambda self, values: made)
    with must_raise(UsageError, "predict-height"):
        check_codec(task, BARS, BARS.splits, "")


def test_a_codec_that_has_all_it_may_have():
    """And all that the rows above change is as it should be."""
    whole = {
        "loss": staticmethod(loss_of),
        "vote": lambda self, targets, cosines: targets.mean(dim=1, keepdim=True),
        "divergence": divergence_of,
        "strata": lambda self, targets: targets.long(),
        "confidence": lambda self, outputs: outputs.sigmoid()[:, 0],
        "choose": chooses(),
        "names": ("height",),
        "hub": Hub("image-regression"),
    }
    made = number_with(**whole)
    task = task_with(codec=lambda *_: made, codec_from_dict=lambda self, values: made)
    assert check_codec(task, BARS, BARS.splits, "") is made


def test_a_codec_that_breaks_its_contract_leaves_nothing(tmp_path: Path):
    broken = number_with(error=lambda self, outputs, targets: outputs)
    task = task_with(codec=lambda *_: broken, codec_from_dict=lambda self, values: broken)
    with must_raise(UsageError, r"error\(\)") as told:
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=task, reader=read_bars)
    assert told.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_codec_that_is_right_with_numpy_numbers_in_its_file():
    task = task_with(codec=lambda *_: Number(np.float64(0.25)))
    assert check_codec(task, BARS, BARS.splits, "") == Number(0.25)


FACTS: dict[str, dict[str, Any]] = {
    "no values": {"facts": lambda *_: ["a"]},
    "values that no file holds": {"facts": lambda *_: {"made by": read_bars}},
    "it raises": {"facts": raises},
    "a name that is taken": {"facts": lambda *_: {"data": "mine"}},
    "a metric called loss": {"metric": Metric("loss", "loss")},
    "a measure called loss": {"measures": {"mine": "loss"}},
}


@pytest.mark.parametrize("members", FACTS.values(), ids=list(FACTS))
def test_what_a_task_tells(members: dict[str, Any]):
    with must_raise(UsageError, "predict-height"):
        check_facts(task_with(**members), {"data": "bars"}, INPUT, AUGMENTATION, TRAIN)


@pytest.fixture(scope="module")
def batch() -> Batch:
    loader = open_loader(TRAIN.inputs, INPUT, workers=0)
    return next(Batches(loader, TRAIN.column("height"), Number(0.0), INPUT).batches(0, 6))


def found(**values: Any) -> Any:
    """A task whose metrics end in a result with other values."""

    class Other(Errors):
        def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
            return replace(super().result(answers, name), **values)

    return task_with(metrics=lambda self, input, output: Other(output))


class NoMetrics:
    """Counts nothing."""


@dataclass(frozen=True)
class Bare:
    """No prediction."""

    name: str


@dataclass(frozen=True)
class Wordless(NumberPrediction):
    """A prediction whose cells are numbers."""

    def cells(self) -> Any:
        return self.name, self.value


def answers(make: Callable[[str], Any]) -> Any:
    return task_with(predict=lambda self, network, output, inputs, names, search, facts: [make(name) for name in names])


def squeezed(self: Any, network: Any, output: Any, inputs: Tensor, names: Any, search: Any, facts: Any) -> Any:
    values = network(inputs).detach().squeeze()
    return [NumberPrediction(name, float(value)) for name, value in zip(names, values, strict=True)]


TASKS: dict[str, Any] = {
    "metrics that raise": task_with(metrics=raises),
    "no metrics": task_with(metrics=lambda *_: NoMetrics()),
    "another metric": found(metric=Metric("mse", "squared error")),
    "a value that is not finite": found(value=float("nan")),
    "a loss that is not finite": found(loss=float("inf")),
    "details that no file holds": found(details={"made by": read_bars}),
    "no sentence": found(sentence=None),
    "a count that is no number": found(count=None),
    "an interval in words": found(interval="a to b"),
    "half an interval": found(interval=(0.5,)),
    "nothing about it": found(about=None),
    "an example that is a text": found(examples=("x",)),
    "an example of no sample": found(examples=(Example(99999, "x", "1", "2"),)),
    "a table that is a text": found(tables=("x",)),
    "no answers": task_with(predict=lambda *_: []),
    "answers that need two samples": task_with(predict=squeezed),
    "answers by other names": answers(lambda name: NumberPrediction("image", 0.5)),
    "answers that are numbers": answers(lambda name: 0.5),
    "answers that are no predictions": answers(Bare),
    "cells that are no texts": answers(lambda name: Wordless(name, 0.5)),
    "answers that raise": task_with(predict=raises),
    "about that is no text": task_with(about=lambda *_: None),
    "a chance that is no number": task_with(chance_loss=lambda *_: float("nan")),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_task(task: Any, batch: Batch):
    model = Model(Columns(), INPUT, Number(0.0), task)
    with must_raise(UsageError, "predict-height|Result|Example"):
        rehearse(model, squared_error, batch, {"task": "predict-height"})


class Shaped(nn.Module):
    """A network whose answers have the wrong shape, or none."""

    def __init__(self, shape: tuple[int, ...] | None, factor: float = 1.0) -> None:
        super().__init__()
        self.shape, self.weight = shape, nn.Parameter(torch.tensor(factor))

    def forward(self, images: Tensor) -> Any:
        return None if self.shape is None else self.weight * torch.ones(self.shape)


NETWORKS = {
    "no tensor": Shaped(None),
    "one row for all": Shaped((1, 1)),
    "more logits than outputs": Shaped((6, 7)),
    "not finite": Shaped((6, 1), torch.inf),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=list(NETWORKS))
def test_a_network(network: Any, batch: Batch):
    with must_raise(UsageError, "Shaped"):
        rehearse(Model(network, INPUT, Number(0.0), PredictNumber()), squared_error, batch, {"network": "Shaped"})


def test_a_network_with_more_logits_than_classes(tmp_path: Path):
    with must_raise(UsageError, "Columns"):
        vitrail.train("digits", tmp_path / "run", replace(OPTIONS, image_size=16), network=Columns(11))
    assert not (tmp_path / "run").exists()


class Stateful(Columns):
    """A network whose state is more than tensors."""

    def get_extra_state(self) -> Any:
        return {"seen": 3}


class Locked(Columns):
    """A network that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copies")


MADE: dict[str, Callable[[], nn.Module]] = {
    "nothing to train": lambda: Columns().requires_grad_(False),
    "no shape yet": lambda: nn.LazyLinear(1),
    "not finite": lambda: nn.ParameterList([torch.full((1,), torch.nan)]),
    "more than tensors": Stateful,
    "no copy": Locked,
}


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_what_a_network_is_made_of(make: Callable[[], nn.Module]):
    check_own_network(Columns())
    with must_raise(UsageError):
        check_own_network(make())


def measured(value: Any) -> Callable[..., Any]:
    def objective(network: Callable[..., Tensor], batch: Batch) -> Any:
        return squared_error(network, batch)[0], len(batch), value

    return objective


class Weighed(nn.Linear):
    """An objective with weights of its own."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, network: Callable[..., Tensor], batch: Batch) -> Any:
        return super().forward(network(batch.inputs)).square().sum(), len(batch), {}


OBJECTIVES: dict[str, Callable[..., Any]] = {
    "raises": raises,
    "no pair": lambda network, batch: network(batch.inputs).sum(),
    "not summed": lambda network, batch: (network(batch.inputs), len(batch), {}),
    "no gradient": lambda network, batch: (network(batch.inputs).sum().detach(), len(batch), {}),
    "not finite": lambda network, batch: (network(batch.inputs).sum() * torch.nan, len(batch), {}),
    "a count of half": lambda network, batch: (network(batch.inputs).sum(), 0.5, {}),
    "a measure of three": measured({"three": torch.zeros(3)}),
    "a measure that is a number": measured({"half": 0.5}),
    "measures in a list": measured([]),
    "a measure by number": measured({1: torch.zeros(())}),
    "weights that nothing trains": Weighed(),
    "a measure of the loop's own": measured({"count": torch.zeros(())}),
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES))
def test_an_objective(objective: Callable[..., Any], batch: Batch):
    with must_raise(UsageError, "mine"):
        rehearse(Model(Columns(), INPUT, Number(0.0), PredictNumber()), objective, batch, {"objective": "mine"})


def test_measures_of_some_batches_only(tmp_path: Path):
    def objective(network: Callable[..., Tensor], batch: Batch) -> Any:
        loss, count, _ = squared_error(network, batch)
        return loss, count, {"odd": loss} if batch.number % 2 else {}

    with must_raise(RunError, "odd"):
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=PredictNumber(), reader=read_bars, objective=objective)


def test_what_fails_in_the_middle_of_a_run_is_one_line_and_loses_nothing(tmp_path: Path):
    calls: list[int] = []

    def objective(network: Callable[..., Tensor], batch: Batch) -> Any:
        calls.append(1)
        if len(calls) > 30:
            raise ZeroDivisionError("of ours")
        return squared_error(network, batch)

    with must_raise(RunError, "objective"):
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=PredictNumber(), reader=read_bars, objective=objective)
    assert "stopped" in (tmp_path / "run" / "run.html").read_text()


def test_a_network_for_sequences_that_cannot_be_asked_to_write(tmp_path: Path):
    class Mute(nn.Module):
        """Trains, and has nothing by which a text is written."""

        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Embedding(13, 13)

        def forward(self, source: Tensor, target: Tensor, record: Any = None) -> Tensor:
            return self.map(target)

    (tmp_path / "few.yaml").write_text("counts: {train: 64, validation: 16, test: 16}\n")
    options = vitrail.TrainOptions(threads=1, precision="fp32", config=tmp_path / "few.yaml")
    with must_raise(UsageError, "network"):
        vitrail.train("sort-digits", tmp_path / "run", options, network=Mute())


def test_targets_that_are_not_finite_are_named(batch: Batch):
    model, bad = (
        Model(Columns(), INPUT, Number(0.0), PredictNumber()),
        replace(batch, targets=batch.targets * torch.nan),
    )
    with must_raise(UsageError, "targets"):
        rehearse(model, squared_error, bad, {"objective": "mine"})


def test_what_keeps_its_contract_passes_and_is_left_as_it_was(batch: Batch):
    network = Columns().train()
    network.head = nn.Sequential(network.head, nn.BatchNorm1d(1))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    rehearse(Model(network, INPUT, Number(0.0), PredictNumber()), squared_error, batch, {"task": "", "network": ""})
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_the_line_of_a_persons_own_code_is_named(batch: Batch):
    with must_raise(UsageError, r"LookupError: .*\(test_contracts\.py:\d+\)"):
        rehearse(Model(Columns(), INPUT, Number(0.0), PredictNumber()), raises, batch, {"objective": "raises"})


@pytest.mark.parametrize(
    "members",
    [
        *({"metric": "mae"}, {"column": 3}, {"networks": ("Vit",)}, {"networks": ()}, {"counted": 3}),
        *({"counted": "seconds"}, {"counted": "samples"}, {"counted": "training_loss"}),
        *({"name": ""}, {"name": "auto"}, {"name": "a\nb"}),
        {"metric": neither_way()},
    ],
)
def test_what_a_task_is(members: dict[str, Any]):
    check_own_kinds(PredictNumber(), None, None, None, None)
    with must_raise(UsageError, "Broken"):
        check_own_kinds(task_with(**members), None, None, None, None)


@pytest.mark.parametrize(
    "given",
    [
        {"task": task_with(metrics=raises)},
        {"task": task_with(fit=raises)},
        {"task": task_with(objective=raises)},
        {"parts": vitrail.nn.Parts(norm=raises)},
    ],
)
def test_nothing_is_written(given: Any, tmp_path: Path):
    with must_raise(UsageError):
        vitrail.train("bars", tmp_path / "run", OPTIONS, reader=read_bars, **{"task": PredictNumber(), **given})
    assert not (tmp_path / "run").exists()


def test_a_value_that_becomes_nan_is_null_in_the_files(tmp_path: Path):
    """The metrics of an epoch may be undefined; each line stays JSON, and the page is written."""
    calls: list[int] = []

    class Sometimes(Errors):
        def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
            calls.append(1)
            return replace(super().result(answers, name), value=float("nan") if len(calls) > 1 else 1.0)

    task = task_with(metrics=lambda self, input, output: Sometimes(output))
    done = vitrail.train("bars", tmp_path / "run", replace(OPTIONS, epochs=1), task=task, reader=read_bars)
    rows = [
        json.loads(line, parse_constant=pytest.fail)
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["validation_mae"] for row in rows if row["kind"] == "epoch"] == [None]
    json.loads((tmp_path / "run" / "evaluation.json").read_text(), parse_constant=pytest.fail)
    assert done.evaluated.metric == MAE
    assert (tmp_path / "run" / "run.html").is_file()


@pytest.mark.parametrize("given", [(PredictNumber, None, None), ("classify", None, None), (None, Columns, None)])
def test_a_class_or_a_name_instead_of_a_value(given: Any, tmp_path: Path):
    with must_raise(UsageError, "Task|Module"):
        check_own_kinds(*given, None, None)
    with must_raise(UsageError, "Parts"):
        check_own_kinds(None, None, {"norm": 1}, None, None)
    for broken in ((3, None), (None, 3)):
        with must_raise(UsageError, "objective|reader"):
            check_own_kinds(None, None, None, *broken)
