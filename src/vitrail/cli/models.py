"""`vitrail models`: what a network consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vitrail.cli.args import Assumptions, Models
from vitrail.cli.inputs import load_options
from vitrail.cli.output import print_json, print_line, print_table
from vitrail.errors import UsageError
from vitrail.model import load
from vitrail.model.foreign import known_of, show_weights
from vitrail.nn import SIZES, ImageToSequenceConfig, ViTConfig
from vitrail.nn.cost import LayerCost, group_blocks, layers, sample_words
from vitrail.nn.networks import NetworkConfig, build_network, without_numbers
from vitrail.nn.parts import names_of
from vitrail.weights.places import is_foreign


def run_models(options: Models, command: str) -> int:
    """Print the table of sizes, or the layers of one network."""
    size = options.size
    shape = {"image_size": options.image_size, "channels": options.channels, "classes": options.classes}
    given: dict[str, Any] = {name: value for name, value in shape.items() if value is not None}
    if is_foreign(size):
        _refuse(f"the model in {size} has its own", [name for name in given if name == "classes"], size)
        model, known = show_weights(size, **load_options(options))
        return _print_network(options, model.network, known)
    stated = [one.name for one in fields(Assumptions) if getattr(options, one.name) is not None]
    _refuse(f"{size or 'a size'} has no weights of other libraries, which are described by", stated, size)
    if size and Path(size).is_dir():
        _refuse(f"the model in {size} has its own", list(given), size)
        model, known = load(size), dict[str, Any]()
        if "verified" in model.facts:  # converted from another library, and saved by vitrail
            known = {name: model.facts.get(name, "") for name in ("origin", "left_out", "assumed")} | known_of(model)
        return _print_network(options, model.network, known)
    if size and Path(size).exists():
        raise UsageError(f"{size} does not have the name of a weights file", "vitrail models B/16")
    if size:
        with without_numbers():
            return _print_network(options, build_network(ViTConfig.from_size(size, **given)), {})
    names = [f"{letter}/{14 if letter in 'Hg' else 16}" for letter in SIZES]
    rows = [(name, ViTConfig.from_size(name, **given)) for name in names]
    if options.json:
        print_json([_facts(name, config, layers(config)) for name, config in rows])
        return 0
    cells = []
    for name, c in rows:
        facts, tokens = _facts(name, c, layers(c)), c.grid[0] * c.grid[1] + c.prefix
        numbers = (c.width, c.depth, c.heads, c.mlp_width, tokens)
        cells.append((name, *map(str, numbers), f"{facts['parameters']:,}", f"{facts['flops'] / 1e9:.1f}"))
    print_table(cells, ("size", "width", "depth", "heads", "mlp_dim", "tokens", "parameters", "GFLOPs"))
    print_line(f"{rows[0][1].classes} classes; --image-size, --channels and --classes change it")
    print_line("layers of one size: vitrail models S/16")
    return 0


def _refuse(problem: str, names: Sequence[str], size: str) -> None:
    """Refuse options that have no effect here; the first is named."""
    for name in names:
        raise UsageError(f"{problem} --{name.replace('_', '-')}", f"vitrail models {size}".strip())


def _facts(name: str, config: NetworkConfig, rows: Sequence[LayerCost]) -> dict[str, Any]:
    whole = {"parameters": sum(row.parameters for row in rows), "flops": sum(row.flops for row in rows)}
    return {"size": name, **whole, "config": _resolved(config)}


def _resolved(config: NetworkConfig) -> dict[str, Any]:
    """All fields, with the sizes that stand for what is left open."""
    values = asdict(config)
    sizes = {"head_dim": config.head_width, "mlp_dim": config.mlp_width}
    encoder = {"encoder": _resolved(config.encoder)} if isinstance(config, ImageToSequenceConfig) else {}
    return values | {name: size for name, size in sizes.items() if name in values} | encoder


def _print_network(options: Models, network: Any, known: Mapping[str, Any]) -> int:
    """The layers of a network, their sums, and what else is known."""
    config, parts, rows = network.config, names_of(network.parts), layers(network)
    facts: dict[str, Any] = _facts(options.size, config, rows) | ({"parts": parts} if parts else {})
    if options.json:
        print_json({**facts, **known, "layers": [layer._asdict() for layer in rows]})
        return 0
    cells = []
    for row in (each for each in group_blocks(rows) if each.shape[0]):
        flops = f"{row.flops / 1e6:,.1f}" if row.flops else ""
        cells.append((row.name, " x ".join(map(str, row.shape)), f"{row.parameters:,}", flops))
    print_table(cells, ("layer", "output", "parameters", "MFLOPs"))
    flops = facts["flops"]
    size = f"{flops / 1e9:,.1f} GFLOPs" if flops >= 1e9 else f"{flops / 1e6:,.1f} MFLOPs"
    print_line("")
    print_line(
        f"{options.size}: {facts['parameters']:,} parameters, {size} for {sample_words(config)} "
        "(2 per multiply-add, forward; training takes about 3 times that)"
    )
    switches = {**(_switches(config) if isinstance(config, ViTConfig) else {}), **parts}  # a part overrides its switch
    if switches:
        print_line(f"different from the paper: {', '.join(f'{name} {value}' for name, value in switches.items())}")
    if known:
        print_table([(name.replace("_", " "), str(value)) for name, value in known.items() if value], left=2)
    return 0


def _switches(config: ViTConfig) -> dict[str, Any]:
    """What is not the default; sizes are in the table."""
    size = {"image_size", "patch_size", "channels", "classes", "width", "depth", "heads", "head_dim", "mlp_dim"}
    values = {field.name: (getattr(config, field.name), field.default) for field in fields(config)}
    return {name: value for name, (value, usual) in values.items() if name not in size and value != usual}
