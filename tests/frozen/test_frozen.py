"""Nothing changed: weights, maps and answers are those of `frozen.json`; see README.md beside this file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

from tests.frozen import adapter, collect
from tests.frozen.values import FILE, differences, machine, readable

FROZEN = json.loads(FILE.read_text())
NEEDS = {"distillation": "digits"}
DRAWN = {"digits", "planted", "distillation", "mnist-strings"}  # begin with numbers of `trunc_normal_`

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """`ask("digits")`: what a section answers now; each is made once."""
    answers: dict[str, dict[str, Any]] = {}

    def made(name: str) -> dict[str, Any]:
        if name in NEEDS:
            made(NEEDS[name])
        if name not in answers:
            given = (request.getfixturevalue("mnist_folder"),) if name == "mnist-strings" else ()
            answers[name] = json.loads(json.dumps(collect.SECTIONS[name](*given)))
        return answers[name]

    jaxtyping.config.update("jaxtyping_disable", True)  # as users run it, and in half of the time
    with collect.working_in(tmp_path_factory.mktemp("frozen")):
        yield made
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def exactly(record_property: Callable[[str, object], None]) -> bool:
    """Whether this is the machine whose bits are frozen."""
    same = machine() == FROZEN["machine"]
    record_property("compared", "bits" if same else "within the tolerance of tests/frozen/values.py")
    return same


def changes(name: str, found: dict[str, Any], exactly: bool) -> str:
    """What a section answers otherwise than it did, and how that was found out; empty when nothing changed."""
    lines = list(differences(FROZEN[name], found, exactly, name))
    how = "bits compared" if exactly else f"compared within a tolerance, this is another machine: {machine()}"
    more = f"\n... and {len(lines) - 30} more" if len(lines) > 30 else ""
    return "\n".join([f"{how}; {len(lines)} values changed:", *lines[:30]]) + more if lines else ""


@pytest.mark.parametrize("name", collect.SECTIONS)
def test_nothing_changed(name: str, ask: Ask, exactly: bool) -> None:
    if name in DRAWN and torch.__version__ < (2, 12):
        pytest.skip("torch 2.11 draws other initial weights from a seed")
    problem = changes(name, ask(name), exactly)
    assert not problem, problem


def test_another_weight_decay_is_noticed(ask: Ask, tmp_path: Path) -> None:
    frozen = ask("sort-digits")["train"]["tensors"]  # of this machine, so that both comparisons can be tried
    with collect.working_in(tmp_path):
        found = collect.trained("sort-digits", "train", "sort-digits", "--weight-decay", "0.1")["tensors"]
    for exactly in (True, False):
        assert list(differences(frozen, found, exactly))


def test_a_changed_map_or_answer_is_noticed(ask: Ask) -> None:
    maps, answers = ask("maps"), ask("verbs")
    one = next(iter(maps))
    scaled = {**maps, one: {**maps[one], "values": [[[value * 1.01 for value in row] for row in image]
                                                    for image in maps[one]["values"]]}}  # fmt: skip
    for exactly in (True, False):
        assert not list(differences(maps, maps, exactly))
        assert list(differences(maps, scaled, exactly))
        assert list(differences(answers, {**answers, "layers": {**answers["layers"], "flops": 1}}, exactly))
        assert list(differences(answers, {key: answers[key] for key in ("models", "layers")}, exactly))
    assert readable({"seconds": 3.5, "verdict": "a b", "reason": "a b", "nan": [1]}) == {
        "seconds": "masked", "verdict": "a b", "reason": "prose", "nan": [1],
    }  # fmt: skip
    assert adapter.command("no-such-verb")[0] == 2
