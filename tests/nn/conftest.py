"""What only tests of networks share."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(scope="module")
def shapes_unchecked() -> Iterator[None]:
    """For loops of many small steps, of which checking shapes would be nine tenths; others check the same functions."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
