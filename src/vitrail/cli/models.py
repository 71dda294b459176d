"""`vitrail models [SIZE]`: the table of sizes; the layers of one, or of a model; what other people's weights are."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from vitrail.cli.args import Models, Weights
from vitrail.cli.inputs import hints_with, load_options, size_of
from vitrail.cli.output import print_json, print_table, say
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import UsageError
from vitrail.model import Model, load
from vitrail.model.confidence import Unstated
from vitrail.model.facts import CHANGES
from vitrail.model.foreign import identify, model_of
from vitrail.nn import SIZES, ImageToSequenceConfig, TransformerConfig, ViTConfig
from vitrail.nn.cost import Config, Layer, layers
from vitrail.nn.networks import build, without_numbers
from vitrail.nn.parts import names_of
from vitrail.weights.names import is_foreign

SIZES_HAVE = ("image_size", "channels")  # what may be said of a size, too
GRANTED = ("left_out", "assumed")  # facts, and
ABOUT = ("trained_with", *CHANGES, "class_names", "licence", "verified")


def run(typed: Models, command: str) -> int:
    """Print the table asked for."""
    if is_foreign(typed.size):
        return _of_others(typed)
    said_of = [one.name for one in fields(Weights) if one.name not in SIZES_HAVE]
    for name in (name for name in said_of if getattr(typed, name) is not None):
        problem = f"--{name.replace('_', '-')} is for other people's weights, and {typed.size or 'a size'} is none"
        raise UsageError(problem, f"vitrail models {typed.size}".strip())
    asked: dict[str, Any] = {"image_size": typed.image_size, "channels": typed.channels, "classes": typed.classes}
    given = {name: value for name, value in asked.items() if value is not None}
    if typed.size and Path(typed.size).is_dir():
        if given:
            flag = f"--{next(iter(given)).replace('_', '-')}"
            raise UsageError(f"the model in {typed.size} has its own {flag}", f"vitrail models {typed.size}")
        model = load(typed.size)
        verified = "verified" in model.facts  # a network of others that vitrail saved
        origin = {"origin": model.facts.get("origin", "")} | {name: model.facts.get(name, "") for name in GRANTED}
        return _print(typed, model.network, {**origin, **_known(model)} if verified else None)
    if typed.size and ("/" not in typed.size or Path(typed.size).exists()):
        what = "is no file of weights by its name" if Path(typed.size).exists() else "is no size, folder or file"
        raise UsageError(f"{typed.size} {what}", "vitrail models B/16")
    if typed.image_size is not None:
        given["image_size"] = size_of(typed.image_size)
    if typed.size:
        with without_numbers():
            return _print(typed, build(ViTConfig.from_size(typed.size, **given)))
    names = [f"{letter}/{14 if letter in 'Hg' else 16}" for letter in SIZES]
    rows = [(name, ViTConfig.from_size(name, **given)) for name in names]
    if typed.json:
        print_json([_facts(name, config, layers(config)) for name, config in rows])
    else:
        _print_sizes(rows)
        say(f"{rows[0][1].classes} classes; --image-size, --channels and --classes change it")
        say("layers of one size: vitrail models S/16")
    return 0


def _of_others(typed: Models) -> int:
    """The layers of other people's weights, and what is known of them; how images go in need not be known."""
    if typed.classes is not None:
        raise UsageError(f"the model in {typed.size} has its own --classes", f"vitrail models {typed.size}")
    with hints_with(typed):
        given = load_options(typed)
        origin = identify(typed.size, given.pop("assume", None))
        assumed = "; ".join(origin.converted.assumed)
        try:
            model = model_of(origin, **given)
        except Unstated:
            facts = {"mean": (0.5,), "std": (0.5,), **origin.converted.facts}
            model = model_of(replace(origin, converted=replace(origin.converted, facts=facts)), **given)
            reads = "nothing says how images go in: --mean 0.5 --std 0.5 with those of its training"
        else:
            reads, assumed = _words(model.preprocessing), model.facts.get("assumed", assumed)
    known = {
        "origin": origin.found.origin,
        "family": origin.converted.family,
        "tensors": len(origin.converted.used),
        "left_out": ", ".join(f"{name} ({why})" for name, why in origin.converted.skipped.items()),
        "assumed": assumed,
        **_known(model),
        "reads": reads,
    }
    return _print(typed, model.network, known)


def _known(model: Model) -> dict[str, Any]:
    """What is known of other people's weights, as a model of them has it."""
    facts = {fact: model.facts[fact] for fact in ABOUT if fact in model.facts}
    holds, classes = model.output.describe()
    return {**facts, "reads": _words(model.preprocessing), holds: classes}


def _words(reads: Preprocessing) -> str:
    """How images go in, in a line."""
    size = f"{reads.size[0]}x{reads.size[1]}"
    how = f"{reads.resize}, crop ratio {reads.crop_ratio:.4g}, {reads.interpolation}"
    return f"images of {size}: {how}; mean {reads.mean}, std {reads.std}"


def _print(typed: Models, network: Any, known: Mapping[str, Any] | None = None) -> int:
    """The layers of a network, their sums, and what else is known."""
    config, parts, rows = network.config, names_of(network.parts), layers(network)
    facts: dict[str, Any] = _facts(typed.size, config, rows) | ({"parts": parts} if parts else {})
    if typed.json:
        print_json({**facts, **(known or {}), "layers": [layer._asdict() for layer in rows]})
        return 0
    print_table([_cells(row) for row in _grouped(rows) if row.shape[0]], ("layer", "output", "parameters", "MFLOPs"))
    say("")
    size = f"{facts['parameters']:,} parameters, {_flops(facts['flops'])} for {_sample(config)}"
    say(f"{typed.size}: {size} (2 per multiply-add, forward; training takes about 3 times that)")
    switches = {**(_switches(config) if isinstance(config, ViTConfig) else {}), **parts}  # a part is what is there
    if switches:
        say(f"different from the paper: {', '.join(f'{name} {value}' for name, value in switches.items())}")
    if known:
        print_table([(name.replace("_", " "), str(value)) for name, value in known.items() if value], left=2)
    return 0


def _sample(config: Config) -> str:
    """What the FLOPs are of."""
    match config:
        case TransformerConfig(max_length=most):
            return f"a text of {most} tokens read and one of {most} written"
        case ImageToSequenceConfig(encoder=reader, max_length=most):
            return f"one image of {reader.image[0]} x {reader.image[1]} and a text of {most} tokens written"
        case _:
            return f"one image of {config.image[0]} x {config.image[1]}"


def _switches(config: ViTConfig) -> dict[str, Any]:
    """What is set otherwise than by default; sizes are in the table."""
    size = {"image_size", "patch_size", "channels", "classes", "width", "depth", "heads", "head_dim", "mlp_dim"}
    kept = {field.name: (getattr(config, field.name), field.default) for field in fields(config)}
    return {name: value for name, (value, usual) in kept.items() if name not in size and value != usual}


def _print_sizes(rows: list[tuple[str, ViTConfig]]) -> None:
    cells = []
    for name, c in rows:
        facts, tokens = _facts(name, c, layers(c)), c.grid[0] * c.grid[1] + c.prefix
        numbers = (c.width, c.depth, c.heads, c.mlp_width, tokens)
        cells.append((name, *map(str, numbers), f"{facts['parameters']:,}", f"{facts['flops'] / 1e9:.1f}"))
    print_table(cells, ("size", "width", "depth", "heads", "mlp_dim", "tokens", "parameters", "GFLOPs"))


def _grouped(rows: Sequence[Layer]) -> list[Layer]:
    """The layers with the blocks after the first of a stack, which are all alike, in one row: their sum."""
    found: list[Layer] = []
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


def _stack_behind_first(row: Layer) -> str | None:
    """The stack (`encoder.`, or the empty word) whose block this is, if that is not the stack's first; else None."""
    place = re.match(r"(|encoder\.|decoder\.)blocks\.(\d+)\.", row.name)
    return place.group(1) if place and place.group(2) != "0" else None


def _cells(layer: Layer) -> tuple[str, ...]:
    shape = " x ".join(map(str, layer.shape))
    return layer.name, shape, f"{layer.parameters:,}", f"{layer.flops / 1e6:,.1f}" if layer.flops else ""


def _flops(number: int) -> str:
    return f"{number / 1e9:,.1f} GFLOPs" if number >= 1e9 else f"{number / 1e6:,.1f} MFLOPs"


def _facts(name: str, config: Config, rows: Sequence[Layer]) -> dict[str, Any]:
    whole = {"parameters": sum(row.parameters for row in rows), "flops": sum(row.flops for row in rows)}
    return {"size": name, **whole, "config": asdict(config)}
