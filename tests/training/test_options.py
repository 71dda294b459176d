"""No option is swallowed: for every task, each changes the settings of a run or is refused in words.

The options are walked, not listed: a new one must be given a value here, or this file fails.
"""

from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.dataset import Counts
from vitrail.errors import UsageError, VitrailError
from vitrail.training.distill.request import Request
from vitrail.training.options import DistillOptions, TrainOptions
from vitrail.training.resolve import NOTHING_OWN, refuse_idle_data, resolve
from vitrail.training.settings import Settings
from vitrail.training.setup import open_data

# A value that differs from what a recipe or the machine would choose.
OTHERS = {
    "task": "sequences",
    "recipe": "mnist-m",
    "size": "Ti/4",
    "image_size": 12,
    "epochs": 3,
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
    "data_root": Path("elsewhere"),
}
ELSEWHERE = {"config", "resume"}  # what they do is not a setting: tests/training/test_settings.py, test_job.py
TEACHING = {
    "kind": "hard",
    "temperature": 7.0,
    "weight": 0.25,
    "token": "no",
    "teacher_weights": "random",
    "teacher_size": 9,
}
DECIDED_LATER = {"cache", "fit_head"}  # with the teacher at hand: tests/training/test_distillation.py


def manifest(folder: Path, column: str) -> str:
    random = np.random.default_rng(0)
    lines = [f"path,{column}"]
    for number in range(20):
        Image.fromarray(random.integers(0, 255, (20, 24), dtype=np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]}")
    (folder / f"{column}.csv").write_text("\n".join(lines))
    return str(folder / f"{column}.csv")


opened = cache(open_data)  # the same for nearly every option


def settled(data: str, options: TrainOptions) -> Settings:
    """The settings that a new run would have."""
    dataset, task = opened(data, options.task, None, options.split_seed or 0, Counts(40, 10, 10))
    refuse_idle_data(data, options, dataset, NOTHING_OWN)
    return resolve(data, options, {}, dataset, task, NOTHING_OWN)[0]


@pytest.mark.parametrize("data", ["digits", "label", "sort-digits", "text"])
def test_every_option_has_an_effect_or_is_refused(data: str, tmp_path: Path):
    names = {field.name for field in fields(TrainOptions)}
    assert names == OTHERS.keys() | ELSEWHERE, "say in OTHERS what the new option may be"
    if data in ("label", "text"):
        data = manifest(tmp_path, data)
    plain = TrainOptions(threads=1, device="cpu")
    usual, refused = settled(data, plain), set()
    for name, value in {**OTHERS, "task": "classify" if usual.task == "sequences" else "sequences"}.items():
        try:
            found = settled(data, replace(plain, **{name: value}))
        except VitrailError:
            refused.add(name)
            continue
        assert found != usual, f"{name} is swallowed"
    writes = "sort" in data or "text" in data
    assert {"size", "image_size", "background"} <= refused if writes else not refused & {"size", "image_size"}
    assert ("workers" in refused) == ("sort" in data)
    assert "data_root" in refused
    assert not refused & {"epochs", "batch_size", "lr", "weight_decay", "accumulate", "seed", "threads", "precision"}


def test_every_option_of_a_distillation_has_an_effect_or_is_refused():
    own = {field.name for field in fields(DistillOptions)} - {field.name for field in fields(TrainOptions)}
    assert own == TEACHING.keys() | DECIDED_LATER, "say in TEACHING what the new option may be"
    plain = TrainOptions(threads=1, device="cpu", size="Ti/4")
    student = settled("digits", plain)
    usual = Request(teacher="runs/big", options=DistillOptions()).applied(student)
    for name, value in TEACHING.items():
        try:
            found = Request(teacher="runs/big", options=DistillOptions(**{name: value})).applied(student)
        except UsageError:
            assert name == "teacher_weights"
            continue
        assert found != usual, f"{name} is swallowed"
    with pytest.raises(UsageError):
        Request(teacher="runs/big", options=DistillOptions(kind="hard", temperature=2.0)).applied(student)


def test_a_teacher_of_classes_teaches_no_sequences():
    written = settled("sort-digits", TrainOptions(threads=1, device="cpu"))
    with pytest.raises(UsageError):
        Request(teacher="runs/big", options=DistillOptions()).applied(written)
