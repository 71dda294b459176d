"""How a training is computed: chosen by rule, stored, and without a trace on the network."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import must_raise
from tests.training.lab import CHOICES, EXECUTION, NOISY, cross_entropy, fresh, same, tiny_set, weights
from vitrail import runtime
from vitrail.errors import UsageError
from vitrail.nn import TransformerConfig, ViTConfig
from vitrail.runs.settings import Optimization
from vitrail.training import execution

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("cores", [1, 2, 4, 64])
def test_threads_follow_the_size_and_the_load(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(runtime, "processors", lambda: cores)
    chosen = [runtime.pick_threads(10.0**power, 0.0)[0] for power in range(5, 15)]
    assert chosen == [runtime.pick_threads(10.0**power, 0.0)[0] for power in range(5, 15)], "a rule, not a stopwatch"
    assert chosen == sorted(chosen), "more work never takes fewer threads"
    assert chosen[0] == max(1, min(2, cores // 2))
    assert chosen[-1] == cores
    for busy in (0.0, 1.2, 3.0, 500.0):
        threads, why = runtime.pick_threads(1e14, busy)
        assert 1 <= threads <= cores
        assert threads == max(1, cores - round(busy))
        assert str(threads) in why


def test_processors_respect_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert runtime.processors() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "99999")
    there = runtime.processors()
    for odd in ("", "many", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert runtime.processors() == there >= 1


@pytest.mark.parametrize("asked", ["cuda:99", "gpu", "", "cpu:x", "cpu:1", "cuda:", "tpu:0"])
def test_a_device_that_is_not_there_is_refused(asked: str) -> None:
    if asked == "cuda:" and torch.cuda.is_available():
        return
    with must_raise(UsageError) as caught:
        runtime.pick_device(asked)
    assert runtime.pick_device(caught.value.hint.flags["device"]), "what is offered works"


def test_devices_that_are_there() -> None:
    assert runtime.pick_device("cpu") == torch.device("cpu")
    assert runtime.pick_device("cpu:0").type == "cpu"
    assert runtime.pick_device("auto").type in ("cpu", "cuda", "mps")


def test_options_decide_and_are_stored() -> None:
    options = {"device": "cpu", "threads": 3, "precision": "bf16", "compile": True, "workers": 0}
    chosen, notes = execution.pick_execution(options, NOISY, CHOICES, 10)
    assert (chosen.device, chosen.threads, chosen.precision, chosen.compile, chosen.workers) == (
        "cpu",
        3,
        "bf16",
        True,
        0,
    )
    assert notes
    left, _ = execution.pick_execution({"device": "cpu"}, NOISY, CHOICES, 10**6)
    assert (left.precision, left.compile) == ("fp32", False)


def compiled_steps(cache: Path) -> dict:
    """What `compile_worker.py` says, in a process of its own without annotations checked."""
    settings = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
    }
    command = [sys.executable, "-m", "tests.training.compile_worker"]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(next(line for line in run.stdout.splitlines() if line.startswith("{")))


@pytest.mark.soak
def test_compiled_steps_are_eager_steps(tmp_path: Path) -> None:
    answer = compiled_steps(tmp_path)
    assert answer["moved"] > 5e-3
    assert answer["distance"] <= 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trial_leaves_no_trace(precision: str) -> None:
    """Weights, buffers, gradients and mode; also with dropout, and with a network wide enough to be timed."""
    wide = ViTConfig(image_size=8, patch_size=4, channels=1, classes=3, width=192, depth=1, heads=2, dropout=0.1)
    network = fresh(wide, replace(CHOICES, ema_decay=0.0)).network
    network.register_buffer("seen", torch.arange(3.0))
    before = weights(network)
    batch = next(tiny_set().batches(0, 8))
    images = batch.inputs.clone()
    chosen, notes, seconds = execution.pick_precision(
        replace(EXECUTION, precision=precision), "auto", wide.width, network, batch, batch, cross_entropy
    )
    assert same(weights(network), before)
    assert torch.equal(batch.inputs, images)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    assert seconds > 0
    assert chosen.precision in ("fp32", "bf16")
    assert len(notes) == 1


@pytest.mark.parametrize(("gain", "expected"), [(2.0, "bf16"), (1.16, "bf16"), (1.1, "fp32"), (0.5, "fp32")])
def test_the_faster_precision_is_taken(monkeypatch: pytest.MonkeyPatch, gain: float, expected: str) -> None:
    monkeypatch.setattr(
        execution,
        "sample_seconds",
        lambda network, batch, objective, precision, turns=3: 1.0 / gain if precision == "bf16" else 1.0,
    )
    monkeypatch.setattr(execution, "multiplies_bf16", lambda device: True)
    wide = replace(NOISY, width=192)
    batch = next(tiny_set().batches(0, 8))
    chosen, notes, seconds = execution.pick_precision(
        EXECUTION, "auto", wide.width, fresh().network, batch, batch, cross_entropy
    )
    assert (chosen.precision, seconds) == (expected, 1.0 / gain if expected == "bf16" else 1.0)
    assert expected in notes[0]
    asked, notes, _ = execution.pick_precision(
        EXECUTION, "fp32", wide.width, fresh().network, batch, batch, cross_entropy
    )
    assert (asked.precision, notes) == ("fp32", [])
    narrow, notes, _ = execution.pick_precision(
        EXECUTION, "auto", NOISY.width, fresh().network, batch, batch, cross_entropy
    )
    assert (narrow.precision, notes) == ("fp32", []), "a narrow network is not even tried"


def test_bf16_is_not_timed_on_a_processor_without_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, there, lambda: False)
    monkeypatch.setattr(runtime.platform, "machine", lambda: "x86_64")
    timed: list[str] = []
    monkeypatch.setattr(execution, "sample_seconds", lambda *given, turns=3: timed.append(given[3]) or 0.5)
    batch = next(tiny_set().batches(0, 8))
    chosen, notes, seconds = execution.pick_precision(
        EXECUTION, "auto", 192, fresh().network, batch, batch, cross_entropy
    )
    assert (chosen.precision, seconds, timed, len(notes)) == ("fp32", 0.5, ["fp32"], 1)


@pytest.mark.parametrize(("each", "timed"), [(2.0, [2]), (0.6, [2, 5]), (0.01, [2, 8])])
def test_two_samples_show_how_many_are_timed(monkeypatch: pytest.MonkeyPatch, each: float, timed: list[int]) -> None:
    """What is timed is taken from the training: so many as take three seconds, where all would take longer."""
    seen: list[int] = []
    monkeypatch.setattr(execution, "multiplies_bf16", lambda device: False)
    monkeypatch.setattr(execution, "sample_seconds", lambda *given, turns=3: seen.append(len(given[1])) or each)
    batch = next(tiny_set().batches(0, 8))
    pair = batch.only(torch.arange(8) < 2)
    found = execution.pick_precision(EXECUTION, "auto", 192, fresh().network, batch, pair, cross_entropy)
    assert (found[2], seen) == (each, timed)


def test_a_long_pass_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one is short, the first warms up, and three follow."""
    made: list[int] = []

    def objective(*given: Any) -> Any:
        made.append(1)
        return cross_entropy(*given)

    batch = next(tiny_set().batches(0, 8))
    for long, passes in ((3.0, 4), (0.0, 1)):
        made.clear()
        monkeypatch.setattr(execution, "LONG", long)
        monkeypatch.setattr(execution, "TIMED_SECONDS", 0.0 if long == 0.0 else 60.0)
        assert execution.sample_seconds(fresh().network, batch, objective, "fp32") > 0
        assert len(made) == passes


def test_two_samples_show_that_bf16_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch of 32 would take a minute."""
    monkeypatch.setattr(execution, "multiplies_bf16", lambda device: True)
    timed: list[tuple[str, int]] = []

    def seconds(network: object, batch: list, objective: object, precision: str, turns: int) -> float:
        timed.append((precision, len(batch)))
        return 2.0 if precision == "bf16" else 0.1

    monkeypatch.setattr(execution, "sample_seconds", seconds)
    chosen, _, seconds_each = execution.pick_precision(
        EXECUTION, "auto", 192, fresh().network, range(32), range(2), cross_entropy
    )
    assert (chosen.precision, seconds_each) == ("fp32", pytest.approx(0.1))
    assert timed == [("fp32", 2), ("bf16", 2)]


def test_a_step_takes_time() -> None:
    assert execution.sample_seconds(fresh().network, next(tiny_set().batches(0, 8)), cross_entropy, "fp32") > 0


def test_a_batch_that_does_not_fit_is_compute_dtype_micro_batches() -> None:
    work, choices = execution.work_of(ViTConfig.from_size("S/16")), Optimization(batch_size=1024)
    assert execution.pick_micro_batches(work, choices, 2**50) == (1, [])
    parts, notes = execution.pick_micro_batches(work, choices, 16 * 2**30)
    assert parts > 1
    assert parts & (parts - 1) == 0
    assert str(parts) in notes[0]
    assert execution.pick_micro_batches(work, choices, 1)[0] == 1024  # never more of them than images
    assert runtime.free_memory(torch.device("cpu")) > 2**20


def test_a_network_that_writes_takes_more_for_longer_texts() -> None:
    """Twice the length, read or written, takes about twice the memory."""
    for name in ("read", "written"):
        small, large = (
            execution.work_of(
                TransformerConfig(
                    source_vocab_size=13, target_vocab_size=13, max_length=20 * factor if name == "written" else 1
                ),
                20 * factor if name == "read" else 1,
            )
            for factor in (1, 2)
        )
        assert large.activations == pytest.approx(2 * small.activations, rel=0.1)
        assert large.flops == pytest.approx(2 * small.flops, rel=0.1)
