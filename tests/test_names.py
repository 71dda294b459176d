"""One name for one thing: no public function or class stands in two files under the same name."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "vitrail"
FAMILIES = {
    "at_size",
    "of_config",
    "of_module",
    "of_tensors",
    "preprocessing_of",
}  # rows of one table: a function of each family
SHARED = {"run"} | FAMILIES  # every verb has its `run`


@cache
def named_in(text: str) -> list[str]:
    """Public names that are defined at the top level."""
    defined = (node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [name for name in defined if not name.startswith("_")]


def homes(files: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """In which files each public name is defined at the top level."""
    found = defaultdict[str, set[str]](set)
    for file, text in files:
        for name in named_in(text):
            found[name].add(file)
    return found


def twice(files: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    return {name: places for name, places in homes(files).items() if len(places) > 1 and name not in SHARED}


def test_no_name_means_two_things() -> None:
    files = [(str(file.relative_to(SOURCE)), file.read_text()) for file in SOURCE.rglob("*.py")]
    assert twice(files) == {}
    planted = [*files, ("other.py", "class Model: ...\n")]
    assert twice(planted) == {"Model": {"model/model.py", "other.py"}}
    for name in SHARED:  # no row of the list outlives its reason
        assert len(homes(files)[name]) > 1, name
