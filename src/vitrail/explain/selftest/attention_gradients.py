"""Promises of the methods that weigh attention by a gradient, on whole matrices that autograd made."""

from functools import reduce
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.methods.attcat import attcat
from vitrail.explain.methods.attention_grad_cam import attention_grad_cam
from vitrail.explain.methods.generic_attention import generic_attention, generic_relevance_of
from vitrail.explain.methods.gradient_rollout import gradient_rollout, gradient_rollout_of
from vitrail.explain.methods.legrad import legrad
from vitrail.explain.methods.tam import tam
from vitrail.explain.selftest.attention import without_smallest
from vitrail.explain.selftest.plain import run_plainly
from vitrail.explain.selftest.witness import Promise, Witness, off

CLAMPS: tuple[Literal["head", "mean"], ...] = ("head", "mean")


def generic_is_a_recursion(witness: Witness) -> float:
    """X <- X + M (I + X), from the first layer to the last, for the whole X = R - I."""
    worst = 0.0
    for clamp in CLAMPS:
        gathered = torch.zeros_like(witness.attention[0][:, 0])
        for weights, gradient in zip(witness.attention, witness.by.attention, strict=True):
            product = weights * gradient
            raising = product.relu().mean(dim=1) if clamp == "head" else product.mean(dim=1).relu()
            gathered = gathered + raising + raising @ gathered
        heat = generic_attention(witness.network, witness.images, witness.target, clamp=clamp)
        whole = generic_relevance_of(witness.attention, witness.by.attention, clamp=clamp)
        worst = max(worst, off(heat.values, witness.map(witness.shares @ gathered)), off(whole, gathered))
        if clamp == "head":
            plain = generic_attention(witness.network, witness.images, witness.target)
            worst = max(worst, off(plain.values, heat.values))
    return worst


def gradient_rollout_is_a_product(witness: Witness) -> float:
    """A product of whole matrices, of which what stays in its token is kept apart, from the first layer to the last."""
    worst, start = 0.0, torch.eye(witness.attention[0].shape[-1]).to(witness.attention[0])
    for discard in (0.0, 0.3, 0.9) if witness.random else (0.0,):
        whole, moved = start.expand(len(witness.images), -1, -1), torch.zeros_like(witness.attention[0][:, 0])
        for weights, gradient in zip(witness.attention, witness.by.attention, strict=True):
            raising = without_smallest((weights * gradient).mean(dim=1), discard).relu()
            halves = raising.sum(dim=2, keepdim=True) + 1
            moved = (moved + raising @ whole) / halves
            whole = (whole + raising @ whole) / halves
        heat = gradient_rollout(witness.network, witness.images, witness.target, discard=discard)
        ours = gradient_rollout_of(witness.attention, witness.by.attention, discard=discard)
        worst = max(worst, off(heat.values, witness.map(witness.shares @ moved)), off(ours, moved))
    plain = gradient_rollout(witness.network, witness.images, witness.target).values
    same = gradient_rollout(witness.network, witness.images, witness.target, discard=0.0).values
    return max(worst, off(plain, same))


def attention_grad_cam_weighs_heads(witness: Witness) -> float:
    """One number for each head: the mean over the patches of the readout's gradient; cut at zero when heads are one."""
    worst = 0.0
    for layer in (None, 0):
        at = -1 if layer is None else layer
        read = (
            witness.map(torch.einsum("n,bknm->bkm", witness.shares, each[at]))
            for each in (witness.by.attention, witness.attention)
        )
        gradient, weights = read
        parts = gradient.mean(dim=(2, 3), keepdim=True) * weights
        options = {} if layer is None else {"layer": layer}
        heat = attention_grad_cam(witness.network, witness.images, witness.target, **options)
        worst = max(worst, off(heat.values, parts.mean(dim=1).relu(), parts.abs().mean(dim=1)))
    return worst


def attcat_is_a_sum(witness: Witness) -> float:
    """Over layers: the attention that a token gets, times token times gradient."""
    parts = []
    for step, weights, gradient in zip(witness.run.steps, witness.attention, witness.by.output, strict=True):
        parts.append(weights.mean(dim=(1, 2))[..., None] * step.output.detach() * gradient)
    all_parts = torch.stack(parts)
    size = witness.map(all_parts.abs().sum(dim=(0, 3)))
    heat = attcat(witness.network, witness.images, witness.target)
    return off(heat.values, witness.map(all_parts.sum(dim=(0, 3))), size)


def legrad_asks_every_layer(witness: Witness) -> float:
    """The gradient of what each layer alone would say, cut at zero, in the mean over layers, heads and queries."""
    rows = []
    for step in witness.run.steps:
        tokens = step.output
        if witness.network.config.pooling == "class":
            tokens = tokens.mean(dim=1, keepdim=True).expand_as(tokens)
        score = witness.of(witness.network.readout(tokens)).sum()
        (gradient,) = torch.autograd.grad(score, step.attention, retain_graph=True)
        rows.append(gradient.relu().mean(dim=(1, 2)))
    all_rows = torch.stack(rows)
    whole = legrad(witness.network, witness.images, witness.target).values
    last = legrad(witness.network, witness.images, witness.target, first_layer=-1).values
    return max(off(whole, witness.map(all_rows.mean(dim=0))), off(last, witness.map(all_rows[-1])))


def tam_is_a_walk(witness: Witness) -> float:
    """The walk as a product of whole matrices (A + I), times the last attention's gradient at three known pictures."""
    mean = [weights.mean(dim=1) for weights in witness.attention]
    unit = torch.eye(mean[0].shape[-1]).to(mean[0])
    at = torch.stack([_last_gradient(witness, node / 3) for node in (1, 2, 3)]).mean(dim=0)
    weights = witness.map(witness.shares @ at.relu().mean(dim=1))
    worst = 0.0
    for given, first in ((None, len(mean) // 3), (0, 0), (-1, len(mean) - 1)):
        walked = mean[-1] @ reduce(lambda below, layer: (layer + unit) @ below, mean[first:-1], unit)
        heat = tam(witness.network, witness.images, witness.target, steps=3, first_layer=given)
        worst = max(worst, off(heat.values, witness.map(witness.shares @ walked) * weights))
    return worst


def _last_gradient(witness: Witness, scale: float) -> Float[Tensor, "b k n n"]:
    run = run_plainly(witness.network, (scale * witness.images).requires_grad_())
    return torch.autograd.grad(witness.of(run.logits).sum(), run.steps[-1].attention)[0]


PROMISES = (
    Promise("generic attention by whole matrices", generic_is_a_recursion, ("generic_attention",)),
    Promise("gradient rollout by whole matrices", gradient_rollout_is_a_product, ("gradient_rollout",)),
    Promise("attention Grad-CAM by hand", attention_grad_cam_weighs_heads, ("attention_grad_cam",)),
    Promise("AttCAT by hand", attcat_is_a_sum, ("attcat",)),
    Promise("LeGrad by hand", legrad_asks_every_layer, ("legrad",)),
    Promise("transition attention maps by hand", tam_is_a_walk, ("tam",)),
)
