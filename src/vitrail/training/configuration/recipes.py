"""Recipes: named training settings, each with its purpose and its measured result; they stand in `recipes.yaml`.

`choose` picks one by the name of the data set, or by the number of images and their size, and gives the reason. The
commands that measured the results are in `benchmarks/README.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal, get_type_hints

import yaml
from pydantic import TypeAdapter

from vitrail.data.augmentation import Augmentation
from vitrail.data.dataset import Counts
from vitrail.data.formats import is_planted
from vitrail.data.readers.planted import NAME, SIDES, parse_planted
from vitrail.errors import UsageError, counted, nearest
from vitrail.training.configuration.settings import Optimization, Settings, validated

FINE_TUNE = "fine-tune"  # the recipe of trainings from pretrained weights
NOT_MEASURED = "not measured yet"
OWN_SETS = ("digits", "mnist", "mnist-m", "planted", "sort-digits", "mnist-strings")  # each with a recipe of its name


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named set of training choices.

    Attributes:
        help: What it is for.
        reached: Its result without changes, with hardware and seeds, or that there is none.
        document: The figure of a founding document, to be shown beside the result; empty when it has none.
        network: Fields of the network's configuration that differ from its defaults, with its kind.
        decode_size: Height in pixels at which images are read for training, before random crops, with the width in the
            network's proportion; 0 for the network's.
        resize: How an image is brought to the size.
        pad_value: Grey value around a padded image.
        optimization: How the weights move.
        augmentation: What may happen to a training image; and label smoothing.
        counts: Samples of each split, of a set that is made.
    """

    help: str
    reached: str = NOT_MEASURED
    document: str = ""
    network: dict[str, Any]
    decode_size: int = 0
    resize: Literal["crop", "squash", "pad"] = "crop"
    pad_value: int = 128
    optimization: Optimization = field(default_factory=Optimization)
    augmentation: Augmentation = field(default_factory=Augmentation)
    counts: Counts = field(default_factory=Counts)

    @property
    def kind(self) -> str:
        """Of the network."""
        return self.network["kind"]

    @property
    def image_size(self) -> int:
        """Height in pixels that images are brought to; 0 where texts are read."""
        size = self.network.get("encoder", self.network).get("image_size", 0)
        return size if isinstance(size, int) else size[0]


_KINDS = get_type_hints(Recipe)
_FILE = files("vitrail.training.configuration").joinpath("recipes.yaml")
RECIPES: dict[str, Recipe] = {
    name: Recipe(**{key: validated(TypeAdapter(_KINDS[key]), value, name, key) for key, value in values.items()})
    for name, values in yaml.safe_load(_FILE.read_text("utf-8")).items()
}
"""By name."""


def announced(name: str, reason: str, reached: str) -> str:
    """The message on a run's recipe: the reason for it, and its result if it was measured."""
    result = reached if reached == NOT_MEASURED else f"without changes it reached {reached}"
    return f"recipe {name}: {reason}; {result}"


def document_figure(settings: Settings) -> str:
    """The figure of a founding document for a run's recipe; empty if it has none, or for another number of epochs."""
    recipe = RECIPES.get(settings.recipe)
    if recipe is None or settings.optimization.epochs != recipe.optimization.epochs:
        return ""
    return recipe.document


def choose(
    name: str, data: str, kinds: Sequence[str], count: int, side: int | None, init: bool = False
) -> tuple[Recipe, str, str]:
    """The recipe of this name, or the one that fits.

    Args:
        name: A recipe's name, or "auto".
        data: What is trained on: a named set, or anything else.
        kinds: Of networks that can learn the task from these inputs.
        count: Training samples.
        side: Typical shorter side of the images in pixels; None where texts are read.
        init: Whether the training starts from pretrained weights, which bring their network.

    Returns:
        The recipe, its name, and the reason in words.

    Raises:
        UsageError: If the name is unknown, or the recipe is for something else; offers the nearest.
    """
    fitting = [known for known, recipe in RECIPES.items() if recipe.kind in kinds and init == (known == FINE_TUNE)]
    if name != "auto":
        if name not in fitting:
            guess = nearest(name, fitting) or ", ".join(fitting)
            what = f"there is no recipe '{name}'" if name not in RECIPES else f"the recipe '{name}' does not fit"
            if name == FINE_TUNE:
                raise UsageError(f"the recipe {name} is for pretrained weights, and --init is missing", "--init auto")
            raise UsageError(f"{what} for what is learnt from {data}", f"--recipe {guess}")
        return _of_cells(name, data), name, "as requested"
    if init:
        return RECIPES[FINE_TUNE], FINE_TUNE, f"for {RECIPES[FINE_TUNE].help}"
    base = NAME if is_planted(data) else data
    named = {"fashion-mnist": "mnist"}.get(base, base)
    if named in fitting and named in OWN_SETS:
        recipe = _of_cells(named, data)
        return recipe, named, f"made for this data set ({recipe.help})"
    if side is None:
        chosen = "texts"
    elif "ViT" not in kinds:
        chosen = "image-texts"
    elif side <= 16:
        chosen = "digits"
    elif side <= 40:
        chosen = "small-images"
    else:
        chosen = "few-photos" if count <= 5_000 else "photos" if count <= 100_000 else "many-photos"
    recipe = RECIPES[chosen]
    where = "" if side is None else f" of about {side} pixels"
    return recipe, chosen, f"{counted(count, 'training sample')}{where} ({recipe.help})"


def _of_cells(name: str, data: str) -> Recipe:
    """The recipe of this name; for planted images of other cells with their size, and patches of half a cell's side.

    Raises:
        UsageError: If the name of the set is wrong.
    """
    recipe = RECIPES[name]
    if name != NAME or data == NAME or not is_planted(data):
        return recipe
    chosen = parse_planted(data)
    network = {**recipe.network, "image_size": list(chosen.size), "patch_size": SIDES[chosen.digits] // 2}
    text = f"the lab with known truth: {chosen.grid[0]}x{chosen.grid[1]} cells, one of which shows a digit"
    return replace(recipe, help=text, reached=NOT_MEASURED, network=network)
