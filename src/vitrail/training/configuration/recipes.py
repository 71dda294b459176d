"""The recipes by their names, as they stand in `recipes.yaml`; without torch, so that a name can be refused at once."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from vitrail.errors import Hint, UsageError, nearest

FINE_TUNE = "fine-tune"  # the recipe of trainings from pretrained weights


@cache
def recipe_rows() -> Mapping[str, Any]:
    """What the file has of each recipe."""
    file = files("vitrail.training.configuration").joinpath("recipes.yaml")
    return yaml.safe_load(file.read_text("utf-8"))


def fitting_recipes(name: str, data: str, kinds: Sequence[str], init: bool) -> list[str]:
    """The recipes that fit, among which one that is asked for must be.

    Args:
        name: A recipe's name, or "auto".
        data: What is trained on, for messages.
        kinds: Of networks that can learn the task from these inputs.
        init: Whether the training starts from pretrained weights, which bring their network.

    Raises:
        UsageError: If the name is unknown, or the recipe is for something else; offers the nearest.
    """
    rows = recipe_rows()
    fitting = [each for each, row in rows.items() if row["network"]["kind"] in kinds and init == (each == FINE_TUNE)]
    if name in ("auto", *fitting):
        return fitting
    if name == FINE_TUNE:
        raise UsageError(f"the recipe {name} is for pretrained weights, and --init is missing", Hint({"init": "auto"}))
    guess = nearest(name, fitting)
    what = f"the recipe '{name}' does not fit" if name in rows else f"there is no recipe '{name}'"
    hint = Hint({"recipe": guess or fitting[0]}, text="" if guess else f"or {', '.join(fitting[1:])}")
    raise UsageError(f"{what} for what is learnt from {data}", hint)
