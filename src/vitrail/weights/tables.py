"""What is known of published weights: tables that scripts made from the libraries themselves, never by hand."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def timm_table() -> dict[str, Any]:
    """What timm says of its plain ViTs, by architecture; made by `benchmarks/weights.py` from timm itself."""
    return json.loads(Path(__file__).with_name("timm_table.json").read_text())
