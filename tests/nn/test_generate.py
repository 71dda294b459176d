"""Writing: the loop against its definition, row by row, with a cache and without, for every search."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from tests.nn.sequences import (
    BEGIN,
    END,
    IMAGES,
    PADDING,
    SMALL,
    image_to_sequence,
    lively,
    log_probability,
    sources,
    transformer,
    turning,
    written,
)
from vitrail.errors import UsageError
from vitrail.nn import Beam, Cache, Greedy, Sampling, Search, Transformer, generate
from vitrail.nn.generate import Choose, Hypotheses
from vitrail.nn.seq2seq import Memory

pytestmark = pytest.mark.usefixtures("shapes_unchecked")
SEARCHES = [Greedy(), Beam(width=3), Beam(width=2, length_penalty=0.0), Sampling(seed=4), Sampling(top_k=3, top_p=0.8)]


@torch.no_grad()
def greedy_by_hand(network: Transformer, source: Tensor, steps: int) -> list[int]:
    """One row, without a cache: the likeliest word or `end` behind the whole target so far."""
    ids: list[int] = []
    while len(ids) < steps and END not in ids:
        logits = network(source, torch.tensor([[BEGIN, *ids]]))[0, -1]
        logits[[PADDING, BEGIN]] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids


@pytest.mark.parametrize("seed", [1, 11])
def test_greedy_is_the_likeliest_id_at_each_step(seed: int):
    network, source = lively(seed=seed), sources(4, 8, seed)
    found = generate(network, source)
    by_hand = [greedy_by_hand(network, source[row : row + 1], 12) for row in range(4)]
    assert [written(found, row, 12) for row in range(4)] == by_hand
    assert len({len(ids) for ids in by_hand}) > 1  # rows end at different lengths
    for row, ids in enumerate(by_hand):
        expected = log_probability(network, source[row : row + 1], ids)
        assert found.log_probability[row].item() == pytest.approx(expected, abs=1e-4)


@dataclass(frozen=True, kw_only=True)
class Watched(Search):
    """A beam search that notes, for each row, every hypothesis that ended among its best: log-probability, length."""

    width: int
    beam: Beam
    held: list[tuple[int, float, int]] = field(default_factory=list)

    def worth(self, log_probability: Tensor, lengths: Tensor) -> Tensor:
        return self.beam.worth(log_probability, lengths)

    def chooser(self, rows: int, steps: int) -> Choose:
        choose = self.beam.chooser(rows, steps)

        def watched(ahead: Tensor, found: Hypotheses) -> tuple[Tensor, Tensor]:
            parents, tokens = choose(ahead, found)
            for row, (places, ids) in enumerate(zip(parents.tolist(), tokens.tolist(), strict=True)):
                for place, token in zip(places, ids, strict=True):
                    total = (found.log_probability[row, place] + ahead[row, place, token]).item()
                    if token == END and math.isfinite(total):
                        self.held.append((row, total, int(found.lengths[row, place]) + 1))
            return parents, tokens

        return watched


def watched(width: int, penalty: float) -> Watched:
    return Watched(width=width, beam=Beam(width=width, length_penalty=penalty))


@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 200),
    width=st.integers(1, 4),
    steps=st.integers(1, 10),
    penalty=st.sampled_from([0.0, 0.6, 2.0]),
)
def test_what_is_returned_is_never_worse_than_what_was_held(seed: int, width: int, steps: int, penalty: float):
    network, source, search = turning(seed % 20), sources(3, 6, seed), watched(width, penalty)
    found = generate(network, source, search, steps)
    for row in range(3):
        held = [total / ((5 + length) / 6) ** penalty for own, total, length in search.held if own == row]
        assert bool(found.ended[row]) == bool(held)  # one that was cut only where none ended
        if held:
            length = int(found.lengths[row]) + 1
            mine = found.log_probability[row].item() / ((5 + length) / 6) ** penalty
            assert mine == pytest.approx(max(held), abs=1e-5)


class Scripted(nn.Module):
    """A network whose next id has the same probabilities whatever was read and written: one table for each step."""

    def __init__(self, *steps: dict[int, float], vocabulary: int = 7) -> None:
        super().__init__()
        self.config = replace(SMALL, target_vocab_size=vocabulary, max_length=len(steps))
        self.steps, self.at = steps, 0

    def encode(self, inputs: Tensor, /) -> Memory:
        self.at = 0
        return Memory(torch.zeros(len(inputs), 1, 1), None)

    def decode(self, target: Tensor, memory: Memory, *, cache: Cache) -> Tensor:
        logits = torch.full((len(target), 1, self.config.target_vocab_size), -torch.inf)
        for token, share in self.steps[self.at].items():
            logits[..., token] = math.log(share)
        self.at += 1
        return logits


ONE_INPUT = torch.zeros(1, 1)


UNIFORM = {END: 0.25, 3: 0.25, 4: 0.25, 5: 0.25}


HALVES = {3: 0.5, 4: 0.5}


def test_a_sentence_that_was_pushed_out_is_not_lost():
    """END with 0.25 leaves the beam for 3 3 and 3 4, with 0.3 each; these then come to nothing good."""
    network = Scripted({3: 0.6, END: 0.25, 4: 0.15}, HALVES, *[UNIFORM] * 4)
    search = watched(2, 0.0)
    found = generate(network, ONE_INPUT, search)
    assert max(total for _, total, _ in search.held) == pytest.approx(math.log(0.25))
    assert (found.tokens.tolist(), found.ended.tolist()) == ([[]], [True])
    assert found.log_probability.item() == pytest.approx(math.log(0.25))
    # where lengths pay, 3 3 END with 0.18 is worth more: log 0.18 / (8/6)^6 = -0.31 against log 0.25
    network = Scripted({3: 0.6, END: 0.25, 4: 0.15}, HALVES, {END: 0.6, 3: 0.4})
    assert generate(network, ONE_INPUT, Beam(width=2, length_penalty=6.0)).lengths.tolist() == [2]
    assert generate(network, ONE_INPUT, Beam(width=2, length_penalty=0.0)).lengths.tolist() == [0]


def test_one_that_has_ended_is_preferred_to_one_that_was_cut():
    """END with 0.1 against 3 3 3 with 0.9: the second is no sentence of this network."""
    network = Scripted({3: 0.9, END: 0.1}, {3: 1.0}, {3: 1.0})
    found = generate(network, ONE_INPUT, Beam(width=2, length_penalty=0.0))
    assert (found.tokens.tolist(), found.ended.tolist()) == ([[]], [True])
    cut = generate(network, ONE_INPUT, Beam(width=1))  # which never held one that ended
    assert (cut.tokens.tolist(), cut.ended.tolist()) == ([[3, 3, 3]], [False])
    assert cut.log_probability.item() == pytest.approx(math.log(0.9))


@pytest.mark.parametrize("search", SEARCHES)
def test_a_row_does_not_depend_on_its_neighbours(search: Search):
    network, source = lively(), sources(5, 8, seed=2)
    together = generate(network, source, search)
    assert together.lengths.unique().numel() > 1
    for rows in (1, 3):
        fewer = generate(network, source[:rows], search)
        longest = fewer.tokens.shape[1]
        assert torch.equal(fewer.tokens, together.tokens[:rows, :longest])
        assert (together.tokens[:rows, longest:] == PADDING).all()
        torch.testing.assert_close(fewer.log_probability, together.log_probability[:rows], rtol=1e-4, atol=1e-5)
    if not isinstance(search, Sampling):  # whose draws belong to the place in the batch
        back = generate(network, source.flip(0), search)
        assert torch.equal(back.tokens.flip(0), together.tokens)


@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_written_holds_words_and_then_padding(search: Search):
    found = generate(lively(), sources(6, seed=5), search)
    assert found.tokens.dtype == torch.int64
    assert found.lengths.max() == found.tokens.shape[1]
    for ids, length in zip(found.tokens, found.lengths, strict=True):
        assert (ids[:length] > END).all()
        assert (ids[length:] == PADDING).all()


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_again_and_the_network_as_it_was(search: Search):
    network = lively(replace(SMALL, dropout=0.5)).train()
    network.encoder.eval()
    modes = [module.training for module in network.modules()]
    before = torch.random.get_rng_state()
    once, again = (generate(network, sources(), search) for _ in range(2))
    for one, two in zip(once, again, strict=True):
        assert torch.equal(one, two)
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not once.log_probability.requires_grad
    with pytest.raises(UsageError):
        generate(network, sources() + 100, search)
    assert [module.training for module in network.modules()] == modes


def test_decoding_stops_when_all_rows_have_ended_and_feeds_one_id_at_a_time():
    network, seen = lively(), []
    decoder = network.decoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    found = generate(network, sources(4))
    decoder.remove()
    assert len(seen) == min(12, int(found.lengths.max()) + 1)
    assert set(seen) == {(4, 1)}


def test_the_log_probability_is_the_networks_own_whatever_was_drawn():
    network, source = lively(), sources(4)
    found = generate(network, source, Sampling(temperature=2.0, top_k=5, seed=9))
    for row in range(4):
        expected = log_probability(network, source[row : row + 1], written(found, row, 12))
        assert found.log_probability[row].item() == pytest.approx(expected, abs=1e-4)


def test_images_are_written_too():
    network = image_to_sequence()
    images = torch.randn(3, 1, 16, 24, generator=torch.Generator().manual_seed(0))
    for search in SEARCHES:
        together, alone = generate(network, images, search), generate(network, images[:1], search)
        assert torch.equal(alone.tokens[0], together.tokens[0, : alone.tokens.shape[1]])
    assert not torch.equal(generate(network, images).tokens, generate(network, images * 0).tokens)
    assert IMAGES.max_length >= generate(network, images).tokens.shape[1]


def test_rows_of_nothing_and_a_batch_without_rows():
    network = lively()
    assert torch.isfinite(generate(network, torch.zeros(2, 3).long(), Beam()).log_probability).all()
    found = generate(network, sources()[:0])
    assert found.tokens.shape == (0, 0)
    assert found.lengths.shape == found.log_probability.shape == (0,)


def test_a_network_that_ends_at_once_writes_nothing():
    network = lively()
    with torch.no_grad():
        network.decoder.head.weight.zero_()
        network.decoder.head.weight[END] = 1.0
        network.decoder.blocks[-1].norm3.weight.zero_()
        network.decoder.blocks[-1].norm3.bias.fill_(1.0)
    for search in (Greedy(), Beam()):
        found = generate(network, sources(), search)
        assert found.tokens.shape == (3, 0)
        expected = 16 - math.log(math.exp(16) + 10)
        assert found.log_probability.tolist() == pytest.approx([expected] * 3, abs=1e-4)


@pytest.mark.parametrize("max_length", [0, 13, -1])
def test_a_length_that_cannot_be_written_is_refused(max_length: int):
    with pytest.raises(UsageError):
        generate(transformer(), sources(), max_length=max_length)


def test_a_row_that_was_cut_says_so() -> None:
    network, source = lively(), sources(5, 8, seed=2)
    whole = generate(network, source)
    cut = generate(network, source, max_length=1)
    assert torch.equal(cut.ended, cut.lengths == 0)
    assert torch.equal(whole.ended, whole.lengths < network.config.max_length)
    assert not cut.ended.all()
