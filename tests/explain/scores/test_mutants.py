"""Copies of the scores with a planted fault: the checks that are green for the real ones must go red (T22)."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.explain.mutants import is_red, make_copy
from tests.explain.scores import checks
from vitrail.explain import scores

COVERING, FILL, LOCALISATION = "covering_by_rank.py", "fill.py", "localisation.py"
RANDOM, REMOVAL, SACO, SANITY = "random_maps.py", "removal.py", "saco.py", "sanity.py"

# name: (file, text, text with the fault, the check that must go red)
MUTANTS: dict[str, tuple[str, str, str, Callable[[ModuleType], None]]] = {
    "donors from any position": (
        FILL,
        "cut[chosen, torch.arange(cut.shape[1], device=images.device)]",
        "cut[chosen, torch.arange(cut.shape[1]).flip(0)]",
        checks.donors_stand_where_they_stood,
    ),
    "one reference for the whole picture": (
        FILL,
        'torch.randint(cut.shape[0], size, generator=generator, device="cpu")',
        "torch.randint(cut.shape[0], (draws, 1), generator=generator).expand(-1, cut.shape[1])",
        checks.donors_stand_where_they_stood,
    ),
    "a patch put back where it was": (
        FILL,
        "torch.randint(1, positions,",
        "torch.randint(0, positions,",
        checks.own_patches_come_from_elsewhere_in_the_picture,
    ),
    "patches of another picture of the batch": (
        FILL,
        "_joined(cut[:, one], images)",
        "_joined(cut.roll(1, 0)[:, one], images)",
        checks.own_patches_come_from_elsewhere_in_the_picture,
    ),
    "columns mirrored": (
        FILL,
        "masks.repeat_interleave(patch[0], dim=2)",
        "masks.flip(3).repeat_interleave(patch[0], dim=2)",
        checks.composites_are_exact,
    ),
    "what is covered is shown": (
        FILL,
        "torch.where(pixels[:, :, None], filler, images)",
        "torch.where(pixels[:, :, None], images, filler)",
        checks.composites_are_exact,
    ),
    "the least relevant first": (COVERING, "descending=True", "descending=False", checks.curves_are_exact),
    "one patch too many": (COVERING, "(rank < high[span])", "(rank <= high[span])", checks.curves_are_exact),
    "the filler of another draw": (
        COVERING,
        "filler[draw % setting.draws, picture]",
        "filler[(draw + picture) % setting.draws * 0, picture]",
        checks.curves_are_exact,
    ),
    "the target of another picture": (
        COVERING,
        "setting.read(logits_of(network, made), picture)",
        "setting.read(logits_of(network, made), (picture + 1) % pictures)",
        checks.curves_are_exact,
    ),
    "a softmax over two classes only": (
        COVERING,
        "return logits.softmax(dim=1)",
        "return logits.sigmoid()",
        checks.curves_are_exact,
    ),
    "equal values in reading order": (
        COVERING,
        'torch.rand(shape, generator=stream(seed, "order", key), device="cpu")',
        "torch.arange(shape[1]).expand(shape)",
        checks.equal_values_come_in_random_order,
    ),
    "one order for all pictures": (
        COVERING,
        'stream(seed, "order", key)',
        'stream(seed, "order")',
        checks.equal_values_come_in_random_order,
    ),
    "an order drawn for each batch": (
        COVERING,
        'stream(seed, "order", key)',
        'stream(seed + len(values), "order", key)',
        checks.the_same_in_every_batch,
    ),
    "fillers drawn for each batch": (
        FILL,
        'torch.randint(cut.shape[0], size, generator=generator, device="cpu")',
        "torch.randint(cut.shape[0], size, generator=generator).roll(len(images), 0)",
        checks.the_same_in_every_batch,
    ),
    "insertion that deletes": (
        REMOVAL,
        '[(0, count) if metric == "deletion" else (count, patches) for count in counts]',
        '[(0, patches - count) if metric == "insertion" else (0, count) for count in counts]',
        checks.curves_are_exact,
    ),
    "an area without its ends": (
        REMOVAL,
        "torch.trapezoid(points, points.new_tensor(fractions))",
        "points[:, 1:].mean(dim=1)",
        checks.curves_are_exact,
    ),
    "aopc over K, not K + 1": (
        REMOVAL,
        "(points[:, :1] - points).mean(dim=1)",
        "(points[:, :1] - points)[:, 1:].mean(dim=1)",
        checks.curves_are_exact,
    ),
    "saco without the sign": (
        SACO,
        "torch.where(agree, weights, -weights).sum(dim=1)",
        "torch.where(agree, weights, 0 * weights).sum(dim=1)",
        checks.curves_are_exact,
    ),
    "steps rounded down": (
        REMOVAL,
        "counts = [round(patches * index / cut) for index in range(cut + 1)]",
        "counts = [patches * index // cut for index in range(cut + 1)]",
        checks.fewer_steps_are_points_of_the_curve,
    ),
    "the least relevant pixels for the most": (
        REMOVAL,
        '(0, count) if first == "most" else (total - count, total)',
        '(0, count) if first == "least" else (total - count, total)',
        checks.perturbation_is_exact,
    ),
    "a map that is not smoothed": (
        REMOVAL,
        'mode="bilinear", align_corners=False',
        'mode="nearest"',
        checks.perturbation_covers_the_upsampled_map,
    ),
    "corners aligned": (
        REMOVAL,
        'mode="bilinear", align_corners=False',
        'mode="bilinear", align_corners=True',
        checks.perturbation_covers_the_upsampled_map,
    ),
    "the power squared": (
        RANDOM,
        "power = torch.fft.fft2(map_).abs()",
        "power = torch.fft.fft2(map_).abs() ** 2",
        checks.random_maps_are_as_smooth,
    ),
    "theiler's start only": (RANDOM, "REFINEMENTS = 10", "REFINEMENTS = 0", checks.random_maps_are_as_smooth),
    "rough where few values stand out": (RANDOM, "SWAPS = 24", "SWAPS = 0", checks.random_maps_are_as_smooth),
    "swaps away from the map": (
        RANDOM,
        "moved.square().sum(dim=2) < off",
        "moved.square().sum(dim=2) > off",
        checks.random_maps_are_as_smooth,
    ),
    "values shuffled": (
        RANDOM,
        "power = torch.fft.fft2(map_).abs()",
        "power = torch.ones_like(map_)",
        checks.random_maps_are_as_smooth,
    ),
    "the map's own phases": (RANDOM, "turn[..., 0, 0] = 1.0", "turn[...] = 1.0", checks.random_maps_lie_anywhere),
    "the surrogate itself, with other values": (
        RANDOM,
        'return _swapped(found, values, stream(seed, "swaps")).to(given.device)\n',
        "return torch.fft.ifft2(power * phases).real.to(values)\n",
        checks.random_maps_hold_the_same_values,
    ),
    "a contrast measured among all classes": (
        COVERING,
        "if aim.rather_than is not None:",
        "if False:",
        checks.a_contrast_and_a_function_are_measured,
    ),
    "the truth put last": (
        COVERING,
        "descending=True",
        "descending=False",
        checks.the_true_order_is_the_best_of_all,
    ),
    "mass of negative values too": (
        LOCALISATION,
        "wide(values).clamp_min(0)",
        "wide(values).abs()",
        checks.localisation_is_exact,
    ),
    "rank of one patch less": (LOCALISATION, "(size - 1)", "(size - 2)", checks.localisation_is_exact),
    "the first of equal values points": (
        LOCALISATION,
        "(top & inside).sum(dim=1) / top.sum(dim=1)",
        "inside.gather(1, flat.argmax(dim=1, keepdim=True))[:, 0].float()",
        checks.a_constant_map_points_by_chance,
    ),
    "a threshold at one half": (
        LOCALISATION,
        "shares > shares.mean(dim=1, keepdim=True)",
        "shares > 0.5",
        checks.segmentation_accumulates,
    ),
    "outside left out": (
        LOCALISATION,
        "((inside, truth), (~inside, ~truth))",
        "((inside, truth), (inside, truth))",
        checks.segmentation_accumulates,
    ),
    "equal shares count for both": (
        SANITY,
        "((own > other).to(maps) + (own >= other).to(maps)) / 2",
        "(own >= other).to(maps)",
        checks.a_blind_map_has_one_half,
    ),
    "objects swapped": (SANITY, "(masks, masks.flip(1))", "(masks.flip(1), masks)", checks.a_blind_map_has_one_half),
    "a head of zeros": (
        SANITY,
        "nn.init.xavier_uniform_(parameter)",
        "pass",
        checks.scrambled_networks_have_maps_of_the_same_class,
    ),
    "the weights kept": (
        SANITY,
        "other = ViT(network.config, network.parts)",
        "return network",
        checks.scrambled_networks_have_maps_of_the_same_class,
    ),
    "the scrambled network's own class": (
        SANITY,
        "images, same_target(learnt, target))",
        "images, target)",
        checks.scrambled_networks_have_maps_of_the_same_class,
    ),
    "torch's random state moved": (
        SANITY,
        "torch.random.fork_rng(devices=[]), torch.device",
        "torch.device",
        checks.scrambled_networks_have_maps_of_the_same_class,
    ),
    "noise to one side": (SANITY, "(2 * drawn - 1)", "drawn", checks.the_largest_change_counts),
    "the last change": (
        SANITY,
        "torch.maximum(worst, (moved - still).norm(dim=1))",
        "(moved - still).norm(dim=1)",
        checks.the_largest_change_counts,
    ),
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_turns_its_check_red(fault: str, tmp_path: Path) -> None:
    file, old, new, check = MUTANTS[fault]
    assert is_red(check, make_copy(tmp_path, file, old, new, scores))


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_every_check_can_fail(check: Callable[[ModuleType], None]) -> None:
    assert any(check is planted for *_, planted in MUTANTS.values())


def test_a_copy_without_a_fault_is_green(tmp_path: Path) -> None:
    package = make_copy(tmp_path, RANDOM, "REFINEMENTS = 10", "REFINEMENTS = 9 + 1", scores)
    assert not any(is_red(check, package) for check in checks.CHECKS)
