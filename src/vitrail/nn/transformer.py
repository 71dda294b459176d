"""The Transformer: "Attention is all you need" (Vaswani et al., 2017), from the same parts as the ViT.

    memory = encode(source)             section 3.1: what stands in the source
    logits = decode(target, memory)     of the id that comes after each id of the target

Read with it: `attention.py`, `blocks.py` (the encoder's block), `decoder.py`, `token_embedding.py`. Axes: b batch,
s source ids, t target ids, m memory tokens, v vocabulary, d width. Ids come in and logits go out: the masks are made
inside, from the padding id and from the order of the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.nn.blocks import EncoderBlock
from vitrail.nn.cache import NO_CACHE, AnyCache
from vitrail.nn.checks import check, check_keys, check_special_ids, head_dim_of, number, one_of, whole
from vitrail.nn.decoder import NORM_ORDERS, STANDARD_STACK, Decoder, Memory, StackConfig, StackParts
from vitrail.nn.embedding import sinusoids
from vitrail.nn.initialisation import initialise
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.nn.token_embedding import check_ids, positions_of

Activation = Literal["relu", "gelu"]
Norm = Literal["post", "pre"]
Embeddings = Literal["separate", "tied", "shared"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model (table 3).

    Attributes:
        source_vocabulary: Number of ids that may be read.
        target_vocabulary: Number of ids that may be written.
        padding: The id that fills rows up, in both vocabularies.
        begin: The id that every target starts with.
        end: The id that ends a target.
        width: Numbers per token, d.
        encoder_depth: Number of blocks that read.
        decoder_depth: Number of blocks that write.
        heads: Attention heads per block, k.
        head_dim: Numbers per head, e, as given; 0 stands for width / heads, which `head_width` tells.
        mlp_dim: Numbers in the middle of the MLP.
        dropout: Probability after the embeddings, the output map of attention and both maps of the MLP.
        attention_dropout: Probability of dropping an attention weight.
        activation: Of the MLP.
        norm: Where the norms stand: "post", the paper's; or "pre", as in the ViT, where each stack ends in a norm.
        embeddings: "separate"; "tied": the target's embedding is the output map; "shared": the source's as well.
        max_length: Longest target, in ids, that may be trained on or generated; a source may be longer.
        norm_eps: The epsilon of LayerNorm.
    """

    source_vocabulary: int
    target_vocabulary: int
    padding: int = 0
    begin: int = 1
    end: int = 2
    width: int = 512
    encoder_depth: int = 6
    decoder_depth: int = 6
    heads: int = 8
    head_dim: int = 0
    mlp_dim: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Activation = "relu"
    norm: Norm = "post"
    embeddings: Embeddings = "separate"
    max_length: int = 512
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        sizes = ("source_vocabulary", "target_vocabulary", "width", "encoder_depth", "decoder_depth", "heads")
        check(
            self,
            {
                **dict.fromkeys((*sizes, "mlp_dim", "max_length"), whole(1)),
                **dict.fromkeys(("padding", "begin", "end", "head_dim"), whole(0)),
                **dict.fromkeys(("dropout", "attention_dropout"), number(below=1.0)),
                "activation": one_of(Activation),
                "norm": one_of(Norm),
                "embeddings": one_of(Embeddings),
                "norm_eps": number(),
            },
        )
        check_special_ids(self.padding, self.begin, self.end, min(self.source_vocabulary, self.target_vocabulary))
        if self.embeddings == "shared" and self.source_vocabulary != self.target_vocabulary:
            raise UsageError(
                f"shared embeddings need one vocabulary, got {self.source_vocabulary} and {self.target_vocabulary} ids",
                "embeddings='tied', which shares only the target's",
            )
        head_dim_of(self.width, self.heads, self.head_dim)  # refuses heads that do not divide the width
        sinusoids(1, self.width)  # refuses a width that does not fit

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransformerConfig":
        """The inverse of `dataclasses.asdict`, also after a way through JSON.

        Raises:
            UsageError: If a key is unknown.
        """
        check_keys(cls, values)
        return cls(**values)

    @property
    def head_width(self) -> int:
        """Numbers per head, whether `head_dim` says it or leaves it open."""
        return head_dim_of(self.width, self.heads, self.head_dim)

    @property
    def encoder(self) -> StackConfig:
        """The stack that reads."""
        return self._stack(self.source_vocabulary, self.encoder_depth)

    @property
    def decoder(self) -> StackConfig:
        """The stack that writes."""
        return self._stack(self.target_vocabulary, self.decoder_depth)

    def _stack(self, vocabulary: int, depth: int) -> StackConfig:
        return StackConfig(
            vocabulary=vocabulary,
            padding=self.padding,
            depth=depth,
            width=self.width,
            heads=self.heads,
            head_dim=self.head_width,
            mlp_dim=self.mlp_dim,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation=self.activation,
            norm=self.norm,
            norm_eps=self.norm_eps,
            max_length=self.max_length,
        )


class Encoder(nn.Module):
    """The blocks that read, and the norm behind them; the embedding stands outside, since it may be shared.

    Args:
        config: What to build.
        parts: The callables that make its parts.
    """

    def __init__(self, config: StackConfig, parts: StackParts = STANDARD_STACK) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            EncoderBlock(
                norm=lambda: parts.norm(config),
                attention=lambda: parts.attention(config),
                mlp=lambda: parts.mlp(config),
                order=NORM_ORDERS[config.norm],
            )
            for _ in range(config.depth)
        )
        self.norm = parts.last_norm(config)
        initialise(self.blocks)

    def forward(
        self, tokens: Float[Tensor, "b s d"], mask: Bool[Tensor, "b 1 1 s"], record: AnyRecord = SILENT
    ) -> Float[Tensor, "b s d"]:
        """Run the blocks; `mask` is True where there is something to read."""
        for index, block in enumerate(self.blocks):
            tokens = block(tokens, record.at(f"blocks.{index}"), mask)
        return self.norm(tokens)


class Transformer(nn.Module):
    """An encoder-decoder Transformer; `Transformer(config)(source, target)` gives logits, never probabilities.

    Args:
        config: What to build.
        parts: The callables that make its parts; the standard ones are the paper's.
    """

    def __init__(self, config: TransformerConfig, parts: StackParts = STANDARD_STACK) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.source_embed = None if config.embeddings == "shared" else parts.embedding(config.encoder)
        self.encoder = Encoder(config.encoder, parts)
        self.decoder = Decoder(config.decoder, config.embeddings != "separate", parts)

    def forward(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"], record: AnyRecord = SILENT
    ) -> Float[Tensor, "b t v"]:
        """Logits of the id that comes after each id of the target, which sees only what stands before.

        Args:
            source: Ids (b, s), rows filled up with `padding`.
            target: Ids (b, t) that start with `begin`, rows filled up with `padding`.
            record: Where to keep what happens on the way; nothing by default.

        Raises:
            UsageError: If an id is unknown, a sequence is empty, the target is too long, or the rows differ.
        """
        return self.decode(target, self.encode(source, record), record)

    def encode(self, source: Int[Tensor, "b s"], record: AnyRecord = SILENT) -> Memory:
        """Read the source; keeps `encoder.tokens`, `encoder.blocks.0.*` and on, and `memory`.

        Padding takes no position and is never seen, wherever it stands. A row of nothing else gives finite numbers.

        Raises:
            UsageError: If the source is empty or holds an unknown id.
        """
        check_ids(source, self.config.source_vocabulary, "source")
        embed = self.decoder.embed if self.source_embed is None else self.source_embed
        visible = source != self.config.padding
        tokens = embed(source, positions_of(visible), source.shape[1])
        record.keep("encoder.tokens", tokens)
        mask = visible[:, None, None, :]
        memory = Memory(self.encoder(tokens, mask, record.at("encoder")), mask)
        record.keep("memory", memory.tokens)
        return memory

    def decode(
        self, target: Int[Tensor, "b t"], memory: Memory, record: AnyRecord = SILENT, cache: AnyCache = NO_CACHE
    ) -> Float[Tensor, "b t v"]:
        """Logits of the id that comes after each id of the target; keeps `decoder.*` and `logits`.

        Args:
            target: Ids (b, t); with a cache only those that are new.
            memory: What `encode` left.
            record: Where to keep what happens.
            cache: What earlier calls remember, see `Cache`.

        Raises:
            UsageError: If the target is empty or too long, holds an unknown id, or has other rows than the memory.
        """
        logits = self.decoder(target, memory, record.at("decoder"), cache)
        record.keep("logits", logits)
        return logits
