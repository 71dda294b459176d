"""What is known of published weights: tables that scripts made from the libraries themselves, never by hand."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def timm_architectures() -> dict[str, Any]:
    """What timm says of its plain ViTs, by architecture; made by `benchmarks/timm_table.py` from timm itself."""
    return json.loads(Path(__file__).with_name("timm_table.json").read_text())


@cache
def timm_table() -> dict[str, Any]:
    """Those of them that somebody published weights of."""
    return {name: row for name, row in timm_architectures().items() if row["tags"]}


@cache
def known_table() -> dict[str, Any]:
    """Weights that were really run, by fingerprint; made by `benchmarks/known_weights.py`."""
    return json.loads(Path(__file__).with_name("known_weights.json").read_text())


@cache
def imagenet_names() -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes, in the order of the logits."""
    lines = Path(__file__).with_name("imagenet.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line.partition(" ")[2] for line in lines)
