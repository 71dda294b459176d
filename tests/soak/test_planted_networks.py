"""The committed networks of the lab can be made again, and are as good (some ten minutes each)."""

import pytest

from benchmarks.planted_networks import train
from vitrail.explain import selftest


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "least"), [("class-0", 0.95), ("mean-0", 0.94), ("pairs-0", 0.90)])
def test_a_network_of_the_lab_is_made_again(name: str, least: float) -> None:
    model, right = train(name)
    assert right >= least
    assert model.references is not None
    report = selftest(model)
    assert report.passed, str(report)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_labels_dealt_out_at_random_teach_nothing() -> None:
    _, right = train("shuffled-0")
    assert abs(right - 0.1) <= 0.03
