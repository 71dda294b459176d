"""The tests of this folder can fail: each planted fault turns the named test red; see ../mutants.py."""

from functools import partial

import pytest
import torch

from tests.explain.inside import (
    test_attention_distance,
    test_direct_attribution,
    test_embeddings,
    test_head_ablation,
    test_head_sources,
    test_logit_lens,
    test_sinks,
)
from tests.explain.mutants import Fault, must_be_found, rows
from tests.explain.reference import PLAIN, VARIANTS
from vitrail.explain import inside
from vitrail.explain.inside.heads import distances, linear_output, mean_attended, token_of
from vitrail.explain.inside.tokens import logit_lens, patch_filters, patch_lens, position_similarity, sinks_of

REGISTERS = VARIANTS["class-5-registers"]

FAULTS = {
    "the lens reads what enters each block": Fault(
        logit_lens,
        lambda stack, depths: stack([depths[0], *depths[:-1]]),
        at="stack",
        guards=(partial(test_logit_lens.test_every_depth_is_a_network_that_stops_there, PLAIN),),
    ),
    "a register read as a patch": Fault(
        patch_lens,
        lambda unflatten, dim, grid: unflatten.__self__.roll(1, 1).unflatten(dim, grid),
        at="unflatten",
        guards=(partial(test_logit_lens.test_patches_are_read_each_on_its_own, REGISTERS, (12, 10)),),
    ),
    "the output map of another head": Fault(
        linear_output,
        lambda linear_output, *given: (lambda added, bias: (lambda heads: added(heads.flip(1)), bias))(
            *linear_output(*given)
        ),
        guards=(
            partial(test_direct_attribution.test_the_parts_sum_to_the_logit, PLAIN, torch.float64, 1e-10),
            partial(test_head_sources.test_the_sum_is_what_the_attention_adds, PLAIN, torch.float64, 1e-10),
        ),
    ),
    "a norm of what was attended that is not held": Fault(
        linear_output,
        lambda at_most, off, limit: True,
        at="<=",
        guards=(test_head_sources.test_a_norm_of_what_was_attended_is_held,),
    ),
    "a patch's row and column exchanged": Fault(
        token_of,
        lambda token_of, network, grid, place: token_of(
            network, grid, place if isinstance(place, int) else (place[1] % grid[0], place[0])
        ),
        guards=(partial(test_head_sources.test_every_vector_is_weight_times_value_times_output_map, PLAIN),),
    ),
    "zero instead of the mean": Fault(
        mean_attended,
        lambda mean_attended, *given: {block: 0 * mean for block, mean in mean_attended(*given).items()},
        guards=(partial(test_head_ablation.test_it_is_the_change_of_the_network_without_the_head, PLAIN),),
    ),
    "height and width of a patch exchanged": Fault(
        distances,
        lambda distances, grid, patch: distances(grid, patch[::-1]),
        guards=(partial(test_attention_distance.test_distances_are_those_of_loops, PLAIN, (12, 10)),),
    ),
    "prefix tokens among the positions": Fault(
        position_similarity,
        lambda wide, positions: wide(positions).roll(1, 1),
        at="wide",
        guards=(partial(test_embeddings.test_likeness_is_the_cosine_of_patches, REGISTERS),),
    ),
    "the fraction of strength, not of variance": Fault(
        patch_filters,
        lambda square: square.__self__,
        at="square",
        guards=(test_embeddings.test_filters_are_principal_components,),
    ),
    "no least size of a sink": Fault(
        sinks_of,
        lambda maximum, outlying, least: outlying,
        at="maximum",
        guards=(test_sinks.test_norms_and_cut_off_are_those_of_the_formula,),
    ),
}


@pytest.mark.parametrize("fault", rows(FAULTS))
def test_a_planted_fault_is_found(fault: Fault) -> None:
    must_be_found(fault)


def test_every_view_has_a_fault() -> None:
    planted = {fault.function.__module__.rpartition(".")[2] for fault in FAULTS.values()}
    views = {getattr(inside, name).__module__.rpartition(".")[2] for name in inside.__all__}
    assert views == planted
