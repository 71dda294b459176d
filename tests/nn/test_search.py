"""Searches: beams against all sequences and a beam by hand, draws against the softmax."""

import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tests.nn.sequences import (
    BEGIN,
    END,
    PADDING,
    SMALL,
    lively,
    log_probability,
    sources,
    turning,
    words,
    written,
)
from vitrail.errors import UsageError
from vitrail.nn import Beam, Cache, Greedy, Sampling, Transformer, generate

pytestmark = pytest.mark.usefixtures("shapes_unchecked")
TINY = replace(SMALL, target_vocab_size=5, max_length=5)  # padding, begin, end and two words


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 50), steps=st.integers(1, 12), penalty=st.sampled_from([0.0, 0.6, 2.0]))
def test_a_beam_of_one_is_greedy(seed: int, steps: int, penalty: float):
    network, source = lively(seed=10 + seed % 3), sources(4, seed=seed)
    greedy = generate(network, source, Greedy(), steps)
    beam = generate(network, source, Beam(width=1, length_penalty=penalty), steps)
    assert torch.equal(beam.tokens, greedy.tokens)
    torch.testing.assert_close(beam.log_probability, greedy.log_probability)


def every_sequence(steps: int) -> list[list[int]]:
    """All that can be written over the words 3 and 4 and ends within `steps` ids."""
    return [[*ids, END] for length in range(steps) for ids in itertools.product((3, 4), repeat=length)]


def best_of_all(network: Transformer, source: Tensor, steps: int, *penalties: float) -> list[tuple[list[int], float]]:
    """The best sequence for each length penalty, and its log-probability."""
    totals = {tuple(ids): log_probability(network, source, ids) for ids in every_sequence(steps)}
    best = [max(totals, key=lambda ids: totals[ids] / ((5 + len(ids)) / 6) ** penalty) for penalty in penalties]
    return [(list(ids), totals[ids]) for ids in best]


@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int):
    network, source, steps, penalties = lively(TINY, seed), sources(2, 4, seed), 4, (0.0, 0.6, 3.0)
    best = [best_of_all(network, source[row : row + 1], steps, *penalties) for row in range(2)]
    for penalty, *rows in zip(penalties, *best, strict=True):
        found = generate(network, source, Beam(width=31, length_penalty=penalty), steps)  # 15 that end, 16 that are cut
        assert found.ended.all()
        for row, (ids, expected) in enumerate(rows):
            assert written(found, row, steps) == ids
            assert found.log_probability[row].item() == pytest.approx(expected, abs=1e-4)


def test_the_length_penalty_and_the_width_matter():
    """Else the comparison with all sequences would pass for any search."""
    greedy, short, long = 0, 0, 0
    for seed in range(5):
        network, source = lively(TINY, seed), sources(1, 4, seed)
        (likeliest, _), (longest, _) = best_of_all(network, source, 4, 0.0, 3.0)
        greedy += written(generate(network, source, max_length=4), 0, 4) == likeliest
        short, long = short + len(likeliest), long + len(longest)
    assert greedy < 5
    assert short < long


@torch.no_grad()
def beam_by_hand(network: Transformer, source: Tensor, search: Beam, steps: int) -> tuple[list[int], float]:
    """One row, hypothesis by hypothesis, without a cache."""

    def worth(one: tuple[list[int], float]) -> float:
        return one[1] / ((5 + len(one[0])) / 6) ** search.length_penalty

    live: list[tuple[list[int], float]] = [([], 0.0)]
    done: list[tuple[list[int], float]] = []
    for _ in range(steps):
        grown, going = [one for one in live if END in one[0]], [one for one in live if END not in one[0]]
        if going:
            target = torch.tensor([[BEGIN, *ids] for ids, _ in going])
            ahead = network(source.expand(len(going), -1), target)[:, -1].log_softmax(-1).tolist()
            for (ids, total), gains in zip(going, ahead, strict=True):
                grown += [([*ids, token], total + gains[token]) for token in range(2, len(gains))]
        live = sorted(grown, key=worth, reverse=True)[: search.width]
        done += [one for one in live if END in one[0]]
    return max(done or live[:1], key=worth)


@functools.cache
def all_by_hand(seed: int) -> tuple[Transformer, Tensor, Beam, list[tuple[list[int], float]]]:
    """A network, two sources, a search, and what the beam by hand writes in 8 steps."""
    network, source = turning(seed), sources(2, 6, seed)
    search = Beam(width=3, length_penalty=(0.6, 4.0)[seed % 2])
    return network, source, search, [beam_by_hand(network, source[row : row + 1], search, 8) for row in range(2)]


def beams_differ(steps: int = 8) -> float:
    """How far beams are from beams by hand, over networks, sources and penalties; infinite for other ids."""
    apart = 0.0
    for seed in range(6):
        network, source, search, by_hand = all_by_hand(seed)
        found = generate(network, source, search, steps)
        for row, (ids, expected) in enumerate(by_hand):
            apart = max(apart, abs(found.log_probability[row].item() - expected))
            apart = apart if written(found, row, steps) == ids else math.inf
    return apart


def test_a_narrow_beam_is_the_beam_by_hand():
    assert beams_differ() <= 1e-4


@pytest.mark.parametrize("fault", ["the cache keeps its order", "lengths do not count"])
def test_a_fault_of_the_beam_is_found(fault: str, monkeypatch: pytest.MonkeyPatch):
    if fault == "the cache keeps its order":
        monkeypatch.setattr(Cache, "reorder", lambda self, rows: None)
    else:
        monkeypatch.setattr(Beam, "worth", lambda self, total, lengths: total)
    assert beams_differ() > 1e-2


def frequencies(search: Sampling, draws: int = 4000) -> tuple[Tensor, Tensor]:
    """How often each first id is drawn, and the network's own probability of it among words and `end`."""
    network, source = lively(scale=1.0), sources(1)
    found = generate(network, source.expand(draws, -1), search, max_length=1)
    ids = torch.where(found.lengths > 0, found.tokens[:, :1].sum(1), END)
    with torch.no_grad():
        logits = network(source, torch.tensor([[BEGIN]]))[0, -1].double()
    logits[[PADDING, BEGIN]] = -torch.inf
    expected_gain = logits.softmax(-1)  # of the words alone
    assert found.log_probability.exp().max() <= 1
    return torch.bincount(ids, minlength=11) / draws, expected_gain


def cut(probabilities: Tensor, top_k: int, top_p: float) -> Tensor:
    """The likeliest ids one after another, until k are taken or they reach p; the reference."""
    order = probabilities.argsort(descending=True).tolist()
    order = order[:top_k] if top_k else order
    mass = sum(probabilities[index].item() for index in order)
    kept, reached = [], 0.0
    for index in order:
        if reached >= top_p:
            break
        kept.append(index)
        reached += probabilities[index].item() / mass
    result = torch.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result / result.sum()


@pytest.mark.parametrize(
    "search",
    [
        Sampling(),
        Sampling(temperature=0.5, seed=1),
        Sampling(temperature=3.0, seed=2),
        Sampling(top_k=3, seed=3),
        Sampling(top_k=1, seed=4),
        Sampling(top_p=0.6, seed=5),
        Sampling(top_p=1e-9, seed=6),
        Sampling(temperature=2.0, top_k=4, top_p=0.7, seed=7),
    ],
)
def test_draws_follow_the_softmax(search: Sampling):
    drawn, own = frequencies(search)
    tempered = own ** (1 / search.temperature)
    expected = cut(tempered / tempered.sum(), search.top_k, search.top_p)
    assert ((drawn > 0) <= (expected > 0)).all()
    spread = (expected * (1 - expected) / 4000).sqrt()
    assert ((drawn - expected).abs() <= 4.5 * spread + 1e-9).all()
    if search.temperature != 1:  # the planted fault: temperature forgotten
        assert ((drawn - own).abs() > 4.5 * (own * (1 - own) / 4000).sqrt()).any()


def test_steps_and_rows_and_seeds_draw_on_their_own():
    network, source = lively(scale=0.3), words(1, 5, vocabulary=13).expand(400, -1)
    first, second = (generate(network, source, Sampling(seed=seed)) for seed in (0, 1))
    assert not torch.equal(first.tokens, second.tokens)
    assert len({tuple(row) for row in first.tokens.tolist()}) > 300
    both = (first.lengths >= 2).nonzero()[:, 0]
    pairs = first.tokens[both, :2].double().T
    assert torch.corrcoef(pairs)[0, 1].abs() < 0.25
    short = generate(network, source, Sampling(seed=0), max_length=2)
    assert torch.equal(short.tokens, first.tokens[:, :2])


@pytest.mark.parametrize(
    ("search", "values"),
    [
        (Beam, {"width": 0}),
        (Beam, {"length_penalty": -1.0}),
        (Sampling, {"temperature": 0.0}),
        (Sampling, {"temperature": float("nan")}),
        (Sampling, {"top_k": -1}),
        (Sampling, {"top_p": 0.0}),
        (Sampling, {"top_p": 1.5}),
        (Sampling, {"seed": -1}),
    ],
)
def test_a_search_that_cannot_be_is_refused(search: type, values: dict):
    with pytest.raises(UsageError):
        search(**values)


def test_batches_draw_as_one_batch_would() -> None:
    """Else row 0 of every batch would draw the same numbers."""
    search = Sampling(temperature=3.0, seed=1)
    network, source = lively(), sources(5, 8, seed=2)[:1].expand(6, -1)
    whole = generate(network, source, search).tokens
    parts = [generate(network, source[:3], search.from_row(row)) for row in (0, 3)]
    for row, found in zip((0, 3), parts, strict=True):
        for place, (tokens, length) in enumerate(zip(found.tokens, found.lengths.tolist(), strict=True)):
            assert torch.equal(tokens[:length], whole[row + place][:length])
    assert parts[0].tokens.tolist() != parts[1].tokens.tolist()
