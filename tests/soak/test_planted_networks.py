"""The committed networks of the lab can be made again, and are as good (some ten minutes for `class-0`).

One of a kind each: `mean-0` differs from `class-0` by two keys of its configuration, and other seeds by the seed. What
takes long stands in a file of its own, since files are what workers share out.
"""

import pytest

from benchmarks.planted_networks import train
from tests.explain.planted_lab import load_planted
from vitrail.explain import sanity_check

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_a_user")]


def test_a_network_of_the_lab_is_made_again() -> None:
    model, right = train("class-0")
    assert right >= 0.95
    assert model.background is not None
    report = sanity_check(model)
    assert report.passed, str(report)


def test_the_untrained_network_is_made_again() -> None:
    """The same weights, bit by bit, but for half precision."""
    model, right = train("untrained-0")
    assert abs(right - 0.1) <= 0.03
    made = load_planted("untrained-0").network.state_dict()
    for name, tensor in model.network.state_dict().items():
        assert (tensor - made[name]).abs().max() <= 1e-3 * max(1.0, float(tensor.abs().max()))
