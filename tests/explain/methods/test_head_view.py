"""Head view: the smallest set that holds the mass, all heads at once, and ties."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain import head_view, raw_attention
from vitrail.explain.methods.head_view import most_of


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**31), patches=st.integers(1, 40), mass=st.floats(0.01, 1.0))
def test_the_smallest_set_that_holds_the_mass(seed: int, patches: int, mass: float) -> None:
    """What is kept holds the mass, and would not without its smallest; nothing that is left out is larger."""
    fractions = torch.rand(3, patches, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept = most_of(fractions, mass)
    for row, held in zip(fractions, kept, strict=True):
        inside = held > 0
        assert torch.equal(held[inside], row[inside])
        assert held.sum() >= mass * row.sum() * (1 - 1e-12)
        assert held.sum() - held[inside].min() < mass * row.sum()
        assert inside.all() or row[~inside].max() < row[inside].min()


def test_a_worked_example() -> None:
    fractions = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert most_of(fractions, 0.4).flatten().tolist() == pytest.approx([0, 0.4, 0, 0])
    assert most_of(fractions, 0.41).flatten().tolist() == pytest.approx([0, 0.4, 0, 0.3])
    assert torch.equal(most_of(fractions, 1.0), fractions)
    ties = torch.tensor([[0.25, 0.25, 0.25, 0.25]])
    assert torch.equal(most_of(ties, 0.5), ties)  # which two would be chance
    assert most_of(torch.zeros(1, 4), 0.6).tolist() == [[0, 0, 0, 0]]
    assert most_of(torch.full((1, 2), torch.nan), 0.6).isnan().all()


def test_with_all_the_mass_it_is_raw_attention() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    for options in ({}, {"head": 1}, {"layer": 0, "head": 0}):
        whole = head_view(network, images, mass=1.0, **options).values
        assert torch.equal(whole, raw_attention(network, images, **options).values)
    some = head_view(network, images).values
    assert 0 < (some > 0).sum() < some.numel()
