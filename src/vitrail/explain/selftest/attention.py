"""Promises of attention and of the methods that read nothing else: raw attention, head view, rollout."""

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.layers import Join
from vitrail.explain.methods.head_view import head_view, head_views
from vitrail.explain.methods.raw_attention import raw_attention
from vitrail.explain.methods.rollout import rollout, rollout_of
from vitrail.explain.readout import open_run
from vitrail.explain.selftest.witness import Promise, Witness, off

FUSIONS: tuple[Join, ...] = ("mean", "max", "min")


def attention_is_a_softmax(witness: Witness) -> float:
    """The fused kernel's logits, and the weights that a record makes afterwards, are those of softmax(Q K^T) V."""
    opened = open_run(witness.network, witness.images, witness.target, "blocks.*.attention", gradients=True)
    record = opened.record
    apart = [off(record.attention(f"blocks.{index}").detach(), one) for index, one in enumerate(witness.attention)]
    gradients = record.gradient(opened.logit.sum())
    pairs = [(gradients[f"blocks.{index}"], one) for index, one in enumerate(witness.by.attention)]
    largest = torch.stack([one.abs().max() for _, one in pairs]).max()
    apart += [off(one, other, largest) for one, other in pairs]
    return max(off(opened.logit.detach(), witness.of(witness.run.logits).detach()), *apart)


def raw_attention_is_read_out(witness: Witness) -> float:
    """The row of the token that is read out, in the mean over heads; the last layer unless another is asked for."""
    worst = 0.0
    for layer in (-1, 0):
        heads = torch.einsum("n,bknm->bkm", witness.shares, witness.attention[layer])
        mean = raw_attention(witness.network, witness.images, layer=layer).values
        one = raw_attention(witness.network, witness.images, layer=layer, head=0).values
        worst = max(worst, off(mean, witness.map(heads.mean(dim=1))), off(one, witness.map(heads[:, 0])))
    last = raw_attention(witness.network, witness.images).values
    return max(worst, off(last, raw_attention(witness.network, witness.images, layer=-1).values))


def head_view_is_the_smallest_set(witness: Witness) -> float:
    """What is kept is attention as it is, holds the share asked for, and would not without its smallest patch."""
    network, images, worst = witness.network, witness.images, 0.0
    for layer, mass in ((-1, 0.6), (0, 0.25), (0, 0.9)):
        heads = torch.einsum("n,bknm->bkm", witness.shares, witness.attention[layer])
        whole = witness.map(torch.cat([heads, heads.mean(dim=1, keepdim=True)], dim=1))
        joined = head_view(network, images, layer=layer, mass=mass).values
        one = head_view(network, images, layer=layer, mass=mass, head=0).values
        every = head_views(network, images, layer=layer, mass=mass)
        worst = max(
            worst,
            _from_smallest(torch.cat([every, joined[:, None]], dim=1), whole, mass),
            off(one, every[:, 0]),
        )
    return worst


def _from_smallest(kept: Float[Tensor, "b k r c"], whole: Float[Tensor, "b k r c"], mass: float) -> float:
    """How far from the smallest set of patches that holds `mass`; patches that hold the same count as one."""
    kept, whole = kept.flatten(2), whole.flatten(2)
    total = whole.sum(dim=2, keepdim=True)
    there = kept > 0
    changed = (kept - whole).abs().where(there, 0.0)
    lacking = (mass * total - kept.sum(dim=2, keepdim=True)).clamp(min=0)
    smallest = kept.where(there, torch.inf).amin(dim=2, keepdim=True)
    forgotten = (whole.where(~there, 0.0).amax(dim=2, keepdim=True) - smallest).clamp(min=0)
    above = kept.where(kept > smallest * (1 + 1e-9), 0.0).sum(dim=2, keepdim=True)
    too_many = torch.where(above > mass * total * (1 + 1e-9), above, 0.0)
    largest = total.clamp(min=torch.finfo(whole.dtype).tiny)
    return float(max((part / largest).max() for part in (changed, lacking, forgotten, too_many)))


def rollout_is_a_product(witness: Witness) -> float:
    """The readout's row of the product of whole matrices; for all ways to join heads, and with entries discarded."""
    worst = 0.0
    for fusion in FUSIONS:
        for discard in (0.0, 0.3, 0.9) if witness.random else (0.0,):
            layers = [_mixed(weights, fusion, discard) for weights in witness.attention]
            product = reduce(lambda below, layer: layer @ below, layers)
            heat = rollout(witness.network, witness.images, fusion=fusion, discard=discard)
            whole = rollout_of(witness.attention, fusion=fusion, discard=discard)
            worst = max(worst, off(heat.values, witness.map(witness.shares @ product)), off(whole, product))
    plain = rollout(witness.network, witness.images).values
    return max(worst, off(plain, rollout(witness.network, witness.images, fusion="mean", discard=0.0).values))


def _mixed(weights: Float[Tensor, "b k n n"], fusion: Join, discard: float) -> Float[Tensor, "b n n"]:
    join = {"mean": weights.mean(dim=1), "max": weights.amax(dim=1), "min": weights.amin(dim=1)}
    whole = without_smallest(join[fusion], discard)
    whole = whole + torch.eye(whole.shape[-1]).to(whole)
    return torch.stack([torch.stack([row / row.sum() for row in one]) for one in whole])


def without_smallest(whole: Float[Tensor, "b n n"], share: float) -> Float[Tensor, "b n n"]:
    """Each picture's smallest entries set to zero."""
    entries = whole.flatten(1).clone()
    for one in entries:
        one[one.argsort()[: round(share * len(one))]] = 0
    return entries.view_as(whole)


PROMISES = (
    Promise("attention by a plain softmax", attention_is_a_softmax),
    Promise("raw attention by hand", raw_attention_is_read_out, ("raw_attention",)),
    Promise("the head view keeps the fewest patches", head_view_is_the_smallest_set, ("head_view",)),
    Promise("rollout by a product of whole matrices", rollout_is_a_product, ("rollout",)),
)
