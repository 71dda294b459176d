"""A network of parts that the library does not know is explained by every method, and its sheet closes.

Where a part does not say what a method asks, the method says which part, and what is missing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.explain.own_parts import CONFIG, PARTS, AttentionPooling, RMSNorm, RotaryAttention, SwiGLU
from tests.explain.reference import make_images
from tests.explain.refused import must_refuse
from tests.explain.suite import CUT_AT_ZERO, QUICK
from tests.nn.reference import redraw
from vitrail.explain import METHODS
from vitrail.explain.inside import direct_attribution, head_ablation, head_sources, patch_filters
from vitrail.explain.methods.conservative import balance_sheet, conservative
from vitrail.nn import Parts, Record, ViT, detached


def make_network(parts: Parts = PARTS) -> ViT:
    network = ViT(CONFIG, parts).double().eval()
    redraw(network)
    return network


@pytest.fixture(scope="module")
def network() -> ViT:
    return make_network()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return make_images(CONFIG, 2).double()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_explains_it(name: str, network: ViT, images: Tensor) -> None:
    method = METHODS[name]
    attribution = method.function(network, images, 1, **QUICK.get(name, {}))
    assert attribution.values.shape == (2, 3, 5)
    assert attribution.values.isfinite().all()
    assert name in CUT_AT_ZERO or attribution.values.std() > 0
    alone = method.function(network, images[1:], 1, **QUICK.get(name, {}))  # each image has its own token weights
    torch.testing.assert_close(alone.values[0], attribution.values[1], rtol=1e-8, atol=1e-10)


def test_rollout_starts_at_the_weights_of_the_pooling(network: ViT, images: Tensor) -> None:
    record = Record()
    network(images, record)
    rows = network.pool.token_weights(network.norm(record["blocks.2.output"]), CONFIG.prefix)
    for index in reversed(range(CONFIG.depth)):
        mixed = record[f"blocks.{index}.attention"].mean(dim=1) + torch.eye(17)
        rows = (rows[:, None] @ (mixed / mixed.sum(dim=-1, keepdim=True)))[:, 0]
    found = METHODS["rollout"].function(network, images).values
    torch.testing.assert_close(found.flatten(1), rows[:, CONFIG.prefix :], rtol=1e-10, atol=1e-12)


def test_the_balance_sheet_and_the_direct_attribution_close(network: ViT, images: Tensor) -> None:
    assert torch.equal(detached(network)(images), network(images))
    sheet = balance_sheet(network, images, 2)
    scale = torch.stack([part.abs() for part in sheet.parts.values()]).sum(dim=0)
    assert (sheet.gap.abs() / scale).max() <= 1e-12
    assert {"biases of the pooling", "biases of the MLPs", "biases of the attention"} <= set(sheet.parts)
    torch.testing.assert_close(conservative(network, images, 2).values, sheet.pixels)
    direct = direct_attribution(network, images, 2)
    assert (direct.gap.abs() / direct.logit.abs()).max() <= 1e-12
    assert direct.heads.shape == (3, 4, 2)


class GateNotHeld(SwiGLU):
    """A planted fault: its detached form is no other."""

    def detached(self) -> nn.Module:
        return self


def test_a_detached_form_that_is_none_opens_the_sheet(images: Tensor) -> None:
    parts = replace(PARTS, mlp=lambda config, activation: GateNotHeld(config.width, config.mlp_width, activation))
    sheet = balance_sheet(make_network(parts), images, 2)
    assert (sheet.gap.abs() / sheet.logit.abs()).max() > 1e-3


def test_the_views_inside_work_too(network: ViT, images: Tensor) -> None:
    found = head_sources(network, images, layer=1)
    total = found.vectors.sum(dim=(1, 2)) + found.bias
    torch.testing.assert_close(total, found.output, rtol=1e-9, atol=1e-12)
    ablated = head_ablation(network, images, background=images)
    assert ablated.change.shape == (3, 4, 2)
    assert ablated.change.abs().max() > 0
    assert patch_filters(network, 4).filters.shape == (4, 2, 4, 4)


def without(part: type[nn.Module], *says: str) -> type[nn.Module]:
    """The same part, which does not say these."""
    kept = {name: value for name, value in vars(part).items() if name not in (*says, "__dict__", "__weakref__")}
    if "token_weights" in says:  # it needs them itself, under another name
        kept["_weights"] = part.token_weights
        kept["forward"] = lambda self, tokens, prefix: (self._weights(tokens, prefix)[:, None] @ self.value(tokens))[
            :, 0
        ]
    if "join" in says:
        kept["forward"] = lambda self, tokens, record: self.proj(tokens)
    made = type(part.__name__, (nn.Module,), kept)
    made.__init__ = lambda self, *given: (nn.Module.__init__(self), _built(part, self, *given))[0]
    return made


def _built(part: type[nn.Module], into: nn.Module, *given: Any) -> None:
    whole = part(*given)
    into.__dict__.update(whole.__dict__)


CASES: dict[str, tuple[Parts, str, Callable[..., Any], tuple[str, ...]]] = {
    "a pooling without weights, in rollout": (
        replace(PARTS, pooling=lambda c: without(AttentionPooling, "token_weights")(c.width)),
        "AttentionPooling",
        METHODS["rollout"].function,
        ("token_weights",),
    ),
    "a pooling that is not held, in conservative": (
        replace(PARTS, pooling=lambda c: without(AttentionPooling, "detached")(c.width)),
        "AttentionPooling",
        conservative,
        ("pool", "detached"),
    ),
    "a norm that is not held, in conservative": (
        replace(PARTS, norm=lambda c: without(RMSNorm, "detached")(c.width)),
        "RMSNorm",
        conservative,
        ("blocks.0.norm1", "detached"),
    ),
    "an attention that does not say what its heads add": (
        replace(PARTS, attention=lambda c: without(RotaryAttention, "join")(c)),
        "RotaryAttention",
        direct_attribution,
        ("blocks.0", "join"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_part_that_does_not_say_it_is_named(case: str, images: Tensor) -> None:
    parts, name, explain, missing = CASES[case]
    network = make_network(parts)
    with must_refuse(name, *missing):
        explain(network, images)
    saliency = METHODS["saliency"].function(network, images)
    assert saliency.values.isfinite().all()
