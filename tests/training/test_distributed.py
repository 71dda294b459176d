"""Many processes train as one: the same samples in every step, the same losses, each sample counted once.

The processes are real, and speak by gloo; each costs the import of torch, so that one start serves many questions.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.photographs import make_photographs
from tests.training.processes import Steps, begun, ended, trained
from tests.training.tiny import rows, whole

CLOCK = {"seconds", "images_per_second", "waiting_fraction"}
ALIKE = 1e-5  # relative, of losses over 100 steps
DIGITS = (
    "network: {patch_size: 4, width: 8, depth: 1, heads: 2, mlp_dim: 16, dropout: 0.0, stochastic_depth: 0.0}\n"
    "optimization: {average: 0.9, accumulate: 3}\n"
    "augmentation: {mixup: 0.4, cutmix: 1.0}\n"
)
SORTED = (
    "network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32, dropout: 0.0}\n"
    "counts: {train: 97, validation: 30, test: 40}\n"
    "optimization: {batch_size: 24, average: 0.9, accumulate: 1}\n"
)
PHOTOS = (
    "network: {patch_size: 4, width: 16, depth: 1, heads: 2, mlp_dim: 16, dropout: 0.0, stochastic_depth: 0.0}\n"
    "optimization: {accumulate: 1}\n"
)
PLAIN_OPTIONS = {"threads": 1, "device": "cpu", "seed": 3, "precision": "fp32"}


def asked(folder: Path, name: str) -> dict[str, Any]:
    """A training without dropout, whose result may not depend on who computes what."""
    configuration = {"sorted": SORTED, "photos": PHOTOS}.get(name, DIGITS)
    (folder / f"{name}.yaml").write_text(configuration)
    options = {**PLAIN_OPTIONS, "config": str(folder / f"{name}.yaml")}
    match name:
        case "sorted":  # 97 texts in batches of 24: the last one has nothing for the first process
            return {"data": "sort-digits", "options": {**options, "epochs": 2}}
        case "photos":  # one file cannot be read, in batches of two: the whole share of a process
            root = folder / "photographs"
            for split in ("train", "val"):
                make_photographs(root / split, ("a", "b"), per_class=10, seed=0)
                (root / split / "a" / "a_003.png").write_bytes(b"")
            more = {"epochs": 1, "batch_size": 2, "image_size": 16, "lr": 1e-4, "workers": 1}
            return {"data": str(root), "options": {**options, **more}, "streamed": True}
        case "student":
            return {
                "data": "digits",
                "options": {**options, "epochs": 1, "batch_size": 200},
                "teacher": str(whole("digits")),
            }
        case "tuned":
            return {
                "data": "digits",
                "options": {**options, "epochs": 1, "batch_size": 200, "init": str(whole("digits"))},
            }
    return {"data": "digits", "options": {**options, "epochs": 2, "batch_size": 25}}


def together(folder: Path, *names: str, world: int = 2) -> dict[str, list[dict[str, Any]]]:
    """Trainings by so many processes, one behind the other: what each process says of each."""
    trainings = {name: asked(folder, name) for name in names}
    (folder / "asked.json").write_text(json.dumps(trainings))
    for code, _, said in ended(begun("-m", "tests.training.processes", folder, world=world)):
        assert code == 0, said
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(world)] for name in names}


def joined(shares: list[Steps]) -> Steps:
    """What all processes computed, in their order."""
    return [
        [list(itertools.chain(*parts)) for parts in zip(*steps, strict=True)] for steps in zip(*shares, strict=True)
    ]


def apart(ours: Path, theirs: Path) -> float:
    """How far the weights of two runs are from each other, as a fraction of their length.

    But for the biases of keys: they add the same to all logits of a softmax, so that their gradient is rounding alone,
    which Adam makes as large as any other.
    """
    first, second = (load_file(run / "model" / "model.safetensors") for run in (ours, theirs))
    for each in (first, second):
        for name in [name for name in each if name.endswith("qkv.bias")]:
            each[name] = each[name].reshape(3, -1)[[0, 2]]
    both = [torch.cat([each[name].double().flatten() for name in sorted(first)]) for each in (first, second)]
    return float((both[0] - both[1]).norm() / both[0].norm())


def must_be_alike(folder: Path, name: str, shares: list[dict[str, Any]]) -> None:
    """A training by many processes against the same by one."""
    alone, steps = trained(folder / f"{name}-alone", asked(folder, name))
    assert joined([each["steps"] for each in shares]) == steps, "each sample in its step, once, in order"
    mine, ours = (rows(folder / run, "step") for run in (f"{name}-alone", name))
    assert [row["step"] for row in ours] == [row["step"] for row in mine]
    losses = [np.array([row["loss"] for row in each]) for each in (mine, ours)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=ALIKE)
    mine, ours = (rows(folder / run) for run in (f"{name}-alone", name))
    for one, other in zip(mine, ours, strict=True):
        assert other.keys() == one.keys()
        for key in one.keys() - CLOCK - {"kind"}:
            assert other[key] == pytest.approx(one[key], rel=10 * ALIKE, abs=1e-12), key
        assert all(other[key] == one[key] for key in ("samples", "step", "epoch"))
    assert [each["found"] for each in shares] == [shares[0]["found"]] * len(shares), "each has the result"
    assert len({each["weights"] for each in shares}) == 1
    found, wanted = json.loads((folder / name / "evaluation.json").read_text()), alone.evaluated.to_dict()
    assert found.keys() >= wanted.keys()
    assert found["unreadable"] == wanted["unreadable"]
    assert apart(folder / f"{name}-alone", folder / name) < ALIKE


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """With mixup, CutMix, an average, micro-batches, uneven ends, and a file that cannot be read."""
    whole("digits")
    found = together(tmp_path, "digits", "sorted", "photos", "student")
    assert len(found["digits"][0]["steps"]) > 100
    assert [] in [parts[0] for parts in found["sorted"][0]["steps"]], "a process without a sample takes part"
    assert any(parts == [[]] for one in found["photos"] for parts in one["steps"])
    for name, shares in found.items():
        must_be_alike(tmp_path, name, shares)
