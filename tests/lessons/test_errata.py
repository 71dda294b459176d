"""`docs/errata.md` says what the lessons print, and names tests that exist."""

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ERRATA = ROOT / "docs" / "errata.md"
DOCUMENTS = ("D0", "D1", "D2", "D3", "D4")
CLAIM = re.compile(r"`([a-z0-9_.]+)` ([=<>~]) ")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
LABELS = ("unnoticed", "seen by", "cure", "guarded by")
GUARD = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def section(document: str, text: str) -> str:
    return text.split(f"\n## {document} ·")[1].split("\n## ")[0]


def entries(text: str) -> list[list[str]]:
    """Each fault, with what stands behind each of the labels."""
    found = []
    for part in text.split("\n**")[1:]:
        fault, rest = part.split("**\n\n", 1)
        labelled = dict(line[2:].split(": ", 1) for line in rest.splitlines() if line.startswith("- "))
        found.append([fault, *(labelled.get(label, "") for label in LABELS)])
    return found


def wrong_claims(text: str, results: dict[str, Any]) -> list[str]:
    """What a text says of a lesson's results and is not so; a number is right when it is rounded right."""
    wrong = []
    for claim in CLAIM.finditer(text):
        name, relation = claim.groups()
        if name not in results:
            wrong.append(f"{name} is no result")
        elif relation != "~" and not holds(results[name], relation, text[claim.end() :]):
            wrong.append(f"{name} {relation} {text[claim.end() :][:20]!r}, the lesson says {results[name]}")
    return wrong


def holds(value: Any, relation: str, text: str) -> bool:
    if isinstance(value, bool | str):
        return relation == "=" and text.startswith(str(value))
    found = NUMBER.match(text)
    if isinstance(value, list) or found is None:
        return False
    said = float(found[0].rstrip(",").replace(",", ""))
    if relation != "=":
        return value < said if relation == "<" else value > said
    digits = found[0].rstrip(",").replace(",", "").partition(".")[2]
    if digits or isinstance(value, int):
        return abs(value - said) <= (0.6 * 10.0 ** -len(digits) if digits else 0)
    return abs(value - said) <= max(1e-3 * abs(said), 1e-6)  # a whole number for one that is not: 100 of 99.9999


@cache
def functions_of(path: str) -> frozenset[str]:
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    return frozenset(node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))


def missing_guards(text: str) -> list[str]:
    return [f"{path}::{name}" for path, name in GUARD.findall(text) if name not in functions_of(path)]


@pytest.mark.parametrize(
    "document", [pytest.param(each, marks=() if each == "D3" else pytest.mark.soak) for each in DOCUMENTS]
)
def test_the_numbers_are_those_of_the_lesson(document: str, lesson: Callable[[str], dict[str, Any]]) -> None:
    text = section(document, ERRATA.read_text())
    assert len(CLAIM.findall(text)) > 10
    assert wrong_claims(text, lesson(document.lower())["results"]) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_entry_is_whole_and_guarded(document: str) -> None:
    found = entries(section(document, ERRATA.read_text()))
    assert len(found) > 5
    for entry in found:
        assert all(entry), entry
        assert GUARD.search(entry[4]), entry[0]


def test_every_guard_exists() -> None:
    assert missing_guards(ERRATA.read_text()) == []


def test_planted_faults_are_found() -> None:
    results = {"a": 1.4612, "b": 1642, "c": True, "d": "TypeError: no", "e": 0.0, "f": 2.5e-7}
    right = "`a` = 1.461, `b` = 1,642 and `c` = True; `d` = TypeError: no; `e` = 0 (so) `f` < 1e-6 `a` > 1 `a` ~ 3"
    assert wrong_claims(right, results) == []
    wrong = "`a` = 1.464 `b` = 1,641 `c` = False `d` = ValueError `e` = 0.1 `f` < 1e-7 `g` = 1 `a` = 2 `a` < 1"
    assert len(wrong_claims(wrong, results)) == 9
    assert missing_guards("`tests/lessons/test_errata.py::test_every_guard_exists`") == []
    assert len(missing_guards("`tests/lessons/test_errata.py::test_gone`, `tests/gone.py::test_x`")) == 2
