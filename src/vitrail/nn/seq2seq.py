"""Networks that generate text, from the same parts as the ViT: one reads ids and one reads an image.

    Transformer         memory = encode(source)     "Attention is all you need" (2017), section 3.1
    ImageToSequence     memory = encode(images)     "An image is worth 16x16 words" (2020), equations 1 to 3, norm
    EncoderDecoder      logits = decode(target, memory)     of both: of the id after each id of the target

Read with it: `decoder.py`, `blocks.py` (the encoder's block), `vit.py`. Axes: b batch, s source ids, t target ids, m
memory tokens, v vocabulary, d width. From ids to logits: the masks are made inside, from the padding id and from the
order of the target. The memory of an image is its patch tokens alone, in reading order, so that each cross-attention
weight belongs to a patch; prefix tokens take part in the encoder only.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitrail.errors import UsageError, check_fields, check_keys
from vitrail.nn.attention import head_dim_of
from vitrail.nn.blocks import STANDARD, EncoderBlock, Parts, initialise
from vitrail.nn.config import ViTConfig
from vitrail.nn.decoder import (
    NO_CACHE,
    NORM_ORDERS,
    STACK,
    AnyCache,
    Decoder,
    Memory,
    StackConfig,
    check_ids,
    check_slots,
    last_norm,
    positions_of,
)
from vitrail.nn.embedding import sinusoids
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.nn.vit import ViT

Activation = Literal["relu", "gelu"]
Norm = Literal["post", "pre"]


def check_special_ids(padding: int, begin: int, end: int, vocabulary: int) -> None:
    """Refuse special ids that are equal or outside the vocabulary.

    Raises:
        UsageError: If they are.
    """
    if len({padding, begin, end}) < 3 or max(padding, begin, end) >= vocabulary:
        raise UsageError(
            f"padding, begin and end must be three different ids below {vocabulary}, got {padding}, {begin}, {end}",
            "padding=0, begin=1, end=2 and a vocabulary of at least 4",
        )


def _stack(
    config: "TransformerConfig | ImageToSequenceConfig",
    sizes: "TransformerConfig | ViTConfig",
    vocabulary: int,
    depth: int,
    mlp_width: int,
) -> StackConfig:
    """One stack of a network, whose width and heads are those of `sizes`."""
    return StackConfig(
        vocabulary=vocabulary,
        depth=depth,
        width=sizes.width,
        heads=sizes.heads,
        head_width=sizes.head_width,
        mlp_width=mlp_width,
        padding=config.padding,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation=config.activation,
        norm=config.norm,
        norm_eps=config.norm_eps,
        max_length=config.max_length,
    )


class EncoderDecoder(nn.Module, ABC):
    """What every network that generates text does after its `encode`."""

    decoder: Decoder

    @abstractmethod
    def encode(self, inputs: Tensor, /, record: AnyRecord = SILENT) -> Memory:
        """Encode; keeps `encoder.tokens`, `encoder.blocks.0.*` and so on, and `memory`."""

    def forward(
        self, inputs: Shaped[Tensor, "b ..."], target: Int[Tensor, "b t"], record: AnyRecord = SILENT
    ) -> Float[Tensor, "b t v"]:
        """Logits of the id after each id of the target, which attends to the inputs and to the ids before it.

        Args:
            inputs: Of `encode`.
            target: Ids (b, t) that start with `begin`, rows filled up with `padding`.
            record: Where to keep intermediates; nothing by default.

        Raises:
            UsageError: If the inputs do not fit, an id is unknown, the target is empty or too long, or the rows differ.
        """
        return self.decode(target, self.encode(inputs, record), record)

    def decode(
        self, target: Int[Tensor, "b t"], memory: Memory, record: AnyRecord = SILENT, cache: AnyCache = NO_CACHE
    ) -> Float[Tensor, "b t v"]:
        """Logits of the id after each id of the target; keeps `decoder.*` and `logits`.

        Args:
            target: Ids (b, t); with a cache only the new ones.
            memory: The output of `encode`.
            record: Where to keep intermediates.
            cache: Of earlier calls, see `Cache`.

        Raises:
            UsageError: If the target is empty or too long, holds an unknown id, or has other rows than the memory.
        """
        logits = self.decoder(target, memory, record.at("decoder"), cache)
        record.keep("logits", logits)
        return logits


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model (table 3).

    Attributes:
        source_vocabulary: Number of ids of the source.
        target_vocabulary: Number of ids of the target.
        padding: The id that fills rows up, in both vocabularies.
        begin: The id that every target starts with.
        end: The id that ends a target.
        width: Numbers per token, d.
        encoder_depth: Number of blocks of the encoder.
        decoder_depth: Number of blocks of the decoder.
        heads: Attention heads per block, k.
        head_dim: Numbers per head, e; 0 stands for width / heads, see `head_width`.
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
    embeddings: Literal["separate", "tied", "shared"] = "separate"
    max_length: int = 512
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse an invalid configuration."""
        ids = ("padding", "begin", "end")
        check_fields(self, may_be_zero=(*ids, "head_dim"), below_one=("dropout", "attention_dropout"))
        check_special_ids(self.padding, self.begin, self.end, min(self.source_vocabulary, self.target_vocabulary))
        if self.embeddings == "shared" and self.source_vocabulary != self.target_vocabulary:
            raise UsageError(
                f"shared embeddings need equal vocabularies, got {self.source_vocabulary} and "
                f"{self.target_vocabulary} ids",
                "embeddings='tied', which shares only the target's",
            )
        head_dim_of(self.width, self.heads, self.head_dim)  # refuses heads that do not divide the width
        sinusoids(1, self.width)  # refuses a width that does not fit

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransformerConfig":
        """The inverse of `dataclasses.asdict`, also through JSON.

        Raises:
            UsageError: If a key is unknown.
        """
        check_keys(cls, values)
        return cls(**values)

    @property
    def outputs(self) -> int:
        """Logits of a token."""
        return self.target_vocabulary

    @property
    def reads(self) -> int:
        """The inputs: ids below this number."""
        return self.source_vocabulary

    @property
    def head_width(self) -> int:
        """Numbers per head, also where `head_dim` is left open."""
        return head_dim_of(self.width, self.heads, self.head_dim)

    @property
    def encoder(self) -> StackConfig:
        """The encoder's stack."""
        return _stack(self, self, self.source_vocabulary, self.encoder_depth, self.mlp_dim)

    @property
    def decoder(self) -> StackConfig:
        """The decoder's stack."""
        return _stack(self, self, self.target_vocabulary, self.decoder_depth, self.mlp_dim)


class Encoder(nn.Module):
    """The encoder's blocks and the norm after them; the embedding is outside, since it may be shared.

    Args:
        config: What to build.
        parts: Parts of your own.
    """

    def __init__(self, config: StackConfig, parts: Parts = STANDARD) -> None:
        super().__init__()
        order = NORM_ORDERS[config.norm]
        self.blocks = nn.ModuleList(EncoderBlock(config, parts, order=order) for _ in range(config.depth))
        self.norm = last_norm(config, parts.over(STACK, config))
        initialise(self.blocks)

    def forward(
        self, tokens: Float[Tensor, "b s d"], mask: Bool[Tensor, "b 1 1 s"], record: AnyRecord = SILENT
    ) -> Float[Tensor, "b s d"]:
        """Run the blocks; `mask` is False at padding."""
        for index, block in enumerate(self.blocks):
            tokens = block(tokens, record.at(f"blocks.{index}"), mask)
        return self.norm(tokens)


class Transformer(EncoderDecoder):
    """An encoder-decoder Transformer; `Transformer(config)(source, target)` gives logits, never probabilities.

    Args:
        config: What to build.
        parts: Parts of your own; the others are the paper's.

    Raises:
        UsageError: If one of the parts is none of this network.
    """

    def __init__(self, config: TransformerConfig, parts: Parts = STANDARD) -> None:
        super().__init__()
        check_slots(parts)
        self.config, self.parts = config, parts
        embed = parts.over(STACK, config.encoder).embedding
        self.source_embed = None if config.embeddings == "shared" else embed()
        self.encoder = Encoder(config.encoder, parts)
        self.decoder = Decoder(config.decoder, config.embeddings != "separate", parts)

    def encode(self, source: Int[Tensor, "b s"], record: AnyRecord = SILENT) -> Memory:
        """Encode the source; keeps `encoder.tokens`, `encoder.blocks.0.*` and so on, and `memory`.

        Padding takes no position and is never attended to, wherever it is. A row of padding alone gives finite values.

        Raises:
            UsageError: If the source is empty or has an unknown id.
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


@dataclass(frozen=True, kw_only=True)
class ImageToSequenceConfig:
    """A ViT as encoder and a decoder that generates; width and heads are the encoder's in both.

    Attributes:
        encoder: The ViT, with `classes=0`.
        vocabulary: Number of ids of the target.
        padding: The id that fills rows up.
        begin: The id that every target starts with.
        end: The id that ends a target.
        decoder_depth: Number of blocks of the decoder.
        mlp_dim: Numbers in the middle of the decoder's MLPs; 0 stands for 4 x width, see `mlp_width`.
        dropout: Probability in the decoder, after the embedding, the output map of attention and both maps of the MLP.
        attention_dropout: Probability of dropping an attention weight in the decoder.
        activation: Of the decoder's MLPs.
        norm: Where the decoder's norms are.
        embeddings: "separate", or "tied": the embedding is the output map.
        max_length: Longest target, in ids, that may be trained on or generated.
        norm_eps: The epsilon of the decoder's LayerNorm.
    """

    encoder: ViTConfig
    vocabulary: int
    padding: int = 0
    begin: int = 1
    end: int = 2
    decoder_depth: int = 6
    mlp_dim: int = 0
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Activation = "gelu"
    norm: Norm = "pre"
    embeddings: Literal["separate", "tied"] = "separate"
    max_length: int = 512
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse an invalid configuration."""
        ids = ("padding", "begin", "end")
        check_fields(self, may_be_zero=(*ids, "mlp_dim"), below_one=("dropout", "attention_dropout"))
        check_special_ids(self.padding, self.begin, self.end, self.vocabulary)
        if self.encoder.classes:
            problem = f"the encoder must have no head (its patches are read), got {self.encoder.classes} classes"
            raise UsageError(problem, "dataclasses.replace(encoder, classes=0)")
        sinusoids(1, self.encoder.width)  # refuses a width that does not fit

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ImageToSequenceConfig":
        """The inverse of `dataclasses.asdict`, also through JSON.

        Raises:
            UsageError: If a key is unknown, here or in the encoder's configuration.
        """
        check_keys(cls, values)
        settings: dict[str, Any] = {**values, "encoder": ViTConfig.from_dict(values["encoder"])}
        return cls(**settings)

    @property
    def outputs(self) -> int:
        """Logits of a token."""
        return self.vocabulary

    @property
    def reads(self) -> ViTConfig:
        """The inputs: the images of this ViT."""
        return self.encoder

    @property
    def mlp_width(self) -> int:
        """Numbers in the middle of the decoder's MLPs, also where `mlp_dim` is left open."""
        return self.mlp_dim or 4 * self.encoder.width

    @property
    def decoder(self) -> StackConfig:
        """The decoder's stack."""
        return _stack(self, self.encoder, self.vocabulary, self.decoder_depth, self.mlp_width)


class ImageToSequence(EncoderDecoder):
    """Reads an image and generates ids; `ImageToSequence(config)(images, target)` gives logits, never probabilities.

    Args:
        config: What to build.
        parts: Parts of your own in the encoder.
        decoder_parts: The same in the decoder.
    """

    def __init__(self, config: ImageToSequenceConfig, parts: Parts = STANDARD, decoder_parts: Parts = STANDARD) -> None:
        super().__init__()
        self.config, self.parts, self.decoder_parts = config, parts, decoder_parts
        self.encoder = ViT(config.encoder, parts)
        self.decoder = Decoder(config.decoder, config.embeddings == "tied", decoder_parts)

    def encode(self, images: Float[Tensor, "b c h w"], record: AnyRecord = SILENT) -> Memory:
        """The patch tokens after the ViT's last norm; keeps `encoder.tokens`, `encoder.blocks.0.*` ..., `memory`."""
        tokens = self.encoder.encode(images, record.at("encoder"))
        memory = self.encoder.norm(tokens)[:, self.config.encoder.prefix :]
        record.keep("memory", memory)
        return Memory(memory, None)
