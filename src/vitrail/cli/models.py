"""`vitrail models [SIZE]`: the table of sizes, or the layers of one size with shapes, parameters and FLOPs."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.cli.parse import Positional, parse


@dataclass(frozen=True, kw_only=True)
class Models:
    """What can be typed behind `vitrail models`."""

    size: Positional[str] = ""
    """A size such as S/16, or a run folder; all sizes when left out"""
    image_size: int = 224
    """Side of the pictures in pixels."""
    channels: int = 3
    """Channels of the pictures."""
    classes: int = 1000
    """Number of classes."""
    json: bool = False
    """Print one JSON value."""


def run(words: Sequence[str]) -> int:
    """Print the table asked for."""
    typed = parse(Models, "models", words, "Sizes, parameters and FLOPs (2 per multiply-add, one picture, forward).")

    from pathlib import Path

    from rich.table import Table

    from vitrail.cli.output import console, print_json
    from vitrail.model import load
    from vitrail.nn import SIZES, ViTConfig
    from vitrail.nn.cost import flops, layers, parameters

    def config_of(size: str) -> ViTConfig:
        return ViTConfig.from_size(size, classes=typed.classes, image_size=typed.image_size, channels=typed.channels)

    if not typed.size:
        names = [f"{letter}/{14 if letter in 'Hg' else 16}" for letter in SIZES]
        rows = [(name, config_of(name)) for name in names]
        if typed.json:
            print_json([_facts(name, c, parameters(c), flops(c)) for name, c in rows])
            return 0
        table = Table("size", box=None, header_style="dim")
        for column in ("width", "depth", "heads", "mlp_dim", "tokens", "parameters", "GFLOPs"):
            table.add_column(column, justify="right")
        for name, c in rows:
            tokens = c.grid[0] * c.grid[1] + c.prefix
            numbers = (c.width, c.depth, c.heads, c.mlp_dim, tokens)
            table.add_row(name, *map(str, numbers), f"{parameters(c):,}", f"{flops(c) / 1e9:.1f}")
        console().print(table)
        return 0
    folder = Path(typed.size)
    config = load(folder).network.config if folder.is_dir() else config_of(typed.size)
    rows = layers(config)
    if typed.json:
        table_of = [layer._asdict() for layer in rows]
        print_json({**_facts(typed.size, config, parameters(config), flops(config)), "layers": table_of})
        return 0
    table = Table("layer", box=None, header_style="dim")
    for column in ("output", "parameters", "MFLOPs"):
        table.add_column(column, justify="right")
    for layer in rows:
        shape = " x ".join(map(str, layer.shape))
        table.add_row(layer.name, shape, f"{layer.parameters:,}", f"{layer.flops / 1e6:,.1f}" if layer.flops else "")
    screen = console()
    screen.print(table)
    height, width = config.image
    screen.print(
        f"\n{typed.size}: {parameters(config):,} parameters, {flops(config) / 1e9:.1f} GFLOPs for one picture of "
        f"{height} x {width} (2 per multiply-add, forward; training is about 3 times that)"
    )
    return 0


def _facts(name: str, config: object, parameters: int, flops: int) -> dict:
    from dataclasses import asdict

    return {"size": name, "parameters": parameters, "flops": flops, "config": asdict(config)}  # pyrefly: ignore[bad-argument-type]
