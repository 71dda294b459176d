"""What a ViT costs: shapes, parameters and FLOPs of every layer, from its configuration alone.

A multiply-add counts as 2 FLOPs. Counted are the linear maps, the patch map, and attention's two matrix products;
norms, activations and softmax are left out, as is usual. Per picture, forward; training is about 3 times that.
"""

from typing import NamedTuple

from vitrail.nn.config import ViTConfig


class Layer(NamedTuple):
    """One row of the table."""

    name: str
    shape: tuple[int, ...]  # of its output for one picture: (tokens, numbers per token)
    parameters: int
    flops: int


def layers(config: ViTConfig) -> tuple[Layer, ...]:
    """The layers in the order in which a picture meets them; blocks are rows `blocks.0` to `blocks.L-1` in parts."""
    rows, columns = config.grid
    patches, width, inner = rows * columns, config.width, config.heads * config.head_dim
    tokens = patches + config.prefix
    pixels = config.channels * config.patch[0] * config.patch[1]
    hidden, norm, scale = config.mlp_dim, 2 * width, width if config.layer_scale else 0
    learned = config.positions == "learned"
    table = [
        Layer("patch_embed", (patches, width), (pixels + config.embed_bias) * width, 2 * patches * pixels * width),
        Layer("prefix tokens", (config.prefix, width), config.prefix * width, 0),
        Layer("positions", (tokens, width), tokens * width if learned else 0, 0),
    ]
    for index in range(config.depth):
        qkv, out = (width + config.qkv_bias) * 3 * inner, (inner + config.out_bias) * width + scale
        first, second = (width + config.mlp_bias) * hidden, (hidden + config.mlp_bias) * width + scale
        block = [
            Layer("norm1", (tokens, width), norm, 0),
            Layer("attn.qkv", (tokens, 3 * inner), qkv, 2 * tokens * width * 3 * inner),
            Layer("attention", (config.heads, tokens, tokens), 0, 4 * tokens * tokens * inner),
            Layer("attn.proj", (tokens, width), out, 2 * tokens * inner * width),
            Layer("norm2", (tokens, width), norm, 0),
            Layer("mlp.fc1", (tokens, hidden), first, 2 * tokens * width * hidden),
            Layer("mlp.fc2", (tokens, width), second, 2 * tokens * width * hidden),
        ]
        table += [row._replace(name=f"blocks.{index}.{row.name}") for row in block]
    heads = (1 + int(config.distillation_token)) if config.classes else 0
    table += [
        Layer("norm", (tokens, width), norm, 0),
        Layer(
            "head",
            (config.classes,),
            heads * (width + config.head_bias) * config.classes,
            heads * 2 * width * config.classes,
        ),
    ]
    return tuple(table)


def parameters(config: ViTConfig) -> int:
    """Number of parameters."""
    return sum(layer.parameters for layer in layers(config))


def flops(config: ViTConfig) -> int:
    """FLOPs of one picture's forward pass."""
    return sum(layer.flops for layer in layers(config))
