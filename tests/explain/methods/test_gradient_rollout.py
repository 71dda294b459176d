"""Gradient rollout: closed forms, what stays in its token, and its relatives."""

import pytest
import torch

from tests.explain.layers import layers_of
from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain import gradient_rollout
from vitrail.explain.methods.gradient_rollout import gradient_rollout_of
from vitrail.explain.methods.rollout import rollout_of


def test_equal_products_in_closed_form() -> None:
    """Where G A = c / N everywhere, 1 / (1 + c) of a row stays in place: class to patch (1 - (1 + c)^-L) / N."""
    attention = torch.full((1, 2, 65, 65), 1 / 65, dtype=torch.float64)
    rows = gradient_rollout_of(layers_of([attention] * 4, [torch.full_like(attention, 0.3)] * 4))[0]
    assert (rows - (1 - 1.3**-4) / 65).abs().max() <= 1e-15


def test_it_is_rollout_where_the_gradient_is_one_in_a_single_head() -> None:
    """pos(E_h(1 A)) = A: rollout, less what never left its token, which is 2^-L."""
    attentions = [torch.randn(2, 1, 6, 6, dtype=torch.float64).softmax(dim=-1) for _ in range(3)]
    rows = gradient_rollout_of(layers_of(attentions, [torch.ones_like(each) for each in attentions]))
    wanted = rollout_of(layers_of(attentions)) - 2**-3 * torch.eye(6, dtype=torch.float64)
    assert (rows - wanted).abs().max() <= 1e-15


@pytest.mark.parametrize("gradient", [0.0, -0.3])
def test_nothing_that_raises_gives_zero(gradient: float) -> None:
    attention = torch.full((1, 2, 5, 5), 0.2)
    assert not gradient_rollout_of(layers_of([attention] * 3, [torch.full_like(attention, gradient)] * 3)).any()


def test_discard_reaches_the_map() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    plain = gradient_rollout(network, images, 1).values
    assert (gradient_rollout(network, images, 1, discard=0.9).values - plain).abs().max() > 1e-3 * plain.max()
