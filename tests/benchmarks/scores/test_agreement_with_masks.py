"""Scores against a mask: numpy loops, scikit-learn's average precision, and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import average_precision_score

from benchmarks.scores import (
    pointing_game,
    relevance_mass,
    relevance_rank,
    segmentation,
)
from benchmarks.scores.agreement import average_precision
from tests.explain.refused import must_refuse
from tests.explain.scores.checks import make_masked as make
from tests.explain.scores.reference import bilinear

PATCHES = (pointing_game, relevance_mass, relevance_rank)


def test_the_truth_scores_one_and_its_reverse_zero() -> None:
    _, masks = make()
    for score in PATCHES:
        assert (score(masks.double(), masks) == 1).all()
        assert (score((~masks).double(), masks) == 0).all()


def test_a_constant_map_scores_by_chance() -> None:
    """Not by where the mask happens to lie: the first patch is nothing special."""
    _, masks = make()
    for score in PATCHES:
        assert score(torch.full(masks.shape, 0.3), masks).numpy() == pytest.approx(4 / 20)


@pytest.mark.parametrize("score", [pointing_game, relevance_rank])
def test_equal_values_count_as_in_random_order(score) -> None:
    generator = torch.Generator().manual_seed(0)
    values, masks = make(6)
    values = values.round()
    shaken = values + 1e-6 * torch.rand(4000, *values.shape, generator=generator, dtype=torch.float64)
    many = torch.stack([score(one, masks) for one in shaken]).double().mean(dim=0)
    assert (score(values, masks) - many).abs().max() < 0.05
    assert ((many > 0.02) & (many < 0.98)).any()


def test_a_map_that_is_zero_negative_or_not_finite_has_no_mass() -> None:
    values, masks = make(5)
    values[1], values[2], values[3, 0, 0] = 0.0, -1.0, torch.inf
    mass = relevance_mass(values, masks)
    assert mass.isnan().tolist() == [False, True, True, True, False]
    values[3, 0, 0] = torch.nan
    for score in PATCHES:
        assert score(values, masks)[3].isnan()
        assert score(values, masks)[[0, 4]].isfinite().all()


def test_an_empty_mask_has_no_rank() -> None:
    values, masks = make(3)
    masks[1] = False
    assert relevance_rank(values, masks).isnan().tolist() == [False, True, False]
    assert pointing_game(values, masks)[1] == 0


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 1000))
def test_scores_stay_in_range_and_know_no_unit(seed: int, scale: float) -> None:
    values, masks = make(3, seed=seed)
    for score in PATCHES:
        found = score(values, masks)
        assert ((found >= 0) & (found <= 1)).all()
        assert torch.allclose(found, score(values * scale, masks))


def by_hand(values: np.ndarray, masks: np.ndarray) -> tuple[float, float, float]:
    """Pixel accuracy, mIoU and mAP of the protocol, one pixel after the other."""
    right = 0
    intersections, unions, precisions = [0, 0], [0, 0], []
    for value, mask in zip(values, masks, strict=True):
        smooth = value if value.shape == mask.shape else bilinear(value, *mask.shape)
        fraction = (smooth - smooth.min()) / (smooth.max() - smooth.min())
        found = fraction > fraction.mean()
        for is_found, is_true in zip(found.flat, mask.flat, strict=True):
            right += int(is_found == is_true)
            for side in (0, 1):
                intersections[side] += int(is_found == is_true == side)
                unions[side] += int(is_found == side or is_true == side)
        both, truth = np.stack([1 - fraction, fraction]).ravel(), np.stack([~mask, mask]).ravel()
        precisions.append(average_precision_score(truth, both))
    ratios = [one / all_ for one, all_ in zip(intersections, unions, strict=True)]
    return right / masks.size, sum(ratios) / 2, float(np.mean(precisions))


@pytest.mark.parametrize("finer", [(1, 1), (3, 2)])
def test_segmentation_is_what_loops_and_scikit_learn_give(finer: tuple[int, int]) -> None:
    values, masks = make(8)
    fine = masks.repeat_interleave(finer[0], dim=1).repeat_interleave(finer[1], dim=2)
    found = segmentation(values, fine)
    wanted = by_hand(values.numpy(), fine.numpy())
    assert (found.pixel_accuracy, found.mean_iou) == pytest.approx(wanted[:2], abs=1e-12)
    rounding = (
        1e-12 if finer == (1, 1) else 1e-4
    )  # pixels that are equal may differ by it, and come one after the other
    assert found.mean_average_precision == pytest.approx(wanted[2], abs=rounding)
    assert (found.images, found.undefined) == (8, 0)


def test_segmentation_accumulates_over_the_set() -> None:
    """The mean of each image's own IoU is another number."""
    values, masks = make(8)
    masks[0] = True
    each = [segmentation(values[one : one + 1], masks[one : one + 1]).mean_iou for one in range(8)]
    assert abs(segmentation(values, masks).mean_iou - np.mean(each)) > 0.01


def test_segmentation_of_the_truth_of_nothing_and_of_what_is_not_finite() -> None:
    values, masks = make(8)
    perfect = segmentation(masks.double(), masks)
    assert perfect.pixel_accuracy == perfect.mean_iou == perfect.mean_average_precision == 1.0
    flat = segmentation(torch.full_like(values, 0.1), masks)  # nothing is above the mean
    assert flat.pixel_accuracy == pytest.approx(16 / 20)
    assert flat.mean_iou == pytest.approx(16 / 20 / 2)
    assert flat.mean_average_precision == pytest.approx(0.5)
    broken = values.clone()
    broken[3, 1, 1] = torch.nan
    kept = torch.arange(8) != 3
    assert segmentation(broken, masks) == segmentation(values[kept], masks[kept]).__class__(
        **{**vars(segmentation(values[kept], masks[kept])), "undefined": 1}
    )
    nothing = segmentation(torch.full_like(values, torch.nan), masks)
    assert (nothing.images, nothing.undefined) == (0, 8)
    assert np.isnan(nothing.mean_iou)


@pytest.mark.usefixtures("as_a_user")
def test_segmentation_wants_one_mask_for_each_map() -> None:
    values, masks = make(3)
    with must_refuse(2, "3 maps"):
        segmentation(values, masks[:2])


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30).filter(
        lambda x: any(t for _, t in x)
    )
)
def test_average_precision_is_scikit_learns_with_equal_scores_too(pairs: list[tuple[int, bool]]) -> None:
    scores, truth = np.array([score for score, _ in pairs], dtype=np.float64), np.array([true for _, true in pairs])
    found = average_precision(torch.tensor(scores), torch.tensor(truth))
    assert found == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
