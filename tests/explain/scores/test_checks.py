"""The checks of the scores by covering and of the random maps."""

from collections.abc import Callable
from types import ModuleType

import pytest

import vitrail.explain.scores
from tests.explain.scores import checks


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_the_scores_are_right(check: Callable[[ModuleType], None]) -> None:
    check(vitrail.explain.scores)
