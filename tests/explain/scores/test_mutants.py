"""The checks of scores, and of all that a verdict is made of, are red with a planted fault (T22); see ../mutants.py."""

from collections.abc import Callable
from functools import partial
from itertools import count
from types import ModuleType

import pytest
import torch

from benchmarks import scores
from benchmarks.scores.agreement import (
    class_discrimination,
    max_sensitivity,
    pointing_game,
    relevance_mass,
    scramble,
    segmentation,
)
from benchmarks.scores.removal import _curve, saco_of
from tests.explain import (
    test_compare,
    test_evidence,
    test_surrogates,
    test_trust,
    test_verdict,
    test_without_evidence,
)
from tests.explain.mutants import Fault, must_be_found, rows
from tests.explain.scores import checks, test_faithfulness
from vitrail.explain.evidence import (
    _among_surrogates,
    as_high,
    find_evidence,
    is_decided,
    large_enough,
    surrogates,
    without_evidence,
)
from vitrail.explain.scores.chance import random_maps
from vitrail.explain.scores.faithfulness import MaskedImages, _count_as_good, _measure_areas
from vitrail.explain.scores.perturb import composite, explained_number, from_background, own_patches, ranks_of
from vitrail.explain.verdict import verdict
from vitrail.tasks.target import ClassTarget, reaches

Check = Callable[[ModuleType], None]


def of_scores(*checks: Check) -> tuple[Callable[[], None], ...]:
    return tuple(partial(check, scores) for check in checks)


NUMBERS = count()

FAULTS = {
    # ---- what stands in masked patches
    "background from any position": Fault(
        from_background,
        lambda patchwork, images, whose: patchwork(images.roll(images.shape[2] // whose.shape[1], dims=2), whose),
        at="patchwork",
        guards=of_scores(checks.background_patches_keep_their_position),
    ),
    "fillers drawn for each batch": Fault(
        from_background,
        lambda stream, seed, use: stream(seed + next(NUMBERS), use),
        at="stream",
        guards=of_scores(checks.the_same_in_every_batch),
    ),
    "own patches: a patch put back where it was": Fault(
        own_patches,
        lambda randint, low, high, size, **options: randint(0, high, size, **options),
        at="randint",
        guards=of_scores(checks.own_patches_come_from_elsewhere_in_the_image),
    ),
    "what is masked is shown": Fault(
        composite,
        lambda where, masked, filler, images: where(masked, images, filler),
        at="where",
        guards=of_scores(
            checks.composites_are_exact,
            checks.curves_are_exact,
            checks.perturbation_masks_the_upsampled_map,
            checks.a_contrast_and_a_function_are_measured,
        ),
    ),
    # ---- in which order, and what is measured
    "the least relevant first": Fault(
        ranks_of,
        lambda argsort, descending, **options: argsort(descending=not descending, **options),
        at="argsort",
        guards=(
            *of_scores(checks.curves_are_exact, checks.perturbation_is_exact, checks.the_true_order_is_the_best_of_all),
            test_faithfulness.test_the_numbers_are_those_of_images_masked_by_hand,
        ),
    ),
    "one order among equals for all images": Fault(
        ranks_of,
        lambda stream, seed, use, key: stream(seed, use),
        at="stream",
        guards=of_scores(checks.equal_values_come_in_random_order),
    ),
    # ---- the curves
    "insertion that deletes": Fault(
        _curve, lambda equal, metric, name: True, at="==", guards=of_scores(checks.curves_are_exact)
    ),
    "steps rounded down": Fault(
        _curve,
        lambda round_, number: int(number),
        at="round",
        guards=of_scores(checks.fewer_steps_are_points_of_the_curve),
    ),
    "SaCo without the sign": Fault(
        saco_of,
        lambda where, agree, plus, minus: where(agree, plus, 0 * minus),
        at="where",
        guards=of_scores(checks.curves_are_exact),
    ),
    # ---- random maps
    "random maps: the power squared": Fault(
        random_maps, lambda abs_: abs_() ** 2, at="abs", guards=of_scores(checks.random_maps_are_as_smooth)
    ),
    "random maps that are the map, with other values": Fault(
        random_maps,
        lambda random_maps, values, count, *given: 1.5 * values.expand(count, *values.shape),
        guards=of_scores(checks.random_maps_lie_anywhere, checks.random_maps_hold_the_same_values),
    ),
    # ---- against a mask
    "relevance mass of negative values too": Fault(
        relevance_mass,
        lambda clamp_min, least: clamp_min.__self__.abs(),
        at="clamp_min",
        guards=of_scores(checks.localisation_is_exact),
    ),
    "the first of equal values points": Fault(
        pointing_game,
        lambda equal, values, largest: equal(values.argmax(dim=1, keepdim=True), torch.arange(values.shape[1])),
        at="==",
        guards=of_scores(checks.a_constant_map_points_by_chance),
    ),
    "segmentation: a threshold at one half": Fault(
        segmentation,
        lambda mean, **options: 0 * mean(**options) + 0.5 if options else mean(),
        at="mean",
        guards=of_scores(checks.segmentation_accumulates),
    ),
    # ---- against the weights, the class and noise
    "equal fractions count for both": Fault(
        class_discrimination,
        lambda above, own, other: own >= other,
        at=">",
        guards=of_scores(checks.a_blind_map_has_one_half),
    ),
    "MPRT: the weights kept": Fault(
        scramble,
        lambda scramble, network, seed: network,
        guards=of_scores(checks.scrambled_networks_have_maps_of_the_same_class),
    ),
    "max-sensitivity: the last change": Fault(
        max_sensitivity,
        lambda maximum, worst, last: last,
        at="maximum",
        guards=of_scores(checks.the_largest_change_counts),
    ),
    # ---- evidence
    "a class against its own numbers": Fault(
        as_high,
        lambda as_high, logits, chosen, without, *more: (
            explained_number(without[:, None].expand(-1, len(logits), -1), chosen) >= explained_number(logits, chosen)
        ).sum(dim=0),
        guards=(test_evidence.test_ranks_by_hand,),
    ),
    "one round of surrogates is enough": Fault(
        is_decided,
        lambda is_decided, above, round_: True,
        guards=(test_evidence.test_asking_in_rounds_lets_hardly_more_pass_than_the_limit,),
    ),
    "fills that are the same for all images": Fault(
        MaskedImages.fills.func,
        lambda seed_of, seed, use, key: seed_of(seed, use),
        at="seed_of",
        guards=(test_faithfulness.test_fills_are_the_image_s_own_in_every_batch,),
    ),
    "random maps of the values, not of what is masked": Fault(
        MaskedImages.random_maps,
        lambda sum_, dim: sum_(dim=dim) + torch.rand(3, 3, 5),
        at="sum",
        guards=(
            test_faithfulness.test_a_map_that_names_patches_in_another_order_between_the_same_steps_is_the_same_map,
        ),
    ),
    "labels of all images share the surrogates of the first": Fault(
        _among_surrogates,
        lambda index, key: 0,
        at="index",
        guards=(test_evidence.test_labels_of_an_image_share_its_surrogates_and_no_other_s,),
    ),
    "surrogates of another image": Fault(
        _among_surrogates,
        lambda chunk, count: chunk(count)[::-1],
        at="chunk",
        guards=(test_evidence.test_labels_of_an_image_share_its_surrogates_and_no_other_s,),
    ),
    "what surrogates say is thrown away": Fault(
        find_evidence,
        lambda maximum, of_surrogates, of_composites: of_composites,
        at="maximum",
        guards=(test_evidence.test_networks_that_learnt_nothing_find_little_even_in_photographs,),
    ),
    "any effect will do": Fault(
        large_enough,
        lambda large_enough, effect, least: torch.ones_like(effect, dtype=torch.bool),
        guards=(test_evidence.test_a_trifle_that_never_fails_is_no_evidence,),
    ),
    "probabilities for odds": Fault(
        ClassTarget.effect,
        lambda logit, eps: logit(eps=eps).sigmoid().log(),
        at="logit",
        guards=(test_evidence.test_effects_by_hand,),
    ),
    "surrogates that are shuffled pixels": Fault(
        surrogates,
        lambda surrogates, image, count, seed, key: torch.stack(
            [image.flatten(1)[:, torch.randperm(image[0].numel())].view_as(image) for _ in range(count)]
        ),
        guards=(test_surrogates.test_they_are_as_smooth_and_stand_elsewhere,),
    ),
    "a background that holds evidence": Fault(
        without_evidence,
        lambda argsort, dim, descending: argsort(dim=dim),
        at="argsort",
        guards=(test_without_evidence.test_every_patch_stays_in_its_place_and_only_named_ones_go,),
    ),
    # ---- the test
    "random maps that mask the same patches count for the map": Fault(
        _count_as_good,
        lambda or_, lower, alike: lower,
        at="|",
        guards=(test_faithfulness.test_a_random_map_that_masks_the_same_patches_counts_whatever_rounding_makes_of_it,),
    ),
    "what is not finite speaks for the image": Fault(
        reaches,
        lambda below, theirs, own: ~(theirs >= own),
        at="<",
        guards=(test_trust.test_what_is_no_number_never_speaks_for_a_map,),
    ),
    "few points of insertion that delete": Fault(
        _measure_areas,
        lambda hidden, ranks, count: ranks < count,
        at=">=",
        guards=(test_compare.test_deletion_and_insertion_by_hand,),
    ),
    "few points of deletion: one fill in place of five": Fault(
        _measure_areas,
        lambda mean, dim: mean.__self__.select(dim, 0),
        at="mean",
        guards=(test_compare.test_deletion_and_insertion_by_hand,),
    ),
    # ---- the verdict
    "evidence alone is enough": Fault(
        verdict,
        lambda verdict, evidence, faithful, *more, **effect: verdict(evidence, faithful and 0.01, *more, **effect),
        guards=(test_verdict.test_nothing_is_supported_without_both,),
    ),
}


SLOW = frozenset({"random maps: the power squared", "what surrogates say is thrown away"})


@pytest.mark.parametrize("fault", rows(FAULTS, SLOW))
def test_a_planted_fault_turns_its_check_red(fault: Fault) -> None:
    must_be_found(fault)


def test_every_check_can_fail() -> None:
    planted = {guard.func for fault in FAULTS.values() for guard in fault.guards if type(guard) is partial}
    assert planted >= set(checks.CHECKS)
