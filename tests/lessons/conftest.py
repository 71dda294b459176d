"""Each lesson runs once for the whole suite, in a process of its own with one thread; the workers share its answer."""

import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LESSONS = Path(__file__).parents[2] / "lessons"
PATIENCE = 280  # seconds to wait for the worker that runs the lesson


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


def run_once(path: Path, folder: Path, runner: ModuleType) -> dict[str, Any]:
    """What a lesson says; the first worker that asks runs it, the others wait."""
    answer = folder / f"{path.stem}.json"
    try:
        os.close(os.open(folder / f"{path.stem}.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        end = time.monotonic() + PATIENCE
        while not answer.exists() and time.monotonic() < end:
            time.sleep(0.2)
    else:
        try:
            said = runner.run(path, quiet=True, limit=PATIENCE)
        except Exception as error:
            said = {"error": f"{error}"}
        unfinished = answer.with_suffix(".part")
        unfinished.write_text(json.dumps(said))
        unfinished.replace(answer)
    said = json.loads(answer.read_text())
    assert "error" not in said, said["error"]
    return said


@pytest.fixture(scope="session")
def lesson(tmp_path_factory: pytest.TempPathFactory, runner: ModuleType) -> Callable[[str], dict[str, Any]]:
    """`lesson("d0")`: its results, what each cell printed, its seconds of one core."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "lessons"
    folder.mkdir(exist_ok=True)

    def ask(name: str) -> dict[str, Any]:
        (path,) = LESSONS.glob(f"{name}_*.py")
        return run_once(path, folder, runner)

    return ask


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
