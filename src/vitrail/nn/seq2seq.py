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
from dataclasses import replace

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitrail.nn.blocks import STANDARD, EncoderBlock, Parts, PostNormBlock, initialise
from vitrail.nn.decoder import STACK, Cache, Decoder, Memory, check_ids, last_norm
from vitrail.nn.networks import ImageToSequenceConfig, TransformerConfig
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.nn.vit import ViT


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
            target: Ids (b, t) that start with `bos_id`, rows filled up with `pad_id`.
            record: Where to keep intermediates; nothing by default.

        Raises:
            UsageError: If the inputs do not fit, an id is unknown, the target is empty or too long, or the rows differ.
        """
        return self.decode(target, self.encode(inputs, record), record)

    def decode(
        self, target: Int[Tensor, "b t"], memory: Memory, record: AnyRecord = SILENT, cache: Cache | None = None
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


class Encoder(nn.Module):
    """The encoder's blocks and the norm after them; the embedding is outside, since it may be shared.

    Args:
        config: What to build.
        parts: Parts of your own.
    """

    def __init__(self, config: TransformerConfig, parts: Parts = STANDARD) -> None:
        super().__init__()
        block = EncoderBlock if config.norm == "pre" else PostNormBlock
        self.blocks = nn.ModuleList(block(config, parts) for _ in range(config.encoder_depth))
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
        self.config, self.parts = config, parts
        source = replace(config, target_vocab_size=config.source_vocab_size)  # an embedding is made for `vocab_size`
        self.source_embed = None if config.embeddings == "shared" else parts.over(STACK, source).embedding()
        self.encoder = Encoder(config, parts)
        self.decoder = Decoder(config, parts)

    def encode(self, source: Int[Tensor, "b s"], record: AnyRecord = SILENT) -> Memory:
        """Encode the source; keeps `encoder.tokens`, `encoder.blocks.0.*` and so on, and `memory`.

        Padding takes no position and is never attended to, wherever it is. A row of padding alone gives finite values.

        Raises:
            UsageError: If the source is empty or has an unknown id.
        """
        check_ids(source, self.config.source_vocab_size, "source")
        embed = self.decoder.embed if self.source_embed is None else self.source_embed
        visible = source != self.config.pad_id
        tokens = embed(source, visible)
        record.keep("encoder.tokens", tokens)
        mask = visible[:, None, None, :]
        memory = Memory(self.encoder(tokens, mask, record.at("encoder")), mask)
        record.keep("memory", memory.tokens)
        return memory


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
        self.decoder = Decoder(config, decoder_parts)

    def encode(self, images: Float[Tensor, "b c h w"], record: AnyRecord = SILENT) -> Memory:
        """The patch tokens after the ViT's last norm; keeps `encoder.tokens`, `encoder.blocks.0.*` ..., `memory`."""
        tokens = self.encoder.encode(images, record.at("encoder"))
        memory = self.encoder.norm(tokens)[:, self.config.encoder.prefix :]
        record.keep("memory", memory)
        return Memory(memory, None)
