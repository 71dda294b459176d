"""How the next id is chosen: the likeliest one, the best of a beam, or one that is drawn.

    Greedy()                                            the likeliest id at each step
    Beam(width=4, length_penalty=0.6)                   the likeliest sequence that a beam of four finds
    Sampling(temperature=0.8, top_k=40, top_p=0.9)      drawn from the network's own probabilities

`generate` asks a search at every step which hypotheses go on, and with which id. A search of one's own is a subclass of
`Search` with a `chooser`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.nn.checks import check, number, whole


class Hypotheses(NamedTuple):
    """What is written so far: w candidates for each of b rows.

    Attributes:
        tokens: Ids that start with `begin`, (b, w, t).
        lengths: Number of ids behind `begin`, `end` included, (b, w).
        log_probability: Of those ids, (b, w); minus infinity for one that does not exist yet.
        ended: Whether `end` was written, (b, w).
    """

    tokens: Int[Tensor, "b w t"]
    lengths: Int[Tensor, "b w"]
    log_probability: Float[Tensor, "b w"]
    ended: Bool[Tensor, "b w"]


# From log-probabilities (b, w, v) of the next id: which hypotheses go on, and with which id; each (b, w)
Choose = Callable[[Tensor, Hypotheses], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """A way to write; make one of `Greedy`, `Beam`, `Sampling`."""

    width: int = 1

    @abstractmethod
    def chooser(self, rows: int, steps: int) -> Choose:
        """What decides at each step, for a batch of `rows` and at most `steps` steps."""

    def worth(self, log_probability: Float[Tensor, "*b"], lengths: Int[Tensor, "*#b"]) -> Float[Tensor, "*b"]:
        """By what hypotheses are compared."""
        return log_probability

    def from_row(self, row: int) -> "Search":
        """The same search for a later batch, whose first row is `row`; only drawing depends on it."""
        return self


@dataclass(frozen=True, kw_only=True)
class Greedy(Search):
    """The likeliest id at each step."""

    def __post_init__(self) -> None:
        """Refuse more than one hypothesis."""
        if self.width != 1:
            raise UsageError(f"a greedy search has width 1, got {self.width}", f"Beam(width={self.width})")

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
    2016, equation 14); |Y| counts `end`. The best that has ended is kept aside ("Sequence to sequence learning with
    neural networks", 2014, section 3.2), whether or not better ones push it out of its place and then come to a bad
    end themselves. One that was cut is taken only where none has ended.

    Attributes:
        width: Number of hypotheses of each row.
        length_penalty: 0 compares log-probabilities, which favours short sequences; the Transformer's paper takes 0.6.
    """

    width: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        """Refuse what cannot search."""
        check(self, {"width": whole(1), "length_penalty": number()})

    def worth(self, log_probability: Float[Tensor, "*b"], lengths: Int[Tensor, "*#b"]) -> Float[Tensor, "*b"]:
        """By what hypotheses are compared: the log-probability over the length penalty."""
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

    The draws depend on the seed, the place of the row in the batch and the step, and on nothing else; torch's own
    generators are not touched.

    Attributes:
        temperature: Below 1 sharpens, above 1 flattens.
        top_k: Only the k likeliest ids; 0 for all.
        top_p: Only the fewest likeliest ids that together have this probability; 1 for all.
        seed: Of the draws.
        first_row: The place of the batch's first row among all rows, so that no two batches draw the same.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    first_row: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn from."""
        counts = dict.fromkeys(("top_k", "seed", "first_row"), whole(0))
        check(self, {"temperature": number(), "top_p": number(), **counts})
        if self.width != 1:
            raise UsageError(f"sampling has width 1, got {self.width}", "the source several times, for several samples")
        if self.temperature == 0 or not 0 < self.top_p <= 1:
            raise UsageError(
                f"temperature must be above 0 and top_p above 0 and at most 1, got {self.temperature} and {self.top_p}",
                "Greedy(), which is what both come to near 0",
            )

    def from_row(self, row: int) -> "Sampling":
        """For a batch that begins `row` rows later, so that it draws other numbers."""
        return replace(self, first_row=self.first_row + row)

    def chooser(self, rows: int, steps: int) -> Choose:
        """Inverts the cumulative distribution at numbers drawn in advance."""
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.rand(self.first_row + rows, steps, dtype=torch.float64, generator=generator)[self.first_row :]

        def choose(log_probabilities: Tensor, found: Hypotheses) -> tuple[Tensor, Tensor]:
            shares, ids = self.shares(log_probabilities)
            draw = draws[:, found.tokens.shape[-1] - 1].to(shares.device)[:, None, None]
            cumulative = shares.cumsum(dim=-1)
            place = (cumulative <= draw * cumulative[..., -1:]).sum(dim=-1, keepdim=True)
            last = (shares > 0).sum(dim=-1, keepdim=True) - 1
            token = ids.gather(-1, place.minimum(last))[..., 0]
            return torch.zeros_like(token), token

        return choose

    def shares(self, log_probabilities: Float[Tensor, "*b v"]) -> tuple[Float[Tensor, "*b v"], Int[Tensor, "*b v"]]:
        """The probabilities that are drawn from, greatest first, and the ids they belong to."""
        scaled = (log_probabilities.double() / self.temperature).softmax(dim=-1)
        shares, ids = scaled.sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            shares[..., self.top_k :] = 0.0
        shares = shares / shares.sum(dim=-1, keepdim=True)
        before = shares.cumsum(dim=-1) - shares
        shares = torch.where(before < self.top_p, shares, 0.0)
        return shares / shares.sum(dim=-1, keepdim=True), ids
