"""The committed networks of the lab with known truth; `benchmarks/planted_networks.py` made them."""

from functools import cache
from pathlib import Path

import vitrail
from vitrail.model import Model

NETWORKS = Path(__file__).parent / "networks"


@cache
def load_planted(name: str) -> Model:
    """One of `class-0` ... `class-2`, `mean-0` ..., `pairs-0` ..., `shuffled-0`, `memorised-0`, `untrained-0`; do not change it."""
    model = vitrail.load(NETWORKS / name)
    assert isinstance(model, Model)
    return model
