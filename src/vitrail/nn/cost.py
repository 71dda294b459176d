"""What a network costs: shapes, parameters and FLOPs of every layer, from its configuration alone.

A multiply-add counts as 2 FLOPs. Counted are the linear maps, the patch map, and attention's two matrix products;
norms, activations and softmax are left out, as is usual. Per sample, forward; training is about 3 times that. A
network that writes is counted for a whole target at once, as it is trained, whose length may be chosen.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vitrail.nn.config import ViTConfig
from vitrail.nn.decoder import StackConfig
from vitrail.nn.seq2seq import ImageToSequenceConfig, TransformerConfig

Config = ViTConfig | TransformerConfig | ImageToSequenceConfig


class Layer(NamedTuple):
    """One row of the table."""

    name: str
    shape: tuple[int, ...]  # of its output for one sample: (tokens, numbers per token)
    parameters: int
    flops: int


def layers(config: Config, source: int | None = None, target: int | None = None) -> tuple[Layer, ...]:
    """The layers in the order in which a sample meets them; a stack's blocks are rows `blocks.0.…` to `blocks.L-1.…`.

    Args:
        config: Of the network.
        source: Ids that are read, where ids are; as many as may be written when None.
        target: Ids that are written, where ids are; as many as may be when None.
    """
    match config:
        case ViTConfig():
            return tuple(_vit(config))
        case ImageToSequenceConfig(encoder=encoder):
            rows, columns = encoder.grid
            read = [row for row in _vit(encoder) if row.name != "head"]
            written = _decoder(config.decoder, config.embeddings == "tied", rows * columns, target)
        case TransformerConfig():
            length = config.max_length if source is None else source
            read = list(_reader(config.encoder, config.embeddings == "shared", length))
            written = _decoder(config.decoder, config.embeddings != "separate", length, target)
    return (*_below("encoder", read), *_below("decoder", written))


def parameters(config: Config) -> int:
    """Number of parameters."""
    return sum(layer.parameters for layer in layers(config))


def flops(config: Config, source: int | None = None, target: int | None = None) -> int:
    """FLOPs of one sample's forward pass; lengths as for `layers`."""
    return sum(layer.flops for layer in layers(config, source, target))


def _below(stack: str, rows: Iterator[Layer] | list[Layer]) -> Iterator[Layer]:
    return (row._replace(name=f"{stack}.{row.name}") for row in rows)


def _vit(config: ViTConfig) -> Iterator[Layer]:
    """A ViT, from patches to logits."""
    rows, columns = config.grid
    patches, width, tokens = rows * columns, config.width, rows * columns + config.prefix
    pixels = config.channels * config.patch[0] * config.patch[1]
    learned, scale = config.positions == "learned", width if config.layer_scale else 0
    yield Layer("patch_embed", (patches, width), (pixels + config.embed_bias) * width, 2 * patches * pixels * width)
    yield Layer("prefix tokens", (config.prefix, width), config.prefix * width, 0)
    yield Layer("positions", (tokens, width), tokens * width if learned else 0, 0)
    for index in range(config.depth):
        inner, biases = config.heads * config.head_width, (config.qkv_bias, config.out_bias)
        block = [
            Layer("norm1", (tokens, width), 2 * width, 0),
            *_attention("", width, config.heads, inner, tokens, tokens, biases, scale),
            Layer("norm2", (tokens, width), 2 * width, 0),
            *_mlp(width, config.mlp_width, tokens, config.mlp_bias, scale),
        ]
        yield from _below(f"blocks.{index}", block)
    yield Layer("norm", (tokens, width), 2 * width, 0)
    heads = (1 + int(config.distillation_token)) if config.classes else 0
    maps, logits = heads * (width + config.head_bias) * config.classes, config.classes
    yield Layer("head", (logits,), maps, heads * 2 * width * logits)


def _reader(stack: StackConfig, shared: bool, tokens: int) -> Iterator[Layer]:
    """A Transformer's encoder; a shared embedding is counted where it is the output map."""
    width = stack.width
    yield Layer("embed", (tokens, width), 0 if shared else stack.vocabulary * width, 0)
    for index in range(stack.depth):
        block = [
            Layer("norm1", (tokens, width), 2 * width, 0),
            *_attention("", width, stack.heads, stack.heads * stack.head_width, tokens, tokens),
            Layer("norm2", (tokens, width), 2 * width, 0),
            *_mlp(width, stack.mlp_width, tokens),
        ]
        yield from _below(f"blocks.{index}", block)
    if stack.norm == "pre":
        yield Layer("norm", (tokens, width), 2 * width, 0)


def _decoder(stack: StackConfig, tied: bool, memory: int, target: int | None) -> Iterator[Layer]:
    """A decoder that reads so many memory tokens and writes a whole target."""
    width, inner = stack.width, stack.heads * stack.head_width
    tokens = stack.max_length if target is None else target
    yield Layer("embed", (tokens, width), stack.vocabulary * width, 0)
    for index in range(stack.depth):
        block = [
            Layer("norm1", (tokens, width), 2 * width, 0),
            *_attention("self_", width, stack.heads, inner, tokens, tokens),
            Layer("norm2", (tokens, width), 2 * width, 0),
            *_attention("cross_", width, stack.heads, inner, tokens, memory),
            Layer("norm3", (tokens, width), 2 * width, 0),
            *_mlp(width, stack.mlp_width, tokens),
        ]
        yield from _below(f"blocks.{index}", block)
    if stack.norm == "pre":
        yield Layer("norm", (tokens, width), 2 * width, 0)
    logits = stack.vocabulary
    yield Layer("head", (tokens, logits), 0 if tied else logits * width, 2 * tokens * width * logits)


def _attention(
    place: str,
    width: int,
    heads: int,
    inner: int,
    tokens: int,
    context: int,
    biases: tuple[bool, bool] = (True, True),
    scale: int = 0,
) -> list[Layer]:
    """Queries of the tokens, keys and values of the context, the two products, the output map."""
    (qkv_bias, out_bias), mapped = biases, tokens + 2 * context  # tokens for queries, context for keys and values
    qkv, out = (width + qkv_bias) * 3 * inner, (inner + out_bias) * width + scale
    return [
        Layer(f"{place}attn.qkv", (tokens, 3 * inner), qkv, 2 * mapped * width * inner),
        Layer(f"{place}attention", (heads, tokens, context), 0, 4 * tokens * context * inner),
        Layer(f"{place}attn.proj", (tokens, width), out, 2 * tokens * inner * width),
    ]


def _mlp(width: int, hidden: int, tokens: int, bias: bool = True, scale: int = 0) -> list[Layer]:
    """The two maps."""
    first, second = (width + bias) * hidden, (hidden + bias) * width + scale
    return [
        Layer("mlp.fc1", (tokens, hidden), first, 2 * tokens * width * hidden),
        Layer("mlp.fc2", (tokens, width), second, 2 * tokens * width * hidden),
    ]
