"""The checks of methods are green for the package as it is and red with a planted fault (T22).

What explanations are known to get wrong is planted first (`KNOWN`). Faults of scores and verdicts, and of the views
inside, stand in scores/test_mutants.py and inside/test_planted_faults.py; mutants.py says how to add one.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor

import vitrail.explain
from tests.explain import attention_checks, checks, checks_pixels
from tests.explain.inside.test_planted_faults import FAULTS as OF_VIEWS
from tests.explain.methods import test_conservative, test_cross_attention
from tests.explain.mutants import Fault, must_be_found, planted, rows
from tests.explain.reference import PLAIN, make_images, make_network
from tests.explain.scores.test_mutants import FAULTS as OF_SCORES
from vitrail.explain import METHODS
from vitrail.explain.attribution import caveats
from vitrail.explain.forward import ForwardPass, LayerAttention, on_grid, readout_of
from vitrail.explain.methods.attcat import attcat_of
from vitrail.explain.methods.attention_grad_cam import attention_grad_cam
from vitrail.explain.methods.conservative import conservative
from vitrail.explain.methods.cross_attention import cross_attention
from vitrail.explain.methods.generic_attention import generic_relevance_of
from vitrail.explain.methods.grad_cam import open_layer
from vitrail.explain.methods.gradient_rollout import gradient_rollout_of
from vitrail.explain.methods.head_view import most_of
from vitrail.explain.methods.integrated_gradients import _Path
from vitrail.explain.methods.kernel_shap import kernel
from vitrail.explain.methods.legrad import positive_gradient
from vitrail.explain.methods.pixels import by_patch
from vitrail.explain.methods.rise import random_masks
from vitrail.explain.methods.rollout import mix_with_residual
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.smooth_grad import smooth_grad
from vitrail.explain.methods.tam import last_layer_at
from vitrail.explain.scores.perturb import composite
from vitrail.nn.twin import DetachedNorm, ScaledBias
from vitrail.tasks.target import ClassTarget, choose_class

Check = Callable[[ModuleType], None]


def of_package(*checks: Check) -> tuple[Callable[[], None], ...]:
    return tuple(partial(check, vitrail.explain) for check in checks)


def backwards(layers: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(zip(layers, reversed(layers.values()), strict=True))


def stretched(values: Tensor) -> Tensor:
    flat = values.flatten(1)
    flat = flat - flat.amin(dim=1, keepdim=True)
    return (flat / flat.amax(dim=1, keepdim=True)).view_as(values)


def transposed(values: Tensor) -> Tensor:
    """Columns where rows should be, in the shape of the grid."""
    return values.flatten(1).unflatten(1, values.shape[:0:-1]).mT


def mean_over_all(true: Callable, network: vitrail.nn.ViT, tokens: Tensor) -> Tensor:
    rows = true(network, tokens)
    return torch.full_like(rows, 1 / rows.shape[1]) if network.config.pooling == "mean" else rows


def read_with_cross_attention() -> None:
    reader, images = test_cross_attention.make_reader(), test_cross_attention.make_images()
    test_cross_attention.test_it_is_the_attention_of_the_row_before(reader, images, None, None)


SHEET = (partial(test_conservative.test_the_sheet_closes_in_float32, PLAIN),)
READ = of_package(checks.raw_is_exact, checks.rollout_is_exact, checks.generic_is_exact)

FAULTS = {
    # ---- what explanations are known to get wrong
    "gradients of the last layer first": Fault(
        ForwardPass.layers,
        lambda attended_gradient, of: backwards(attended_gradient(of)),
        at="attended_gradient",
        guards=of_package(checks.generic_is_exact, attention_checks.gradient_rollout_is_exact),
    ),
    "columns divided, not rows (no keepdim)": Fault(
        mix_with_residual,
        lambda sum_, dim, keepdim: sum_(dim=-2, keepdim=True),
        at="sum",
        guards=of_package(
            checks.rollout_options_are_exact, checks.row_is_the_row_of_the_product, checks.rows_of_rollout_sum_to_one
        ),
    ),
    "a register shown as the first patch": Fault(
        on_grid,
        lambda on_grid, row, prefix, grid: on_grid(row.roll(1, 1), prefix, grid),
        guards=(*READ, *of_package(checks.maps_roll_with_the_image)),
    ),
    "rows and columns swapped": Fault(
        on_grid,
        lambda on_grid, row, prefix, grid: transposed(on_grid(row, prefix, grid)),
        guards=(*READ, *of_package(checks.maps_roll_with_the_image)),
    ),
    "a probability differentiated": Fault(
        ClassTarget.__call__,
        lambda of, chosen, logits: of(chosen, logits.softmax(dim=-1)),
        guards=of_package(checks.generic_is_exact, checks.generic_is_exact_when_sure, attention_checks.tam_is_exact),
    ),
    "every map stretched to 0..1": Fault(
        ForwardPass.attribution,
        lambda attribution, forward, values, *given: attribution(forward, stretched(values), *given),
        guards=of_package(checks.raw_is_exact, checks.generic_is_exact, checks.values_are_in_raw_units),
    ),
    # ---- what all methods share
    "mean over prefix tokens too": Fault(readout_of, mean_over_all, guards=READ),
    "who looks at the readout, not where it looks": Fault(
        LayerAttention.weights,
        lambda weights, layer, heads, queries: weights(layer, heads, range(layer.tokens)).mT[:, :, queries],
        guards=(*READ, *of_package(attention_checks.head_view_is_exact)),
    ),
    "a constant map passes as a signal": Fault(
        caveats,
        lambda caveats, values, drowned=None: ((),) * len(values),
        guards=of_package(checks.nothing_gives_no_signal),
    ),
    # ---- attention
    "generic attention: R kept whole, not R - I": Fault(
        generic_relevance_of,
        lambda relevance_of, layers, readout=None, **options: (
            relevance_of(layers, readout, **options) + layers[-1].start_rows(readout)
        ),
        guards=of_package(checks.generic_is_exact, checks.row_is_the_row_of_the_product),
    ),
    "gradient rollout: no clamp": Fault(
        gradient_rollout_of,
        lambda clamp, **_: clamp.__self__,
        at="clamp",
        guards=of_package(
            attention_checks.gradient_rollout_is_exact, attention_checks.gradient_rollout_rows_sum_to_one
        ),
    ),
    "attention Grad-CAM: each head clamped before the mean": Fault(
        attention_grad_cam,
        lambda mean, dim, **how: (mean.__self__.clamp(min=0) if dim == 1 else mean.__self__).mean(dim, **how),
        at="mean",
        guards=of_package(attention_checks.attention_grad_cam_is_exact),
    ),
    "head view: one patch too few": Fault(
        most_of,
        lambda argmax, **how: (argmax(**how) - 1).clamp(min=0),
        at="argmax",
        guards=of_package(attention_checks.head_view_is_exact),
    ),
    "AttCAT: without its sign": Fault(
        attcat_of,
        lambda times, one, other: times(one, other).abs(),
        at="*",
        guards=of_package(attention_checks.attcat_is_exact),
    ),
    "TAM: the gradient at the image alone": Fault(
        last_layer_at,
        lambda last_layer_at, forward, scale: last_layer_at(forward, 1.0),
        guards=of_package(attention_checks.tam_is_exact),
    ),
    "LeGrad: times the attention": Fault(
        positive_gradient,
        lambda true, layer, heads, queries: true(layer, heads, queries) * layer.weights(heads, queries),
        guards=of_package(attention_checks.legrad_is_exact),
    ),
    "cross attention: the row that read the token, not the one that wrote it": Fault(
        cross_attention,
        lambda cat, parts, dim: cat(parts[::-1], dim=dim),
        at="cat",
        guards=(read_with_cross_attention,),
    ),
    # ---- pixels, tokens and fills
    "rows and columns of patches mixed up": Fault(
        by_patch,
        lambda by_patch, pixels, grid: transposed(by_patch(pixels, grid)),
        guards=(
            *of_package(checks_pixels.gradients_are_captums, checks_pixels.integrated_is_captums),
            partial(test_conservative.assert_shares, conservative, PLAIN),
        ),
    ),
    "saliency: the gradient keeps its sign": Fault(
        saliency,
        lambda abs_: abs_.__self__,
        at="abs",
        guards=of_package(checks_pixels.gradients_are_captums, checks_pixels.linear_networks_are_exact),
    ),
    "SmoothGrad: sizes averaged, not gradients": Fault(
        smooth_grad,
        lambda gradients_at, *given: gradients_at(*given).abs(),
        at="gradients_at",
        guards=of_package(checks_pixels.smooth_grad_is_the_mean_over_noise),
    ),
    "integrated gradients: nodes on -1 to 1": Fault(
        _Path.sums,
        lambda over, one, two: one,
        at="/",
        guards=of_package(checks_pixels.integrated_is_captums, checks_pixels.linear_networks_are_exact),
    ),
    "Grad-CAM and HiResCAM: the token before": Fault(
        open_layer,
        lambda open_layer, *given: (lambda run, tokens, gradients: (run, tokens.roll(1, 1), gradients))(
            *open_layer(*given)
        ),
        guards=of_package(checks_pixels.cams_are_those_of_grad_cam, checks_pixels.cams_are_exact),
    ),
    "seen and hidden mixed up": Fault(
        composite,
        lambda where, hidden, fill, images: where(hidden, images, fill),
        at="where",
        guards=of_package(checks_pixels.occlusion_is_captums, checks_pixels.shapley_values_are_exact),
    ),
    "seen and hidden mixed up in a mixture": Fault(
        composite,
        lambda lerp, images, fill, hidden: lerp(fill, images, hidden),
        at="lerp",
        guards=of_package(checks_pixels.rise_is_the_mean_while_seen),
    ),
    "RISE: masks are not shifted": Fault(
        random_masks,
        lambda randint, *given, **options: 0 * randint(*given, **options),
        at="randint",
        guards=of_package(checks_pixels.masks_are_as_in_the_paper),
    ),
    "KernelSHAP: every set weighs the same": Fault(
        kernel, lambda kernel, players, size: 1.0, guards=of_package(checks_pixels.shapley_values_are_exact)
    ),
    # ---- conservative propagation
    "deviation not held": Fault(
        DetachedNorm.forward, lambda forward, norm, tokens: norm.normalise(tokens), guards=SHEET
    ),
    "biases not counted": Fault(ScaledBias.forward, lambda forward, scaled, tokens: scaled.part(tokens), guards=SHEET),
}

CHECKS = checks.CHECKS + attention_checks.CHECKS + checks_pixels.CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.usefixtures("as_a_user")
def test_the_package_is_right(check: Check) -> None:
    check(vitrail.explain)


@pytest.mark.parametrize("fault", rows(FAULTS, frozenset({"KernelSHAP: every set weighs the same"})))
def test_a_planted_fault_is_found(fault: Fault) -> None:
    must_be_found(fault)


@pytest.mark.soak
@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("fault", rows(FAULTS | OF_SCORES | OF_VIEWS))
def test_without_the_fault_its_guards_are_green(fault: Fault) -> None:
    for guard in fault.guards:
        assert guard() is None


def test_every_check_finds_some_fault() -> None:
    assert {guard.func for fault in FAULTS.values() for guard in fault.guards if type(guard) is partial} >= set(CHECKS)


def test_a_fault_is_gone_after_its_block() -> None:
    logits = torch.tensor([[2.0, 3.0]])
    chosen = choose_class(logits, 1)
    with planted(FAULTS["a probability differentiated"]):
        assert 0 < chosen(logits) < 1
    assert chosen(logits) == 3
    with pytest.raises(ZeroDivisionError), planted(Fault(caveats, lambda *_: 1 / 0)):
        METHODS["rollout"].function(make_network(PLAIN), make_images(PLAIN))
    assert caveats(torch.zeros(1, 2, 2)) == (("no signal",),)


def test_an_operation_that_is_not_there_is_an_error() -> None:
    with (
        pytest.raises(AssertionError, match="readout_of"),
        planted(Fault(readout_of, lambda *_: None, at="reversed")),
    ):
        pass
