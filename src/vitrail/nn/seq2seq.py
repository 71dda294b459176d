"""Networks that generate text, from the same parts as the ViT: one reads ids and one reads an image.

    Transformer         memory = encode(source)     "Attention is all you need" (2017), section 3.1
    ImageToSequence     memory = encode(images)     "An image is worth 16x16 words" (2020), equations 1 to 3, norm
    EncoderDecoder      logits = decode(target, memory)     of both: of the id after each id of the target

The decoder is that of section 3.1: it reads a memory, encoded words or patches, and generates ids one by one.

    tokens = embed(ids)                     sections 3.4 and 3.5
    tokens = block(tokens, memory), L times causal self-attention, cross-attention to the memory, MLP
    logits = tokens W^T                     of the id after each token

A token is its row of the embedding times sqrt(d), plus its position, with dropout on the sum. With a `Cache`, which is
passed down like the record, the decoder gets only the new ids at each step:

    cache = Cache()
    logits = network.decode(target[:, :1], memory, cache=cache)   # the first token
    logits = network.decode(target[:, 1:2], memory, cache=cache)  # the second, which sees the first

Read with it: `blocks.py` (the encoder's block), `vit.py`. Axes: b batch, s source ids, t target ids, m memory tokens, v
vocabulary, d width. From ids to logits: the masks are made inside, from the padding id and from the order of the
target. The memory of an image is its patch tokens alone, in reading order, so that each cross-attention weight belongs
to a patch; prefix tokens take part in the encoder only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitrail.errors import UsageError, check_kinds
from vitrail.nn.blocks import BLOCK, STANDARD, EncoderBlock, Parts, PostNormBlock, default, initialise
from vitrail.nn.embedding import sinusoids
from vitrail.nn.networks import ImageToSequenceConfig, SequenceConfig, TransformerConfig
from vitrail.nn.record import SILENT, AnyRecord, Mask, Tokens
from vitrail.nn.vit import ViT

# ---- the decoder

Target = Int[Tensor, "b t"]
Logits = Float[Tensor, "b t v"]


class Cache:
    """Stores tensors by name, for one batch of sequences that grow step by step."""

    def __init__(self) -> None:
        self._place = ""
        self._kept: dict[str, tuple[Tensor, ...]] = {}

    def at(self, name: str) -> "Cache":
        """The same cache, whose names now start with `name`."""
        inner = Cache()
        inner._place = f"{self._place}{name}."
        inner._kept = self._kept
        return inner

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append to the tensors of this place, and return all: self-attention's keys and values.

        Args:
            *new: Tensors whose third axis counts the tokens, such as (b, k, n, e).

        Returns:
            Each after its predecessors, (b, k, all n so far, e).
        """
        old = self._kept.get(self._place)
        joined = new if old is None else tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True))
        self._kept[self._place] = joined
        return joined

    def once(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The result of the first call of `make` at this place: cross-attention's keys and values of the memory."""
        if self._place not in self._kept:
            self._kept[self._place] = make()
        return self._kept[self._place]

    def reorder(self, rows: Int[Tensor, "r"]) -> None:
        """Replace row i by row `rows[i]`, as beam search does after each step."""
        for place, tensors in self._kept.items():
            self._kept[place] = tuple(tensor.index_select(0, rows) for tensor in tensors)


class TokenEmbedding(nn.Module):
    """One row of d numbers for every id, times sqrt(d), plus the position.

    The rows start as normal numbers of standard deviation 1 / sqrt(d), so that they enter with standard deviation 1.

    Args:
        vocab_size: Number of ids.
        width: Numbers per token, d.
        max_length: Positions that are computed in advance; longer sequences work and are slower.
        dropout: Probability of dropping a number of the sum.
    """

    positions: Tensor

    def __init__(self, vocab_size: int, width: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width))
        nn.init.normal_(self.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(max_length, width), persistent=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: Int[Tensor, "b n"], visible: Bool[Tensor, "b m"]) -> Float[Tensor, "b n d"]:
        """Tokens of ids; the position of each is the number of ids before it that are not padding.

        Args:
            ids: Of the vocabulary.
            visible: False at padding; of all ids so far, of which `ids` are the last.
        """
        width, length, table = self.weight.shape[1], visible.shape[1], self.positions
        if length > len(table):
            table = sinusoids(length, width).to(table)
        places = (visible.cumsum(dim=1) - 1).clamp(min=0)[:, length - ids.shape[1] :]
        return self.drop(F.embedding(ids, self.weight) * width**0.5 + table[places])


def check_ids(ids: Tensor, vocab_size: int, what: str) -> None:
    """Refuse anything but a batch of sequences of known ids.

    The values are looked at only outside torch.compile and torch.export, whose graphs cannot branch on them.

    Args:
        ids: To be integers (b, n).
        vocab_size: Number of ids.
        what: The name of the sequence, such as "source".

    Raises:
        UsageError: If it is not (b, n), is empty, or holds an id outside the vocabulary.
    """
    check_kinds(**{what: (ids, Tensor)})
    if ids.dim() != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        problem = f"the {what} must be integer ids of shape (b, n), got {ids.dtype} {tuple(ids.shape)}"
        raise UsageError(problem, "torch.tensor([[...]]) of ids, one row for each sequence")
    if ids.shape[1] == 0:
        raise UsageError(f"the {what} is empty: {tuple(ids.shape)}", f"at least one id in each row of the {what}")
    if torch.compiler.is_compiling() or ids.is_meta or ids.numel() == 0:
        return
    least, greatest = (int(bound) for bound in ids.aminmax())
    if least < 0 or greatest >= vocab_size:
        unknown = least if least < 0 else greatest
        problem = f"the {what} contains id {unknown}, but the vocabulary has {vocab_size} ids"
        raise UsageError(problem, f"ids from 0 to {vocab_size - 1}")


STACK = replace(BLOCK, embedding=lambda c: TokenEmbedding(c.vocab_size, c.width, c.max_length, c.dropout))


def last_norm(config: SequenceConfig, made: Parts) -> nn.Module:
    """The end of a stack: a norm of its own after pre-norm blocks, nothing after post-norm ones."""
    return made.norm() if config.norm == "pre" else nn.Identity()


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Bool[Tensor, "n m"]:
    """True where key j is not later than query i; the last query is aligned with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class Memory(NamedTuple):
    """The output of an encoder, for a decoder to attend to.

    Attributes:
        tokens: (b, m, d).
        mask: (b, 1, 1, m), False at padding; None where there is none.
    """

    tokens: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b 1 1 m"] | None

    def rows(self, rows: Int[Tensor, "r"]) -> "Memory":
        """The memory of some rows, in that order; a row may come several times."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Memory(self.tokens.index_select(0, rows), mask)


class DecoderBranches(nn.Module):
    """The three branches of a decoder block: self-attention, cross-attention to a memory, and MLP.

    Args:
        config: A `SequenceConfig`.
        parts: Parts of your own; an attention is called with a context and a cache, too, as `Attention` is.
    """

    def __init__(self, config: Any, parts: Parts = STANDARD) -> None:
        super().__init__()
        made = parts.over(BLOCK, config)
        self.norm1 = made.norm()
        self.self_attn = made.attention()
        self.ls1 = made.scale()
        self.norm2 = made.norm()
        self.cross_attn = made.attention()
        self.ls2 = made.scale()
        self.norm3 = made.norm()
        self.mlp = made.mlp()
        self.ls3 = made.scale()

    def look_back(self, tokens: Tokens, mask: Mask | None, record: AnyRecord, cache: Cache | None) -> Tokens:
        """What attention to the target so far adds, kept under `self`."""
        added = self.ls1(self.self_attn(tokens, mask=mask, record=record.at("self"), cache=cache and cache.at("self")))
        record.at("self").keep("attn_out", added)
        return added

    def read(self, tokens: Tokens, memory: Memory, record: AnyRecord, cache: Cache | None) -> Tokens:
        """What attention to the memory adds, kept under `cross`."""
        inside, stored = record.at("cross"), cache and cache.at("cross")
        added = self.ls2(self.cross_attn(tokens, memory.tokens, memory.mask, record=inside, cache=stored))
        inside.keep("attn_out", added)
        return added

    def transform(self, tokens: Tokens, record: AnyRecord) -> Tokens:
        """What the MLP adds, kept as `mlp`."""
        added = self.ls3(self.mlp(tokens))
        record.keep("mlp", added)
        return added


class DecoderBlock(DecoderBranches):
    """Pre-norm, as `EncoderBlock`."""

    def forward(
        self,
        tokens: Tokens,
        memory: Memory,
        mask: Mask | None = None,
        record: AnyRecord = SILENT,
        cache: Cache | None = None,
    ) -> Tokens:
        """Run the block; keeps `input`, the two attentions under `self` and `cross`, `mlp` and `output`.

        Args:
            tokens: The target's tokens, (b, t, d).
            memory: The encoder's output.
            mask: True where a target token may see another; n counts all target tokens so far.
            record: Where to keep intermediates.
            cache: Keys and values of the target tokens before these, and of the memory.
        """
        record.keep("input", tokens)
        tokens = tokens + self.look_back(self.norm1(tokens), mask, record, cache)
        tokens = tokens + self.read(self.norm2(tokens), memory, record, cache)
        tokens = tokens + self.transform(self.norm3(tokens), record)
        record.keep("output", tokens)
        return tokens


class PostNormDecoderBlock(DecoderBranches):
    """Post-norm, as `PostNormBlock`."""

    def forward(
        self,
        tokens: Tokens,
        memory: Memory,
        mask: Mask | None = None,
        record: AnyRecord = SILENT,
        cache: Cache | None = None,
    ) -> Tokens:
        """Run the block, as `DecoderBlock` does."""
        record.keep("input", tokens)
        tokens = self.norm1(tokens + self.look_back(tokens, mask, record, cache))
        tokens = self.norm2(tokens + self.read(tokens, memory, record, cache))
        tokens = self.norm3(tokens + self.transform(tokens, record))
        record.keep("output", tokens)
        return tokens


class Decoder(nn.Module):
    """From ids and a memory to the logits of the next ids.

    Args:
        config: A `SequenceConfig`. Tied embeddings: "Attention is all you need", section 3.4.
        parts: Parts of your own.

    Raises:
        UsageError: If one of the parts is none of a stack.
    """

    def __init__(self, config: Any, parts: Parts = STANDARD) -> None:
        super().__init__()
        for slot in fields(parts):
            if getattr(parts, slot.name) is not default and getattr(STACK, slot.name) is default:
                raise UsageError(f"a sequence network has no part '{slot.name}'", f"Parts without {slot.name}")
        self.config, made = config, parts.over(STACK, config)
        self.embed = made.embedding()
        block = DecoderBlock if config.norm == "pre" else PostNormDecoderBlock
        self.blocks = nn.ModuleList(block(config, parts) for _ in range(config.decoder_depth))
        self.norm = last_norm(config, made)
        tied = config.embeddings != "separate"
        self.head = None if tied else nn.Linear(config.width, config.vocab_size, bias=False)
        initialise(self.blocks)
        if self.head is not None:
            nn.init.xavier_uniform_(self.head.weight)

    def forward(self, target: Target, memory: Memory, record: AnyRecord = SILENT, cache: Cache | None = None) -> Logits:
        """Logits of the id after each id of the target.

        Args:
            target: Ids (b, t), which start with `begin`. With a cache only the new ones. Padding takes no position and
                is never attended to, wherever it is.
            memory: The encoder's output.
            record: Where to keep intermediates: `tokens`, `blocks.0.*` and so on.
            cache: Of earlier calls.

        Raises:
            UsageError: If the target is empty, too long, has other rows than the memory, or holds an unknown id.
        """
        check_ids(target, self.config.vocab_size, "target")
        if target.shape[0] != memory.tokens.shape[0]:
            problem = f"the target has {target.shape[0]} rows but the source has {memory.tokens.shape[0]}"
            raise UsageError(problem, "one for each")
        visible = target != self.config.pad_id
        if cache is not None:  # of all target tokens so far
            visible = cache.at("target").extend(visible[:, None, :, None])[0].flatten(1)
        if visible.shape[1] > self.config.max_length:
            problem = f"the target has {visible.shape[1]} ids, but this network takes at most {self.config.max_length}"
            raise UsageError(problem, f"a shorter target, or a network with max_length={visible.shape[1]}")
        mask = causal_mask(target.shape[1], visible.shape[1], target.device) & visible[:, None, None, :]
        tokens = self.embed(target, visible)
        record.keep("tokens", tokens)
        for index, block in enumerate(self.blocks):
            place = f"blocks.{index}"
            tokens = block(tokens, memory, mask, record.at(place), cache and cache.at(place))
        tokens = self.norm(tokens)
        return F.linear(tokens, (self.head or self.embed).get_parameter("weight"))


# ---- the networks


class EncoderDecoder(nn.Module, ABC):
    """What every network that generates text does after its `encode`."""

    decoder: Decoder

    @abstractmethod
    def encode(self, inputs: Tensor, /, record: AnyRecord = SILENT) -> Memory:
        """Encode; keeps `encoder.tokens`, `encoder.blocks.0.*` and so on, and `memory`."""

    def forward(self, inputs: Shaped[Tensor, "b ..."], target: Target, record: AnyRecord = SILENT) -> Logits:
        """Logits of the id after each id of the target, which attends to the inputs and to the ids before it.

        Args:
            inputs: Of `encode`.
            target: Ids (b, t) that start with `bos_id`, rows filled up with `pad_id`.
            record: Where to keep intermediates; nothing by default.

        Raises:
            UsageError: If the inputs do not fit, an id is unknown, the target is empty or too long, or the rows differ.
        """
        return self.decode(target, self.encode(inputs, record), record)

    def decode(self, target: Target, memory: Memory, record: AnyRecord = SILENT, cache: Cache | None = None) -> Logits:
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

    def forward(self, tokens: Tokens, mask: Bool[Tensor, "b 1 1 n"], record: AnyRecord = SILENT) -> Tokens:
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
