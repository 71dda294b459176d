"""How a training is computed: chosen by rule, stored, and without a trace on the network."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.nn.test_compile import compile_worker
from tests.training.lab import CHOICES, EXECUTION, NOISY, fresh, same, tiny_set, weights
from vitrail.errors import UsageError
from vitrail.nn import ViTConfig
from vitrail.training import execution
from vitrail.training.execution import (
    free_memory,
    pick_attention_kernel,
    pick_device,
    pick_execution,
    pick_parts,
    pick_precision,
    pick_threads,
    step_seconds,
)
from vitrail.training.objectives import classification
from vitrail.training.options import TrainOptions
from vitrail.training.settings import Optimization


@pytest.mark.parametrize("cores", [1, 2, 4, 64])
def test_threads_follow_the_size_and_the_load(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(execution, "processors", lambda: cores)
    chosen = [pick_threads(10.0**power, 0.0)[0] for power in range(5, 15)]
    assert chosen == [pick_threads(10.0**power, 0.0)[0] for power in range(5, 15)], "a rule, not a stopwatch"
    assert chosen == sorted(chosen), "more work never takes fewer threads"
    assert chosen[0] == max(1, min(2, cores // 2))
    assert chosen[-1] == cores
    for busy in (0.0, 1.2, 3.0, 500.0):
        threads, why = pick_threads(1e14, busy)
        assert 1 <= threads <= cores
        assert threads == max(1, cores - round(busy))
        assert str(threads) in why


def test_processors_respect_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert execution.processors() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "99999")
    there = execution.processors()
    for odd in ("", "many", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert execution.processors() == there >= 1


@pytest.mark.parametrize("asked", ["cuda:99", "gpu", "", "cpu:x", "cpu:1", "cuda:", "tpu:0"])
def test_a_device_that_is_not_there_is_refused(asked: str) -> None:
    if asked == "cuda:" and torch.cuda.is_available():
        return
    with pytest.raises(UsageError, match=r"is not there, this machine has: .*cpu") as caught:
        pick_device(asked)
    assert caught.value.hint == "--device auto"


def test_devices_that_are_there() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("cpu:0").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda", "mps")


def test_options_decide_and_are_stored() -> None:
    options = TrainOptions(device="cpu", threads=3, precision="bf16", compile="on", workers=0)
    chosen, notes = pick_execution(options, NOISY, CHOICES, 10)
    assert (chosen.device, chosen.threads, chosen.precision, chosen.compile, chosen.workers) == (
        "cpu",
        3,
        "bf16",
        True,
        0,
    )
    assert any("asked for" in note for note in notes)
    left, _ = pick_execution(TrainOptions(device="cpu"), NOISY, CHOICES, 10**6)
    assert (left.precision, left.compile) == ("fp32", False)
    with pytest.raises(UsageError, match="threads must be at least 1"):
        pick_execution(TrainOptions(threads=0), NOISY, CHOICES, 10)


def test_the_math_kernel_is_for_small_heads_compiled_on_a_processor() -> None:
    small = ViTConfig(image_size=28, patch_size=4, channels=1, classes=10, width=8, depth=2, heads=2)
    assert pick_attention_kernel(small, torch.device("cpu")) == "math"
    assert pick_attention_kernel(small, torch.device("cuda")) == "flash"
    assert pick_attention_kernel(ViTConfig.from_size("Ti/16", classes=10), torch.device("cpu")) == "flash"
    options = TrainOptions(device="cpu", compile="on")
    assert pick_execution(options, small, CHOICES, 10)[0].attention_kernel == "math"
    assert pick_execution(replace(options, compile="off"), small, CHOICES, 10)[0].attention_kernel == "flash"


def test_compiled_steps_are_eager_steps_by_either_kernel(tmp_path: Path) -> None:
    """In a process of its own without annotations checked; the math kernel must really be in the graph."""
    answers = compile_worker("tests.training.compile_worker", [], tmp_path)
    assert [answer["kernel"] for answer in answers] == ["flash", "math"]
    for answer in answers:
        assert answer["moved"] > 5e-3
        assert answer["distance"] <= 1e-5
    assert [answer["flash calls"] > 0 for answer in answers] == [True, False]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trial_leaves_no_trace(precision: str) -> None:
    """Weights, buffers, gradients and mode; also with dropout, and with a network wide enough to be timed."""
    wide = ViTConfig(image_size=8, patch_size=4, channels=1, classes=3, width=192, depth=1, heads=2, dropout=0.1)
    network = fresh(wide, replace(CHOICES, average=0.0)).network
    network.register_buffer("seen", torch.arange(3.0))
    before = weights(network)
    batch = next(tiny_set().batches(0, 8))
    images = batch.images.clone()
    chosen, notes, seconds = pick_precision(
        replace(EXECUTION, precision=precision), "auto", wide, network, batch, classification
    )
    assert same(weights(network), before)
    assert torch.equal(batch.images, images)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    assert seconds > 0
    assert chosen.precision in ("fp32", "bf16")
    assert len(notes) == 1
    assert "timed" in notes[0]


@pytest.mark.parametrize(("gain", "expected"), [(2.0, "bf16"), (1.16, "bf16"), (1.1, "fp32"), (0.5, "fp32")])
def test_the_faster_precision_is_taken(monkeypatch: pytest.MonkeyPatch, gain: float, expected: str) -> None:
    monkeypatch.setattr(
        execution,
        "step_seconds",
        lambda network, batch, objective, precision: 1.0 / gain if precision == "bf16" else 1.0,
    )
    wide = replace(NOISY, width=192)
    batch = next(tiny_set().batches(0, 8))
    chosen, notes, seconds = pick_precision(EXECUTION, "auto", wide, fresh().network, batch, classification)
    assert (chosen.precision, seconds) == (expected, 1.0 / gain if expected == "bf16" else 1.0)
    assert expected in notes[0]
    asked, notes, _ = pick_precision(EXECUTION, "fp32", wide, fresh().network, batch, classification)
    assert (asked.precision, notes) == ("fp32", [])
    narrow, notes, _ = pick_precision(EXECUTION, "auto", NOISY, fresh().network, batch, classification)
    assert (narrow.precision, notes) == ("fp32", []), "a narrow network is not even tried"


def test_a_step_takes_time() -> None:
    assert 0 < step_seconds(fresh().network, next(tiny_set().batches(0, 8)), classification, "fp32", repeats=2) < 5


def test_a_batch_that_does_not_fit_is_computed_in_parts() -> None:
    network = ViTConfig.from_size("S/16")
    choices = Optimization(batch_size=1024)
    assert pick_parts(network, choices, 2**50) == (1, [])
    parts, notes = pick_parts(network, choices, 16 * 2**30)
    assert parts > 1
    assert parts & (parts - 1) == 0
    assert notes
    assert f"in {parts} parts" in notes[0]
    assert pick_parts(network, choices, 1)[0] == 1024  # never more parts than pictures
    assert free_memory(torch.device("cpu")) > 2**20
