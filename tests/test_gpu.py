"""What a GPU computes is what the processor computes, up to rounding; skipped where there is none.

Every verb that computes runs here once on the GPU: training (from scratch, from weights, by adapters, from a teacher,
of texts, of streamed photographs), predictions, evaluation, features, explanations, conversion, recordings in data.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import vitrail
from tests.cli.command import call
from tests.explain.reference import VARIANTS, make_images, make_network
from tests.explain.test_devices import attribution_of, verdicts_of
from tests.features.test_embed import model_of
from tests.frozen import values as answers
from tests.runs.test_leaks import PATTERN, data, run as run_with_leaks
from tests.shared_runs import stored
from tests.training import tiny
from tests.training.test_initial import OPTIONS, SMALL, source
from tests.weights.redraw import redrawn
from vitrail.cli.doctor import examine
from vitrail.errors import RunError
from vitrail.explain import METHODS
from vitrail.nn import ViT
from vitrail.runtime import whole_fp32
from vitrail.training.events import Finished
from vitrail.training.loop import FiniteGuard
from vitrail.weights.convert import convert_network

DEVICE = "cuda"
CONFIG = VARIANTS["class-5-registers"]
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch is shown no GPU: `make gpu`"),
    pytest.mark.usefixtures("as_a_user"),
]


def near(found: Any, wanted: Any, gap: float = 1e-3) -> bool:
    """Whether the largest difference is at most so much of the largest number; convolutions round to TF32 there.

    What is not measured (NaN) must not be measured there either.
    """
    found, wanted = (torch.as_tensor(each).detach().cpu().double() for each in (found, wanted))
    measured = ~wanted.isnan()
    if not torch.equal(measured, ~found.isnan()) or not measured.any():
        return False
    found, wanted = found[measured], wanted[measured]
    return bool((found - wanted).abs().max() <= gap * wanted.abs().max().clamp(min=1e-6))


def on_gpu(model: vitrail.Model) -> vitrail.Model:
    """The same there, with a network of its own."""
    network = make_copy(model.network)
    return replace(model, network=network.to(DEVICE))


def make_copy(network: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares nothing."""
    assert isinstance(network, ViT)
    copy = ViT(network.config, network.parts).train(network.training)
    copy.load_state_dict(network.state_dict())
    return copy


def losses(finished: Finished) -> list[float]:
    """Of the epochs."""
    return [row["training_loss"] for row in tiny.rows(finished.folder)]


# ---- training


@pytest.mark.parametrize("name", ["digits", "sort-digits"])
def test_a_training_learns_what_it_learns_on_the_processor(name: str, tmp_path: Path) -> None:
    there = vitrail.train(name, tmp_path / "run", tiny.options(name, device=DEVICE, precision="fp32"))
    here = [row["training_loss"] for row in tiny.rows(tiny.whole(name))]
    assert losses(there) == pytest.approx(here, rel=0.02)
    assert there.model.device.type == DEVICE
    assert vitrail.load(there.folder).device.type == "cpu"


@pytest.mark.parametrize("name", ["digits", "sort-digits"])
def test_a_run_that_was_stopped_ends_as_the_unbroken_one(name: str, tmp_path: Path) -> None:
    asked = {"device": DEVICE, "precision": "fp32"}
    whole = vitrail.train(name, tmp_path / "whole", tiny.options(name, **asked))
    folder = tiny.stopped(name, tmp_path / "stopped", 3, **asked)
    again = vitrail.train(name, folder, tiny.AGAIN)
    assert losses(again) == pytest.approx(losses(whole), rel=1e-4)
    assert again.model.device.type == DEVICE
    assert stored(folder)["loss"] == pytest.approx(stored(tmp_path / "whole")["loss"], rel=1e-3)


def test_half_precision_and_the_compiler_learn_alike(tmp_path: Path) -> None:
    plain = vitrail.train("digits", tmp_path / "plain", tiny.options("digits", device=DEVICE, precision="fp32"))
    asked = tiny.options("digits", device=DEVICE, precision="bf16", compile="on")
    fast = vitrail.train("digits", tmp_path / "fast", asked)
    assert losses(fast) == pytest.approx(losses(plain), rel=0.05)


@pytest.mark.parametrize("streamed", [False, True])
def test_photographs_are_learnt_resident_and_streamed(
    streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        tiny.stream_all(monkeypatch)
    root = str(tiny.photographs(tmp_path))
    finished = vitrail.train(root, tmp_path / "run", tiny.options("photos", device=DEVICE, epochs=2))
    assert np.isfinite(losses(finished)).all()
    assert len(losses(finished)) == 2


@pytest.mark.parametrize("changes", [{}, {"lora": 3, "keep": "tuned", "verdicts": 2}, {"probe": True, "epochs": None}])
def test_a_training_from_weights_keeps_its_order(changes: dict[str, Any], tmp_path: Path) -> None:
    asked = replace(OPTIONS, device=DEVICE, init=str(source()), **changes)
    vitrail.train("digits", tmp_path / "there", asked)
    vitrail.train("digits", tmp_path / "here", replace(asked, device="cpu"))
    here, there = (stored(tmp_path / name) for name in ("here", "there"))
    assert there["probe"]["accuracy"] == pytest.approx(here["probe"]["accuracy"], abs=0.02)
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=0.05)
    assert vitrail.evaluate(tmp_path / "there", "digits").value == pytest.approx(there["accuracy"], abs=0.01)


def test_a_student_learns_from_a_teacher(tmp_path: Path) -> None:
    finished = vitrail.distill("digits", tiny.whole("digits"), tmp_path / "run", tiny.student_options(device=DEVICE))
    here = [row["training_loss"] for row in tiny.rows(tiny.student())]
    assert losses(finished) == pytest.approx(here, rel=0.05)


def test_a_number_that_is_not_finite_ends_a_run() -> None:
    guard = FiniteGuard(["a", "b"], torch.device(DEVICE))
    fine, bad = (torch.tensor(value, device=DEVICE) for value in (1.0, float("nan")))
    skipped = [
        float(guard.observe(step, loss, torch.ones(2, device=DEVICE))) for step, loss in enumerate([fine, bad, fine])
    ]
    assert skipped == [0.0, 1.0, 1.0]
    with pytest.raises(RunError):
        guard.look()


# ---- answers


def test_answers_are_those_of_the_processor() -> None:
    model = vitrail.load(tiny.whole("digits"))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8))
    here, there = (dict(each.predict([image])[0].top) for each in (model, on_gpu(model)))
    assert here == pytest.approx(there, rel=1e-2)
    here_result, there_result = (vitrail.evaluate(each, "digits") for each in (model, on_gpu(model)))
    assert there_result.value == pytest.approx(here_result.value, abs=0.01)
    assert there_result.loss == pytest.approx(here_result.loss, rel=1e-2)


def test_texts_are_written_alike() -> None:
    strings = ["312", "9871"]
    run = tiny.whole("sort-digits")
    here, there = (vitrail.load(run, device=device).predict(strings) for device in ("cpu", DEVICE))
    assert [one.text for one in there] == [one.text for one in here]


def test_features_are_those_of_the_processor(tmp_path: Path) -> None:
    root, model = tiny.photographs(tmp_path), model_of()
    here, there = (vitrail.embed(each, root, patches=True) for each in (model, on_gpu(model)))
    assert here.ids == there.ids
    for name, values in here.values.items():
        assert near(there.values[name], values, 5e-3), name


def test_a_network_on_a_gpu_is_converted() -> None:
    module = redrawn(timm.create_model("vit_tiny_patch16_224", **SMALL)).to(DEVICE)
    converted = convert_network(module)
    assert converted.gap is not None
    assert converted.gap <= 1e-5
    assert next(module.parameters()).device.type == DEVICE


def test_the_doctor_finds_the_gpu_well() -> None:
    found = {device["name"]: device["works"] for device in examine()["devices"]}
    assert found["cuda:0"]


# ---- the command line


def on_both(*words: object) -> list[Any]:
    """What a command answers on the processor and there, where it takes memory, without TF32."""
    found = []
    for device in ("cpu", DEVICE):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with whole_fp32():
            answer = call(*words, "--device", device, "--json")
        assert answer.code == 0, answer.err
        assert device == "cpu" or torch.cuda.max_memory_allocated() > before
        found.append(json.loads(answer.out))
    return found


COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "evaluate": lambda out: (data(), "--group-pattern", PATTERN, "--split", "validation"),
    "predict": lambda out: (data() / "val" / "a", "--image-size", 24),
    "similar": lambda out: (data() / "val" / "a" / "alone.jpg", data(), "--out", out / "page.html"),
    "explain": lambda out: (data() / "val", "--count", 4, "--compare", "--out", out / "page.html"),
    "explain in full": lambda out: (data() / "val", *FULL, "--count", 4, "--out", out / "page.html"),
}
FULL = "--compare", "--full", "--methods", "generic_attention,occlusion,saliency"


@pytest.mark.parametrize("asked", COMMANDS)
def test_a_verb_answers_as_on_the_processor(asked: str, tmp_path: Path) -> None:
    here, there = on_both(asked.split()[0], run_with_leaks(), *COMMANDS[asked](tmp_path))
    found = answers.differences(*map(answers.readable, (here, there)), exactly=False)
    assert [each for each in found if not each.startswith("/made/date")] == []


def test_recordings_are_those_that_the_processor_sees(tmp_path: Path) -> None:
    """A network without positions sees no difference between an image and its patches in another order."""
    draw, model = np.random.default_rng(0), model_of()
    torch.nn.init.zeros_(model.network.get_parameter("pos_embed"))
    vitrail.save(replace(model, input=vitrail.Preprocessing((16, 16))), tmp_path / "model")
    for number in range(60):
        patches = draw.integers(0, 256, (4, 8, 8, 3), np.uint8)
        for frame in range(3 if number < 4 else 1):
            (first, second), (third, fourth) = np.roll(patches, frame, axis=0).reshape(2, 2, 8, 8, 3)
            file = tmp_path / "data" / ("train", "val")[frame % 2] / "ab"[number % 2] / f"{draw.bytes(8).hex()}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.block([[[first], [second]], [[third], [fourth]]])).save(file)
    words = "data", "check", tmp_path / "data", "--model", tmp_path / "model", "--out", tmp_path / "page.html"
    here, there = on_both(*words)
    assert [(each["groups"], each["images"]) for each in here["groups"]] == [(4, 12)]
    assert there == {**here, "seconds": there["seconds"]}


# ---- explanations


@pytest.mark.parametrize("method", METHODS)
def test_an_explanation_is_that_of_the_processor(method: str) -> None:
    network, images = make_network(CONFIG), make_images(CONFIG)
    wanted = attribution_of(method, network, images)
    with whole_fp32():
        found = attribution_of(method, make_copy(network).eval().to(DEVICE), images.to(DEVICE))
    assert found.device.type == DEVICE
    assert near(found, wanted, 5e-3)


def test_a_verdict_is_that_of_the_processor() -> None:
    network, images, references = make_network(CONFIG), make_images(CONFIG, 1), make_images(CONFIG, 12, seed=2)
    wanted = verdicts_of(network, images, references)
    with whole_fp32():
        found = verdicts_of(make_copy(network).eval().to(DEVICE), images.to(DEVICE), references.to(DEVICE))
    for name in ("insertion", "random", "oracle"):
        assert near(found[name], wanted[name], 1e-2), name
