"""Queries, keys and values in three maps or in one: weights and biases go both ways, in any order of the rows.

A fused map gives 3 x heads x head_dim numbers at once. Which is which is a matter of the order of its rows, the slowest
axis first, said as in einops:

    qkv head dim    timm, torchvision, vit-pytorch and `vitrail.nn.Attention`: all queries, all keys, all values
    head dim qkv    D3 (a founding document): the query, key and value of one number side by side
    head qkv dim    GPT-NeoX and BLOOM: head by head

and the other three. Rows of separate maps stand in the order (head dim), head by head.
"""

from typing import Literal, NamedTuple, get_args

from jaxtyping import Float
from torch import Tensor, cat

from vitrail.errors import DataError, UsageError, nearest

Order = Literal["qkv head dim", "qkv dim head", "head qkv dim", "head dim qkv", "dim qkv head", "dim head qkv"]
OURS: Order = "qkv head dim"


class Separate(NamedTuple):
    """The weights of three maps, or their biases."""

    queries: Float[Tensor, "i *d"]
    keys: Float[Tensor, "i *d"]
    values: Float[Tensor, "i *d"]


def reorder(
    fused: Float[Tensor, "rows *d"], heads: int, given: Order, wanted: Order = OURS
) -> Float[Tensor, "rows *d"]:
    """The same fused map with its rows in another order.

    Args:
        fused: Weight (3 x heads x head_dim, d) or bias (3 x heads x head_dim,).
        heads: Number of heads.
        given: Order of its rows.
        wanted: Order of the rows of what comes back.

    Raises:
        DataError: If its rows are not 3 x heads x head_dim.
        UsageError: If an order is not known.
    """
    rows = fused.shape[0]
    if heads < 1 or rows == 0 or rows % (3 * heads):
        raise DataError(
            f"a fused map of {rows} rows does not hold queries, keys and values of {heads} heads",
            f"a number of heads that divides {rows} / 3",
        )
    lengths = {"qkv": 3, "head": heads, "dim": rows // (3 * heads)}
    before, after = _axes(given), _axes(wanted)
    split = fused.unflatten(0, tuple(lengths[axis] for axis in before))
    rest = range(3, split.dim())
    return split.permute(*(before.index(axis) for axis in after), *rest).flatten(0, 2)


def split(fused: Float[Tensor, "rows *d"], heads: int, order: Order = OURS) -> Separate:
    """One fused map as three: rows of queries, keys and values, each (heads x head_dim, ...).

    Args:
        fused: Weight or bias of the fused map.
        heads: Number of heads.
        order: Order of its rows.

    Raises:
        DataError: If its rows are not 3 x heads x head_dim.
        UsageError: If the order is not known.
    """
    return Separate(*reorder(fused, heads, order).chunk(3))


def fuse(
    queries: Float[Tensor, "i *d"],
    keys: Float[Tensor, "i *d"],
    values: Float[Tensor, "i *d"],
    heads: int,
    order: Order = OURS,
) -> Float[Tensor, "rows *d"]:
    """Three maps as one; the inverse of `split`.

    Args:
        queries: Weight or bias of the map to the queries, rows in the order (head dim).
        keys: The same of the keys.
        values: The same of the values.
        heads: Number of heads.
        order: Order of the rows of the fused map.

    Raises:
        DataError: If the three differ in shape, or their rows are not heads x head_dim.
        UsageError: If the order is not known.
    """
    shapes = [tuple(part.shape) for part in (queries, keys, values)]
    if len(set(shapes)) != 1:
        raise DataError(
            f"queries, keys and values must be alike, got {', '.join(map(str, shapes))}", "maps of one block"
        )
    return reorder(cat([queries, keys, values]), heads, OURS, order)


def _axes(order: Order) -> list[str]:
    known = get_args(Order)
    if order not in known:
        names = ", ".join(f"'{name}'" for name in known)
        raise UsageError(f"the order must be one of {names}, got '{order}'", f"'{nearest(str(order), known) or OURS}'")
    return str(order).split()
