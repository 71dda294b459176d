"""No option is swallowed: for every task, each changes what a run does or writes, or is refused in words.

The options are walked, not listed: a new one must be given a value here, or this file fails.
"""

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from vitrail.data import loader
from vitrail.data.augmentation import Augmentation
from vitrail.data.dataset import Counts
from vitrail.data.layout import Layout
from vitrail.data.workers import of_each
from vitrail.errors import UsageError, VitrailError
from vitrail.options import DistillOptions, TrainOptions
from vitrail.runs.settings import Settings
from vitrail.training import job, setup
from vitrail.training.configuration.refusals import check_initial, check_known, check_request
from vitrail.training.configuration.request import Own, Request
from vitrail.training.configuration.resolve import resolve
from vitrail.training.events import Event, Started
from vitrail.training.loop import StepDone, start
from vitrail.training.prepared import Prepared, open_data
from vitrail.training.train import train
from vitrail.training.transfer.initial import open_source

# A value that differs from what a recipe or the machine would choose.
OTHERS = {
    "task": "sequences",
    "recipe": "mnist-m",
    "size": "Ti/4",
    "image_size": (12, 16),
    "resize": "squash",
    "bits": 12,
    "unreadable": 0.5,
    "epochs": 2,
    "max_time": "3h",
    "batch_size": 7,
    "lr": 0.123,
    "weight_decay": 0.0123,
    "accumulate": 3,
    "seed": 11,
    "split_seed": 12,
    "device": "cuda:7",
    "threads": 5,
    "precision": "bf16",
    "compile": "on",
    "workers": 6,
    "background": False,
    "calibration": False,
    "data_root": Path("elsewhere"),
    "patience": 1,
    "keep": "best",
    "init": "nowhere.safetensors",
    "probe": True,
    "lora": 4,
}
# what they do is not a setting: tests/runs/test_settings.py; test_job.py, test_initial.py, test_shard.py of training
# how data are read: tests/data/test_layout.py and test_tables.py; looked at before: tests/check/test_quickly.py
LAYOUT = {field.name for field in fields(Layout)}
RARE = {"class_weights", "balance", "logit_adjustment", "asymmetric"}  # tests/training/test_rare.py
ELSEWHERE = {"config", "resume", "verdicts", "shard", "check", *LAYOUT, *RARE}
TEACHING = {
    "distillation": "hard",
    "temperature": 7.0,
    "alpha": 0.25,
    "distillation_token": "no",
    "teacher_weights": "random",
    "teacher_size": 9,
}
DECIDED_LATER = {"cache", "fit_head"}  # with the teacher at hand: tests/training/test_distillation.py


def manifest(folder: Path, column: str) -> str:
    random = np.random.default_rng(0)
    lines = [f"path,{column}"]
    for number in range(120):
        Image.fromarray(random.integers(0, 255, (20, 24), dtype=np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]}")
    (folder / f"{column}.csv").write_text("\n".join(lines))
    return str(folder / f"{column}.csv")


opened = cache(open_data)  # the same for nearly every option


def settled(data: str, options: TrainOptions, teacher: str = "") -> Settings:
    """The settings that a new run would have."""
    dataset, task = opened(data, options.task, None, options.split_seed or 0, Counts(40, 10, 10))
    request = Request(data=data, options=options, teacher=teacher)
    check_request(request)
    check_initial(request)
    check_known(request, dataset, task, task.background, options.probe)
    open_source(request)
    return resolve(request, dataset, task)[0]


# What each option changes of what a run does or writes; those of one run do not change what another one is known by.
TOGETHER = {
    "epochs": "epochs",
    "batch_size": "steps an epoch",
    "lr": "rate",
    "accumulate": "parts",
    "split_seed": "held out",
    "threads": "threads",
    "precision": "half",
    "compile": "compiled",
    "workers": "decoders",
    "background": "background",
    "calibration": "calibration",
    "weight_decay": "decay",
    "image_size": "images",
    "recipe": "recipe",
}
ALONE = {"seed": "weights"}
# a network of the table takes too long here; a limit: tests/training/test_schedule.py; a choice: test_selection.py;
# images that are longer than the network's: tests/cli/test_elongated.py; of 16 bits, or damaged: test_sixteen_bits.py
SETTLED = {"size", "max_time", "patience", "keep", "resize", "bits", "unreadable"}
# another task; a device that is not there; files that are nowhere; a probe of nothing (tests/training/test_initial.py)
REFUSED = {"task", "device", "data_root", "init", "probe", "lora"}

TINY = {
    "ViT": "network: {patch_size: 4, width: 8, depth: 1, heads: 2, mlp_dim: 16}\n",
    "Transformer": "network: {width: 8, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 16}\n",
    "ImageToSequence": "network: {encoder: {width: 8, depth: 1, heads: 2}, decoder_depth: 1, mlp_dim: 16}\n",
}
CHOICES = "optimization: {schedule: constant, warmup_epochs: 0, ema_decay: 0}\n"


def done(data: str, asked: TrainOptions, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run did and wrote, as far as options change it."""
    saw: dict[str, Any] = {"compiled": False, "decoders": set(), "half": set(), "calls": 0, "threads": set()}
    steps, started = 0, False

    def teach(prepared: Prepared, *others: Any, **named: Any) -> Prepared:
        given = prepared.objective

        def objective(network: Any, batch: Any) -> Any:
            saw["calls"] += started
            saw["half"] |= {torch.is_autocast_enabled("cpu")} if started else set()
            return given(network, batch)

        return replace(prepared, objective=objective)

    def begin(network: Any, choices: Any) -> Any:
        state = start(network, choices)
        saw["decay"] = max(group["weight_decay"] for group in state.optimizer.param_groups)
        return state

    def compiled(network: Any, **how: Any) -> Any:
        saw["compiled"] = True
        return network

    def decoded(work: Any, images: Any, numbers: Any, workers: int) -> Any:
        saw["decoders"].add(workers)
        return of_each(work, images, numbers, workers)

    def listen(event: Event) -> None:
        nonlocal steps, started
        started = started or isinstance(event, Started)
        if isinstance(event, StepDone):
            steps, _ = steps + 1, saw["threads"].add(torch.get_num_threads())

    with monkeypatch.context() as patch:
        patch.setattr(setup, "teach", teach)
        patch.setattr(job, "start", begin)
        patch.setattr(torch, "compile", compiled)
        patch.setattr(loader, "of_each", decoded)
        finished = train(data, out, asked, listen)
    written = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in written if row["kind"] == "epoch"]
    settings = yaml.safe_load((out / "config.yaml").read_text())
    names = json.loads((out / "data.json").read_text())
    input = finished.model.input
    return {
        **saw,
        "epochs": len(rows),
        "steps an epoch": steps // len(rows),
        "parts": saw["calls"] / steps,
        "rate": rows[0]["learning_rate"],
        "held out": (names["split_seed"], names["fingerprint"]),
        "background": (out / "model" / "background.safetensors").is_file(),
        "calibration": finished.model.output.calibration is not None,
        "weights": finished.weights,
        "images": getattr(input, "size", None),
        "recipe": settings["recipe"],
    }


@pytest.mark.parametrize(
    "data", ["digits", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("sort-digits", "label", "text"))]
)
def test_every_option_has_an_effect_or_is_refused(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Refused one by one before anything is trained; the others are seen in what a run does."""
    names = {field.name for field in fields(TrainOptions)}
    assert names == OTHERS.keys() | ELSEWHERE, "say in OTHERS what the new option may be"
    assert OTHERS.keys() == TOGETHER.keys() | ALONE.keys() | SETTLED | REFUSED, "and by what its effect is known"
    kind = {"sort-digits": "Transformer", "text": "ImageToSequence"}.get(data, "ViT")
    counts = "counts: {train: 40, validation: 10, test: 10}\n" if data == "sort-digits" else ""
    (tmp_path / "tiny.yaml").write_text(TINY[kind] + CHOICES + counts)
    others = {**OTHERS, "threads": 2, "lr": 0.0123, "task": "classify" if kind != "ViT" else "sequences"}
    others["recipe"] = {"ViT": "mnist-m", "Transformer": "texts", "ImageToSequence": "mnist-strings"}[kind]
    batch = 640 if data == "digits" else 16
    others["batch_size"] = 420 if data == "digits" else 7
    data = manifest(tmp_path, data) if data in ("label", "text") else data
    plain = TrainOptions(threads=1, device="cpu")
    chosen, refused = settled(data, plain), set()
    for name, value in others.items():
        try:
            assert settled(data, replace(plain, **{name: value})) != chosen, f"{name} is swallowed"
        except VitrailError:
            refused.add(name)
    few = {"image_size": 16} if kind == "ViT" and data != "digits" else {}
    plain = replace(plain, config=tmp_path / "tiny.yaml", epochs=1, batch_size=batch, precision="fp32", **few)
    usual = done(data, plain, tmp_path / "usual", monkeypatch)
    both = {name: others[name] for name in TOGETHER if name not in refused}
    together = done(data, replace(plain, **both), tmp_path / "together", monkeypatch)
    for name in both:
        assert together[TOGETHER[name]] != usual[TOGETHER[name]], f"{name} is swallowed"
    for name in ALONE:
        found = done(data, replace(plain, **{name: others[name]}), tmp_path / name, monkeypatch)
        assert found[ALONE[name]] != usual[ALONE[name]], f"{name} is swallowed"
    writes = kind != "ViT"
    assert refused == REFUSED | {
        *(("size", "image_size", "background", "calibration") if writes else ()),
        *(("resize", "bits", "unreadable") if kind == "Transformer" else ()),
        *(("workers",) if data in ("digits", "sort-digits") else ()),
        *(("split_seed",) if data == "digits" else ()),
    }


def test_every_option_of_a_distillation_has_an_effect_or_is_refused():
    own = {field.name for field in fields(DistillOptions)} - {field.name for field in fields(TrainOptions)}
    assert own == TEACHING.keys() | DECIDED_LATER, "say in TEACHING what the new option may be"
    plain = DistillOptions(threads=1, device="cpu", size="Ti/4")
    usual = settled("digits", plain, "runs/big")
    for name, value in TEACHING.items():
        try:
            found = settled("digits", replace(plain, **{name: value}), "runs/big")
        except UsageError:
            assert name == "teacher_weights"
            continue
        assert found != usual, f"{name} is swallowed"
    with pytest.raises(UsageError):
        settled("digits", replace(plain, distillation="hard", temperature=2.0), "runs/big")


def test_options_of_a_distillation_need_a_teacher():
    with pytest.raises(UsageError):
        check_request(Request(data="digits", options=DistillOptions(distillation="hard")))
    check_request(Request(data="digits", options=DistillOptions(distillation="hard"), teacher="runs/big"))


def test_a_teacher_of_classes_teaches_no_sequences():
    with pytest.raises(UsageError):
        settled("sort-digits", DistillOptions(threads=1, device="cpu"), "runs/big")


def test_an_own_objective_smooths_its_labels_itself():
    """The recipe's label smoothing has no effect beside it, so that nothing is said of it; asked for, it is refused."""
    dataset, task = opened("sort-digits", "auto", None, 0, Counts(40, 10, 10))
    own, asked = Own(objective=task.objective(Augmentation())), TrainOptions(threads=1, device="cpu", recipe="texts")
    plain = Request(data="sort-digits", options=asked)
    assert resolve(plain, dataset, task)[0].augmentation.label_smoothing > 0
    assert resolve(replace(plain, own=own), dataset, task)[0].augmentation.label_smoothing == 0
    with pytest.raises(UsageError):
        resolve(replace(plain, own=own, config={"augmentation": {"label_smoothing": 0.1}}), dataset, task)
