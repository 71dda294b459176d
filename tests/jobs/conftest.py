"""The command line as a fixture."""

from collections.abc import Iterator

import pytest
import torch

from tests.cli.command import Cli, call


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
