"""`vitrail models [SIZE]`: the table of sizes, or the layers of one size with shapes, parameters and FLOPs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from vitrail.cli.args import Models
from vitrail.cli.output import print_json, print_table, say
from vitrail.errors import UsageError
from vitrail.model import load
from vitrail.model.foreign import Origin, look_at
from vitrail.nn import SIZES, ImageToSequenceConfig, TransformerConfig, ViTConfig
from vitrail.nn.cost import Config, Layer, layers
from vitrail.weights.kinds import is_foreign


def run(typed: Models, command: str) -> int:
    """Print the table asked for."""
    given = {"image_size": typed.image_size, "channels": typed.channels, "classes": typed.classes}
    given = {name: value for name, value in given.items() if value is not None}
    if not typed.size:
        names = [f"{letter}/{14 if letter in 'Hg' else 16}" for letter in SIZES]
        rows = [(name, ViTConfig.from_size(name, **given)) for name in names]
        if typed.json:
            print_json([_facts(name, config, layers(config)) for name, config in rows])
        else:
            _print_sizes(rows)
            say(f"{rows[0][1].classes} classes; --image-size, --channels and --classes change it")
            say("the layers of one: vitrail models S/16")
        return 0
    origin = None
    if is_foreign(typed.size):
        if given:
            raise _own(typed.size, given)
        origin = look_at(typed.size)
        config = origin.converted.network.config
    elif not Path(typed.size).is_dir():
        config = ViTConfig.from_size(typed.size, **given)
    elif given:
        raise _own(typed.size, given)
    else:
        config = load(typed.size).network.config
    rows = layers(config)
    facts = {**_facts(typed.size, config, rows), **({} if origin is None else _about(origin))}
    if typed.json:
        print_json({**facts, "layers": [layer._asdict() for layer in rows]})
        return 0
    print_table([_cells(row) for row in _grouped(rows) if row.shape[0]], ("layer", "output", "parameters", "MFLOPs"))
    say("")
    size = f"{facts['parameters']:,} parameters, {_flops(facts['flops'])} for {_sample(config)}"
    say(f"{typed.size}: {size} (2 per multiply-add, forward; training takes about 3 times that)")
    if isinstance(config, ViTConfig) and (switches := _switches(config)):
        say(f"other than the paper's: {', '.join(switches)}")
    if origin is not None:
        print_table([(name.replace("_", " "), str(value)) for name, value in _about(origin).items() if value], left=2)
    return 0


def _own(name: str, given: Mapping[str, int]) -> UsageError:
    flag = f"--{next(iter(given)).replace('_', '-')}"
    return UsageError(f"the model in {name} has its own {flag}", f"vitrail models {name}")


def _about(origin: Origin) -> dict[str, Any]:
    """What is known of other people's weights."""
    converted = origin.converted
    return {
        "origin": origin.found.origin,
        "family": converted.family,
        "tensors": len(converted.used),
        "left_out": ", ".join(f"{name} ({why})" for name, why in converted.skipped.items()),
        "assumed": "; ".join(converted.assumed),
        "licence": origin.licence,
        "vouched": origin.vouched,
    }


def _sample(config: Config) -> str:
    """What the FLOPs are of."""
    match config:
        case TransformerConfig(max_length=most):
            return f"a text of {most} tokens read and one of {most} written"
        case ImageToSequenceConfig(encoder=reader, max_length=most):
            return f"one picture of {reader.image[0]} x {reader.image[1]} and a text of {most} tokens written"
        case _:
            return f"one picture of {config.image[0]} x {config.image[1]}"


def _switches(config: ViTConfig) -> list[str]:
    """What is set otherwise than by default; sizes are in the table."""
    size = {"image_size", "patch_size", "channels", "classes", "width", "depth", "heads", "head_dim", "mlp_dim"}
    kept = [field for field in fields(config) if field.name not in size]
    return [f"{f.name} {getattr(config, f.name)}" for f in kept if getattr(config, f.name) != f.default]


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
