"""The attention of each layer in pieces: some heads and some query rows at a time, within a fixed budget of memory.

    A_l[h, i, :] = softmax(q_i k^T / sqrt(e))         d y / d A_l[h, i, :] = (d y / d O_l[h, i]) V^T

Both are made, row by row, from what a record keeps. So a method that joins the heads (by their mean, maximum or
minimum) never holds the weights (b, k, n, n) of a layer: with 4,097 tokens and 12 heads they take 0.8 GB, each layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.readout import wide, without_autocast
from vitrail.nn import Record, ViT
from vitrail.nn.record import Attended, weights_gradient

BUDGET = 256 * 2**20  # bytes that the pieces of a layer may take at a time
ALIVE = 4  # pieces that are there at a time: scores, weights, gradient, product

Join = Literal["mean", "max", "min"]
Indices = Sequence[int]


class Extent(NamedTuple):
    """How large a layer's weights (b, k, n, n) are, and an empty tensor of their type, in their place."""

    images: int
    heads: int
    tokens: int
    like: Float[Tensor, "0"]


class Layer(ABC):
    """The attention of one layer, which tells any part of its weights and of their gradient."""

    @property
    @abstractmethod
    def extent(self) -> Extent:
        """How large its weights are."""

    @abstractmethod
    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """Attention weights of these heads and query rows, at least in float32."""

    @abstractmethod
    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """The gradient of the explained number by them, at least in float32."""


@final
class RecordedLayer(Layer):
    """A layer whose weights and gradient are made when they are read.

    Args:
        kept: What its attention did, `Record.kept(place)`.
        at_attended: The gradient of what it attended, of `Record.attended_gradient`; None where none is read.
    """

    def __init__(self, kept: Attended, at_attended: Float[Tensor, "b k n e"] | None = None) -> None:
        self._kept, self._at_attended = kept, at_attended

    @property
    def extent(self) -> Extent:
        """How large its weights would be."""
        images, heads, tokens, _ = self._kept.queries.shape
        return Extent(images, heads, tokens, wide(self._kept.queries.detach().flatten()[:0]))

    @torch.no_grad()
    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """Attention weights of these heads and query rows."""
        return wide(self._kept.weights(heads, queries))

    @torch.no_grad()
    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """The gradient by them."""
        assert self._at_attended is not None
        return wide(weights_gradient(self._at_attended[:, heads][:, :, queries], self._kept.values[:, heads]))


@final
class GivenLayer(Layer):
    """A layer whose weights are there, and their gradient where it is read."""

    def __init__(self, weights: Float[Tensor, "b k n n"], gradient: Float[Tensor, "b k n n"] | None = None) -> None:
        self._weights, self._gradient = weights, gradient

    @property
    def extent(self) -> Extent:
        """How large its weights are."""
        images, heads, tokens, _ = self._weights.shape
        return Extent(images, heads, tokens, wide(self._weights.detach().flatten()[:0]))

    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """Attention weights of these heads and query rows."""
        return wide(self._weights[:, heads][:, :, queries])

    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """The gradient by them."""
        assert self._gradient is not None
        return wide(self._gradient[:, heads][:, :, queries])


def given_layers(attentions: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Layer]:
    """Layers whose weights and gradients (b, k, n, n) are there, first layer first.

    Raises:
        UsageError: If there is no layer, or not one gradient for each.
    """
    if not attentions or len(attentions) != len(gradients):
        raise UsageError(
            f"got attention of {len(attentions)} layers and gradients of {len(gradients)}",
            "one gradient for each of at least one layer, first layer first",
        )
    return [GivenLayer(*one) for one in zip(attentions, gradients, strict=True)]


Each = Callable[[Layer, Indices, Indices], Float[Tensor, "b h q n"]]


def attention(layer: Layer, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """A, for `joined`."""
    return layer.weights(heads, queries)


def gradient(layer: Layer, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """dy/dA, for `joined`."""
    return layer.gradient(heads, queries)


def attention_x_gradient(layer: Layer, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """A * dy/dA, for `joined`."""
    return layer.gradient(heads, queries) * layer.weights(heads, queries)


def recorded(record: Record, at_attended: Mapping[str, Tensor] | None = None) -> list[Layer]:
    """The layers of a run, first layer first, with their gradients if those of `Record.attended_gradient` are given."""
    given = at_attended or {}
    return [RecordedLayer(record.kept(place), given.get(place)) for place in record.attentions()]


@torch.no_grad()
def joined(
    layer: Layer, each: Each, queries: Indices | None = None, *, heads: Indices | None = None, join: Join = "mean"
) -> Iterator[tuple[Indices, Float[Tensor, "b q n"]]]:
    """The heads of a layer joined to one, some query rows at a time.

    Args:
        layer: Whose weights.
        each: What is joined of each head: a function of layer, heads and query rows.
        queries: Which query rows; all when None.
        heads: Which heads; all when None.
        join: How they are joined.

    Yields:
        Some of the query rows' indices, and these rows.
    """
    images, count, tokens, like = layer.extent
    queries = range(tokens) if queries is None else queries
    heads = range(count) if heads is None else heads
    rows = max(1, BUDGET // max(1, ALIVE * images * tokens * like.element_size()))  # of a single head
    heads_at_once = min(rows, len(heads))
    rows_at_once = rows // heads_at_once
    for first in range(0, len(queries), rows_at_once):
        some = queries[first : first + rows_at_once]
        parts = (
            _join(each(layer, heads[head : head + heads_at_once], some), join)
            for head in range(0, len(heads), heads_at_once)
        )
        whole = next(parts)
        for part in parts:
            whole = _JOIN_TWO[join](whole, part)
        yield some, whole / len(heads) if join == "mean" else whole


def _join(piece: Float[Tensor, "b h q n"], join: Join) -> Float[Tensor, "b q n"]:
    match join:
        case "mean":
            return piece.sum(dim=1)  # divided when all heads are there
        case "max":
            return piece.amax(dim=1)
        case "min":
            return piece.amin(dim=1)


_JOIN_TWO = {"mean": torch.add, "max": torch.maximum, "min": torch.minimum}


def rows_read(rows: Float[Tensor, "*b n"]) -> list[int]:
    """The tokens that have a part in any of these rows; the rows of the others need not be made."""
    return (rows != 0).flatten(0, -2).any(dim=0).nonzero()[:, 0].tolist()


def start_rows(layer: Layer, readout: Float[Tensor, "*b r n"] | None) -> Float[Tensor, "b r n"]:
    """The readout's rows, which may be the same for each image; or all of the identity when None."""
    images, _, tokens, like = layer.extent
    start = torch.eye(tokens, device="cpu") if readout is None else readout
    return start.to(like).expand(images, -1, -1)


def times(
    rows: Float[Tensor, "b r n"], pieces: Iterator[tuple[Indices, Float[Tensor, "b q n"]]]
) -> Float[Tensor, "b r n"]:
    """`rows` times a matrix that comes in pieces; a row that does not come counts as zero."""
    product = torch.zeros_like(rows)
    for queries, piece in pieces:
        with without_autocast(rows):
            product += rows[:, :, queries] @ piece
    return product


def through(
    rows: Float[Tensor, "b r n"],
    layer: Layer,
    each: Each,
    then: Callable[[Tensor], Tensor] | None = None,
    *,
    heads: Indices | None = None,
) -> Float[Tensor, "b r n"]:
    """`rows` times the mean over heads of a layer, which is made in pieces, and of query rows that are read alone.

    Args:
        rows: Mixtures of tokens behind the layer; what comes out are mixtures of those in front of it.
        layer: Whose weights.
        each: What the mean is taken of: a function of layer, heads and query rows.
        then: What is done with each entry of the mean; nothing when None.
        heads: Which heads; all when None.
    """
    pieces = joined(layer, each, rows_read(rows), heads=heads)
    return times(rows, pieces if then is None else ((some, then(piece)) for some, piece in pieces))


def read_row(
    layer: Layer, each: Each, readout: Float[Tensor, "*b n"], heads: Indices | None = None
) -> Float[Tensor, "b n"]:
    """The readout's row, in the mean over some heads; only the query rows that are read out are made."""
    return through(start_rows(layer, readout[..., None, :]), layer, each, heads=heads)[:, 0]


def read_heads(
    layer: Layer, each: Each, readout: Float[Tensor, "*b n"], heads: Indices | None = None
) -> Float[Tensor, "b h n"]:
    """The readout's row of each head."""
    heads = range(layer.extent.heads) if heads is None else heads
    return torch.stack([read_row(layer, each, readout, [head]) for head in heads], dim=1)


def mean_over_queries(layer: Layer, each: Each) -> Float[Tensor, "b n"]:
    """What each token gets, in the mean over all heads and queries."""
    images, _, tokens, like = layer.extent
    total = like.new_zeros(images, tokens)
    for _, piece in joined(layer, each):
        total += piece.sum(dim=1)
    return total / tokens


def block_of(network: ViT, layer: int, option: str = "layer") -> int:
    """The number of a block, counted from 0; -1 is the last. `option` is what the caller calls it.

    Raises:
        UsageError: If there is no such block; names those that there are.
    """
    return layer_among(network.config.depth, layer, f"{option}=-1 for the last", option)


def layer_among(depth: int, layer: int, hint: str, option: str = "layer") -> int:
    """The number of one of `depth` layers, counted from 0; `hint` is what to try where there is no such layer.

    Raises:
        UsageError: If there is no such layer; names those that there are.
    """
    if not -depth <= layer < depth:
        raise UsageError(f"{option} must be one of {-depth}..{depth - 1}, got {layer}", hint)
    return layer % depth


def head_among(heads: int, head: int, hint: str) -> int:
    """The number of one of `heads` heads, counted from 0; `hint` is what to try where there is no such head.

    Raises:
        UsageError: If there is no such head; names those that there are.
    """
    if not 0 <= head < heads:
        raise UsageError(f"head must be one of 0..{heads - 1}, got {head}", hint)
    return head


def heads_of(network: ViT, head: int | None) -> list[int]:
    """One head, or all when None; refuses what `head_among` refuses."""
    heads = network.config.heads
    return list(range(heads)) if head is None else [head_among(heads, head, "head=None for the mean over all heads")]
