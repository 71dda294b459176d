"""Scores by masking: what they say of themselves, their ranges and what they refuse. See also checks.py."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from benchmarks.scores import (
    Masking,
    Removal,
    aopc,
    deletion,
    from_background,
    grey,
    insertion,
    normalised,
    own_patches,
    perturbation,
    saco,
)
from tests.explain.refused import must_refuse, must_refuse_and_say_what_works
from tests.explain.scores.checks import background
from tests.explain.scores.reference import GRID, make_images, make_maps, make_network
from vitrail.explain import generic_attention
from vitrail.nn import ViT, ViTConfig

SCORES = (deletion, insertion, perturbation, aopc, saco)
by_name = pytest.mark.parametrize("score", SCORES, ids=lambda score: score.__name__)


def made(score: Callable[..., Removal], values: Tensor | None = None, **options: object) -> Removal:
    values = make_maps() if values is None else values
    masking = replace(Masking(from_background(background()), draws=3), **options)
    return score(make_network(), make_images(), values, 1, masking)


@by_name
def test_a_score_says_what_it_depends_on(score: Callable[..., Removal]) -> None:
    found = made(score)
    assert found.metric.endswith(score.__name__)
    assert (found.fill, found.draws) == ("background", 3)
    assert found.unit == ("pixel" if score is perturbation else "patch")
    assert found.measure == ("top-1" if score is perturbation else "probability")
    assert found.better == ("lower" if score in (deletion, perturbation) else "higher")
    assert found.points.shape == (3, len(found.fractions))
    assert (made(score, fill=own_patches()).fill, made(score, fill=own_patches()).draws) == ("own patches", 3)
    assert (made(score, fill=grey(0.0)).fill, made(score, fill=grey(0.0)).draws) == ("grey", 1)
    if score is not perturbation:
        assert made(score, measure="logit").measure == "logit"
    for text in ("Unit:", "Range:", "better"):
        assert text in (score.__doc__ or "")


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 12))
def test_scores_keep_their_ranges(seed: int, groups: int) -> None:
    values, masking = make_maps(seed=seed), Masking(from_background(background()), draws=2, seed=seed)
    given_ = (make_network(), make_images(seed=seed), values, None, masking)
    for score, low, high in ((deletion, 0, 1), (insertion, 0, 1), (perturbation, 0, 0.8), (aopc, -1, 1)):
        found = score(*given_).score
        assert (found >= low).all()
        assert (found <= high + 1e-6).all()
    assert (saco(*given_, groups=groups).score.abs() <= 1 + 1e-12).all()


def test_deletion_and_insertion_are_each_others_reverse() -> None:
    """What is left after deleting k by the map is what is shown after inserting P - k by the map's negative."""
    values = make_maps()
    assert torch.allclose(made(deletion, values).points, made(insertion, -values).points.flip(1), atol=1e-14)
    pixels = torch.rand(3, 6, 12, generator=torch.Generator().manual_seed(0))
    masking = Masking(from_background(background()), draws=3)
    positive, negative = (
        perturbation(make_network(), make_images(), maps, 1, masking, first=first).points
        for maps, first in ((pixels, "most"), (-pixels, "least"))
    )
    assert torch.equal(positive, negative)
    assert positive.std() > 0


def test_only_the_order_counts_but_for_saco() -> None:
    values = make_maps()
    for score in (deletion, insertion, aopc):
        assert torch.equal(made(score, values).score, made(score, (values / 9).exp()).score)
    assert not torch.allclose(made(saco, values).score, made(saco, values.exp()).score, atol=1e-3)


def test_saco_of_a_random_map_is_near_zero() -> None:
    maps = torch.rand(400, *GRID, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = make_images(1).expand(400, -1, -1, -1)
    masking = Masking(from_background(background()), draws=2, measure="logit", batch_size=2048)
    found = saco(make_network(), images, maps, 1, masking, groups=6).score
    assert abs(float(found.mean())) < 5 * float(found.std()) / 20


@by_name
def test_a_map_that_is_not_finite_has_no_score(score: Callable[..., Removal]) -> None:
    values, whole = make_maps(), made(score)
    for wrong in (torch.nan, torch.inf):
        values[1, 0, 2] = wrong
        found = made(score, values)
        assert found.score.isnan().tolist() == [False, True, False]
        assert found.points[1].isnan().all()
        assert torch.equal(found.score[[0, 2]], whole.score[[0, 2]])


def test_a_constant_map_has_the_score_of_random_maps_and_no_saco() -> None:
    constant = torch.full((3, *GRID), 0.1, dtype=torch.float64)
    random = torch.rand(200, *GRID, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    network, images = make_network(), make_images()
    masking = Masking(from_background(background()), draws=400, batch_size=4096)
    for score in (deletion, insertion, aopc):
        flat = score(network, images[:1], constant[:1], 1, masking).score
        many = score(network, images[:1].expand(200, -1, -1, -1), random, 1, replace(masking, draws=25)).score
        assert abs(float(flat - many.mean())) < 0.03
        assert float(many.std()) > 0.06
    assert made(saco, constant).score.isnan().all()


def test_normalised_puts_random_at_zero_and_the_truth_at_one() -> None:
    random, oracle = torch.tensor(0.6), torch.tensor(0.1)
    assert normalised(random, random, oracle) == 0
    assert normalised(oracle, random, oracle) == 1
    assert normalised(torch.tensor(0.7), random, oracle) == pytest.approx(-0.2)
    assert normalised(torch.tensor(0.35), random, oracle) == pytest.approx(0.5)


def test_a_vision_transformer_is_scored_and_left_as_it_is() -> None:
    config = ViTConfig(image_size=(12, 20), patch_size=4, channels=2, classes=3, width=8, depth=1, heads=2)
    torch.manual_seed(0)
    network = ViT(config).eval()
    torch.nn.init.normal_(network.head.weight)
    images = torch.randn(4, 2, 12, 20)
    attribution = generic_attention(network, images)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    masking = Masking(from_background(torch.randn(3, 2, 12, 20)), draws=2)
    for score in SCORES:
        assert score(network, images, attribution.values, attribution.target, masking).score.isfinite().all()
        torch.testing.assert_close(
            score(network, images, attribution.values, None, masking).score,
            score(network, images, attribution.values, attribution.target, masking).score,
        )
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_network_sees_no_more_than_the_batch_size_at_a_time() -> None:
    network = make_network()
    deletion(network, make_images(), make_maps(), 1, Masking(from_background(background()), draws=3, batch_size=5))
    assert max(network.seen) == 5
    assert sum(network.seen) == 3 + 3 * 3 * 13  # the images themselves, then each draw at each step


@by_name
@pytest.mark.usefixtures("as_a_user")
def test_what_does_not_fit_is_refused(score: Callable[..., Removal]) -> None:
    network, images, values, masking = (
        make_network(),
        make_images(),
        make_maps(),
        Masking(from_background(background())),
    )
    with must_refuse("2 maps", "3 images"):
        score(network, images, values[:2], 1, masking)
    with must_refuse("3x5", "6x12"):
        score(network, images, torch.zeros(3, 3, 5), 1, masking)
    with must_refuse("0..3", "got 4"):
        score(network, images, values, 4, masking)
    with must_refuse("probability"):
        score(network, images, values, lambda logits: logits[:, 0], masking)
    with must_refuse("eval mode"):
        score(make_network().train(), images, values, 1, masking)


@pytest.mark.usefixtures("as_a_user")
def test_options_that_do_not_exist_are_told_some_that_do() -> None:
    network, images, values, masking = (
        make_network(),
        make_images(),
        make_maps(),
        Masking(from_background(background())),
    )

    def curve(score: Callable[..., Removal]) -> Callable[..., Removal]:
        return lambda **options: score(network, images, values, 1, masking, **options)

    for steps in (0, 13):
        must_refuse_and_say_what_works(curve(aopc), "1 to 12", steps, steps=steps)
    for groups in (1, 13):
        must_refuse_and_say_what_works(curve(saco), "2 to 12", groups, groups=groups)
    must_refuse_and_say_what_works(curve(deletion), 0, steps=0)
    must_refuse_and_say_what_works(curve(perturbation), "'best'", first="best")
    for wrong in ({"draws": 0}, {"batch_size": 0}, {"measure": "accuracy"}):
        must_refuse_and_say_what_works(
            lambda **options: Masking(grey(0.0), **options), *wrong, *wrong.values(), **wrong
        )


def test_curves_run_from_the_image_to_the_filler() -> None:
    network, images = make_network(), make_images()
    fill = from_background(background())
    masking = Masking(fill, draws=5, seed=2)
    deleted, inserted = (score(network, images, make_maps(), 1, masking) for score in (deletion, insertion))
    clean = network(images).softmax(dim=1)[:, 1]
    filled = (
        network(fill.make(images, (2, 3), 5, 2).flatten(0, 1)).softmax(dim=1)[:, 1].unflatten(0, (5, 3)).mean(dim=0)
    )
    for curve, ends in ((deleted, (clean, filled)), (inserted, (filled, clean))):
        assert torch.allclose(curve.points[:, 0], ends[0], atol=1e-12)
        assert torch.allclose(curve.points[:, -1], ends[1], atol=1e-12)
        assert all(low < high for low, high in pairwise(curve.fractions.tolist()))


@by_name
def test_images_are_brought_to_the_precision_of_the_network(score: Callable[..., Removal]) -> None:
    """Float32 images, weights in half precision: the score of the network whose weights are the rounded ones."""
    network, masking = make_network().bfloat16(), Masking(from_background(background()), draws=3)
    half = score(network, make_images(), make_maps(), 1, masking)
    full = score(network.float(), make_images().bfloat16().float(), make_maps(), 1, masking)
    assert (half.points - full.points).abs().mean() <= 0.05  # of three draws each, top-1 counts by thirds
    assert half.points.dtype == torch.float32
