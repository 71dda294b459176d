"""The decoder of "Attention is all you need" (2017), section 3.1: it reads a memory and writes ids, one after another.

    tokens = embed(ids)                     sections 3.4 and 3.5
    tokens = block(tokens, memory), L times self-attention that looks back, cross-attention to the memory, MLP
    logits = tokens W^T                     of the id that comes after each token

It serves every encoder: the memory may be read words (`transformer.py`) or patches (`image_to_sequence.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.nn.attention import Attention, causal_mask
from vitrail.nn.blocks import MLP, NormOrder, post_norm, pre_norm
from vitrail.nn.cache import NO_CACHE, AnyCache
from vitrail.nn.initialisation import initialise
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.nn.token_embedding import TokenEmbedding, check_ids, positions_of

NORM_ORDERS: dict[str, NormOrder] = {"pre": pre_norm, "post": post_norm}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One stack, the encoder's or the decoder's: its vocabulary and its blocks.

    It is made by the configuration of a whole network, which has checked the numbers.

    Attributes:
        vocabulary: Number of ids.
        padding: The id that fills rows up and is never looked at.
        depth: Number of blocks.
        width: Numbers per token, d.
        heads: Attention heads per block, k.
        head_dim: Numbers per head, e.
        mlp_dim: Numbers in the middle of the MLP.
        dropout: Probability after the embedding, the output map of attention and both maps of the MLP.
        attention_dropout: Probability of dropping an attention weight.
        activation: Of the MLP.
        norm: Where the norms stand: "post" (the paper of 2017) or "pre" (which ends in a norm of its own).
        norm_eps: The epsilon of LayerNorm.
        max_length: Longest sequence of a decoder, in ids.
    """

    vocabulary: int
    padding: int
    depth: int
    width: int
    heads: int
    head_dim: int
    mlp_dim: int
    dropout: float
    attention_dropout: float
    activation: Literal["relu", "gelu"]
    norm: Literal["post", "pre"]
    norm_eps: float
    max_length: int


@dataclass(frozen=True)
class StackParts:
    """What the stacks are made of: each part is made anew for every place by a callable that gets the configuration."""

    embedding: Callable[[StackConfig], nn.Module] = lambda c: TokenEmbedding(
        c.vocabulary, c.width, c.max_length, c.dropout
    )
    norm: Callable[[StackConfig], nn.Module] = lambda c: nn.LayerNorm(c.width, eps=c.norm_eps)
    attention: Callable[[StackConfig], nn.Module] = lambda c: Attention(
        c.width, c.heads, c.head_dim, attention_dropout=c.attention_dropout, dropout=c.dropout
    )
    activation: Callable[[StackConfig], nn.Module] = lambda c: ACTIVATIONS[c.activation]()

    def mlp(self, config: StackConfig) -> MLP:
        """The MLP of one block."""
        return MLP(config.width, config.mlp_dim, lambda: self.activation(config), config.dropout)

    def last_norm(self, config: StackConfig) -> nn.Module:
        """What a stack ends in: a norm of its own after pre-norm blocks, nothing after post-norm ones."""
        return self.norm(config) if config.norm == "pre" else nn.Identity()


STANDARD_STACK = StackParts()


class Memory(NamedTuple):
    """What an encoder leaves for a decoder to read.

    Attributes:
        tokens: (b, m, d).
        mask: (b, 1, 1, m), True where there is something to read; None when everywhere.
    """

    tokens: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b 1 1 m"] | None

    def rows(self, rows: Int[Tensor, "r"]) -> "Memory":
        """The memory of some rows, in that order; a row may come several times."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Memory(self.tokens.index_select(0, rows), mask)


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to a memory, MLP; each with a norm and each added to what came in.

    Args:
        norm: Makes a norm over d numbers; called three times.
        attention: Makes an attention; called twice.
        mlp: Makes the MLP.
        order: Where the norms stand: `pre_norm` or `post_norm`.
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        attention: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module],
        order: NormOrder,
    ) -> None:
        super().__init__()
        self.norm1 = norm()
        self.self_attn = attention()
        self.norm2 = norm()
        self.cross_attn = attention()
        self.norm3 = norm()
        self.mlp = mlp()
        self.order = order

    def forward(
        self,
        tokens: Float[Tensor, "b t d"],
        memory: Memory,
        mask: Bool[Tensor, "*#b #t #n"] | None = None,
        record: AnyRecord = SILENT,
        cache: AnyCache = NO_CACHE,
    ) -> Float[Tensor, "b t d"]:
        """Run the block; keeps `input`, the two attentions under `self` and `cross`, `mlp` and `output`.

        Args:
            tokens: The target's tokens, (b, t, d).
            memory: What the encoder left.
            mask: True where a target token may see another; n counts all target tokens so far.
            record: Where to keep what happens.
            cache: Keys and values of the target tokens that came before, and of the memory.
        """

        def look_back(tokens: Tensor) -> Tensor:
            inside = record.at("self")
            added = self.self_attn(tokens, mask=mask, record=inside, cache=cache.at("self"))
            inside.keep("attn_out", added)
            return added

        def read(tokens: Tensor) -> Tensor:
            inside = record.at("cross")
            added = self.cross_attn(tokens, memory.tokens, memory.mask, record=inside, cache=cache.at("cross"))
            inside.keep("attn_out", added)
            return added

        def transform(tokens: Tensor) -> Tensor:
            added = self.mlp(tokens)
            record.keep("mlp", added)
            return added

        record.keep("input", tokens)
        tokens = self.order(tokens, self.norm1, look_back)
        tokens = self.order(tokens, self.norm2, read)
        tokens = self.order(tokens, self.norm3, transform)
        record.keep("output", tokens)
        return tokens


class Decoder(nn.Module):
    """From ids and a memory to the logits of the ids that come next.

    Args:
        config: What to build.
        tied: Whether the output map is the embedding ("Attention is all you need", section 3.4).
        parts: The callables that make its parts.
    """

    def __init__(self, config: StackConfig, tied: bool = False, parts: StackParts = STANDARD_STACK) -> None:
        super().__init__()
        self.config = config
        self.embed = parts.embedding(config)
        self.blocks = nn.ModuleList(
            DecoderBlock(
                norm=lambda: parts.norm(config),
                attention=lambda: parts.attention(config),
                mlp=lambda: parts.mlp(config),
                order=NORM_ORDERS[config.norm],
            )
            for _ in range(config.depth)
        )
        self.norm = parts.last_norm(config)
        self.head = None if tied else nn.Linear(config.width, config.vocabulary, bias=False)
        initialise(self.blocks)
        if self.head is not None:
            nn.init.xavier_uniform_(self.head.weight)

    def forward(
        self, target: Int[Tensor, "b t"], memory: Memory, record: AnyRecord = SILENT, cache: AnyCache = NO_CACHE
    ) -> Float[Tensor, "b t v"]:
        """Logits of the id that comes after each id of the target.

        Args:
            target: Ids (b, t), which start with `begin`. With a cache only those that are new. Padding takes no
                position and is never seen, wherever it stands.
            memory: What the encoder left.
            record: Where to keep what happens: `tokens`, `blocks.0.*` and on.
            cache: What earlier calls remember.

        Raises:
            UsageError: If the target is empty, too long, has other rows than the memory, or holds an unknown id.
        """
        check_ids(target, self.config.vocabulary, "target")
        if target.shape[0] != memory.tokens.shape[0]:
            raise UsageError(
                f"the target has {target.shape[0]} rows and the source {memory.tokens.shape[0]}", "one for each"
            )
        new = (target != self.config.padding)[:, None, :, None]
        visible = cache.at("target").extend(new)[0].flatten(1)  # of all target tokens so far
        before = visible.shape[1] - target.shape[1]
        self._check_length(visible.shape[1])
        mask = causal_mask(target.shape[1], visible.shape[1], target.device) & visible[:, None, None, :]
        tokens = self.embed(target, positions_of(visible)[:, before:], visible.shape[1])
        record.keep("tokens", tokens)
        for index, block in enumerate(self.blocks):
            place = f"blocks.{index}"
            tokens = block(tokens, memory, mask, record.at(place), cache.at(place))
        tokens = self.norm(tokens)
        return F.linear(tokens, (self.head or self.embed).get_parameter("weight"))

    def _check_length(self, length: int) -> None:
        if length > self.config.max_length:
            raise UsageError(
                f"the target has {length} ids, and this network takes {self.config.max_length} at most",
                f"a shorter target, or a network with max_length={length}",
            )
