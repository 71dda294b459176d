"""What tests of networks that read or write sequences share: small networks, ids, torch's own stacks, what is written.

torch's stacks get the same weights; positions come from their formula, written out here.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.nn.reference import redraw
from vitrail.nn import (
    DecoderBlock,
    EncoderBlock,
    Generated,
    ImageToSequence,
    ImageToSequenceConfig,
    Transformer,
    TransformerConfig,
    ViTConfig,
)

PADDING, BEGIN, END = 0, 1, 2
SMALL = TransformerConfig(
    source_vocab_size=13,
    target_vocab_size=11,
    width=16,
    encoder_depth=2,
    decoder_depth=2,
    heads=4,
    mlp_dim=24,
    max_length=12,
)
IMAGES = ImageToSequenceConfig(
    encoder=ViTConfig(
        image_size=(16, 24), patch_size=8, channels=1, classes=0, width=16, depth=2, heads=4, registers=2
    ),
    vocab_size=11,
    decoder_depth=2,
    max_length=12,
)


def transformer(config: TransformerConfig = SMALL, seed: int = 0) -> Transformer:
    """A network in eval mode, every parameter drawn anew."""
    network = Transformer(config)
    redraw(network, seed)
    return network.eval()


def image_to_sequence(config: ImageToSequenceConfig = IMAGES, seed: int = 0) -> ImageToSequence:
    """A network in eval mode, every parameter drawn anew."""
    network = ImageToSequence(config)
    redraw(network, seed)
    return network.eval()


def words(*shape: int, vocabulary: int, seed: int = 0) -> Tensor:
    """Ids that are no padding, begin or end."""
    return torch.randint(3, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def sources(rows: int = 3, length: int = 6, seed: int = 0) -> Tensor:
    """Sources of unequal length for `SMALL`; the first is full."""
    ids = words(rows, length, vocabulary=SMALL.source_vocab_size, seed=seed)
    for row in range(1, rows):
        ids[row, max(1, length - 2 * row) :] = PADDING
    return ids


def targets(rows: int = 3, length: int = 5, seed: int = 1) -> Tensor:
    """Targets for `SMALL` and `IMAGES`, which start with `begin`."""
    ids = words(rows, length, vocabulary=SMALL.target_vocab_size, seed=seed)
    ids[:, 0] = BEGIN
    return ids


def positions(length: int, width: int) -> Tensor:
    """Section 3.5 of the paper, number by number, in float64."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for place in range(length):
        for pair in range(width // 2):
            angle = place / 10_000 ** (2 * pair / width)
            table[place, 2 * pair], table[place, 2 * pair + 1] = math.sin(angle), math.cos(angle)
    return table


def _copy(to: nn.MultiheadAttention, ours: nn.Module) -> None:
    to.in_proj_weight, to.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    to.out_proj.weight, to.out_proj.bias = ours.proj.weight, ours.proj.bias


def torch_encoder_layer(block: EncoderBlock, config: TransformerConfig) -> nn.TransformerEncoderLayer:
    """torch's layer around the very parameters of our block."""
    layer = nn.TransformerEncoderLayer(
        config.width,
        config.heads,
        config.mlp_dim,
        dropout=0.0,
        activation=config.activation,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm == "pre",
    )
    _copy(layer.self_attn, block.attn)
    layer.linear1, layer.linear2, layer.norm1, layer.norm2 = block.mlp.fc1, block.mlp.fc2, block.norm1, block.norm2
    return layer


def torch_decoder_layer(
    block: DecoderBlock, config: TransformerConfig | ImageToSequenceConfig
) -> nn.TransformerDecoderLayer:
    """torch's layer around the very parameters of our block."""
    stack = config
    layer = nn.TransformerDecoderLayer(
        stack.width,
        stack.heads,
        stack.mlp_width,
        dropout=0.0,
        activation=stack.activation,
        layer_norm_eps=stack.norm_eps,
        batch_first=True,
        norm_first=stack.norm == "pre",
    )
    _copy(layer.self_attn, block.self_attn)
    _copy(layer.multihead_attn, block.cross_attn)
    layer.linear1, layer.linear2 = block.mlp.fc1, block.mlp.fc2
    layer.norm1, layer.norm2, layer.norm3 = block.norm1, block.norm2, block.norm3
    return layer


def by_torch_encoder(network: Transformer, source: Tensor) -> Tensor:
    """The memory by torch's encoder stack; post-norm stacks are made with `norm=None`."""
    config = network.config
    layers = [torch_encoder_layer(block, config) for block in network.encoder.blocks]
    stack = nn.TransformerEncoder(layers[0], 1, norm=None, enable_nested_tensor=False)
    stack.layers, stack.num_layers = nn.ModuleList(layers), len(layers)
    stack.norm = network.encoder.norm if config.norm == "pre" else None
    embed = (network.source_embed or network.decoder.embed).weight
    tokens = embed[source] * math.sqrt(config.width) + positions(source.shape[1], config.width).to(embed)
    return stack.train(network.training)(tokens, src_key_padding_mask=source == PADDING)


def by_torch_decoder(
    network: Transformer | ImageToSequence, target: Tensor, memory: Tensor, hidden: Tensor | None
) -> Tensor:
    """The logits by torch's decoder stack; `hidden` is True where the memory is padding."""
    config, decoder = network.config, network.decoder
    layers = [torch_decoder_layer(block, network.config) for block in decoder.blocks]
    stack = nn.TransformerDecoder(layers[0], 1, norm=None)
    stack.layers, stack.num_layers = nn.ModuleList(layers), len(layers)
    stack.norm = decoder.norm if config.norm == "pre" else None
    embed = decoder.embed.weight
    tokens = embed[target] * math.sqrt(config.width) + positions(target.shape[1], config.width).to(embed)
    later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    read = stack.train(network.training)(
        tokens, memory, tgt_mask=later, tgt_key_padding_mask=target == PADDING, memory_key_padding_mask=hidden
    )
    return read @ (decoder.head.weight if decoder.head is not None else embed).T


def by_torch(network: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """The logits by torch's two stacks."""
    return by_torch_decoder(network, target, by_torch_encoder(network, source), source == PADDING)


def without_dropout(config: TransformerConfig) -> TransformerConfig:
    """The same, for comparisons in train mode."""
    return replace(config, dropout=0.0, attention_dropout=0.0)


def lively(config=SMALL, seed: int = 10, scale: float = 1.5) -> Transformer:
    """A network that is sure of some things, and likes to end; with seeds 1, 10 and 11 at many lengths."""
    network = transformer(config, seed)
    with torch.no_grad():
        network.decoder.head.weight.mul_(scale)
        network.decoder.head.weight[END].mul_(2.0)
    return network


@torch.no_grad()
def log_probability(network: Transformer, source: Tensor, ids: list[int]) -> float:
    """What the network gives these ids, the whole target at once and no cache; `source` is one row."""
    logits = network(source, torch.tensor([[BEGIN, *ids[:-1]]]))
    return logits.log_softmax(-1)[0, range(len(ids)), ids].double().sum().item()


def written(generated: Generated, row: int, steps: int) -> list[int]:
    """A row's ids, with `end` unless it was cut."""
    ids = generated.tokens[row, : generated.lengths[row]].tolist()
    return ids if len(ids) == steps else [*ids, END]


def turning(seed: int) -> Transformer:
    """A network whose next id hangs on what was written, so that the best hypothesis often changes."""
    network = transformer(replace(SMALL, norm="pre", target_vocab_size=7), seed)
    with torch.no_grad():
        network.decoder.embed.weight.mul_(2.0)
        network.decoder.head.weight.mul_(0.7)
        network.decoder.head.weight[END].mul_(2.0)
    return network
