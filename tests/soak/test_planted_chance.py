"""Labels dealt out at random teach nothing, unless they are few enough to know by heart (some two minutes each).

A quarter of the recipe's images are learnt from, the same with their own labels: what these teach so quickly, dealt out
labels do not.
"""

import pytest

from benchmarks.planted_networks import memorised_images, share_right, train
from vitrail.data.sets.planted import COUNTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_a_user")]

FEW = 30_000


@pytest.mark.parametrize("name", ["shuffled-0", "class-0"])
def test_labels_dealt_out_at_random_teach_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COUNTS, "train", FEW)
    _, right = train(name)
    if name == "shuffled-0":
        assert abs(right - 0.1) <= 0.03
    else:
        assert right >= 0.9, "as short a training does teach where there is something to learn"


def test_images_are_learnt_by_heart_again() -> None:
    """Nearly all of what was learnt is known, and fresh images are guessed at."""
    model, right = train("memorised-0")
    assert share_right(model, memorised_images()) >= 0.99
    assert abs(right - 0.1) <= 0.03
