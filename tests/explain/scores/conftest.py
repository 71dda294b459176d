"""A fixture for tests of what a user meets."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def as_a_user() -> Iterator[None]:
    """Without the check of annotations, which only tests have and which would answer first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
