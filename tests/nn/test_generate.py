"""Writing: greedy, beam and sampled, each against its definition, row by row, with a cache and without."""

import itertools
import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.nn.sequences import BEGIN, END, PADDING, PICTURES, SMALL, image_to_sequence, sources, transformer, words
from vitrail.errors import UsageError
from vitrail.nn import Beam, Cache, Generated, Greedy, Sampling, Search, Transformer, generate
from vitrail.nn.decoder import Memory
from vitrail.nn.generate import Choose, Hypotheses

TINY = replace(SMALL, target_vocabulary=5, max_length=5)  # padding, begin, end and two words
SEARCHES = [Greedy(), Beam(width=3), Beam(width=2, length_penalty=0.0), Sampling(seed=4), Sampling(top_k=3, top_p=0.8)]


def lively(config=SMALL, seed: int = 10, scale: float = 1.5) -> Transformer:
    """A network that is sure of some things, and likes to end; with seeds 1, 10 and 11 at many lengths."""
    network = transformer(config, seed)
    with torch.no_grad():
        network.decoder.head.weight.mul_(scale)
        network.decoder.head.weight[END].mul_(2.0)
    return network


@torch.no_grad()
def log_probability(network: Transformer, source: Tensor, ids: list[int]) -> float:
    """What the network gives these ids, the whole target at once and no cache; `source` is one row."""
    logits = network(source, torch.tensor([[BEGIN, *ids[:-1]]]))
    return logits.log_softmax(-1)[0, range(len(ids)), ids].double().sum().item()


@torch.no_grad()
def greedy_by_hand(network: Transformer, source: Tensor, steps: int) -> list[int]:
    """One row, without a cache: the likeliest word or `end` behind the whole target so far."""
    ids: list[int] = []
    while len(ids) < steps and END not in ids:
        logits = network(source, torch.tensor([[BEGIN, *ids]]))[0, -1]
        logits[[PADDING, BEGIN]] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids


def written(generated: Generated, row: int, steps: int) -> list[int]:
    """A row's ids, with `end` unless it was cut."""
    ids = generated.tokens[row, : generated.lengths[row]].tolist()
    return ids if len(ids) == steps else [*ids, END]


@pytest.mark.parametrize("seed", [1, 10, 11])
def test_greedy_is_the_likeliest_id_at_each_step(seed: int):
    network, source = lively(seed=seed), sources(6, 8, seed)
    found = generate(network, source)
    by_hand = [greedy_by_hand(network, source[row : row + 1], 12) for row in range(6)]
    assert [written(found, row, 12) for row in range(6)] == by_hand
    assert len({len(ids) for ids in by_hand}) > 1  # rows end at different lengths
    for row, ids in enumerate(by_hand):
        expected = log_probability(network, source[row : row + 1], ids)
        assert found.log_probability[row].item() == pytest.approx(expected, abs=1e-4)


@settings(deadline=None, max_examples=15)
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


def best_of_all(network: Transformer, source: Tensor, steps: int, penalty: float) -> tuple[list[int], float]:
    worths = {
        tuple(ids): log_probability(network, source, ids) / ((5 + len(ids)) / 6) ** penalty
        for ids in every_sequence(steps)
    }
    best = max(worths, key=worths.__getitem__)
    return list(best), worths[best]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int, penalty: float):
    network, source, steps = lively(TINY, seed), sources(2, 4, seed), 4
    found = generate(network, source, Beam(width=31, length_penalty=penalty), steps)  # 15 that end, 16 that are cut
    assert found.ended.all()
    for row in range(2):
        ids, _ = best_of_all(network, source[row : row + 1], steps, penalty)
        assert written(found, row, steps) == ids
        expected = log_probability(network, source[row : row + 1], ids)
        assert found.log_probability[row].item() == pytest.approx(expected, abs=1e-4)


def test_the_length_penalty_and_the_width_matter():
    """Else the comparison with all sequences would pass for any search."""
    greedy, short, long = 0, 0, 0
    for seed in range(8):
        network, source = lively(TINY, seed), sources(1, 4, seed)
        best = {penalty: best_of_all(network, source, 4, penalty)[0] for penalty in (0.0, 3.0)}
        greedy += written(generate(network, source, max_length=4), 0, 4) == best[0.0]
        short, long = short + len(best[0.0]), long + len(best[3.0])
    assert greedy < 8
    assert short < long


@torch.no_grad()
def beam_by_hand(network: Transformer, source: Tensor, search: Beam, steps: int) -> tuple[list[int], float]:
    """One row, hypothesis by hypothesis, without a cache."""

    def worth(one: tuple[list[int], float]) -> float:
        return one[1] / ((5 + len(one[0])) / 6) ** search.length_penalty

    live: list[tuple[list[int], float]] = [([], 0.0)]
    done: list[tuple[list[int], float]] = []
    for _ in range(steps):
        grown = [one for one in live if END in one[0]]
        for ids, total in live:
            if END not in ids:
                ahead = network(source, torch.tensor([[BEGIN, *ids]]))[0, -1].log_softmax(-1).tolist()
                grown += [([*ids, token], total + ahead[token]) for token in range(2, len(ahead))]
        live = sorted(grown, key=worth, reverse=True)[: search.width]
        done += [one for one in live if END in one[0]]
    return max(done or live[:1], key=worth)


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


@settings(deadline=None, max_examples=25)
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
        self.config = replace(SMALL, target_vocabulary=vocabulary, max_length=len(steps))
        self.steps, self.at = steps, 0

    def encode(self, inputs: Tensor, /) -> Memory:
        self.at = 0
        return Memory(torch.zeros(len(inputs), 1, 1), None)

    def decode(self, target: Tensor, memory: Memory, *, cache: Cache) -> Tensor:
        logits = torch.full((len(target), 1, self.config.target_vocabulary), -torch.inf)
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


def beams_differ(steps: int = 8) -> float:
    """How far beams are from beams by hand, over networks, sources and penalties; infinite for other ids."""
    apart = 0.0
    for seed in range(8):
        network, source = turning(seed), sources(2, 6, seed)
        search = Beam(width=3, length_penalty=(0.6, 4.0)[seed % 2])
        found = generate(network, source, search, steps)
        for row in range(2):
            ids, expected = beam_by_hand(network, source[row : row + 1], search, steps)
            apart = max(apart, abs(found.log_probability[row].item() - expected))
            apart = apart if written(found, row, steps) == ids else math.inf
    return apart


def turning(seed: int) -> Transformer:
    """A network whose next id hangs on what was written, so that the best hypothesis often changes."""
    network = transformer(replace(SMALL, norm="pre", target_vocabulary=7), seed)
    with torch.no_grad():
        network.decoder.embed.weight.mul_(2.0)
        network.decoder.head.weight.mul_(0.7)
        network.decoder.head.weight[END].mul_(2.0)
    return network


def test_a_narrow_beam_is_the_beam_by_hand():
    assert beams_differ() <= 1e-4


@pytest.mark.parametrize("fault", ["the cache keeps its order", "lengths do not count"])
def test_a_fault_of_the_beam_is_found(fault: str, monkeypatch: pytest.MonkeyPatch):
    if fault == "the cache keeps its order":
        monkeypatch.setattr(Cache, "reorder", lambda self, rows: None)
    else:
        monkeypatch.setattr(Beam, "worth", lambda self, total, lengths: total)
    assert beams_differ() > 1e-2


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


def test_the_log_probability_is_the_networks_own_whatever_was_drawn():
    network, source = lively(), sources(4)
    found = generate(network, source, Sampling(temperature=2.0, top_k=5, seed=9))
    for row in range(4):
        expected = log_probability(network, source[row : row + 1], written(found, row, 12))
        assert found.log_probability[row].item() == pytest.approx(expected, abs=1e-4)


def test_pictures_are_written_too():
    network = image_to_sequence()
    images = torch.randn(3, 1, 16, 24, generator=torch.Generator().manual_seed(0))
    for search in SEARCHES:
        together, alone = generate(network, images, search), generate(network, images[:1], search)
        assert torch.equal(alone.tokens[0], together.tokens[0, : alone.tokens.shape[1]])
    assert not torch.equal(generate(network, images).tokens, generate(network, images * 0).tokens)
    assert PICTURES.max_length >= generate(network, images).tokens.shape[1]


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
    with pytest.raises(UsageError, match=r"max_length must be between 1 and 12(.|\n)*try: max_length=12"):
        generate(transformer(), sources(), max_length=max_length)


@pytest.mark.parametrize(
    ("search", "values"),
    [
        (Beam, {"width": 0}),
        (Beam, {"length_penalty": -1.0}),
        (Greedy, {"width": 2}),
        (Sampling, {"width": 2}),
        (Sampling, {"temperature": 0.0}),
        (Sampling, {"temperature": float("nan")}),
        (Sampling, {"top_k": -1}),
        (Sampling, {"top_p": 0.0}),
        (Sampling, {"top_p": 1.5}),
        (Sampling, {"seed": -1}),
    ],
)
def test_a_search_that_cannot_be_is_refused(search: type, values: dict):
    with pytest.raises(UsageError) as raised:
        search(**values)
    assert "\ntry: " in str(raised.value)


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


def test_a_row_that_was_cut_says_so() -> None:
    network, source = lively(), sources(5, 8, seed=2)
    whole = generate(network, source)
    cut = generate(network, source, max_length=1)
    assert torch.equal(cut.ended, cut.lengths == 0)
    assert torch.equal(whole.ended, whole.lengths < network.config.max_length)
    assert not cut.ended.all()
