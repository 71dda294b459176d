"""Attention: every token mixes the values of all tokens, weighted by how well its query matches their keys.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(e)) V        "Attention is all you need" (2017), equation 1

`attend` is the one way in which networks compute it: by torch's fused kernel, which never forms the (n, n) weights; in
bf16 on a processor as two products and a softmax, which are 2 to 12 times as fast as that kernel there.
The first half of the equation on its own, `attention_weights`, stands in `record.py`, which makes them afterwards.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.nn.record import SILENT, AnyRecord, Keys, Mask, Queries, Tokens
from vitrail.nn.rotary import Turn, turn


def attend(queries: Queries, keys: Keys, values: Keys, mask: Mask | None = None, dropout: float = 0.0) -> Queries:
    """softmax(Q K^T / sqrt(e)) V; a query that may see nothing gets zeros, never NaN.

    Args:
        queries: (b, k, n, e).
        keys: (b, k, m, e).
        values: (b, k, m, e).
        mask: True where a query may see a key; broadcast to (b, k, n, m).
        dropout: Probability of dropping an attention weight (0 outside training).
    """
    seen = None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)
    if queries.dtype == torch.bfloat16 and queries.device.type == "cpu":
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.mT
        weights = (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(dim=-1)
        attended = F.dropout(weights, dropout) @ values
    else:
        attended = F.scaled_dot_product_attention(queries, keys, values, seen, dropout_p=dropout)
    return attended if mask is None else attended * mask.any(dim=-1, keepdim=True)


def head_dim_of(width: int, heads: int, head_dim: int | None) -> int:
    """Numbers per head: `head_dim`, or the width divided by the heads where that is None.

    Raises:
        UsageError: If the heads do not divide the width.
    """
    if head_dim is None and width % heads:
        raise UsageError(f"{heads} heads do not divide the width {width}", f"head_dim={max(1, round(width / heads))}")
    return width // heads if head_dim is None else head_dim


class Attention(nn.Module):
    """Multi-head attention ("Attention is all you need", section 3.2.2), of tokens to themselves or to a context.

    Args:
        width: Numbers per token, d.
        heads: Number of heads, k.
        head_dim: Numbers per head, e. Free: k * e need not equal d. None: d / k.
        qkv_bias: Whether the query, key and value maps have a bias.
        out_bias: Whether the output map has one.
        attention_dropout: Probability of dropping an attention weight in training.
        dropout: Probability of dropping an output number in training.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim_of(width, heads, head_dim)
        self.attention_dropout = attention_dropout
        self.qkv = nn.Linear(width, 3 * heads * self.head_dim, bias=qkv_bias)  # rows ordered (q k v, head, head_dim)
        self.q_norm, self.k_norm, self.norm = (nn.Identity() for _ in range(3))  # for `parts.py` to fill
        self.proj = nn.Linear(heads * self.head_dim, width, bias=out_bias)
        self.drop = nn.Dropout(dropout)
        self.attend = attend

    def forward(
        self,
        tokens: Tokens,
        context: Float[Tensor, "b m d"] | None = None,
        mask: Mask | None = None,
        record: AnyRecord = SILENT,
        cache: Any = None,
        rotation: Turn = None,
    ) -> Tokens:
        """Mix `tokens` with themselves, or with `context` (cross-attention).

        Args:
            tokens: (b, n, d), of which the queries are made.
            context: (b, m, d), of which keys and values are made; the tokens themselves when None.
            mask: True where a query may see a key: (n, m), (k, n, m), (b, 1, n, m) or (b, k, n, m).
            record: Where to keep queries, keys, values and output.
            cache: A `vitrail.nn.Cache` with the keys and values of earlier calls, which `tokens` continue; m then
                counts all keys so far.
            rotation: Turns queries and keys; not those of a context.
        """
        queries, keys, values = self.project(tokens, context, cache, rotation)
        attended = self.attend(queries, keys, values, mask, self.attention_dropout * self.training)
        record.keep_attention(queries, keys, values, attended, mask)
        return self.join(attended)

    def join(self, attended: Queries) -> Tokens:
        """What the heads add to the tokens; linear in the output of each, where no norm follows."""
        return self.drop(self.proj(self.norm(attended.transpose(1, 2).flatten(2))))

    def start_weights(self) -> None:
        """Xavier uniform weights, of queries, keys and values each as a map of its own; biases are zero."""
        for weight in (*self.qkv.weight.chunk(3), self.proj.weight):
            nn.init.xavier_uniform_(weight)
        for bias in (self.qkv.bias, self.proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def project(
        self, tokens: Tokens, context: Float[Tensor, "b m d"] | None = None, cache: Any = None, rotation: Turn = None
    ) -> tuple[Queries, Keys, Keys]:
        """Queries of the tokens, keys and values of the context, as they are multiplied: each (b, k, length, e)."""
        if context is None:
            queries, keys, values = self._heads(self.qkv(tokens), 3)
            queries, keys = turn(self.q_norm(queries), rotation), turn(self.k_norm(keys), rotation)
            return queries, *((keys, values) if cache is None else cache.extend(keys, values))  # pyrefly: ignore
        inner = self.heads * self.head_dim
        weight, bias = self.qkv.weight, self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else (bias[:inner], bias[inner:])
        (queries,) = self._heads(F.linear(tokens, weight[:inner], q_bias), 1)

        def read() -> tuple[Tensor, ...]:
            return self._heads(F.linear(context, weight[inner:], kv_bias), 2)

        return queries, *(read() if cache is None else cache.once(read))  # pyrefly: ignore

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        return projected.unflatten(-1, (parts, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
