"""Generation with an encoder-decoder: one id after the other, until every row has ended.

    generate(network, source)                                       Greedy(): the likeliest id at each step
    generate(network, source, Beam(width=4, length_penalty=0.6))    the likeliest sequence that a beam of four finds
    generate(network, source, Sampling(temperature=0.8, top_p=0.9)) drawn from the network's own probabilities

All three are one loop over hypotheses: at every step a search chooses which of them continue, and with which id. A
search of your own is a subclass of `Search` with a `chooser`. The decoder gets only the new ids; a cache has the keys
and values of the rest. A row's result does not depend on the other rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.errors import UsageError, check_fields, check_kinds
from vitrail.nn.networks import SequenceConfig, evaluating
from vitrail.nn.seq2seq import Cache


class Hypotheses(NamedTuple):
    """What is generated so far: w candidates for each of b rows.

    Attributes:
        tokens: Ids that start with `begin`, (b, w, t).
        lengths: Number of ids after `begin`, `end` included, (b, w).
        log_probability: Of those ids, (b, w); minus infinity for one that does not exist yet.
        ended: Whether `end` was generated, (b, w).
    """

    tokens: Int[Tensor, "b w t"]
    lengths: Int[Tensor, "b w"]
    log_probability: Float[Tensor, "b w"]
    ended: Bool[Tensor, "b w"]

    def take(self, index: Int[Tensor, "b r"]) -> "Hypotheses":
        """Of each row those with these numbers."""
        tokens = self.tokens.gather(1, index[..., None].expand(-1, -1, self.tokens.shape[2]))
        return Hypotheses(tokens, *(each.gather(1, index) for each in self[1:]))


# From log-probabilities (b, w, v) of the next id: which hypotheses continue, and with which id; each (b, w)
Choose = Callable[[Tensor, Hypotheses], tuple[Tensor, Tensor]]


class Search(ABC):
    """A way to choose ids; make one of `Greedy`, `Beam`, `Sampling`."""

    width = 1  # hypotheses of each row

    @abstractmethod
    def chooser(self, rows: int, steps: int) -> Choose:
        """The function that chooses at each step, for a batch of `rows` and at most `steps` steps."""

    def worth(self, log_probability: Float[Tensor, "*b"], lengths: Int[Tensor, "*#b"]) -> Float[Tensor, "*b"]:
        """The score that ranks hypotheses: their log-probability."""
        return log_probability

    def from_row(self, row: int) -> "Search":
        """The same search for a later batch, whose first row is `row`; only drawing depends on it."""
        return self


@dataclass(frozen=True, kw_only=True)
class Greedy(Search):
    """The likeliest id at each step."""

    def chooser(self, rows: int, steps: int) -> Choose:
        """The greatest log-probability."""

        def choose(log_probabilities: Tensor, found: Hypotheses) -> tuple[Tensor, Tensor]:
            token = log_probabilities.argmax(dim=-1)
            return torch.zeros_like(token), token

        return choose


@dataclass(frozen=True, kw_only=True)
class Beam(Search):
    """The `width` best hypotheses at each step; at the end, the best of all that ever ended among them.

    A hypothesis Y is worth  log P(Y) / ((5 + |Y|) / 6)^length_penalty  ("Google's neural machine translation system",
    2016, equation 14); |Y| counts `end`. The best that has ended is remembered ("Sequence to sequence learning with
    neural networks", 2014, section 3.2), also where hypotheses that are better at that step push it out of the beam. A
    truncated one is returned only where none has ended.

    Attributes:
        width: Number of hypotheses of each row.
        length_penalty: 0 compares log-probabilities, which favours short sequences; the Transformer's paper takes 0.6.
    """

    width: int = 4  # pyrefly: ignore[bad-override]
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        """Refuse invalid fields."""
        check_fields(self)

    def worth(self, log_probability: Float[Tensor, "*b"], lengths: Int[Tensor, "*#b"]) -> Float[Tensor, "*b"]:
        """The score that ranks hypotheses: the log-probability over the length penalty."""
        return log_probability / ((5.0 + lengths) / 6.0) ** self.length_penalty

    def chooser(self, rows: int, steps: int) -> Choose:
        """The best continuations of all hypotheses of a row, best first."""

        def choose(log_probabilities: Tensor, found: Hypotheses) -> tuple[Tensor, Tensor]:
            total = found.log_probability[..., None] + log_probabilities
            lengths = found.lengths + (~found.ended).long()
            best = self.worth(total, lengths[..., None]).flatten(1).topk(self.width).indices
            vocabulary = log_probabilities.shape[-1]
            return best // vocabulary, best % vocabulary

        return choose


@dataclass(frozen=True, kw_only=True)
class Sampling(Search):
    """Draws each id from softmax(logits / temperature), cut to its likeliest part.

    The draws depend on the seed, the row's index in the batch and the step, and on nothing else; torch's own generators
    are not used.

    Attributes:
        temperature: Below 1 sharpens, above 1 flattens.
        top_k: Only the k likeliest ids; 0 for all.
        top_p: Only the fewest likeliest ids that together have this probability; 1 for all.
        seed: Of the draws.
        first_row: The index of the batch's first row among all rows, so that no two batches draw the same numbers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    first_row: int = 0

    def __post_init__(self) -> None:
        """Refuse invalid fields."""
        check_fields(self, may_be_zero=("top_k", "seed", "first_row"))
        if self.temperature == 0 or not 0 < self.top_p <= 1:
            given = f"{self.temperature} and {self.top_p}"
            problem = f"temperature must be above 0 and top_p above 0 and at most 1, got {given}"
            raise UsageError(problem, "Greedy(), the limit of both towards 0")

    def from_row(self, row: int) -> "Sampling":
        """For a batch that starts `row` rows later, so that it draws other numbers."""
        return replace(self, first_row=self.first_row + row)

    def chooser(self, rows: int, steps: int) -> Choose:
        """Inverts the cumulative distribution at numbers drawn in advance."""
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.rand(self.first_row + rows, steps, dtype=torch.float64, generator=generator)[self.first_row :]

        def choose(log_probabilities: Tensor, found: Hypotheses) -> tuple[Tensor, Tensor]:
            probabilities, ids = self.probabilities(log_probabilities)
            draw = draws[:, found.tokens.shape[-1] - 1].to(probabilities.device)[:, None, None]
            cumulative = probabilities.cumsum(dim=-1)
            place = (cumulative <= draw * cumulative[..., -1:]).sum(dim=-1, keepdim=True)
            last = (probabilities > 0).sum(dim=-1, keepdim=True) - 1
            token = ids.gather(-1, place.minimum(last))[..., 0]
            return torch.zeros_like(token), token

        return choose

    def probabilities(
        self, log_probabilities: Float[Tensor, "*b v"]
    ) -> tuple[Float[Tensor, "*b v"], Int[Tensor, "*b v"]]:
        """The probabilities that are drawn from, greatest first, and the ids they belong to."""
        scaled = (log_probabilities.double() / self.temperature).softmax(dim=-1)
        probabilities, ids = scaled.sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            probabilities[..., self.top_k :] = 0.0
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = torch.where(before < self.top_p, probabilities, 0.0)
        return probabilities / probabilities.sum(dim=-1, keepdim=True), ids


class Generated(NamedTuple):
    """What was generated.

    Attributes:
        tokens: Ids (b, t) without `begin` and `end`, filled up with `padding`.
        lengths: Number of ids in each row, (b,).
        log_probability: Of the row under the network, its `end` included where there is one, (b,).
        ended: Whether the row has an `end`; else it was truncated at the greatest length, (b,).
    """

    tokens: Int[Tensor, "b t"]
    lengths: Int[Tensor, "b"]
    log_probability: Float[Tensor, "b"]
    ended: Bool[Tensor, "b"]


GREEDY = Greedy()


@typed
@torch.no_grad()
def generate(network: Any, inputs: Tensor, search: Search = GREEDY, max_length: int | None = None) -> Generated:
    """Generate one sequence for each row of the inputs.

    The network is in eval mode meanwhile. `padding` and `begin` are never generated. A row that reaches `max_length`
    without an `end` is truncated there.

    Args:
        network: A `Transformer`, an `ImageToSequence`, or any module with `encode(inputs)`, which gives a `Memory`,
            `decode(target, memory, cache=cache)`, which gives logits, and a `SequenceConfig`.
        inputs: What `encode` reads: ids (b, s) of a `Transformer`, images (b, c, h, w) of an `ImageToSequence`.
        search: How the next id is chosen.
        max_length: Most ids of a row, `end` included; the network's own limit when None.

    Raises:
        UsageError: If `max_length` is not between 1 and the network's own limit, or the inputs do not fit.
    """
    check_kinds(network=(network, nn.Module))
    config: SequenceConfig = network.config
    steps = config.max_length if max_length is None else max_length
    if not 1 <= steps <= config.max_length:
        problem = f"max_length must be between 1 and {config.max_length}, the network's limit, got {max_length}"
        raise UsageError(problem, f"max_length={config.max_length}")
    with evaluating(network):
        memory, cache = network.encode(inputs), Cache()
        rows, device = memory.tokens.shape[0], memory.tokens.device
        memory = memory.rows(torch.arange(rows, device=device).repeat_interleave(search.width))
        choose = search.chooser(rows, config.max_length)
        found = _start(rows, search.width, config.bos_id, device)
        best = _start(rows, 1, config.pad_id, device)
        for _ in range(steps):
            newest = found.tokens[..., -1].flatten()[:, None]
            logits = network.decode(newest, memory, cache=cache)[:, -1]
            log_probabilities = logits.float().log_softmax(dim=-1).unflatten(0, (rows, search.width))
            log_probabilities = _forbid(log_probabilities, found, config)
            parent, token = choose(log_probabilities, found)
            if search.width > 1:
                cache.reorder((parent + torch.arange(rows, device=device)[:, None] * search.width).flatten())
            found = _extend(found, log_probabilities, parent, token, config.eos_id)
            best = _choose_best(best, found, search, config.pad_id)
            if bool(found.ended.all()):
                break
    return _finish(best, found, config)


def _start(rows: int, width: int, begin: int, device: torch.device) -> Hypotheses:
    """Only `begin`; the first hypothesis of each row exists, and the others branch off from it later."""
    waiting = torch.arange(width, device=device).expand(rows, width) > 0
    return Hypotheses(
        tokens=torch.full((rows, width, 1), begin, device=device),
        lengths=torch.zeros(rows, width, dtype=torch.long, device=device),
        log_probability=torch.zeros(rows, width, device=device).masked_fill(waiting, -torch.inf),
        ended=waiting,
    )


def _forbid(log_probabilities: Tensor, found: Hypotheses, config: SequenceConfig) -> Tensor:
    """A hypothesis continues with any id but `padding` and `begin`; one that has ended with `padding`, at no cost."""
    ids = torch.arange(log_probabilities.shape[-1], device=log_probabilities.device)
    words = log_probabilities.masked_fill((ids == config.pad_id) | (ids == config.bos_id), -torch.inf)
    nothing = torch.zeros_like(words).masked_fill(ids != config.pad_id, -torch.inf)
    return torch.where(found.ended[..., None], nothing, words)


def _extend(found: Hypotheses, log_probabilities: Tensor, parent: Tensor, token: Tensor, end: int) -> Hypotheses:
    """Each hypothesis: its parent, one id longer."""
    before, vocabulary = found.take(parent), log_probabilities.shape[-1]
    log_probability = before.log_probability + log_probabilities.flatten(1).gather(1, parent * vocabulary + token)
    return Hypotheses(
        tokens=torch.cat([before.tokens, token[..., None]], dim=-1),
        lengths=before.lengths + (~before.ended).long(),
        log_probability=log_probability,
        ended=before.ended | (token == end) | log_probability.isinf(),
    )


def _choose_best(best: Hypotheses, found: Hypotheses, search: Search, padding: int) -> Hypotheses:
    """The best hypothesis of each row that has ended so far, one a row; minus infinity where none has."""
    best = best._replace(tokens=F.pad(best.tokens, (0, 1), value=padding))
    both = Hypotheses(*(torch.cat(pair, dim=1) for pair in zip(best, found, strict=True)))
    both = both._replace(log_probability=both.log_probability.masked_fill(~both.ended, -torch.inf))
    best = both.take(search.worth(both.log_probability, both.lengths).argmax(dim=1, keepdim=True))
    return best._replace(ended=best.log_probability.isfinite())


def _finish(best: Hypotheses, found: Hypotheses, config: SequenceConfig) -> Generated:
    """The best hypothesis of each row that ended, else the first, without `begin` and `end`."""
    ended = best.ended[:, 0]
    tokens = torch.where(ended[:, None], best.tokens[:, 0], found.tokens[:, 0])[:, 1:]
    tokens = tokens.masked_fill(tokens == config.eos_id, config.pad_id)
    lengths = (tokens != config.pad_id).sum(dim=1)
    longest = int(lengths.max()) if len(lengths) else 0
    log_probability = torch.where(ended, best.log_probability[:, 0], found.log_probability[:, 0])
    return Generated(tokens[:, :longest], lengths, log_probability, ended)
