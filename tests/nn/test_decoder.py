"""A decoder with a cache says what it says without one, and its block is three branches in the order asked for."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from tests.nn.reference import redraw, some_images
from tests.nn.sequences import PADDING, SMALL, sources, targets, transformer
from vitrail.errors import UsageError
from vitrail.nn import (
    SILENT,
    Attention,
    Cache,
    DecoderBlock,
    Memory,
    Parts,
    PostNormBlock,
    PostNormDecoderBlock,
    Record,
    Transformer,
    causal_mask,
)
from vitrail.nn.seq2seq import DecoderBranches


def in_pieces(network: Transformer, target: Tensor, memory: Memory, cache: Cache, cuts: list[int]) -> Tensor:
    """The logits of a target that comes piece by piece."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < target.shape[1]}), target.shape[1]]
    pieces = [target[:, start:stop] for start, stop in itertools.pairwise(places)]
    return torch.cat([network.decode(piece, memory, cache=cache) for piece in pieces], dim=1)


@pytest.mark.parametrize("norm", ["post", "pre"])
@settings(deadline=None, max_examples=8)
@given(cuts=st.lists(st.integers(1, 9), max_size=9), holes=st.lists(st.integers(1, 9), max_size=3))
def test_cached_decoding_equals_full_decoding(norm: str, cuts: list[int], holes: list[int]):
    network, source, target = transformer(replace(SMALL, norm=norm)), sources(), targets(3, 10)
    target[1, holes] = PADDING
    with torch.no_grad():
        memory = network.encode(source)
        pieces = in_pieces(network, target, memory, Cache(), cuts)
        torch.testing.assert_close(pieces, network.decode(target, memory), rtol=1e-5, atol=2e-6)


def test_a_cache_that_forgets_is_found():
    class Forgetful(Cache):
        def at(self, place: str) -> "Forgetful":
            return Forgetful()

    network, target = transformer(), targets(3, 6)
    memory = network.encode(sources())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            in_pieces(network, target, memory, Forgetful(), [3]), network.decode(target, memory), rtol=1e-3, atol=1e-3
        )


def test_rows_of_a_cache_can_be_put_in_another_order():
    network, target = transformer(), targets(3, 6)
    memory, cache, rows = network.encode(sources()), Cache(), torch.tensor([2, 0, 2, 1])
    network.decode(target[:, :4], memory, cache=cache)
    cache.reorder(rows)
    logits = network.decode(target[rows, 4:], memory.rows(rows), cache=cache)
    expected = network.decode(target, memory)[rows, 4:]
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-6)
    assert (logits - network.decode(target, memory)[[0, 1, 2, 0], 4:]).abs().max() > 1e-2


def test_keys_and_values_of_the_memory_are_made_once():
    network, target, cache = transformer(), targets(), Cache()
    memory = network.encode(sources())
    first = network.decode(target[:, :1], memory, cache=cache)
    poisoned = Memory(torch.full_like(memory.tokens, torch.nan), memory.mask)
    later = network.decode(target[:, 1:], poisoned, cache=cache)
    torch.testing.assert_close(torch.cat([first, later], 1), network.decode(target, memory), rtol=1e-5, atol=2e-6)


def test_a_record_of_a_cached_step_holds_the_row_of_the_whole():
    network, target, cache = transformer(), targets(), Cache()
    memory, whole, step = network.encode(sources()), Record(), Record()
    network.decode(target, memory, whole)
    network.decode(target[:, :4], memory, cache=cache)
    network.decode(target[:, 4:], memory, step, cache)
    for place in ("self", "cross"):
        name = f"decoder.blocks.1.{place}.attention"
        torch.testing.assert_close(step[name], whole[name][:, :, 4:], rtol=1e-5, atol=2e-6)


def test_a_target_that_grows_too_long_is_refused():
    network, cache = transformer(), Cache()
    memory = network.encode(sources())
    network.decode(targets(3, 12), memory, cache=cache)
    with pytest.raises(UsageError):
        network.decode(targets(3, 1), memory, cache=cache)


@pytest.mark.parametrize("cut", [1, 3])
def test_causal_attention_goes_on_from_a_cache(cut: int):
    attention = Attention(8, 2)
    redraw(attention)
    tokens, cache = some_images(2, 5, 8), Cache()
    order = causal_mask(5, 5)
    pieces = [(tokens[:, :cut], order[:cut, :cut]), (tokens[:, cut:], order[cut:])]
    whole = torch.cat([attention(piece, mask=mask, cache=cache) for piece, mask in pieces], dim=1)
    torch.testing.assert_close(whole, attention(tokens, mask=order), rtol=1e-5, atol=1e-6)
    assert torch.equal(attention(tokens, mask=order, cache=Cache()), attention(tokens, mask=order))


class Affine(nn.Module):
    """A stand-in for any part, so that the order of the parts shows."""

    def __init__(self, factor: float, offset: float) -> None:
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, tokens: Tensor, context=None, mask=None, record=SILENT, cache=None) -> Tensor:
        read = tokens if context is None else tokens + context.mean(dim=1, keepdim=True)
        return read * self.factor + self.offset


def a_decoder_block(kind: type[DecoderBranches]) -> DecoderBranches:
    norms, attentions = iter([Affine(2, 1), Affine(3, -1), Affine(0.5, 2)]), iter([Affine(5, 2), Affine(0.25, 1)])
    parts = Parts(
        norm=lambda config: next(norms),
        attention=lambda config: next(attentions),
        mlp=lambda config, activation: Affine(7, 3),
    )
    return kind(SMALL, parts)


def test_a_decoder_block_is_three_branches_in_either_order():
    x, memory = some_images(2, 4, 6), Memory(some_images(2, 3, 6, seed=2), None)
    read = memory.tokens.mean(dim=1, keepdim=True)
    x1 = x + 5 * (2 * x + 1) + 2
    x2 = x1 + 0.25 * (3 * x1 - 1 + read) + 1
    record = Record()
    torch.testing.assert_close(a_decoder_block(DecoderBlock)(x, memory, record=record), x2 + 7 * (0.5 * x2 + 2) + 3)
    assert list(record) == ["input", "self.attn_out", "cross.attn_out", "mlp", "output"]
    torch.testing.assert_close(record["cross.attn_out"], x2 - x1)
    x1 = 2 * (x + 5 * x + 2) + 1
    x2 = 3 * (x1 + 0.25 * (x1 + read) + 1) - 1
    torch.testing.assert_close(a_decoder_block(PostNormDecoderBlock)(x, memory), 0.5 * (x2 + 7 * x2 + 3) + 2)


def test_a_post_norm_encoder_block_normalises_what_was_added():
    norms = iter([Affine(2, 1), Affine(3, -1)])
    parts = Parts(
        norm=lambda config: next(norms),
        attention=lambda config: Affine(5, 2),
        mlp=lambda config, activation: Affine(7, 3),
    )
    block = PostNormBlock(SMALL, parts)
    x, record = some_images(2, 4, 6), Record()
    x1 = 2 * (x + 5 * x + 2) + 1
    torch.testing.assert_close(block(x, record), 3 * (x1 + 7 * x1 + 3) - 1)
    assert torch.equal(record["norm1"], x)  # what attention reads
