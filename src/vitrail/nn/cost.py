"""What a network costs: shapes, parameters and FLOPs of every layer, as torch counts them while it runs on `meta`.

A tensor on `meta` has a shape and no numbers, so nothing is computed, and the parts of any network count as they are. A
multiply-add counts as 2 FLOPs. Counted are matrix products and convolutions; norms, activations and softmax are left
out, as is usual. Per sample, forward; training is about 3 times that. A network that writes is counted for a whole
target at once, as it is trained, whose length may be chosen.
"""

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.nn.networks import NetworkConfig, build, example_inputs
from vitrail.nn.record import Record
from vitrail.nn.seq2seq import ImageToSequence, Transformer
from vitrail.nn.vit import ViT

Config = NetworkConfig
ATTENTIONS = ("attn", "self_attn", "cross_attn")


class Layer(NamedTuple):
    """One row of the table."""

    name: str
    shape: tuple[int, ...]  # of its output for one sample: (tokens, numbers per token)
    parameters: int
    flops: int


def layers(of: Config | nn.Module, source: int | None = None, target: int | None = None) -> tuple[Layer, ...]:
    """The layers in the order in which a sample meets them; a stack's blocks are rows `blocks.0.…` to `blocks.L-1.…`.

    Args:
        of: A configuration, or a network with parts of its own; left as it is.
        source: Ids that are read, where ids are; as many as may be written when None.
        target: Ids that are written, where ids are; as many as may be when None.
    """
    with torch.device("meta"):
        network = copy.deepcopy(of).to("meta").eval() if isinstance(of, nn.Module) else build(of).eval()
        inputs, record = example_inputs(network, 1, source, target), Record()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(*inputs, record=record)
    flops = {place.partition(".")[2]: sum(each.values()) for place, each in counter.get_flop_counts().items()}
    match network:
        case ViT():
            rows = _vit(network, "", record, flops)
        case ImageToSequence():
            read = (row for row in _vit(network.encoder, "encoder.", record, flops) if row.name != "encoder.head")
            rows = (*read, *_stack(network.decoder, "decoder.", record, flops))
        case Transformer():
            embed = network.source_embed
            rows = (
                Layer("encoder.embed", _shape(record["encoder.tokens"]), _count(embed), 0),
                *_stack(network.encoder, "encoder.", record, flops),
                *_stack(network.decoder, "decoder.", record, flops),
            )
        case _:
            raise TypeError(f"layers are known of the library's networks, got {type(network).__name__}")
    return tuple(rows)


def parameters(of: Config | nn.Module) -> int:
    """Number of parameters."""
    with torch.device("meta"):
        return _count(of if isinstance(of, nn.Module) else build(of))


def flops(of: Config | nn.Module, source: int | None = None, target: int | None = None) -> int:
    """FLOPs of one sample's forward pass; lengths as for `layers`."""
    return sum(layer.flops for layer in layers(of, source, target))


def _vit(network: ViT, at: str, record: Record, flops: dict[str, int]) -> Iterator[Layer]:
    """A ViT, from patches to logits."""
    config, (tokens, width) = network.config, _shape(record[f"{at}tokens"])
    prefix = [token for token in (network.cls_token, network.dist_token, network.reg_token) if token is not None]
    learnt = [network.pos_embed] if isinstance(network.pos_embed, nn.Parameter) else []
    embed = f"{at}patch_embed"
    yield Layer(embed, (tokens - config.prefix, width), _count(network.patch_embed), flops.get(embed, 0))
    yield Layer(f"{at}prefix tokens", (config.prefix, width), sum(token.numel() for token in prefix), 0)
    yield Layer(f"{at}positions", (tokens, width), sum(table.numel() for table in learnt), 0)
    for module, name in ((network.norm_pre, "norm_pre"), (network.blocks, "blocks"), (network.norm, "norm")):
        yield from _inside(module, at + name, (tokens, width), record, flops)
    yield from _inside(network.pool, f"{at}pool", (width,), record, flops)
    heads = [f"{at}head", f"{at}head_dist"]
    maps = _count(network.head) + _count(network.head_dist)
    yield Layer(heads[0], (config.classes,), maps, sum(flops.get(name, 0) for name in heads))


def _stack(stack: nn.Module, at: str, record: Record, flops: dict[str, int]) -> Iterator[Layer]:
    """The blocks of a network of sequences; a decoder's stand between its embedding and its output map."""
    shape, children = _shape(record[f"{at}tokens"]), dict(stack.named_children())
    if "embed" in children:
        yield Layer(f"{at}embed", shape, _count(children["embed"]), 0)
    for name in ("blocks", "norm"):
        yield from _inside(children[name], at + name, shape, record, flops)
    if "embed" in children:  # the map may be the embedding, so it runs in the decoder itself
        blocks = sum(flops[f"{at}blocks.{index}"] for index in range(len(list(children["blocks"].children()))))
        yield Layer(f"{at}head", _shape(record["logits"]), _count(children.get("head")), flops["decoder"] - blocks)


def _inside(
    module: nn.Module, at: str, shape: tuple[int, ...], record: Record, flops: dict[str, int]
) -> Iterator[Layer]:
    """Every part that has parameters of its own; the products of an attention stand in front of its output map."""
    for name, part in module.named_modules(prefix=at):
        block, _, last = name.rpartition(".")
        if last in ATTENTIONS:
            kept = record.kept(block if last == "attn" else f"{block}.{last.removesuffix('_attn')}")
            (_, heads, queries, size), keys = kept.queries.shape, kept.keys.shape[2]
            products = 4 * heads * queries * keys * size
            maps = [_row(each, one, shape, flops) for each, one in part.named_modules(prefix=name) if _own(one)]
            rest = flops[name] - products - sum(row.flops for row in maps[1:])  # a context is mapped outside its map
            maps[0] = maps[0]._replace(flops=rest)
            inner = Layer(f"{block}.{last.removesuffix('attn')}attention", (heads, queries, keys), 0, products)
            yield from (*maps[:-1], inner, maps[-1])
        elif _own(part) and not any(f".{attention}." in name for attention in ATTENTIONS):
            yield _row(name, part, shape, flops)


def _row(name: str, part: nn.Module, shape: tuple[int, ...], flops: dict[str, int]) -> Layer:
    return Layer(name, (*shape[:-1], getattr(part, "out_features", shape[-1])), _own(part), flops.get(name, 0))


def _own(part: nn.Module) -> int:
    """Parameters of the part itself, and not of what is inside it."""
    return sum(parameter.numel() for parameter in part.parameters(recurse=False))


def _count(part: nn.Module | None) -> int:
    return 0 if part is None else sum(parameter.numel() for parameter in part.parameters())


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[1:])
