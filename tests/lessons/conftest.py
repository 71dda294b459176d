"""Each notebook runs once for the whole suite, in a process of its own with one thread; workers share its answer."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.shared_runs import once

LESSONS = Path(__file__).parents[2] / "lessons"


def load_runner() -> ModuleType:
    """The file `lessons/run.py`, which is no package."""
    found = importlib.util.spec_from_file_location("lessons_run", LESSONS / "run.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def runner() -> ModuleType:
    return load_runner()


@pytest.fixture(scope="session")
def lesson(runner: ModuleType) -> Callable[[str], dict[str, Any]]:
    """`lesson("d0")`: its results, what each cell printed and drew, its seconds of one core."""

    def ask(name: str) -> dict[str, Any]:
        (path,) = LESSONS.glob(f"{name}_*.ipynb")

        def make(folder: Path) -> None:
            try:
                said = runner.run(path, quiet=True)
            except RuntimeError as error:  # told to every test that asks, and not run again for each
                said = {"error": str(error)}
            (folder / "answer.json").write_text(json.dumps(said))

        said = json.loads((once(f"lesson-{name}", make) / "answer.json").read_text())
        assert "error" not in said, said["error"]
        return said

    return ask


@pytest.fixture(scope="session")
def what(lesson: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return lesson("what")["results"]


@pytest.fixture(scope="session")
def d0(lesson: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return lesson("d0")["results"]


@pytest.fixture(scope="session")
def d1(lesson: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return lesson("d1")["results"]


@pytest.fixture(scope="session")
def d2(lesson: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return lesson("d2")["results"]


@pytest.fixture(scope="session")
def d3(lesson: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return lesson("d3")["results"]


@pytest.fixture(scope="session")
def d4(lesson: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return lesson("d4")["results"]
