"""Every row of a network's cost by its formula, from the configuration alone: what torch's count is held against."""

from collections.abc import Iterator

from vitrail.nn.config import ViTConfig
from vitrail.nn.cost import LayerCost
from vitrail.nn.networks import NetworkConfig
from vitrail.nn.seq2seq import ImageToSequenceConfig, TransformerConfig


def layers(config: NetworkConfig) -> tuple[LayerCost, ...]:
    """The layers in the order in which a sample meets them; a stack's blocks are rows `blocks.0.…` to `blocks.L-1.…`.

    Ids are as many as may be written.
    """
    match config:
        case ViTConfig():
            return tuple(_vit(config))
        case ImageToSequenceConfig(encoder=encoder):
            rows, columns = encoder.grid
            read = [row for row in _vit(encoder) if row.name != "head"]
            written = _decoder(config, rows * columns)
        case TransformerConfig():
            read = list(_reader(config, config.max_length))
            written = _decoder(config, config.max_length)
    return (*_below("encoder", read), *_below("decoder", written))


def _below(stack: str, rows: Iterator[LayerCost] | list[LayerCost]) -> Iterator[LayerCost]:
    return (row._replace(name=f"{stack}.{row.name}") for row in rows)


def _vit(config: ViTConfig) -> Iterator[LayerCost]:
    """A ViT, from patches to logits."""
    rows, columns = config.grid
    patches, width, tokens = rows * columns, config.width, rows * columns + config.prefix
    pixels = config.channels * config.patch[0] * config.patch[1]
    learned, scaled = config.positions == "learned", bool(config.layer_scale)
    yield LayerCost("patch_embed", (patches, width), (pixels + config.embed_bias) * width, 2 * patches * pixels * width)
    yield LayerCost("prefix tokens", (config.prefix, width), config.prefix * width, 0)
    yield LayerCost("positions", (tokens, width), tokens * width if learned else 0, 0)
    for index in range(config.depth):
        inner, biases = config.heads * config.head_width, (config.qkv_bias, config.out_bias)
        block = [
            LayerCost("norm1", (tokens, width), 2 * width, 0),
            *_attention("", width, config.heads, inner, tokens, tokens, biases),
            *[LayerCost("ls1", (tokens, width), width, 0)] * scaled,
            LayerCost("norm2", (tokens, width), 2 * width, 0),
            *_mlp(width, config.mlp_width, tokens, config.mlp_bias),
            *[LayerCost("ls2", (tokens, width), width, 0)] * scaled,
        ]
        yield from _below(f"blocks.{index}", block)
    yield LayerCost("norm", (tokens, width), 2 * width, 0)
    heads = (1 + int(config.distillation_token)) if config.classes else 0
    maps, logits = heads * (width + config.head_bias) * config.classes, config.classes
    yield LayerCost("head", (logits,), maps, heads * 2 * width * logits)


def _reader(stack: TransformerConfig, tokens: int) -> Iterator[LayerCost]:
    """A Transformer's encoder; a shared embedding is counted where it is the output map."""
    width = stack.width
    yield LayerCost("embed", (tokens, width), 0 if stack.embeddings == "shared" else stack.source_vocab_size * width, 0)
    for index in range(stack.encoder_depth):
        block = [
            LayerCost("norm1", (tokens, width), 2 * width, 0),
            *_attention("", width, stack.heads, stack.heads * stack.head_width, tokens, tokens),
            LayerCost("norm2", (tokens, width), 2 * width, 0),
            *_mlp(width, stack.mlp_width, tokens),
        ]
        yield from _below(f"blocks.{index}", block)
    if stack.norm == "pre":
        yield LayerCost("norm", (tokens, width), 2 * width, 0)


def _decoder(stack: TransformerConfig | ImageToSequenceConfig, memory: int) -> Iterator[LayerCost]:
    """A decoder that reads so many memory tokens and writes a whole target."""
    width, inner = stack.width, stack.heads * stack.head_width
    tokens = stack.max_length
    yield LayerCost("embed", (tokens, width), stack.vocab_size * width, 0)
    for index in range(stack.decoder_depth):
        block = [
            LayerCost("norm1", (tokens, width), 2 * width, 0),
            *_attention("self_", width, stack.heads, inner, tokens, tokens),
            LayerCost("norm2", (tokens, width), 2 * width, 0),
            *_attention("cross_", width, stack.heads, inner, tokens, memory),
            LayerCost("norm3", (tokens, width), 2 * width, 0),
            *_mlp(width, stack.mlp_width, tokens),
        ]
        yield from _below(f"blocks.{index}", block)
    if stack.norm == "pre":
        yield LayerCost("norm", (tokens, width), 2 * width, 0)
    logits = stack.vocab_size
    yield LayerCost(
        "head", (tokens, logits), logits * width if stack.embeddings == "separate" else 0, 2 * tokens * width * logits
    )


def _attention(
    place: str,
    width: int,
    heads: int,
    inner: int,
    tokens: int,
    context: int,
    biases: tuple[bool, bool] = (True, True),
) -> list[LayerCost]:
    """Queries of the tokens, keys and values of the context, the two products, the output map."""
    (qkv_bias, out_bias), mapped = biases, tokens + 2 * context  # tokens for queries, context for keys and values
    qkv, out = (width + qkv_bias) * 3 * inner, (inner + out_bias) * width
    return [
        LayerCost(f"{place}attn.qkv", (tokens, 3 * inner), qkv, 2 * mapped * width * inner),
        LayerCost(f"{place}attention", (heads, tokens, context), 0, 4 * tokens * context * inner),
        LayerCost(f"{place}attn.proj", (tokens, width), out, 2 * tokens * inner * width),
    ]


def _mlp(width: int, hidden: int, tokens: int, bias: bool = True) -> list[LayerCost]:
    """The two maps."""
    first, second = (width + bias) * hidden, (hidden + bias) * width
    return [
        LayerCost("mlp.fc1", (tokens, hidden), first, 2 * tokens * width * hidden),
        LayerCost("mlp.fc2", (tokens, width), second, 2 * tokens * width * hidden),
    ]
