"""Checks of the pixel, token and covering methods: green for the real package, red for each planted fault (T6, T22)."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import vitrail.explain
from tests.explain import checks_pixels as checks
from tests.explain.mutants import is_red, make_copy

Check = Callable[[ModuleType], None]

# name: (file, text, text with the fault, the checks that must go red)
MUTANTS: dict[str, tuple[str, str, str, tuple[Check, ...]]] = {
    "rows and columns of patches mixed up": (
        "methods/pixels.py",
        "pixels.unflatten(3, (columns, width)).unflatten(2, (rows, height)).sum(dim=(1, 3, 5))",
        "pixels.unflatten(3, (width, columns)).unflatten(2, (rows, height)).sum(dim=(1, 3, 4))",
        (checks.gradients_are_captums, checks.integrated_is_captums, checks.smooth_grad_is_the_mean_over_noise),
    ),
    "the gradient keeps its sign": (
        "methods/saliency.py",
        "by_patch(gradient.abs(), ",
        "by_patch(gradient, ",
        (checks.gradients_are_captums, checks.linear_networks_are_exact),
    ),
    "noise of the first picture's range": (
        "methods/smooth_grad.py",
        "spread[which] * drawn",
        "spread[:1] * drawn",
        (checks.smooth_grad_is_the_mean_over_noise,),
    ),
    "sizes averaged, not gradients": (
        "methods/smooth_grad.py",
        "if squared else gradients)",
        "if squared else gradients.abs())",
        (checks.smooth_grad_is_the_mean_over_noise,),
    ),
    "nodes on -1 to 1": (
        "methods/integrated_gradients.py",
        "(nodes + 1) / 2, weights / 2",
        "nodes, weights / 2",
        (checks.integrated_is_captums,),
    ),
    "weights that sum to 2": (
        "methods/integrated_gradients.py",
        "(nodes + 1) / 2, weights / 2",
        "(nodes + 1) / 2, weights",
        (checks.integrated_is_captums, checks.linear_networks_are_exact),
    ),
    "times the picture, not the way from the baseline": (
        "methods/integrated_gradients.py",
        "by_patch(way * gathered",
        "by_patch(pictures * gathered",
        (checks.integrated_is_captums,),
    ),
    "weights of all tokens, registers too": (
        "methods/grad_cam.py",
        "gradients = differentiate(opened.logit, tokens)[:, opened.prefix :]",
        "gradients = differentiate(opened.logit, tokens)\n"
        "    gradients = gradients.mean(dim=1, keepdim=True) + 0 * gradients[:, opened.prefix :]",
        (checks.cams_are_those_of_grad_cam, checks.cams_are_exact),
    ),
    "no cut at zero": (
        "methods/grad_cam.py",
        ".clamp(min=0).unflatten",
        ".unflatten",
        (checks.cams_are_exact,),
    ),
    "the token before": (
        "methods/grad_cam.py",
        "wide(tokens.detach()[:, opened.prefix :])",
        "wide(tokens.detach().roll(1, 1)[:, opened.prefix :])",
        (checks.cams_are_those_of_grad_cam, checks.cams_are_exact),
    ),
    "a rise for a fall": (
        "methods/occlusion.py",
        "exact(opened.logit) - covered",
        "covered - exact(opened.logit)",
        (checks.occlusion_is_captums, checks.linear_networks_are_exact),
    ),
    "windows added, not averaged": (
        "methods/occlusion.py",
        " / hidden.sum(dim=0)",
        "",
        (checks.occlusion_is_captums,),
    ),
    "no window at the border": (
        "methods/occlusion.py",
        "math.ceil((side - long) / far) + 1",
        "(side - long) // far + 1",
        (checks.occlusion_is_captums,),
    ),
    "seen and covered mixed up": (
        "methods/covering.py",
        "torch.lerp(filling[None, which], pictures[None, which], seen)",
        "torch.lerp(pictures[None, which], filling[None, which], seen)",
        (checks.occlusion_is_captums, checks.rise_is_the_mean_while_seen, checks.shapley_values_are_exact),
    ),
    "the mean of all channels": (
        "methods/covering.py",
        "axes = (2, 3) if",
        "axes = (1, 2, 3) if",
        (checks.linear_networks_are_exact, checks.rise_is_the_mean_while_seen),
    ),
    "divided by the number of masks": (
        "methods/rise.py",
        "masks.sum(dim=0).clamp(min=torch.finfo(masks.dtype).tiny)",
        "len(masks)",
        (checks.rise_is_the_mean_while_seen,),
    ),
    "masks are not shifted": (
        "methods/rise.py",
        "side + torch.randint(",
        "side + 0 * torch.randint(",
        (checks.masks_are_as_in_the_paper,),
    ),
    "masks that are clamped at the border": (
        "methods/rise.py",
        "side + torch.randint(",
        "0 * side + torch.randint(",
        (checks.masks_are_as_in_the_paper,),
    ),
    "every set weighs the same": (
        "methods/kernel_shap.py",
        "(players - 1) / (math.comb(players, size) * size * (players - size))",
        "1.0",
        (checks.shapley_values_are_exact,),
    ),
    "no binomial in the weight": (
        "methods/kernel_shap.py",
        "math.comb(players, size) * size * (players - size)",
        "size * (players - size)",
        (checks.shapley_values_are_exact,),
    ),
    "the last patch is left out of the fit": (
        "methods/kernel_shap.py",
        "(found - none - sets[:, -1:] * difference)",
        "(found - none)",
        (checks.shapley_values_are_exact,),
    ),
}


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_the_real_package_is_right(check: Check) -> None:
    check(vitrail.explain)


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    file, old, new, finders = MUTANTS[fault]
    mutant = make_copy(tmp_path, file, old, new)
    assert [check.__name__ for check in finders if not is_red(check, mutant)] == []


def test_every_check_finds_some_fault() -> None:
    assert {check for *_, finders in MUTANTS.values() for check in finders} == set(checks.CHECKS)
