"""Labels dealt out at random teach nothing, unless they are few enough to know by heart (a quarter of an hour)."""

import pytest

from benchmarks.planted_networks import memorised_pictures, share_right, train

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def test_labels_dealt_out_at_random_teach_nothing() -> None:
    _, right = train("shuffled-0")
    assert abs(right - 0.1) <= 0.03


def test_pictures_are_learnt_by_heart_again() -> None:
    """Nearly all of what was learnt is known, and fresh pictures are guessed at."""
    model, right = train("memorised-0")
    assert share_right(model, memorised_pictures()) >= 0.99
    assert abs(right - 0.1) <= 0.03
