"""The attention of each layer in pieces: some heads and some query rows at a time, within a fixed budget of memory.

    A_l[h, i, :] = softmax(q_i k^T / sqrt(e))         d y / d A_l[h, i, :] = (d y / d O_l[h, i]) V^T

Both are made, row by row, from what a record keeps. So a method that joins the heads (by their mean, maximum or
minimum) never holds the weights (b, k, n, n) of a layer: with 4,097 tokens and 12 heads they take 0.8 GB, each layer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.methods.method import check_option
from vitrail.nn.record import Attended, weights_gradient
from vitrail.nn.twin import wide, without_autocast

BUDGET = 256 * 2**20  # bytes that the pieces of a layer may take at a time
ALIVE = 4  # pieces that are there at a time: scores, weights, gradient, product

Join = Literal["mean", "max", "min"]
Indices = Sequence[int]
Pieces = Iterator[tuple[Indices, Float[Tensor, "b q n"]]]  # some query rows' indices, and these rows


class Layer:
    """The attention of one layer, whose weights and gradient are made when they are read.

    Attributes:
        images: How many.
        heads: How many.
        tokens: How many; the weights are (images, heads, tokens, tokens).
        like: An empty tensor of their type, at least float32, and on their device.

    Args:
        kept: What its attention did, `Record.kept(place)`.
        at_attended: The gradient of what it attended, of `Record.attended_gradient`; None where none is read.
    """

    def __init__(self, kept: Attended, at_attended: Float[Tensor, "b k n e"] | None = None) -> None:
        self._kept, self._at_attended = kept, at_attended
        self._size_of(kept.queries)

    def _size_of(self, rows: Float[Tensor, "b k n x"]) -> None:
        self.images, self.heads, self.tokens, _ = rows.shape
        self.like = wide(rows.detach().flatten()[:0])

    @torch.no_grad()
    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """Attention weights of these heads and query rows, at least in float32."""
        return wide(self._kept.weights(heads, queries))

    @torch.no_grad()
    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """The gradient of the explained number by them, at least in float32."""
        assert self._at_attended is not None
        return wide(weights_gradient(self._at_attended[:, heads][:, :, queries], self._kept.values[:, heads]))


class GivenLayer(Layer):
    """A layer whose weights are there, and their gradient where it is read."""

    def __init__(self, weights: Float[Tensor, "b k n n"], gradient: Float[Tensor, "b k n n"] | None = None) -> None:
        self._weights, self._gradient = weights, gradient
        self._size_of(weights)

    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """Attention weights of these heads and query rows."""
        return wide(self._weights[:, heads][:, :, queries])

    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """The gradient by them.

        Raises:
            UsageError: If there is none.
        """
        if self._gradient is None:
            raise UsageError("these layers have no gradients", "given_layers(attentions, gradients)")
        return wide(self._gradient[:, heads][:, :, queries])


def given_layers(attentions: Sequence[Tensor], gradients: Sequence[Tensor] | None = None) -> list[Layer]:
    """Layers of attention weights from anywhere, for `rollout_of` and its like.

    Args:
        attentions: (b, k, n, n) of each layer, first layer first.
        gradients: Of the explained number by them, in the same order; None where no rule reads them.

    Raises:
        UsageError: If there is no layer, or not one gradient for each.
    """
    if not attentions or len(attentions) != len(attentions if gradients is None else gradients):
        raise UsageError(
            f"got attention of {len(attentions)} layers and gradients of {len(gradients or ())}",
            "one gradient for each of at least one layer, first layer first",
        )
    return [GivenLayer(*one) for one in zip(attentions, gradients or [None] * len(attentions), strict=True)]


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


# How heads are joined: those of one piece, and what two pieces give; a mean is divided when all heads are there.
JOINS: dict[Join, tuple[Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "mean": (torch.sum, torch.add),
    "max": (torch.amax, torch.maximum),
    "min": (torch.amin, torch.minimum),
}


@torch.no_grad()
def joined(
    layer: Layer, each: Each, queries: Indices | None = None, *, heads: Indices | None = None, join: Join = "mean"
) -> Pieces:
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
    queries = range(layer.tokens) if queries is None else queries
    heads = range(layer.heads) if heads is None else heads
    row = ALIVE * layer.images * layer.tokens * layer.like.element_size()  # bytes of a single head's
    rows = max(1, BUDGET // max(1, row))
    heads_at_once = min(rows, len(heads))
    rows_at_once = rows // heads_at_once
    inside, between = JOINS[join]
    for first in range(0, len(queries), rows_at_once):
        some, whole = queries[first : first + rows_at_once], None
        for head in range(0, len(heads), heads_at_once):
            part = inside(each(layer, heads[head : head + heads_at_once], some), dim=1)
            whole = part if whole is None else between(whole, part)
        assert whole is not None
        yield some, whole / len(heads) if join == "mean" else whole


def rows_read(rows: Float[Tensor, "*b n"]) -> list[int]:
    """The tokens that have a part in any of these rows; the rows of the others need not be made."""
    return (rows != 0).flatten(0, -2).any(dim=0).nonzero()[:, 0].tolist()


def start_rows(layer: Layer, readout: Float[Tensor, "*b r n"] | None) -> Float[Tensor, "b r n"]:
    """The readout's rows, which may be the same for each image; or all of the identity when None."""
    start = torch.eye(layer.tokens, device="cpu") if readout is None else readout
    return start.to(layer.like).expand(layer.images, -1, -1)


def times(rows: Float[Tensor, "b r n"], pieces: Pieces) -> Float[Tensor, "b r n"]:
    """`rows` times a matrix that comes in pieces; a row that does not come counts as zero."""
    product = torch.zeros_like(rows)
    for queries, piece in pieces:
        with without_autocast(rows):
            product += rows[:, :, queries] @ piece
    return product


def through(rows: Float[Tensor, "b r n"], layer: Layer, each: Each, heads: Indices | None = None) -> Tensor:
    """`rows` times the mean over heads of a layer: mixtures of tokens behind it become mixtures of those before it.

    Args:
        rows: (b, r, n); only the query rows that they read are made.
        layer: Whose weights.
        each: What the mean is taken of: a function of layer, heads and query rows.
        heads: Which heads; all when None.

    Returns:
        (b, r, n).
    """
    return times(rows, joined(layer, each, rows_read(rows), heads=heads))


def read_row(
    layer: Layer, each: Each, readout: Float[Tensor, "*b n"], heads: Indices | None = None
) -> Float[Tensor, "b n"]:
    """The readout's row, in the mean over some heads; only the query rows that are read out are made."""
    return through(start_rows(layer, readout[..., None, :]), layer, each, heads)[:, 0]


def read_heads(layer: Layer, each: Each, readout: Float[Tensor, "*b n"]) -> Float[Tensor, "b h n"]:
    """The readout's row of each head."""
    return torch.stack([read_row(layer, each, readout, [head]) for head in range(layer.heads)], dim=1)


def mean_over_queries(layer: Layer, each: Each) -> Float[Tensor, "b n"]:
    """What each token gets, in the mean over all heads and queries."""
    total = layer.like.new_zeros(layer.images, layer.tokens)
    for _, piece in joined(layer, each):
        total += piece.sum(dim=1)
    return total / layer.tokens


def layer_index(depth: int, layer: int, option: str = "layer") -> int:
    """The number of one of `depth` layers, counted from 0; -1 is the last. `option` is what the caller calls it.

    Raises:
        UsageError: If there is no such layer; names those that there are.
    """
    check_option(option, layer, -depth <= layer < depth, f"one of {-depth}..{depth - 1}", -1)
    return layer % depth


def chosen_heads(heads: int, head: int | None) -> list[int] | None:
    """One of `heads` heads, counted from 0; None, for all, where none is named.

    Raises:
        UsageError: If there is no such head; names those that there are.
    """
    check_option("head", head, head is None or 0 <= head < heads, f"one of 0..{heads - 1}", None)
    return None if head is None else [head]
