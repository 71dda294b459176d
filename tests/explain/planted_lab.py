"""The committed networks of the lab with known truth; `benchmarks/planted_networks.py` made them."""

from functools import cache
from pathlib import Path

import vitrail
from vitrail.model import Model

NETWORKS = Path(__file__).parent / "networks"


@cache
def load_planted(name: str) -> Model:
    """A network by its name, as `benchmarks.planted_networks.NAMES` has them; do not change it."""
    model = vitrail.load(NETWORKS / name)
    assert isinstance(model, Model)
    return model
