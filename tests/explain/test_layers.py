"""Attention in pieces: the same numbers as in one piece, within the budget, and layers and heads that exist."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from tests.explain.suite import SOME_VARIANTS
from vitrail.explain import (
    METHODS,
    forward,
    rollout,
)
from vitrail.nn import Record, causal_mask

pytestmark = pytest.mark.usefixtures("as_a_user")

NAMES = (
    *("raw_attention", "rollout", "head_view", "gradient_rollout", "attention_grad_cam", "generic_attention"),
    *("legrad", "attcat", "tam"),
)
ALIVE = forward.ALIVE
OPTIONS: dict[str, list[dict[str, object]]] = {
    "rollout": [{}, {"fusion": "max"}, {"fusion": "min"}, {"discard": 0.4}],
    "generic_attention": [{}, {"clamp": "mean"}],
    "gradient_rollout": [{}, {"discard": 0.4}],
    "tam": [{"steps": 2}],
}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", SOME_VARIANTS)
def test_a_tiny_budget_changes_nothing(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(VARIANTS[variant]).double()
    images = make_images(PLAIN).double()
    for options in OPTIONS.get(name, [{}]):
        whole = METHODS[name].function(network, images, 1, **options).values
        for budget in (1, 8 * ALIVE * 2 * 20 * 3):  # one head of one row; three rows of a head
            with monkeypatch.context() as patch:
                patch.setattr(forward, "BUDGET", budget)
                pieces = METHODS[name].function(network, images, 1, **options).values
            assert (pieces - whole).abs().max() <= 1e-12 * whole.abs().max(), (options, budget)


def test_pieces_keep_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece that any method asks for, and no layer is ever made whole."""
    network, images, seen = make_network(PLAIN), make_images(PLAIN, 3), []

    def spy(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def watched(self: forward.LayerAttention, heads: forward.Indices, queries: forward.Indices) -> Tensor:
            piece = method(self, heads, queries)
            seen.append(piece.numel() * piece.element_size())
            return piece

        return watched

    for name in ("weights", "gradient"):
        monkeypatch.setattr(forward.LayerAttention, name, spy(getattr(forward.LayerAttention, name)))
    monkeypatch.setattr(Record, "__getitem__", _refuse_weights(Record.__getitem__))
    one_row = 3 * 2 * 16 * 4  # images, heads, tokens, bytes
    for rows in (0.5, 2, 100):
        monkeypatch.setattr(forward, "BUDGET", int(ALIVE * rows * one_row))
        for name in NAMES:
            seen.clear()
            METHODS[name].function(network, images, 1)
            assert 0 < max(seen) <= rows * one_row


def _refuse_weights(get: Callable[[Record, str], Tensor]) -> Callable[[Record, str], Tensor]:
    def watched(record: Record, name: str) -> Tensor:
        assert not name.endswith(".attention"), f"{name} is made whole"
        return get(record, name)

    return watched


def test_a_budget_that_is_not_kept_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "ALIVE", 1)
    with pytest.raises(AssertionError):
        test_pieces_keep_to_the_budget(monkeypatch)


def test_only_rows_that_are_read_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class token reads one row of the last layer, and every row of the others."""
    asked: list[int] = []
    weights = forward.LayerAttention.weights

    def watched(self: forward.LayerAttention, heads: forward.Indices, queries: forward.Indices) -> Tensor:
        asked.append(len(queries))
        return weights(self, heads, queries)

    monkeypatch.setattr(forward.LayerAttention, "weights", watched)
    rollout(make_network(PLAIN), make_images(PLAIN))
    assert asked == [1, 16, 16]


def test_recorded_layers_with_a_mask() -> None:
    """Chosen heads and rows of a masked attention, with the gradient that reaches them."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = torch.randn(3, 2, 3, 5, 4, generator=generator, dtype=torch.float64)
    record = Record()
    record.at("here").keep_attention(queries, keys, values, values, causal_mask(5, 5))
    arriving = torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    layer = forward.LayerAttention(record.kept("here"), arriving)
    scores = (queries @ keys.mT / 2).masked_fill(~causal_mask(5, 5), -torch.inf)
    assert (layer.images, layer.heads, layer.tokens) == (2, 3, 5)
    assert layer.like.dtype == torch.float64
    wanted = scores.softmax(dim=-1)[:, [2, 0]][:, :, [4, 1]]
    assert (layer.weights([2, 0], [4, 1]) - wanted).abs().max() <= 1e-15
    wanted = (arriving @ values.mT)[:, [1]][:, :, [3]]
    assert (layer.gradient([1], [3]) - wanted).abs().max() <= 1e-15


@pytest.mark.parametrize("name", ["rollout", "raw_attention", "head_view"])
def test_a_contrast_is_refused_by_what_cannot_tell_classes_apart(name: str) -> None:
    with must_refuse(name):
        METHODS[name].function(make_network(PLAIN), make_images(PLAIN), (1, 2))
