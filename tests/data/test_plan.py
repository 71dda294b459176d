"""The order of an epoch and all random numbers are pure functions of seed, epoch and id, and behave like chance."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from vitrail.data import plan as planning
from vitrail.data.plan import COLOUR, ERASING, GEOMETRY, MIXING, ORDER, plan, uniforms

seeds = st.integers(-(2**63), 2**63 - 1)


def numbers(count: int, columns: int = 4, seed: int = 0, epoch: int = 0, stream: int = GEOMETRY) -> np.ndarray:
    return uniforms(np.arange(count), columns, seed=seed, epoch=epoch, stream=stream)


@settings(deadline=None, max_examples=50)
@given(seed=seeds, epoch=st.integers(0, 10_000), ids=st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_number_belongs_to_its_id_alone(seed: int, epoch: int, ids: list[int]) -> None:
    together = uniforms(np.array(ids), 5, seed=seed, epoch=epoch, stream=COLOUR)
    assert together.dtype == np.float64
    assert ((together >= 0) & (together < 1)).all()
    for row, one in zip(together, ids, strict=True):
        np.testing.assert_array_equal(uniforms(np.array([one]), 5, seed=seed, epoch=epoch, stream=COLOUR)[0], row)
    fewer = uniforms(np.array(ids), 2, seed=seed, epoch=epoch, stream=COLOUR)
    np.testing.assert_array_equal(fewer, together[:, :2])


def test_the_numbers_are_fixed_for_ever() -> None:
    """A resumed run of tomorrow needs today's numbers; computed here once, with Python's whole numbers."""

    def mixed(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        return word ^ (word >> 31)

    golden = 0x9E3779B97F4A7C15
    key = 0
    for word in (7, 3, GEOMETRY):
        key = mixed((key + golden + word) % 2**64)
    row = mixed((key + golden * (17 + 1)) % 2**64)
    expected = [(mixed((row + golden * column) % 2**64) >> 11) * 2.0**-53 for column in (1, 2, 3)]
    assert uniforms(np.array([17]), 3, seed=7, epoch=3, stream=GEOMETRY)[0].tolist() == expected


def looks_uniform(values: np.ndarray) -> bool:
    return stats.kstest(values.ravel(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("stream", [ORDER, GEOMETRY, COLOUR, ERASING, MIXING])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**62])
def test_numbers_are_uniform(stream: int, seed: int) -> None:
    drawn = numbers(5000, 4, seed, epoch=3, stream=stream)
    assert all(looks_uniform(column) for column in drawn.T)
    counts = np.histogram2d(drawn[:, 0], drawn[:, 1], bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3, "pairs of columns fill the square"
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.06, "neighbouring ids are not alike"
    assert not looks_uniform(drawn**1.1), "the planted fault: the test sees a small bend"


def test_seed_epoch_and_stream_are_independent() -> None:
    base = numbers(4000, 1)
    for other in (
        numbers(4000, 1, seed=1),
        numbers(4000, 1, epoch=1),
        numbers(4000, 1, stream=COLOUR),
        numbers(4000, 1, seed=1, epoch=-1),
    ):
        assert (other != base).all()
        assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 0.06
    swapped = numbers(100, 1, seed=GEOMETRY, stream=5), numbers(100, 1, seed=5, stream=GEOMETRY)
    assert (swapped[0] != swapped[1]).all()


@settings(deadline=None, max_examples=60)
@given(
    seed=seeds,
    epoch=st.integers(0, 1000),
    count=st.integers(0, 60),
    mixup=st.sampled_from([0.0, 0.2, 1.0]),
    cutmix=st.sampled_from([0.0, 1.0]),
)
def test_an_epoch_is_a_permutation_with_partners(seed, epoch, count, mixup, cutmix) -> None:
    planned = plan(seed, epoch, count, mixup=mixup, cutmix=cutmix)
    assert len(planned) == count
    assert sorted(planned.ids) == list(range(count))
    assert ((planned.weights >= 0) & (planned.weights <= 1)).all()
    again = plan(seed, epoch, count, mixup=mixup, cutmix=cutmix)
    for name in ("ids", "partners", "weights", "cut"):
        np.testing.assert_array_equal(getattr(planned, name), getattr(again, name))
    np.testing.assert_array_equal(planned.ids, plan(seed, epoch, count).ids), "mixing does not change the order"
    if not (mixup or cutmix):
        assert (planned.partners == planned.ids).all()
        assert (planned.weights == 1).all()
        return
    for place in range(0, count - 1, 2):
        assert planned.partners[place] == planned.ids[place + 1]
        assert planned.partners[place + 1] == planned.ids[place]
    if count % 2 and count > 1:
        assert planned.partners[-1] == planned.ids[-2]
    if count == 1:
        assert planned.partners[0] == planned.ids[0] == 0
    assert planned.cut.all() if cutmix and not mixup else not planned.cut.any() or (mixup and cutmix)


def test_orders_differ_and_every_place_is_fair() -> None:
    orders = np.stack([plan(seed, epoch, 10).ids for seed in range(40) for epoch in range(50)])
    assert len(np.unique(orders[:, :8], axis=0)) > 1990
    counts = np.stack([np.bincount(column, minlength=10) for column in orders.T])
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3
    assert (
        stats.chisquare(np.bincount(orders[:, 0] * 10 + orders[:, 1], minlength=100)[np.eye(10).ravel() == 0]).pvalue
        > 1e-3
    )


@pytest.mark.parametrize(("mixup", "cutmix", "alpha"), [(0.2, 0.0, 0.2), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)])
def test_weights_follow_the_beta_distribution(mixup: float, cutmix: float, alpha: float) -> None:
    weights = plan(0, 0, 4000, mixup=mixup, cutmix=cutmix).weights
    assert weights.mean() == pytest.approx(0.5, abs=0.03)
    assert stats.kstest(weights, stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    assert not (plan(0, 1, 4000, mixup=mixup, cutmix=cutmix).weights == weights).any()


def test_both_mixtures_share_the_slots_evenly() -> None:
    planned = plan(3, 1, 4000, mixup=0.2, cutmix=1.0)
    assert planned.cut.mean() == pytest.approx(0.5, abs=0.03)
    assert stats.kstest(planned.weights[planned.cut], "uniform").pvalue > 1e-3
    assert stats.kstest(planned.weights[~planned.cut], stats.beta(0.2, 0.2).cdf).pvalue > 1e-3


def test_a_slice_of_slots_is_slots() -> None:
    planned = plan(0, 0, 9, mixup=1.0)
    part = planned[4:7]
    assert isinstance(part, planning.EpochPlan)
    np.testing.assert_array_equal(part.ids, planned.ids[4:7])
    np.testing.assert_array_equal(part.weights, planned.weights[4:7])
