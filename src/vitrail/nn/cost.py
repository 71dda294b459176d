"""What a network costs: shapes, parameters and FLOPs of every layer, as torch counts them while it runs on `meta`.

A tensor on `meta` has a shape and no values, so nothing is computed, and any parts are counted as they are. A
multiply-add counts as 2 FLOPs. Counted are matrix products and convolutions; norms, activations and softmax are left
out, as is usual. Per sample, forward; training is about 3 times that. A network that generates text is counted for a
whole target of the greatest length at once, as in training.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.nn.networks import (
    ImageToSequenceConfig,
    NetworkConfig,
    TransformerConfig,
    build_network,
    example_inputs,
    without_numbers,
)
from vitrail.nn.record import Record
from vitrail.nn.seq2seq import ImageToSequence
from vitrail.nn.vit import ViT


class LayerCost(NamedTuple):
    """One row of the table."""

    name: str
    shape: tuple[int, ...]  # of its output for one sample: (tokens, numbers per token)
    parameters: int
    flops: int


def group_blocks(rows: Sequence[LayerCost]) -> list[LayerCost]:
    """The layers, with the equal blocks after the first of a stack in one row: their sum."""
    found: list[LayerCost] = []
    for stack, some in groupby(rows, _stack_behind_first):
        block = list(some)
        if stack is None:
            found += block
            continue
        last = int(block[-1].name.removeprefix(stack).split(".")[1])
        as_first = f"as {stack}blocks.0"
        name = f"{stack}blocks.1 to blocks.{last}, each {as_first}" if last > 1 else f"{stack}blocks.1, {as_first}"
        sums = sum(row.parameters for row in block), sum(row.flops for row in block)
        found.append(block[-1]._replace(name=name, parameters=sums[0], flops=sums[1]))
    return found


def _stack_behind_first(row: LayerCost) -> str | None:
    """The stack (`encoder.`, or the empty word) whose block this is, if that is not the stack's first; else None."""
    place = re.match(r"(|encoder\.|decoder\.)blocks\.(\d+)\.", row.name)
    return place.group(1) if place and place.group(2) != "0" else None


def sample_words(config: NetworkConfig) -> str:
    """The sample for which a network's FLOPs are counted."""
    match config:
        case TransformerConfig(max_length=most):
            return f"a source of {most} tokens and a target of {most}"
        case ImageToSequenceConfig(encoder=reader, max_length=most):
            return f"one image of {reader.image[0]} x {reader.image[1]} and a target of {most} tokens"
        case _:
            return f"one image of {config.image[0]} x {config.image[1]}"


class Ran(NamedTuple):
    """What a run left: its record, and by module's name all FLOPs inside it, its own, and the shape of its output."""

    record: Record
    total: dict[str, int]
    own: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


def layers(of: NetworkConfig | nn.Module) -> tuple[LayerCost, ...]:
    """The layers in the order in which a sample meets them; a stack's blocks are rows `blocks.0.…` to `blocks.L-1.…`.

    Args:
        of: A configuration, or a network, which may have parts of its own and is not changed.
    """
    network: Any = _without_numbers(of)
    ran = _run(network)
    match network:
        case ViT():
            return tuple(_vit(network, "", ran))
        case ImageToSequence():
            read = [row for row in _vit(network.encoder, "encoder.", ran) if row.name != "encoder.head"]
        case _:  # a Transformer, whose embedding of the source may be that of the target
            read = _stack(network.encoder, network.source_embed, "encoder.", ran)
    decoder, logits = network.decoder, _shape(ran.record["logits"])
    products = ran.total["decoder"] - ran.total["decoder.blocks"]  # of a map that may be the embedding
    head = LayerCost("decoder.head", logits, _count(decoder.head), products)
    return (*read, *_stack(decoder, decoder.embed, "decoder.", ran), head)


def parameters(of: NetworkConfig | nn.Module) -> int:
    """Number of parameters."""
    return _count(_without_numbers(of))


def flops(of: NetworkConfig | nn.Module) -> int:
    """FLOPs of one sample's forward pass; of ids the greatest length."""
    return sum(layer.flops for layer in layers(of))


def _without_numbers(of: NetworkConfig | nn.Module) -> nn.Module:
    """The network on `meta`, in eval mode, whose parameters need no gradient."""
    if not isinstance(of, nn.Module):
        with without_numbers():
            return build_network(of).eval().requires_grad_(False)
    learnt = {id(each): nn.Parameter(each.detach().to("meta"), requires_grad=False) for each in of.parameters()}
    fixed = {id(each): each.detach().to("meta") for each in of.buffers()}
    return copy.deepcopy(of, {**learnt, **fixed}).eval()


def _run(network: nn.Module) -> Ran:
    """Run a network once, under torch's counter, which counts by module."""
    record, counter, shapes = Record(), FlopCounterMode(display=False), dict[str, tuple[int, ...]]()
    names = {module: name for name, module in network.named_modules()}

    def keep_shape(part: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            shapes[names[part]] = _shape(output)

    for module in names:
        module.register_forward_hook(keep_shape)
    with counter, torch.no_grad():
        network(*example_inputs(network), record=record)
    root = f"{type(network).__name__}."
    counts = {name.removeprefix(root): sum(each.values()) for name, each in counter.get_flop_counts().items()}
    ran = Ran(record, {}, {}, shapes)
    for name, part in reversed(list(network.named_modules(remove_duplicate=False))):
        inside = sum(ran.total.get(f"{name}.{child}", 0) for child, _ in part.named_children())
        ran.total[name] = counts.get(name, inside)  # a list of modules is never called itself
        ran.own[name] = ran.total[name] - inside
    return ran


def _vit(network: ViT, at: str, ran: Ran) -> Iterator[LayerCost]:
    """A ViT, from patches to logits."""
    config, (tokens, width) = network.config, _shape(ran.record[f"{at}tokens"])
    prefix = [token for token in (network.cls_token, network.dist_token, network.reg_token) if token is not None]
    positions = network.pos_embed if isinstance(network.pos_embed, nn.Parameter) else torch.empty(0)
    embed = f"{at}patch_embed"
    yield LayerCost(embed, (tokens - config.prefix, width), _count(network.patch_embed), ran.total[embed])
    yield LayerCost(f"{at}prefix tokens", (config.prefix, width), sum(token.numel() for token in prefix), 0)
    yield LayerCost(f"{at}positions", (tokens, width), positions.numel(), 0)
    for name in ("norm_pre", "blocks", "norm"):
        yield from _inside(network.get_submodule(name), at + name, (tokens, width), ran)
    yield from _inside(network.pool, f"{at}pool", (width,), ran)
    maps = _count(network.head) + _count(network.head_dist)
    products = sum(ran.total.get(f"{at}{head}", 0) for head in ("head", "head_dist"))
    yield LayerCost(f"{at}head", (config.classes,), maps, products)


def _stack(stack: nn.Module, embed: nn.Module | None, at: str, ran: Ran) -> Iterator[LayerCost]:
    """The embedding and the blocks of a sequence network."""
    shape = _shape(ran.record[f"{at}tokens"])
    yield LayerCost(f"{at}embed", shape, _count(embed), 0)
    for name in ("blocks", "norm"):
        yield from _inside(stack.get_submodule(name), at + name, shape, ran)


def _inside(module: nn.Module, at: str, shape: tuple[int, ...], ran: Ran) -> Iterator[LayerCost]:
    """Every part with parameters or products of its own; those of an attention precede its output map."""
    shown = "."  # what starts with it is in the rows of an attention
    for name, part in module.named_modules(prefix=at):
        if name.startswith(shown):
            continue
        block, _, last = name.rpartition(".")
        place = block if last == "attn" else f"{block}.{last.removesuffix('_attn')}"
        maps = [
            _row(each, one, shape, ran) for each, one in part.named_modules(prefix=name) if _count(one, inside=False)
        ]
        if maps and last.endswith("attn") and place in ran.record.attentions():
            shown = f"{name}."
            kept = ran.record.kept(place)
            (_, heads, queries, size), keys = kept.queries.shape, kept.keys.shape[2]
            products = 4 * heads * queries * keys * size
            rest = ran.total[name] - products - sum(row.flops for row in maps[1:])  # a context has no map
            maps[0] = maps[0]._replace(flops=rest)
            inner = LayerCost(f"{block}.{last.removesuffix('attn')}attention", (heads, queries, keys), 0, products)
            yield from (*maps[:-1], inner, maps[-1])
        elif _count(part, inside=False) or ran.own[name]:
            yield _row(name, part, shape, ran)


def _row(name: str, part: nn.Module, shape: tuple[int, ...], ran: Ran) -> LayerCost:
    """A module without those inside it, and with the shape of its output where it was called."""
    made = (*shape[:-1], getattr(part, "out_features", shape[-1]))
    return LayerCost(name, ran.shapes.get(name, made), _count(part, inside=False), ran.own[name])


def _count(part: nn.Module | None, inside: bool = True) -> int:
    """Parameters of a part, with or without those of parts inside it."""
    return 0 if part is None else sum(parameter.numel() for parameter in part.parameters(recurse=inside))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[1:])
