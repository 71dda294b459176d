"""The checks of the scores by masking and of the random maps."""

from collections.abc import Callable
from types import ModuleType

import pytest

from benchmarks import scores
from tests.explain.scores import checks

SLOW = (checks.random_maps_are_as_smooth,)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.__name__, marks=pytest.mark.soak if check in SLOW else ())
        for check in checks.CHECKS
    ],
)
def test_the_scores_are_right(check: Callable[[ModuleType], None]) -> None:
    check(scores)
