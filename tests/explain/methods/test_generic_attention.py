"""Generic attention: closed forms (T4), no signal, the two clamps, and what it does not need."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.explain.layers import layers_of
from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain import generic_attention
from vitrail.explain.methods.generic_attention import generic_relevance_of


@pytest.mark.parametrize("clamp", ["mean", "head"])
def test_equal_products_in_closed_form(clamp: str) -> None:
    """T4: where G A = c / N everywhere, class token to patch is ((1 + c)^L - 1) / N."""
    attention = torch.full((1, 2, 65, 65), 1 / 65, dtype=torch.float64)
    rows = generic_relevance_of(layers_of([attention] * 4, [torch.full_like(attention, 0.3)] * 4), clamp=clamp)[0]
    assert rows[0, 1].item() == pytest.approx(0.0285554, abs=5e-8)
    assert (rows - (1.3**4 - 1) / 65).abs().max() <= 1e-15


@pytest.mark.parametrize("gradient", [0.0, -0.3])
def test_nothing_that_raises_gives_zero(gradient: float) -> None:
    attention = torch.full((1, 2, 5, 5), 0.2)
    assert not generic_relevance_of(layers_of([attention] * 3, [torch.full_like(attention, gradient)] * 3)).any()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), layers=st.integers(1, 4), heads=st.integers(1, 3), tokens=st.integers(1, 8))
def test_clamping_each_head_never_gives_less(seed: int, layers: int, heads: int, tokens: int) -> None:
    """E_h(pos(x)) >= pos(E_h(x)); with one head they are the same."""
    generator = torch.Generator().manual_seed(seed)
    shape = (layers, 2, heads, tokens, tokens)
    attentions = list(torch.randn(shape, generator=generator, dtype=torch.float64).softmax(dim=-1))
    gradients = list(torch.randn(shape, generator=generator, dtype=torch.float64))
    mean = generic_relevance_of(layers_of(attentions, gradients))
    head = generic_relevance_of(layers_of(attentions, gradients), clamp="head")
    assert mean.min() >= 0
    assert (head - mean).min() >= -1e-12
    if heads == 1:
        assert torch.equal(head, mean)


def test_the_clamp_reaches_the_map() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    mean, head = (generic_attention(network, images, 1, clamp=clamp).values for clamp in ("mean", "head"))
    assert (head - mean).max() > 1e-3
