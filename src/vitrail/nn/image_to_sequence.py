"""A picture in, a sequence out: a ViT reads the patches, and the decoder of the Transformer writes.

    memory = encode(images)             "An image is worth 16x16 words" (2020), equations 1 to 3, and the last norm
    logits = decode(target, memory)     "Attention is all you need" (2017), section 3.1

The memory is the patch tokens alone, in reading order, so that each cross-attention weight belongs to a place in the
picture. Prefix tokens (class token, registers) take part in the encoder and are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.nn.cache import NO_CACHE, AnyCache
from vitrail.nn.checks import Rule, check, check_keys, check_special_ids, number, one_of, whole
from vitrail.nn.config import ViTConfig
from vitrail.nn.decoder import STANDARD_STACK, Decoder, Memory, StackConfig, StackParts
from vitrail.nn.embedding import sinusoids
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.nn.vit import STANDARD, Parts, ViT

Activation = Literal["relu", "gelu"]
Norm = Literal["post", "pre"]
Embeddings = Literal["separate", "tied"]


@dataclass(frozen=True, kw_only=True)
class ImageToSequenceConfig:
    """A ViT that reads and a decoder that writes; width and heads are the encoder's in both.

    Attributes:
        encoder: The ViT, with `classes=0`.
        vocabulary: Number of ids that may be written.
        padding: The id that fills rows up.
        begin: The id that every target starts with.
        end: The id that ends a target.
        decoder_depth: Number of blocks that write.
        mlp_dim: Numbers in the middle of the decoder's MLPs, as given; 0 stands for 4 x width, as `mlp_width` tells.
        dropout: Probability in the decoder, after the embedding, the output map of attention and both maps of the MLP.
        attention_dropout: Probability of dropping an attention weight in the decoder.
        activation: Of the decoder's MLPs.
        norm: Where the decoder's norms stand.
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
    embeddings: Embeddings = "separate"
    max_length: int = 512
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check(
            self,
            {
                "encoder": Rule(lambda encoder: isinstance(encoder, ViTConfig), "a ViTConfig"),
                **dict.fromkeys(("vocabulary", "decoder_depth", "max_length"), whole(1)),
                **dict.fromkeys(("padding", "begin", "end", "mlp_dim"), whole(0)),
                **dict.fromkeys(("dropout", "attention_dropout"), number(below=1.0)),
                "activation": one_of(Activation),
                "norm": one_of(Norm),
                "embeddings": one_of(Embeddings),
                "norm_eps": number(),
            },
        )
        check_special_ids(self.padding, self.begin, self.end, self.vocabulary)
        if self.encoder.classes:
            raise UsageError(
                f"the encoder's patches are read and not its head, and it has {self.encoder.classes} classes",
                "dataclasses.replace(encoder, classes=0)",
            )
        sinusoids(1, self.encoder.width)  # refuses a width that does not fit

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ImageToSequenceConfig":
        """The inverse of `dataclasses.asdict`, also after a way through JSON.

        Raises:
            UsageError: If a key is unknown, here or in the encoder's configuration.
        """
        check_keys(cls, values)
        settings: dict[str, Any] = {**values, "encoder": ViTConfig.from_dict(values["encoder"])}
        return cls(**settings)

    @property
    def mlp_width(self) -> int:
        """Numbers in the middle of the decoder's MLPs, whether `mlp_dim` says it or leaves it open."""
        return self.mlp_dim or 4 * self.encoder.width

    @property
    def decoder(self) -> StackConfig:
        """The stack that writes."""
        return StackConfig(
            vocabulary=self.vocabulary,
            padding=self.padding,
            depth=self.decoder_depth,
            width=self.encoder.width,
            heads=self.encoder.heads,
            head_dim=self.encoder.head_width,
            mlp_dim=self.mlp_width,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation=self.activation,
            norm=self.norm,
            norm_eps=self.norm_eps,
            max_length=self.max_length,
        )


class ImageToSequence(nn.Module):
    """Reads a picture and writes ids; `ImageToSequence(config)(images, target)` gives logits, never probabilities.

    Args:
        config: What to build.
        parts: The callables that make the encoder's parts.
        decoder_parts: The callables that make the decoder's.
    """

    def __init__(
        self, config: ImageToSequenceConfig, parts: Parts = STANDARD, decoder_parts: StackParts = STANDARD_STACK
    ) -> None:
        super().__init__()
        self.config, self.parts, self.decoder_parts = config, parts, decoder_parts
        self.encoder = ViT(config.encoder, parts)
        self.decoder = Decoder(config.decoder, config.embeddings == "tied", decoder_parts)

    def forward(
        self, images: Float[Tensor, "b c h w"], target: Int[Tensor, "b t"], record: AnyRecord = SILENT
    ) -> Float[Tensor, "b t v"]:
        """Logits of the id that comes after each id of the target, which sees the picture and what stands before.

        Args:
            images: (b, c, h, w), preprocessed; any size that the patches divide.
            target: Ids (b, t) that start with `begin`, rows filled up with `padding`.
            record: Where to keep what happens on the way; nothing by default.

        Raises:
            UsageError: If the pictures do not fit, an id is unknown, the target is empty or too long, or rows differ.
        """
        return self.decode(target, self.encode(images, record), record)

    def encode(self, images: Float[Tensor, "b c h w"], record: AnyRecord = SILENT) -> Memory:
        """The patch tokens behind the ViT's last norm; keeps `encoder.tokens`, `encoder.blocks.0.*` ..., `memory`."""
        tokens = self.encoder.encode(images, record.at("encoder"))
        memory = self.encoder.norm(tokens)[:, self.config.encoder.prefix :]
        record.keep("memory", memory)
        return Memory(memory, None)

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
