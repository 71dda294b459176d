"""`vitrail models [SIZE]`: the table of sizes, or the layers of one size with shapes, parameters and FLOPs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.parse import Positional, parse
from vitrail.errors import UsageError

if TYPE_CHECKING:
    from vitrail.nn import ViTConfig
    from vitrail.nn.cost import Layer


@dataclass(frozen=True, kw_only=True)
class Models:
    """What can be typed behind `vitrail models`."""

    size: Positional[str] = ""
    """A size such as S/16, or a run or model folder; all sizes when left out"""
    image_size: int | None = None
    """Side of the pictures in pixels; 224 when left out, for a folder its own."""
    channels: int | None = None
    """Channels of the pictures; 3 when left out, for a folder its own."""
    classes: int | None = None
    """Number of classes; 1000 when left out, for a folder its own."""
    json: bool = False
    """Print one JSON value."""


def run(words: Sequence[str]) -> int:
    """Print the table asked for."""
    says = "Sizes, parameters and FLOPs (2 per multiply-add, one picture, forward). Example: vitrail models S/16"
    typed = parse(Models, "models", words, says)

    from vitrail.cli.output import print_json, print_table, say
    from vitrail.nn import SIZES
    from vitrail.nn.cost import layers

    if not typed.size:
        names = [f"{letter}/{14 if letter in 'Hg' else 16}" for letter in SIZES]
        rows = [(name, _config(name, typed)) for name in names]
        if typed.json:
            print_json([_facts(name, config) for name, config in rows])
        else:
            _print_sizes(rows)
            say(f"{rows[0][1].classes} classes; --image-size, --channels and --classes change it")
            say("the layers of one: vitrail models S/16")
        return 0
    config = _config_of(typed)
    rows = layers(config)
    if typed.json:
        print_json({**_facts(typed.size, config), "layers": [layer._asdict() for layer in rows]})
        return 0
    columns = ("layer", "output", "parameters", "MFLOPs")
    print_table([_cells(row) for row in _grouped(rows, config.depth) if row.shape[0]], columns)
    facts, (height, width) = _facts(typed.size, config), config.image
    say("")
    say(
        f"{typed.size}: {facts['parameters']:,} parameters, {_flops(facts['flops'])} for one picture of "
        f"{height} x {width} (2 per multiply-add, forward; training takes about 3 times that)"
    )
    if switches := _switches(config):
        say(f"other than the paper's: {', '.join(switches)}")
    return 0


def _config(size: str, typed: Models) -> "ViTConfig":
    """A size of the table with what was asked for."""
    from vitrail.nn import ViTConfig

    return ViTConfig.from_size(
        size,
        classes=1000 if typed.classes is None else typed.classes,
        image_size=224 if typed.image_size is None else typed.image_size,
        channels=3 if typed.channels is None else typed.channels,
    )


def _config_of(typed: Models) -> "ViTConfig":
    """A size of the table, or what lies in a folder."""
    from vitrail.cli.models_on import classifier
    from vitrail.model import load

    if not Path(typed.size).is_dir():
        return _config(typed.size, typed)
    for name, value in (("image-size", typed.image_size), ("channels", typed.channels), ("classes", typed.classes)):
        if value is not None:
            raise UsageError(f"the model in {typed.size} has its own --{name}", f"vitrail models {typed.size}")
    return classifier(load(typed.size), typed.size, "models").network.config


def _switches(config: "ViTConfig") -> list[str]:
    """What is set otherwise than by default; sizes are in the table."""
    size = {"image_size", "patch_size", "channels", "classes", "width", "depth", "heads", "head_dim", "mlp_dim"}
    kept = [field for field in fields(config) if field.name not in size]
    return [f"{f.name} {getattr(config, f.name)}" for f in kept if getattr(config, f.name) != f.default]


def _print_sizes(rows: list[tuple[str, "ViTConfig"]]) -> None:
    from vitrail.cli.output import print_table

    cells = []
    for name, c in rows:
        facts, tokens = _facts(name, c), c.grid[0] * c.grid[1] + c.prefix
        numbers = (c.width, c.depth, c.heads, c.mlp_width, tokens)
        cells.append((name, *map(str, numbers), f"{facts['parameters']:,}", f"{facts['flops'] / 1e9:.1f}"))
    print_table(cells, ("size", "width", "depth", "heads", "mlp_dim", "tokens", "parameters", "GFLOPs"))


def _grouped(rows: Sequence["Layer"], depth: int) -> list["Layer"]:
    """The layers with the blocks behind the first, which are all alike, in one row: their sum."""
    others = [row for row in rows if row.name.startswith("blocks.") and not row.name.startswith("blocks.0.")]
    if not others:
        return list(rows)
    name = f"blocks.1 to blocks.{depth - 1}, each as blocks.0" if depth > 2 else "blocks.1, as blocks.0"
    together = others[-1]._replace(
        name=name, parameters=sum(row.parameters for row in others), flops=sum(row.flops for row in others)
    )
    first = rows.index(others[0])
    return [*rows[:first], together, *rows[first + len(others) :]]


def _cells(layer: "Layer") -> tuple[str, ...]:
    shape = " x ".join(map(str, layer.shape))
    return layer.name, shape, f"{layer.parameters:,}", f"{layer.flops / 1e6:,.1f}" if layer.flops else ""


def _flops(number: int) -> str:
    return f"{number / 1e9:,.1f} GFLOPs" if number >= 1e9 else f"{number / 1e6:,.1f} MFLOPs"


def _facts(name: str, config: "ViTConfig") -> dict[str, Any]:
    from vitrail.nn.cost import flops, parameters

    return {"size": name, "parameters": parameters(config), "flops": flops(config), "config": asdict(config)}
