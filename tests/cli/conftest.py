"""The command line as a fixture, and the small runs that its tests look at."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import shared_runs as runs
from tests.cli.command import Cli, call

CHECKED = {"test_json.py", "test_verbs.py", "test_run.py"}  # every verb, under the check of annotations


@pytest.fixture(autouse=True)
def as_users_do(request: pytest.FixtureRequest) -> None:
    """Elsewhere without that check, which is a quarter of what a command takes here, and which no user has."""
    if request.path.name not in CHECKED:
        request.getfixturevalue("as_a_user")


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A verb sets torch's threads for its process; here several verbs share one."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cli() -> Cli:
    """Runs a command in this process: `cli("models", "S/16")`."""
    return call


@pytest.fixture(scope="session")
def digits_run() -> Path:
    """A run on the digits, hardly trained."""
    return runs.run_of("digits")


@pytest.fixture(scope="session")
def photographs() -> Path:
    """Class folders a, b, c in abc/train/ and abc/val/, and b, c, d in bcd/."""
    return runs.photographs()


@pytest.fixture(scope="session")
def photo_run() -> Path:
    """A run on the photographs of a, b and c, trained until it tells them apart."""
    return runs.run_of("photos")


@pytest.fixture
def photo(photographs: Path) -> Path:
    """One image of class a."""
    return photographs / "abc" / "val" / "a" / "a_000.jpg"


@pytest.fixture
def model_copy(digits_run: Path, tmp_path: Path) -> Path:
    """The model folder alone, elsewhere, to be damaged."""
    return shutil.copytree(digits_run / "model", tmp_path / "model")
