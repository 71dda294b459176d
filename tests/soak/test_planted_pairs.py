"""The network that learns both digits of an image, by an objective of its own, from half of its images (five minutes).

From all of them 93 % are right (benchmarks/explain.md); of both digits 1 in 45 is by chance.
"""

import pytest

from benchmarks.planted_networks import train
from vitrail.data.sets.planted import COUNTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_a_user")]


HALF = 60_000


def test_both_digits_of_an_image_are_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COUNTS, "train", HALF)
    model, right = train("pairs-0")
    assert right >= 0.7
    assert model.background is not None
