"""The tests of this folder can fail: each fault, planted in a copy of a view, turns the named test red."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.explain.inside import (
    test_attention_distance,
    test_direct_attribution,
    test_head_ablation,
    test_head_sources,
    test_logit_lens,
    test_positions_and_filters,
    test_sinks,
)
from tests.explain.mutants import is_red, make_copy
from tests.explain.reference import PLAIN, VARIANTS
from vitrail.explain import inside

REGISTERS, MEAN = VARIANTS["class-5-registers"], VARIANTS["mean-5-distilled"]

# fault: (file, text, text with the fault, the test, its arguments)
FAULTS: dict[str, tuple[str, str, str, Callable[..., None], tuple[Any, ...]]] = {
    "the lens reads what enters each block": (
        "logit_lens.py",
        'outputs = [record[f"blocks.{index}.output"]',
        'outputs = [record[f"blocks.{max(0, index - 1)}.output"]',
        test_logit_lens.test_every_depth_is_a_network_that_stops_there,
        (PLAIN,),
    ),
    "a register read as a patch": (
        "logit_lens.py",
        "[:, network.config.prefix :]",
        "[:, max(0, network.config.prefix - 1) : -1]",
        test_logit_lens.test_patches_are_read_each_on_its_own,
        (REGISTERS, (12, 10)),
    ),
    "the heads and numbers of a head exchanged": (
        "direct_attribution.py",
        "heads = (wide(attended) * back)",
        "heads = (wide(attended).flip(1) * back)",
        test_direct_attribution.test_the_parts_sum_to_the_logit,
        (PLAIN, torch.float64, 1e-10),
    ),
    "the deviation of the last norm not held": (
        "direct_attribution.py",
        "{nn.LayerNorm: norm, nn.Linear: linear}",
        "{nn.Linear: linear}",
        test_direct_attribution.test_the_parts_sum_to_the_logit,
        (PLAIN, torch.float64, 1e-10),
    ),
    "the bias of the last norm forgotten": (
        "direct_attribution.py",
        "return HeldNorm(part) if part.bias is None else Counted(HeldNorm(part), part.bias, share)",
        "return HeldNorm(part)",
        test_direct_attribution.test_the_parts_sum_to_the_logit,
        (MEAN, torch.float64, 1e-10),
    ),
    "LayerScale forgotten": (
        "reading.py",
        "scale(weight.permute(1, 2, 0)).permute(2, 0, 1)",
        "weight",
        test_head_sources.test_the_sum_is_what_the_attention_adds,
        (test_head_sources.KINDS["layer scale"], torch.float64, 1e-10),
    ),
    "columns of attention, not rows": (
        "head_sources.py",
        "record.attention(place, None, [token])[:, :, 0]",
        "record.attention(place)[:, :, :, token]",
        test_head_sources.test_the_sum_is_what_the_attention_adds,
        (PLAIN, torch.float64, 1e-10),
    ),
    "a patch's row and column exchanged": (
        "reading.py",
        "prefix + row * columns + column",
        "prefix + column * rows + row",
        test_head_sources.test_every_vector_is_weight_times_value_times_output_map,
        (PLAIN,),
    ),
    "zero instead of the mean": (
        "head_ablation.py",
        "total / len(references)",
        "0 * total",
        test_head_ablation.test_it_is_the_change_of_the_network_without_the_head,
        (PLAIN,),
    ),
    "the pictures' own mean": (
        "head_ablation.py",
        "mean_attended(network, references, blocks)",
        "mean_attended(network, images, blocks)",
        test_head_ablation.test_it_is_the_change_of_the_network_without_the_head,
        (PLAIN,),
    ),
    "all heads at once": (
        "head_ablation.py",
        "attended[:, self.head] = self.mean",
        "attended[:] = self.mean",
        test_head_ablation.test_it_is_the_change_of_the_network_without_the_head,
        (PLAIN,),
    ),
    "rows that do not sum to 1 among patches": (
        "attention_distance.py",
        "shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)",
        "shares = weights",
        test_attention_distance.test_distances_are_those_of_loops,
        (PLAIN, (12, 10)),
    ),
    "height and width of a patch exchanged": (
        "attention_distance.py",
        "zip(grid, patch, strict=True)",
        "zip(grid, patch[::-1], strict=True)",
        test_attention_distance.test_distances_are_those_of_loops,
        (PLAIN, (12, 10)),
    ),
    "distances without their root": (
        "attention_distance.py",
        'torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")',
        "torch.cdist(centres, centres).square()",
        test_attention_distance.test_the_line_of_uniform_attention,
        ((14, 14), 16, 116.49),
    ),
    "prefix tokens among the positions": (
        "position_similarity.py",
        "[0, prefix:]",
        "[0, : wanted[0] * wanted[1]]",
        test_positions_and_filters.test_likeness_is_the_cosine_of_patches,
        (REGISTERS,),
    ),
    "filters not centred": (
        "patch_filters.py",
        "flat - flat.mean(dim=0)",
        "flat",
        test_positions_and_filters.test_filters_are_principal_components,
        (),
    ),
    "the share of strength, not of variance": (
        "patch_filters.py",
        "strengths.square()",
        "strengths",
        test_positions_and_filters.test_filters_are_principal_components,
        (),
    ),
    "registers among the patches": (
        "sinks.py",
        "wide(record[name])[:, prefix:]",
        "wide(record[name])[:, max(0, prefix - 1) : -1 if prefix else None]",
        test_sinks.test_a_planted_sink_is_found_where_it_is,
        (REGISTERS,),
    ),
    "a deviation that the sink itself widens": (
        "sinks.py",
        "(norms - middle[..., None]).abs().median(dim=-1).values",
        "(norms - middle[..., None]).abs().amax(dim=-1)",
        test_sinks.test_a_planted_sink_is_found_where_it_is,
        (PLAIN,),
    ),
    "no least size": (
        "sinks.py",
        "torch.maximum(middle + threshold * spread, LEAST * middle)",
        "middle + threshold * spread",
        test_sinks.test_norms_and_cut_off_are_those_of_the_formula,
        (),
    ),
    "sinks left in": (
        "sinks.py",
        "heat.values.masked_fill(sinks.anywhere, 0)",
        "heat.values",
        test_sinks.test_the_map_carries_a_mark_and_differs_without_sinks,
        (),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, old, new, test, arguments = FAULTS[fault]
    copy = importlib.import_module(f"{make_copy(tmp_path, f'inside/{file}', old, new).__name__}.inside")
    for name in inside.__all__:
        if name in test.__globals__:
            monkeypatch.setitem(test.__globals__, name, getattr(copy, name))
    assert is_red(test, *arguments)


@pytest.mark.parametrize("fault", FAULTS)
def test_without_the_fault_it_is_green(fault: str) -> None:
    *_, test, arguments = FAULTS[fault]
    assert not is_red(test, *arguments)


def test_every_view_has_a_fault() -> None:
    views = {path.name for path in Path(inside.__file__).parent.glob("*.py")} - {"__init__.py"}
    assert {file for file, *_ in FAULTS.values()} == views
