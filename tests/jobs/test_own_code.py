"""A person's own code is known by what it is: another under the same name is another job."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.explain.planted_lab import load_planted
from vitrail.explain import rollout, saliency
from vitrail.jobs.own_code import own_code
from vitrail.jobs.precision import identity_of

MINE = """
import torch
from own_helper import scaled
class Mine(torch.nn.Linear):
    def forward(self, images):
        return super().forward(images)
def mine(network, images, target=None):
    return scaled(images) if target in {"one", "two", "three"} else images
def bound(factor):
    def mine(network, images, target=None):
        return factor * images
    return mine
"""
HELPER = "def scaled(images):\n    return 2 * images\n"

Write = Callable[[str, str], ModuleType]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module, and imports it anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(name: str, text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        for known in ("own_mine", "own_helper"):
            monkeypatch.delitem(sys.modules, known, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("own_mine")

    (tmp_path / "own_helper.py").write_text(HELPER)
    return written


def test_it_changes_with_the_file_with_what_that_imports_and_with_what_is_bound(write: Write) -> None:
    own = write("own_mine", MINE)
    first = own_code([own.mine])
    assert first
    assert own_code([write("own_mine", MINE).mine]) == first
    texts = {
        "own_mine": MINE.replace("else images", "else -images"),
        "own_helper": HELPER.replace("2", "3"),
    }
    for name, text in texts.items():
        assert own_code([write(name, text).mine]) != first, name
        before = {"own_mine": MINE, "own_helper": HELPER}[name]
        assert own_code([write(name, before).mine]) == first, name
    bound = [own.bound(2), own.bound(3), partial(own.mine, target=1), partial(own.mine, target=2), own.mine, own.Mine]
    assert len({own_code([each]) for each in bound}) == len(bound)
    assert own_code([own.bound(2)]) == own_code([own.bound(2)])


def test_without_a_file_compiled_code_and_its_constants_tell() -> None:
    def made(text: str) -> Any:
        space: dict[str, Any] = {"__name__": "a_notebook"}
        exec(text, space)
        return space["mine"]

    texts = [f"def mine(images):\n    return {what}" for what in ("images", "-images", "2 * images", "3 * images")]
    texts += [f"class mine:\n    def go(self):\n        return {what}" for what in "12"]
    assert len({own_code([made(text)]) for text in texts}) == len(texts)
    assert [own_code([made(text)]) for text in texts] == [own_code([made(text)]) for text in texts]


def test_another_process_says_the_same(write: Write, tmp_path: Path) -> None:
    """Also of constants in a set, whose order changes from one process to the next."""
    text = f"def mine(images):\n    return images in {set(map(str, range(20)))}\n"
    here = own_code([write("own_mine", text).mine])
    words = "import own_mine; from vitrail.jobs.own_code import own_code; print(own_code([own_mine.mine]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONHASHSEED": "1"}
    ran = subprocess.run([sys.executable, "-c", words], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == here


def test_a_model_is_known_by_the_code_of_its_own_network(write: Write) -> None:
    others = [torch.maximum, torch.minimum, saliency, rollout, torch.nn.Linear, torch.nn.LayerNorm, pytest.raises]
    assert len({own_code([each]) for each in others}) == len(others)
    model = load_planted("mean-0")

    def known(text: str) -> dict[str, str]:
        network = write("own_mine", text).Mine(3, 10)
        network.load_state_dict({"weight": torch.ones(10, 3), "bias": torch.zeros(10)})
        return identity_of(replace(model, network=network))

    first, other = known(MINE), known(MINE.replace("forward(images)", "forward(-images)"))
    assert first == known(MINE)
    assert {name for name in first if first[name] != other[name]} == {"code"}
