"""The table of README.md names every number of the list once, and tests that are there."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (T\d+) \| .+? \| (.+) \|$", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def missing(named: str) -> list[str]:
    """Those of `file::function` in backticks that are not there."""
    found = []
    for file, function in re.findall(r"`([^`:]+)::([^`]+)`", named):
        tree = ast.parse((HERE / file).read_text(encoding="utf-8")) if (HERE / file).is_file() else ast.Module([], [])
        if function not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            found.append(f"{file}::{function}")
    return found


def test_every_number_has_one_row() -> None:
    assert [number for number, _ in ROWS] == [f"T{number}" for number in range(1, 23)]


@pytest.mark.parametrize(("number", "named"), ROWS, ids=[number for number, _ in ROWS])
def test_what_is_named_exists(number: str, named: str) -> None:
    assert re.fullmatch(r"`[^`:]+::\w+`(, `[^`:]+::\w+`)*", named)
    assert missing(named) == []


def test_a_wrong_name_would_be_noticed() -> None:
    assert missing("`test_readme.py::test_nothing`, `nowhere.py::test_what_is_named_exists`") == [
        "test_readme.py::test_nothing",
        "nowhere.py::test_what_is_named_exists",
    ]
