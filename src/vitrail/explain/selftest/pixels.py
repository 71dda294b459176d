"""Promises of the methods that look at pixels or tokens: a plain gradient, closed forms, a balance that closes."""

import torch

from vitrail.explain.methods.conservative import balance_sheet, conservative
from vitrail.explain.methods.grad_cam import grad_cam
from vitrail.explain.methods.hires_cam import hires_cam
from vitrail.explain.methods.input_x_gradient import input_x_gradient
from vitrail.explain.methods.integrated_gradients import integrated_gradients
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.smooth_grad import smooth_grad
from vitrail.explain.selftest.plain import run_plainly
from vitrail.explain.selftest.witness import Promise, Witness, off

NOISE, SAMPLES = 0.2, 400


def saliency_is_a_plain_gradient(witness: Witness) -> float:
    """The plain run's gradient; and SmoothGrad without noise is the same."""
    asked = witness.network, witness.images, witness.target
    sizes = witness.summed(witness.by.pixels.abs())
    still = smooth_grad(*asked, samples=2, noise=0.0).values
    squared = smooth_grad(*asked, samples=2, noise=0.0, squared=True).values
    squares = witness.summed(witness.by.pixels.square())
    return max(off(saliency(*asked).values, sizes), off(still, sizes), off(squared, squares))


def input_x_gradient_is_a_slope(witness: Witness) -> float:
    """How fast the logit grows when the pixels of one patch grow in proportion."""
    parts = witness.images * witness.by.pixels
    heat = input_x_gradient(witness.network, witness.images, witness.target)
    return off(heat.values, witness.summed(parts), witness.summed(parts.abs()))


def smooth_grad_takes_noise_away(witness: Witness) -> float:
    """Of y = (z - z(x))^2 on a linear network the gradient is 2 w (w . e): its mean is nothing, its square 4 s^2 |w|^4.

    What 400 samples leave stands in both shares; and every picture has noise of its own range, alone as in a batch.
    """
    picture, slope, about = witness.images[:1], witness.slope[:1], int(witness.target[0])
    spread = NOISE * (picture.max() - picture.min()) * slope.norm()
    if not spread:
        return 0.0
    with torch.no_grad():
        there = witness.linear(picture)[0, about]
    found = [
        smooth_grad(
            witness.linear,
            picture,
            lambda logits: (logits[:, about] - there).square(),
            samples=SAMPLES,
            noise=NOISE,
            squared=squared,
        ).values
        for squared in (False, True)
    ]
    mean = float(found[0].max() / (2 * spread * witness.summed(slope.abs()).max()))
    square = float((found[1].sum() / (4 * spread.square() * slope.square().sum()) - 1).abs())
    together = smooth_grad(witness.network, witness.images, witness.target, samples=2).values
    alone = [
        smooth_grad(witness.network, one[None], target[None], samples=2).values
        for one, target in zip(witness.images, witness.target, strict=True)
    ]
    apart = max(off(one, other[0]) for one, other in zip(together, alone, strict=True))
    return max(mean, square, 0.0 if apart <= 1e-6 else 1 + apart)


def integrated_gradients_are_closed(witness: Witness) -> float:
    """Of y = z^3 on a linear network two nodes are exact: (x - x') w (z^2 + z z' + z'^2), whatever the baseline."""
    worst = 0.0
    colours = 0.1 * torch.arange(1, witness.images.shape[1] + 1).to(witness.images)
    start = colours.view(1, -1, 1, 1).expand_as(witness.images)
    for index, about in enumerate(witness.target.tolist()):
        picture, before = witness.images[index : index + 1], start[:1]
        with torch.no_grad():
            at, at_start = (witness.linear(one)[0, about] for one in (picture, before))
        parts = (picture - before) * witness.slope[index] * (at**2 + at * at_start + at_start**2)
        heat = integrated_gradients(
            witness.linear, picture, lambda logits, c=about: logits[:, c] ** 3, steps=2, baseline=colours.tolist()
        )
        worst = max(worst, off(heat.values, witness.summed(parts), witness.summed(parts.abs())))
    return worst


def cams_are_those_of_the_plain_run(witness: Witness) -> float:
    """Patch tokens times their gradient, or times its mean over the patches; where a gradient reaches the tokens."""
    asked, worst = (witness.network, witness.images, witness.target), 0.0
    last = witness.run.steps[-1].norm1, witness.by.norm1[-1]
    for layer, (tokens, gradient) in ((None, last), ("tokens", (witness.run.tokens, witness.by.tokens))):
        here, slope = (witness.map(each.detach().movedim(2, 0)) for each in (tokens, gradient))
        if not slope.any():
            continue  # nothing after this layer reads its patches: then both methods refuse it
        each, one = here * slope, here * slope.mean(dim=(2, 3), keepdim=True)
        hires, plain = (method(*asked, layer=layer).values for method in (hires_cam, grad_cam))
        worst = max(worst, off(hires, each.sum(dim=0), each.abs().sum(dim=0)))
        worst = max(worst, off(plain, one.sum(dim=0).relu(), one.abs().sum(dim=0)))
    return worst


def conservative_holds_factors(witness: Witness) -> float:
    """Pixels, or tokens, times the gradient of the plain run whose weights, deviations and gates are constants."""
    pixels, worst = witness.images.clone().requires_grad_(), 0.0
    run = run_plainly(witness.network, pixels, held=True)
    slopes = torch.autograd.grad(witness.of(run.logits).sum(), [pixels, run.tokens])
    by_pixels, by_tokens = witness.images * slopes[0], run.tokens.detach() * slopes[1]
    heat = conservative(witness.network, witness.images, witness.target)
    worst = off(heat.values, witness.summed(by_pixels), witness.summed(by_pixels.abs()))
    heat = conservative(witness.network, witness.images, witness.target, at="tokens")
    size = witness.map(by_tokens.abs().sum(dim=2))
    return max(worst, off(heat.values, witness.map(by_tokens.sum(dim=2)), size))


def balance_closes(witness: Witness) -> float:
    """Pixels, positions, prefix tokens and biases are the logit."""
    sheet = balance_sheet(witness.network, witness.images, witness.target)
    logit = witness.of(witness.run.logits).detach()
    parts = torch.stack(list(sheet.parts.values()))
    return off(parts.sum(dim=0), logit, parts.abs().sum(dim=0))


PROMISES = (
    Promise("saliency by a plain gradient", saliency_is_a_plain_gradient, ("saliency", "smooth_grad")),
    Promise("input x gradient by a plain gradient", input_x_gradient_is_a_slope, ("input_x_gradient",)),
    Promise("SmoothGrad takes noise away", smooth_grad_takes_noise_away, ("smooth_grad",), limit=0.35),
    Promise("integrated gradients of a cube", integrated_gradients_are_closed, ("integrated_gradients",)),
    Promise("Grad-CAM and HiResCAM by hand", cams_are_those_of_the_plain_run, ("grad_cam", "hires_cam")),
    Promise("conservative propagation by hand", conservative_holds_factors, ("conservative",)),
    Promise("its balance sheet closes", balance_closes, ("conservative",)),
)
