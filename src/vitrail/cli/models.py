"""`vitrail models [SIZE]`: the table of sizes; the layers of one, or of a model; what other people's weights are."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vitrail.cli.args import Assumptions, Models
from vitrail.cli.inputs import hints_with, load_options, size_of
from vitrail.cli.output import print_json, print_table, say
from vitrail.errors import UsageError
from vitrail.model import load
from vitrail.model.foreign import described, known_of
from vitrail.nn import SIZES, ViTConfig
from vitrail.nn.cost import Config, Layer, grouped, layers, sample_words
from vitrail.nn.networks import build, without_numbers
from vitrail.nn.parts import names_of
from vitrail.weights.names import is_foreign


def run(options: Models, command: str) -> int:
    """Print the table asked for."""
    size = options.size
    asked = {"image_size": options.image_size, "channels": options.channels, "classes": options.classes}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if is_foreign(size):
        _refuse(f"the model in {size} has its own", [name for name in given if name == "classes"], size)
        with hints_with(options):
            model, known = described(size, **load_options(options))
        return _print(options, model.network, known)
    stated = [one.name for one in fields(Assumptions) if getattr(options, one.name) is not None]
    _refuse(f"{size or 'a size'} has no weights of other libraries, which are described by", stated, size)
    if size and Path(size).is_dir():
        _refuse(f"the model in {size} has its own", list(given), size)
        model, known = load(size), dict[str, Any]()
        if "verified" in model.facts:  # a network of others that vitrail saved
            known = {name: model.facts.get(name, "") for name in ("origin", "left_out", "assumed")} | known_of(model)
        return _print(options, model.network, known)
    if size and ("/" not in size or Path(size).exists()):
        what = "does not have the name of a weights file" if Path(size).exists() else "is not a size, folder or file"
        raise UsageError(f"{size} {what}", "vitrail models B/16")
    if options.image_size is not None:
        given["image_size"] = size_of(options.image_size)
    if size:
        with without_numbers():
            return _print(options, build(ViTConfig.from_size(size, **given)), {})
    names = [f"{letter}/{14 if letter in 'Hg' else 16}" for letter in SIZES]
    rows = [(name, ViTConfig.from_size(name, **given)) for name in names]
    if options.json:
        print_json([_facts(name, config, layers(config)) for name, config in rows])
    else:
        _print_sizes(rows)
        say(f"{rows[0][1].classes} classes; --image-size, --channels and --classes change it")
        say("layers of one size: vitrail models S/16")
    return 0


def _refuse(problem: str, names: Sequence[str], size: str) -> None:
    """Refuse options that have no effect here; the first is named."""
    for name in names:
        raise UsageError(f"{problem} --{name.replace('_', '-')}", f"vitrail models {size}".strip())


def _print(options: Models, network: Any, known: Mapping[str, Any]) -> int:
    """The layers of a network, their sums, and what else is known."""
    config, parts, rows = network.config, names_of(network.parts), layers(network)
    facts: dict[str, Any] = _facts(options.size, config, rows) | ({"parts": parts} if parts else {})
    if options.json:
        print_json({**facts, **known, "layers": [layer._asdict() for layer in rows]})
        return 0
    print_table([_cells(row) for row in grouped(rows) if row.shape[0]], ("layer", "output", "parameters", "MFLOPs"))
    say("")
    size = f"{facts['parameters']:,} parameters, {_flops(facts['flops'])} for {sample_words(config)}"
    say(f"{options.size}: {size} (2 per multiply-add, forward; training takes about 3 times that)")
    switches = {**(_switches(config) if isinstance(config, ViTConfig) else {}), **parts}  # a part is what is there
    if switches:
        say(f"different from the paper: {', '.join(f'{name} {value}' for name, value in switches.items())}")
    if known:
        print_table([(name.replace("_", " "), str(value)) for name, value in known.items() if value], left=2)
    return 0


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


def _cells(layer: Layer) -> tuple[str, ...]:
    shape = " x ".join(map(str, layer.shape))
    return layer.name, shape, f"{layer.parameters:,}", f"{layer.flops / 1e6:,.1f}" if layer.flops else ""


def _flops(number: int) -> str:
    return f"{number / 1e9:,.1f} GFLOPs" if number >= 1e9 else f"{number / 1e6:,.1f} MFLOPs"


def _facts(name: str, config: Config, rows: Sequence[Layer]) -> dict[str, Any]:
    whole = {"parameters": sum(row.parameters for row in rows), "flops": sum(row.flops for row in rows)}
    return {"size": name, **whole, "config": asdict(config)}
