"""Separate and fused queries, keys and values are the same attention, whatever the order of the fused rows."""

import itertools
import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from lessons.parts import OURS, QkvOrder, fuse, reorder, split
from tests.nn.reference import some_images
from vitrail.errors import DataError, UsageError
from vitrail.nn import Attention

ORDERS: tuple[QkvOrder, ...] = get_args(QkvOrder)
D3: QkvOrder = "head dim qkv"


def test_all_orders_are_there():
    assert set(ORDERS) == {" ".join(axes) for axes in itertools.permutations(("qkv", "head", "dim"))}


def projected(tokens: Tensor, fused: Tensor, bias: Tensor, heads: int, order: QkvOrder) -> list[Tensor]:
    """Queries, keys and values (b, k, n, e) of a fused map, by the place of each row alone."""
    head_dim = len(fused) // (3 * heads)
    lengths = {"qkv": 3, "head": heads, "dim": head_dim}
    axes = order.split()
    row_of = {}
    for row, at in enumerate(itertools.product(*(range(lengths[axis]) for axis in axes))):
        place = dict(zip(axes, at, strict=True))
        row_of[place["qkv"], place["head"], place["dim"]] = row
    every = tokens @ fused.mT + bias
    return [
        torch.stack([every[..., [row_of[which, head, dim] for dim in range(head_dim)]] for head in range(heads)], dim=1)
        for which in range(3)
    ]


def mixed(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention with its weights formed, heads side by side."""
    weights = torch.softmax(queries @ keys.mT / math.sqrt(queries.shape[-1]), dim=-1)
    return (weights @ values).transpose(1, 2).flatten(2)


@settings(max_examples=40)
@given(
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    width=st.integers(1, 6),
    order=st.sampled_from(ORDERS),
)
def test_a_foreign_fused_map_becomes_ours(heads: int, head_dim: int, width: int, order: QkvOrder):
    fused, bias = (
        some_images(3 * heads * head_dim, width, 1, 1)[..., 0, 0].double(),
        torch.arange(3.0 * heads * head_dim),
    )
    bias = bias.double() / 10
    tokens = some_images(2, 5, width, 1, seed=2)[..., 0].double()
    foreign = projected(tokens, fused, bias, heads, order)
    attention = Attention(width, heads, head_dim).double()
    with torch.no_grad():
        attention.qkv.weight.copy_(reorder(fused, heads, order))
        attention.qkv.bias.copy_(reorder(bias, heads, order))
    for ours, theirs in zip(attention.project(tokens), foreign, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    expected = mixed(*foreign) @ attention.proj.weight.mT + attention.proj.bias
    torch.testing.assert_close(attention(tokens), expected, rtol=0, atol=1e-10)


@settings(max_examples=40)
@given(
    heads=st.integers(1, 4), head_dim=st.integers(1, 5), order=st.sampled_from(ORDERS), other=st.sampled_from(ORDERS)
)
def test_every_order_comes_back_bit_for_bit(heads: int, head_dim: int, order: QkvOrder, other: QkvOrder):
    fused = torch.arange(3.0 * heads * head_dim * 2).reshape(-1, 2)
    assert torch.equal(reorder(reorder(fused, heads, order, other), heads, other, order), fused)
    assert torch.equal(fuse(*split(fused, heads, order), heads, order), fused)
    assert torch.equal(fuse(*split(fused[:, 0], heads, order), heads, other), reorder(fused[:, 0], heads, order, other))


def separate_and_fused(order: QkvOrder) -> tuple[list[Tensor], Tensor, Tensor]:
    parts = [some_images(12, 10, 1, 1, seed=seed)[..., 0, 0].double() for seed in range(3)]
    return parts, fuse(*parts, 4, order), some_images(2, 5, 10, 1)[..., 0].double()


@pytest.mark.parametrize("order", ORDERS)
def test_three_maps_and_one_are_the_same_in_output_and_gradient(order: QkvOrder):
    """D3's two forms of attention, 4 heads of 3 on a width of 10."""
    parts, fused, tokens = separate_and_fused(order)
    leaves = [part.requires_grad_() for part in parts]
    one = mixed(*((tokens @ leaf.mT).unflatten(-1, (4, 3)).transpose(1, 2) for leaf in leaves))
    fused_leaf = fused.detach().requires_grad_()
    other = mixed(*projected(tokens, fused_leaf, torch.zeros(36).double(), 4, order))
    torch.testing.assert_close(other, one, rtol=0, atol=1e-12)
    asked = some_images(1, *one.shape, seed=5)[0].double()
    one.backward(asked)
    other.backward(asked)
    assert fused_leaf.grad is not None
    for ours, leaf in zip(split(fused_leaf.grad, 4, order), leaves, strict=True):
        torch.testing.assert_close(ours, leaf.grad, rtol=0, atol=1e-11)


def test_the_third_documents_order_is_nobody_elses():
    """The planted fault: its fused weights read as everybody reads them."""
    parts, fused, tokens = separate_and_fused(D3)
    right = mixed(*projected(tokens, fused, torch.zeros(36).double(), 4, D3))
    for order in ORDERS:
        wrong = mixed(*projected(tokens, fused, torch.zeros(36).double(), 4, order))
        assert torch.allclose(wrong, right) == (order == D3)
    assert torch.equal(fused[::3].detach(), parts[0].detach()), "every third row is a query"


@pytest.mark.parametrize(("rows", "heads"), [(36, 5), (35, 4), (0, 4), (36, 0)])
def test_rows_that_do_not_fit_the_heads_are_an_error(rows: int, heads: int):
    with pytest.raises(DataError, match=f"{rows} .*{heads}"):
        reorder(torch.zeros(rows, 2), heads, OURS)


@pytest.mark.usefixtures("as_a_user")
def test_maps_that_differ_are_an_error():
    with pytest.raises(DataError):
        fuse(torch.zeros(12, 8), torch.zeros(6, 8), torch.zeros(6, 8), 4)
    with pytest.raises(UsageError, match=r"head.qkv"):
        reorder(torch.zeros(12, 8), 4, "head qkv")
