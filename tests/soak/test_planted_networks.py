"""The committed networks of the lab can be made again, and are as good (some ten minutes each)."""

import pytest

from benchmarks.planted_networks import memorised_pictures, share_right, train
from tests.explain.planted_lab import load_planted
from vitrail.explain import selftest


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "least"), [("class-0", 0.95), ("mean-0", 0.94), ("pairs-0", 0.90)])
def test_a_network_of_the_lab_is_made_again(name: str, least: float) -> None:
    model, right = train(name)
    assert right >= least
    assert model.background is not None
    report = selftest(model)
    assert report.passed, str(report)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_labels_dealt_out_at_random_teach_nothing() -> None:
    _, right = train("shuffled-0")
    assert abs(right - 0.1) <= 0.03


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_pictures_are_learnt_by_heart_again() -> None:
    """Two minutes and a half: nearly all of what was learnt is known, and fresh pictures are guessed at."""
    model, right = train("memorised-0")
    assert share_right(model, memorised_pictures()) >= 0.99
    assert abs(right - 0.1) <= 0.03


@pytest.mark.soak
def test_the_untrained_network_is_made_again() -> None:
    """The same weights, bit by bit, but for half precision."""
    model, right = train("untrained-0")
    assert abs(right - 0.1) <= 0.03
    made = load_planted("untrained-0").network.state_dict()
    for name, tensor in model.network.state_dict().items():
        assert (tensor - made[name]).abs().max() <= 1e-3 * max(1.0, float(tensor.abs().max()))
