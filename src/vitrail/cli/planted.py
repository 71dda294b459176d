"""Planted pictures to look at, whatever they show: `explain` and `predict` take those with two labels or none, too."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.cli.shown import Shown
    from vitrail.data.readers.planted import Planted


def show_planted(run: str, name: str, count: int | None, data_root: Path | None) -> list["Shown"]:
    """Test pictures of a planted set, evenly spread; their names say which digits they show.

    Args:
        run: Whose data may lie where MNIST does.
        name: Of the set.
        count: How many pictures; all when None.
        data_root: Where named sets lie.

    Raises:
        UsageError: If the name is wrong.
        DataError: If MNIST is missing or damaged.
    """
    from PIL import Image

    from vitrail.cli.shown import Shown, spread
    from vitrail.data.dataset import TEST
    from vitrail.data.readers.planted import CLASSES
    from vitrail.data.readers.planted_sets import parse_planted, planted_pictures

    chosen = parse_planted(name)
    made = planted_pictures(chosen, TEST, data_root or root_of(run))
    shown = []
    for i in spread(range(len(made.pixels)), len(made.pixels) if count is None else count):
        digits = "".join(f"-{CLASSES[label]}" for label in made.labels[i])
        picture = Image.fromarray(made.pixels[i])
        shown.append(Shown(f"{chosen.label}/{TEST}/{i}{digits}", picture, None, mask_of(made, i)))
    return shown


def root_of(run: str) -> Path | None:
    """The folder where a run read MNIST, if it did and the folder is still there."""
    from vitrail.data.readers.planted_sets import is_planted
    from vitrail.training.evaluate import remembered_data

    remembered = remembered_data(run)
    name, root = remembered.get("name", ""), Path(remembered.get("root", ""))
    return root if (name == "mnist" or is_planted(name)) and root.is_dir() else None


def mask_of(made: "Planted", index: int) -> "Image.Image | None":
    """White where a picture shows a digit, black elsewhere; None where it shows none."""
    import numpy as np
    from PIL import Image

    pixels = made.masks(1)[index].any(axis=0)
    return Image.fromarray(np.where(pixels, 255, 0).astype(np.uint8)) if pixels.any() else None
