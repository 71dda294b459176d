"""The network that learns both digits of a picture is made again: an objective of its own (some ten minutes)."""

import pytest

from benchmarks.planted_networks import train

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_a_user")]


def test_both_digits_of_a_picture_are_learnt_again() -> None:
    model, right = train("pairs-0")
    assert right >= 0.90
    assert model.background is not None
