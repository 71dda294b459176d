"""What a researcher brings: a task (predict a number), a reader, a part, a network, an objective and a method.

Nothing of `src/` is touched. Each is trained with, evaluated, asked, explained and shown; each that breaks its contract
is refused in two lines.
"""

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests import own_objects
from tests.own_objects import (
    MAE,
    OPTIONS,
    OWN_PARTS,
    SMALL,
    Columns,
    Errors,
    Number,
    PredictNumber,
    doubled,
    norm_times_image,
    read_bars,
    squared_error,
)
from vitrail.arguments import python_call
from vitrail.cli.main import run as type_in
from vitrail.data import Labels, RawDataset, Samples, Values
from vitrail.data.batches import Batch
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.nn import SILENT, Parts, ViT, ViTConfig, parts_of
from vitrail.tasks import Codec, Task


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("own")
    (folder / "small.yaml").write_text(SMALL)
    options = replace(OPTIONS, config=folder / "small.yaml")
    return vitrail.train("bars", folder / "run", options, task=PredictNumber(), reader=read_bars, parts=OWN_PARTS)


def test_a_number_is_learnt_and_counted(finished: Any):
    result = finished.evaluated
    assert result.metric == MAE
    assert result.value < 0.6  # always answering the mean is 1.0 off
    written = json.loads((finished.folder / "evaluation.json").read_text())
    assert written["mae"] == result.value
    assert written["images"] == 24
    rows = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["validation_mae"] for row in rows if row["kind"] == "epoch"][-1] < 0.8


def test_the_same_objects_open_and_evaluate_it(finished: Any):
    model = vitrail.load(finished.folder, task=PredictNumber(), parts=OWN_PARTS)
    images = read_bars("bars").splits["test"].inputs
    found = model.predict([images.open(index) for index in range(6)])
    truths = read_bars("bars").splits["test"].column("height").take(np.arange(6))
    assert np.abs(np.array([one.value for one in found]) - truths).mean() < 0.8
    again = vitrail.evaluate(model, reader=read_bars)
    assert again.to_dict() == finished.evaluated.to_dict()


def test_it_goes_on_to_the_same_bits(finished: Any, tmp_path: Path):
    stopped, options = tmp_path / "stopped", replace(OPTIONS, config=finished.folder.parent / "small.yaml")
    steps: list[int] = []

    def stop(event: object) -> None:
        if isinstance(event, vitrail.training.loop.StepDone):
            steps.append(event.step)
            if event.step == 60:
                signal_stop()

    def signal_stop() -> None:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(VitrailError):
        vitrail.train("bars", stopped, options, stop, task=PredictNumber(), reader=read_bars, parts=OWN_PARTS)
    again = vitrail.TrainOptions(resume="auto")
    with pytest.raises(UsageError):
        vitrail.train("bars", stopped, again, reader=read_bars)  # without its task and parts
    whole = vitrail.train("bars", stopped, again, task=PredictNumber(), reader=read_bars, parts=OWN_PARTS)
    assert whole.weights == finished.weights


def test_it_is_explained_by_the_library_and_by_a_method_of_ones_own(finished: Any):
    from vitrail.pages import AttributionView, ImageView, explanation_page

    model = finished.model
    images = read_bars("bars").splits["test"].inputs
    opened = [images.open(index) for index in range(3)]
    views = []
    for method in (vitrail.explain.occlusion, vitrail.explain.generic_attention, norm_times_image):
        attribution = method(model.network, model.tensor(opened), 0)
        assert attribution.values.shape == (3, *model.network.config.grid)
        assert bool(attribution.values.isfinite().all())
        views.append(
            AttributionView(
                attribution.method,
                attribution.method,
                "height",
                float(attribution.logit[0]),
                attribution.values[0].numpy(),
                False,
                False,
            )
        )
    shown = ImageView("bar", model.preprocessing.to_array(opened[0]), None, [], views)
    assert len(explanation_page("run", [shown])) > 10_000


def test_the_run_has_its_page(finished: Any):
    page = (finished.folder / "run.html").read_text()
    assert "predict-height" in page


def called(text: str, **more: Any) -> Any:
    """What a call gives that was printed, typed by someone who has the objects of this file."""
    return eval(text, {**vars(own_objects), **globals(), "Path": Path, **more})


def hint_of(*words: object) -> str:
    with pytest.raises(UsageError) as told:
        type_in([str(word) for word in words])
    return str(told.value.hint)


def recorded(call: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `train` or `distill` is called with, without the work."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("train", "distill"):
            patch.setattr(vitrail, name, lambda *values, **named: (values, named))
        return call()


def test_every_verb_that_wants_objects_names_the_call_that_works(finished: Any):
    run = finished.folder
    image = run.parent / "bar.png"
    read_bars("bars").splits["test"].inputs.open(0).save(image)
    for words in (("predict", run, image), ("explain", run, image), ("doctor", run)):
        assert called(hint_of(*words)).task == PredictNumber()
    for words in (("evaluate", run), ("evaluate", run, "bars")):
        assert called(hint_of(*words)).to_dict() == finished.evaluated.to_dict()
    assert called(hint_of("train", "bars", "--out", run, "--resume", "auto")).weights == finished.weights
    objects = {"task": PredictNumber(), "reader": read_bars, "parts": OWN_PARTS}
    again = hint_of("train", "bars", "--config", run / "config.yaml")
    assert recorded(lambda: called(again))[1].pop("options").config == run / "config.yaml"
    assert recorded(lambda: called(again))[1].items() >= objects.items()
    teach = hint_of("distill", "digits", "--teacher", run, "--out", run.parent / "student")
    assert recorded(lambda: called(teach, data="digits"))[0][1].task == PredictNumber()


def test_what_a_run_and_its_card_say_of_python_works(finished: Any, monkeypatch: pytest.MonkeyPatch):
    command = (finished.folder / "command.txt").read_text()
    (data, out, options), given = recorded(lambda: called(command))
    assert (data, Path(out)) == ("bars", finished.folder)
    assert options == replace(OPTIONS, config=finished.folder.parent / "small.yaml")
    assert given == {"task": PredictNumber(), "reader": read_bars, "parts": OWN_PARTS}
    card = (finished.folder / "model" / "README.md").read_text()
    monkeypatch.chdir(finished.folder / "model")
    (opens,) = [line for line in card.splitlines() if line.startswith("model = ")]
    assert called(opens.removeprefix("model = ")).task == PredictNumber()


def test_a_name_that_cannot_be_typed_is_left_open():
    own = {"task": "predict-height", "network": "Columns", "objective": "a.<locals>.<lambda>", "reader": "Data.read"}
    call = ast.parse(python_call("train", ["'bars'"], {**own, "parts": "activation=own:<lambda>, norm=rms"})).body[0]
    given = {each.arg: ast.unparse(each.value) for each in call.value.keywords}
    assert {kind for kind, value in given.items() if value == "..."} == {"task", "objective"}
    assert (given["network"], given["reader"]) == ("Columns(...)", "Data.read")
    made = called(given["parts"], vitrail=SimpleNamespace(nn=SimpleNamespace(Parts=dict, parts_of=parts_of)))
    assert made == {"activation": ..., "norm": parts_of({"norm": "rms"}).norm}


def read_sides(what: str, data_root: Path | None = None) -> RawDataset:
    """The same images with a class each."""
    splits = {}
    for name, samples in read_bars(what).splits.items():
        heights = samples.column("height").take(np.arange(len(samples)))
        labels = Labels((heights < 0).astype(np.int64), ("down", "up"))
        splits[name] = Samples(samples.inputs, {"label": labels})
    return RawDataset(what, splits)


def test_a_reader_of_ones_own_alone(tmp_path: Path):
    """The task is the library's, so that every verb opens the model; its data only its reader does."""
    run, config = tmp_path / "run", tmp_path / "small.yaml"
    config.write_text(SMALL)
    done = vitrail.train("bars", run, replace(OPTIONS, epochs=1, config=config), reader=read_sides)
    for words in (("evaluate", run), ("evaluate", run, "bars")):
        assert called(hint_of(*words)).to_dict() == done.evaluated.to_dict()
    assert "read_sides" in hint_of("explain", run, "bars")
    assert vitrail.evaluate(done.model, reader=read_sides).value == done.evaluated.value
    with pytest.raises(UsageError):
        vitrail.evaluate(done.model)


def test_weights_of_a_classifier_start_a_task_that_has_no_probe(tmp_path: Path):
    """Its codec has no `loss`, so all layers are trained from the first step on; that is said, and stored."""
    (tmp_path / "small.yaml").write_text(SMALL)
    little, said = replace(OPTIONS, epochs=1, config=tmp_path / "small.yaml"), list[str]()
    start = vitrail.train("bars", tmp_path / "classes", little, reader=read_sides).folder
    more = vitrail.TrainOptions(epochs=2, threads=1, init=str(start))
    done = vitrail.train("bars", tmp_path / "run", more, said.append, task=PredictNumber(), reader=read_bars)
    stored = json.loads((done.folder / "evaluation.json").read_text())
    assert (stored["kept"], "probe" in stored, "choice" in stored) == ("tuned", False, False)
    assert any("predict-height" in each for each in said if isinstance(each, str))
    with pytest.raises(UsageError):
        vitrail.train("bars", tmp_path / "x", replace(more, probe=True), task=PredictNumber(), reader=read_bars)
    assert not (tmp_path / "x").exists()


def test_a_network_and_an_objective_of_ones_own(tmp_path: Path):
    torch.manual_seed(0)
    out = tmp_path / "run"
    done = vitrail.train(
        "bars", out, OPTIONS, task=PredictNumber(), reader=read_bars, network=Columns(), objective=doubled
    )
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert epochs[-1]["training_twice"] == pytest.approx(epochs[-1]["training_loss"])
    assert epochs[-1]["training_loss"] < epochs[0]["training_loss"]
    again = vitrail.load(out, task=PredictNumber(), network=Columns())
    assert torch.equal(again.network.head.weight, done.model.network.head.weight)
    with pytest.raises(UsageError):
        vitrail.load(out, task=PredictNumber())


def test_a_vit_with_its_configuration_decides_the_image_size(tmp_path: Path):
    config = ViTConfig(image_size=8, patch_size=4, channels=1, classes=1, width=16, depth=1, heads=2)
    options = vitrail.TrainOptions(epochs=1, threads=1)
    done = vitrail.train("bars", tmp_path / "run", options, task=PredictNumber(), reader=read_bars, network=ViT(config))
    assert done.model.preprocessing.size == (8, 8)
    assert vitrail.load(tmp_path / "run", task=PredictNumber()).network.config == config
    assert vitrail.load(tmp_path / "run", task=PredictNumber(), network=ViT(config)).network.config == config
    with pytest.raises(UsageError):
        vitrail.load(tmp_path / "run", task=PredictNumber(), network=ViT(replace(config, depth=2)))


def a_mean(network: Callable[..., Tensor], batch: Batch) -> Any:
    return network(batch.inputs)  # no scalar


def uncounted(network: Callable[..., Tensor], batch: Batch) -> Any:
    return network(batch.inputs).sum(), 0.5, {}


def not_finite(network: Callable[..., Tensor], batch: Batch) -> Any:
    return network(batch.inputs).sum() * torch.nan, len(batch), {}


def no_pair(network: Callable[..., Tensor], batch: Batch) -> Any:
    return network(batch.inputs).sum()


@pytest.mark.parametrize("objective", [a_mean, uncounted, not_finite, no_pair])
def test_an_objective_that_breaks_its_contract(objective: Any, tmp_path: Path):
    with pytest.raises(UsageError) as told:
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=PredictNumber(), reader=read_bars, objective=objective)
    assert objective.__name__ in told.value.problem
    assert not (tmp_path / "run").exists()


def empty(what: str, root: Path | None) -> Any:
    return {"train": []}


def uneven(what: str, root: Path | None) -> RawDataset:
    samples = read_bars(what).splits["train"]
    return RawDataset(what, {"all": Samples(samples.inputs, {"height": Values(np.zeros(3, np.float32))})})


def without_column(what: str, root: Path | None) -> RawDataset:
    samples = read_bars(what).splits["train"]
    return RawDataset(what, {"all": Samples(samples.inputs, {})})


@pytest.mark.parametrize("reader", [empty, uneven, without_column])
def test_a_reader_that_breaks_its_contract(reader: Any, tmp_path: Path):
    with pytest.raises(DataError):
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=PredictNumber(), reader=reader)
    assert not (tmp_path / "run").exists()


class Wide(nn.Module):
    """A network whose answers have the wrong shape."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 7)

    def forward(self, images: Tensor, record: Any = SILENT) -> Tensor:
        return self.head(images.mean(dim=(1, 3))).sum(dim=1)


def test_a_network_that_breaks_its_contract(tmp_path: Path):
    with pytest.raises(UsageError) as told:
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=PredictNumber(), reader=read_bars, network=Wide())
    assert "Wide" in told.value.problem


@final
@dataclass(frozen=True)
class Unmeasured(Task):
    """A task whose metrics give no result."""

    name = "unmeasured"
    column = "height"
    help = "nothing"
    metric = MAE

    codec = PredictNumber.codec
    codec_from_dict = PredictNumber.codec_from_dict
    objective = PredictNumber.objective
    predict = PredictNumber.predict

    def metrics(self, input: Any, output: Codec) -> Any:
        class Silent(Errors):
            def result(self, answers: Any, name: Callable[[int], str]) -> Any:
                return None

        assert isinstance(output, Number)
        return Silent(output)


def test_a_task_without_a_metric_is_told_before_it_trains(tmp_path: Path):
    with pytest.raises(UsageError) as told:
        vitrail.train("bars", tmp_path / "run", OPTIONS, task=Unmeasured(), reader=read_bars)
    assert "unmeasured" in told.value.problem
    assert not (tmp_path / "run").exists()


class Tied(nn.Module):
    """One tensor in two places, running means, and a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.other, self.head = nn.Linear(16, 16), nn.Linear(16, 1)
        self.other.weight = self.one.weight
        self.register_buffer("mask", torch.full((16,), -torch.inf))

    def forward(self, images: Tensor) -> Tensor:
        rows = self.norm(10 + 10 * images.mean(dim=(1, 3)))  # far from what running means start with
        return self.head(self.other(self.one(rows)) + self.mask.exp())


def counts_itself(network: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
    loss, count, _ = squared_error(network, batch)
    return loss, count, {"count": loss.detach()}


def make_relu(config: Any) -> nn.Module:
    return nn.ReLU()


class Renamed(Unmeasured):
    """A task that is right but for its name."""

    name = "classify"
    metrics = PredictNumber.metrics


OTHERS: dict[str, dict[str, Any]] = {
    "parts beside a network": {"network": Columns(), "parts": OWN_PARTS},
    "a measure of the loop's own": {"objective": counts_itself},
    "a task called as one of the library's": {"task": Renamed()},
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=list(OTHERS))
def test_what_does_not_go_together_is_refused_before_anything_is_written(given: Any, tmp_path: Path):
    with pytest.raises(UsageError):
        vitrail.train("bars", tmp_path / "run", OPTIONS, reader=read_bars, **{"task": PredictNumber(), **given})
    assert not (tmp_path / "run").exists()


def test_tied_weights_running_means_and_masks_come_back(tmp_path: Path):
    """The average of the weights is evaluated with the running means of the network that was trained."""
    (tmp_path / "average.yaml").write_text("optimization: {ema_decay: 0.9}\n")
    options = replace(OPTIONS, epochs=8, config=tmp_path / "average.yaml")
    done = vitrail.train("bars", tmp_path / "run", options, task=PredictNumber(), reader=read_bars, network=Tied())
    assert done.evaluated.value < 0.6  # always answering the mean is 1.0 off
    again = vitrail.load(tmp_path / "run", task=PredictNumber(), network=Tied()).network
    assert again.norm.running_mean.abs().max() > 5
    assert again.one.weight is again.other.weight
    assert all(
        torch.equal(tensor, again.state_dict()[name]) for name, tensor in done.model.network.state_dict().items()
    )


def test_options_that_an_own_network_or_task_makes_idle(tmp_path: Path):
    vit = ViT(ViTConfig(image_size=8, patch_size=4, channels=1, classes=1, width=16, depth=1, heads=2))
    for options in (replace(OPTIONS, size="Ti/16"), replace(OPTIONS, image_size=32)):
        with pytest.raises(UsageError):
            vitrail.train("bars", tmp_path / "run", options, task=PredictNumber(), reader=read_bars, network=vit)
    asked = replace(OPTIONS, task="sequences")
    with pytest.raises(UsageError):
        vitrail.train("bars", tmp_path / "run", asked, task=PredictNumber(), reader=read_bars)


def test_other_objects_than_a_run_was_trained_with(finished: Any, tmp_path: Path):
    """A configuration file holds their names, and so does the model."""
    again = vitrail.TrainOptions(config=finished.folder / "config.yaml")
    with pytest.raises(UsageError):
        vitrail.train("bars", tmp_path / "run", again, task=PredictNumber(), reader=read_bars)
    config = json.loads((finished.folder / "model" / "config.json").read_text())
    assert config["vitrail"]["parts"] == {"activation": "own:make_gaussian"}
    with pytest.raises(UsageError):
        vitrail.load(finished.folder, task=PredictNumber(), parts=Parts(activation=make_relu))


def test_a_network_that_no_explanation_reads_carries_no_image(tmp_path: Path):
    made = vitrail.train("digits", tmp_path / "run", replace(OPTIONS, epochs=1), network=Columns(10))
    assert made.model.background is None
    with pytest.raises(UsageError):
        vitrail.load(tmp_path / "run", network=Tied())
