"""The pictures that `vitrail explain` is given, and the masks that say where their evidence lies."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.cli.output import warn
from vitrail.cli.sources import Shown, digits_mask, files_of, show_planted, spread
from vitrail.data.background import FEW
from vitrail.data.background_file import MOST
from vitrail.data.columns import Classes, Labels
from vitrail.data.decode import open_picture
from vitrail.data.images import Images
from vitrail.data.readers import MANIFESTS, check_root, is_named, is_packed
from vitrail.data.readers.planted import SIDES, PlantedSet, is_planted, parse_planted, planted_pictures
from vitrail.errors import DataError, UsageError
from vitrail.model import Model
from vitrail.training.evaluate import is_own_data, open_for, own_reader

SHOWN = 8  # images of a set or folder, where no number is asked for

Thing = TypeVar("Thing")
Opener = tuple[str, Callable[[], Image.Image]]
"""The name of an image, and what opens it."""


def read_pictures(
    model: Model, run: str, given: Sequence[str], asked: int | None, data_root: Path | None, problems: list[DataError]
) -> list[Shown]:
    """The pictures asked for that can be read; `problems` gets an error for each of the others.

    Raises:
        UsageError: If a set stands beside other pictures.
        DataError: If there is no picture at all.
    """
    first, count = given[0], SHOWN if asked is None else asked
    is_set = is_a_set(run, first)
    check_root(first, data_root)
    if is_own_data(run, first) and (reader := own_reader(run)):
        raise UsageError(
            f"{first} was read by a person's own reader, {reader}",
            f"in Python: model = vitrail.load({run!r}), then vitrail.explain.occlusion(model.network, "
            f"model.tensor(images), 0) with images of {reader}({first!r}, None)",
        )
    if is_set and len(given) > 1:
        raise UsageError(f"{first} is a whole set, and stands alone", f"vitrail explain {run} {first}")
    if not is_set and asked is not None and not any(Path(name).expanduser().is_dir() for name in given):
        raise UsageError(f"--count {asked} is for a set or a folder, and images are named", "leave --count out")
    if not is_set:
        return list(read_files(given, count, problems))
    planted = parse_planted(first) if is_planted(first) and isinstance(model.output, Classes) else None
    if planted is not None:
        _tell_scaled(planted, model)
        if planted.variant != "single":
            return show_planted(run, first, count, data_root)
    found = open_for(model, run, first, data_root)
    samples, shown = found.samples, []
    if not isinstance(samples.inputs, Images):
        raise DataError(f"{first} holds texts, and only images are explained", "a set of images")
    column = samples.column(model.task.column)
    for i in spread(range(len(samples)), count):
        try:
            truth = model.classes[column.values[i]] if isinstance(column, Labels) else column.take(np.array([i]))[0]
            shown.append(Shown(samples.name(i), samples.inputs.open(i), truth))
        except DataError as error:
            problems.append(error)
    return with_planted_masks(shown, model, first, Path(found.root)) if planted is not None and shown else shown


def is_a_set(run: str, name: str) -> bool:
    """Whether a name means a whole set of samples, rather than an image or a folder of images."""
    return is_named(name) or is_packed(name) or is_own_data(run, name) or Path(name).suffix.lower() in MANIFESTS


def _tell_scaled(chosen: PlantedSet, model: Model) -> None:
    """Say so where the model reads pictures of another size than those of a planted set."""
    if chosen.size == tuple(model.preprocessing.size):
        return
    given, read = (f"{width} x {height}" for height, width in (chosen.size, model.preprocessing.size))
    unmarked = ", and where their digits lie is not marked" if chosen.variant == "single" else ""
    warn(f"pictures of {chosen.name} have {given} pixels, and the model reads {read}: they are scaled{unmarked}")


def read_files(given: Sequence[str], count: int, problems: list[DataError]) -> Iterator[Shown]:
    """Images that were named, and so many of those in the folders that were; see `read_pictures`."""
    for file in some_files(given, count):
        try:
            yield Shown(str(file), open_picture(file), None)
        except DataError as error:
            problems.append(error)


def some_files(given: Sequence[str], count: int | None) -> list[Path]:
    """The images that were named, and so many of those in the folders that were, evenly spread; all when None."""
    files = files_of(given)
    loose = [file for file, named in files if not named]
    found = set(loose if count is None else spread(loose, count))
    return [file for file, named in files if named or file in found]


@dataclass(frozen=True, eq=False)
class Lenders:
    """The images of a call, which lend each other patches where a model carries no background.

    Args:
        names: Of the images, as `Shown` has them.
        images: (n, c, h, w), as the network reads them, on its device.
    """

    names: tuple[str, ...]
    images: Tensor

    def besides(self, shown: Sequence[Shown]) -> Tensor | None:
        """All but those that are explained together; None where they are too few for a verdict."""
        own = {one.name for one in shown}
        rows = [row for row, name in enumerate(self.names) if name not in own]
        return self.images[rows] if len(rows) >= FEW else None


def find_lenders(model: Model, run: str, given: Sequence[str], data_root: Path | None, together: int) -> Lenders | None:
    """What lends patches to the images of a call: at most 64 of all that was named, shown or not, evenly spread.

    Args:
        model: How its images go in.
        run: Where it lies.
        given: Images, folders, or a set.
        data_root: Where named sets lie.
        together: How many images are explained together; so many more are taken, since these lend each other nothing.
    """
    if is_planted(given[0]):
        return None
    openers: list[Opener] = []
    if is_a_set(run, given[0]):
        samples = open_for(model, run, given[0], data_root).samples
        assert isinstance(samples.inputs, Images)
        openers = [(samples.name(i), partial(samples.inputs.open, i)) for i in range(len(samples))]
    else:
        openers = [(str(file), partial(open_picture, file)) for file, _ in files_of(given)]
    return read_lenders(model, lending(openers, together))


def lending(things: Sequence[Thing], together: int) -> list[Thing]:
    """Those that lend patches to the images of a call, evenly spread; see `find_lenders`."""
    most = min(len(things), MOST + together)
    return [things[place * len(things) // most] for place in range(most)]


def read_lenders(model: Model, openers: Sequence[Opener]) -> Lenders | None:
    """Images that lend patches; None where too few can be read."""
    found = []
    for name, opener in openers:
        with contextlib.suppress(DataError):  # it is told where it is shown, and missed nowhere else
            found.append((name, model.preprocessing.to_uint8(opener())))
    if len(found) <= FEW:
        return None
    images = model.preprocessing.normalise(torch.stack([pixels for _, pixels in found]))
    return Lenders(tuple(name for name, _ in found), images.to(model.device))


def with_masks(shown: Sequence[Shown], folder: Path) -> list[Shown]:
    """The pictures with their masks: DIR/NAME.png for a picture NAME.jpg, or DIR/FOLDER/NAME.png for FOLDER/NAME.jpg.

    Raises:
        DataError: If a mask is missing, cannot be read, is black all over, serves for two pictures, or has another
            size than its picture.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} with masks", "--masks with a folder of PNG files")
    found, of = [], dict[Path, str]()
    for one in shown:
        path = Path(one.name)
        places = (folder / path.parent.name / f"{path.stem}.png", folder / f"{path.stem}.png")
        mask = next((place for place in places if place.is_file()), None)
        if mask is None:
            raise DataError(
                f"there is no mask for {one.name}: {places[1]} is missing", "one PNG for each picture, of the same name"
            )
        if of.get(mask, one.name) != one.name:
            raise DataError(
                f"{of[mask]} and {one.name} would have the same mask, {mask}", f"masks in folders: {places[0]}"
            )
        of[mask] = one.name
        flat = _flattened(open_picture(mask))
        if flat.size != one.picture.size:
            sizes = [f"{size[0]} x {size[1]}" for size in (flat.size, one.picture.size)]
            raise DataError(
                f"{mask} has {sizes[0]} pixels, and its picture {sizes[1]}", "a mask of the picture's own size"
            )
        if flat.getbbox() is None:
            raise DataError(f"{mask} is black all over, so it names no evidence", "a mask that is not black somewhere")
        found.append(dataclasses.replace(one, mask=flat))
    return found


def mask_patches(shown: Sequence[Shown], model: Model) -> Tensor | None:
    """The masks on the grid of patches (b, rows, columns): True where most of a patch is evidence; None without masks.

    Raises:
        DataError: If the evidence of a picture fills the most of no patch.
    """
    if any(one.mask is None for one in shown):
        return None
    plain = dataclasses.replace(
        model.preprocessing, channels=1, mean=(0.5,), std=(0.5,), background=(0, 0, 0), interpolation="bilinear"
    )
    height, width = model.network.config.patch
    masks = []
    for one in shown:
        assert one.mask is not None
        pixels = (plain.to_uint8(one.mask)[0] > 127).float()
        rows, columns = pixels.shape[0] // height, pixels.shape[1] // width
        masks.append(pixels.reshape(rows, height, columns, width).mean(dim=(1, 3)) > 0.5)
        if not masks[-1].any():
            raise DataError(
                f"the evidence that the mask of {one.name} names fills the most of no square of {width} x {height} "
                "pixels",
                "leave --masks out, or masks with larger areas",
            )
    return torch.stack(masks).to(next(model.network.parameters()).device)


def _flattened(mask: Image.Image) -> Image.Image:
    """White where the mask is not black, whatever its mode; how opaque it is does not count.

    What a palette calls by number has the colour of that number: a mask of two colours may well have white first.
    """
    plain = mask if mask.mode in ("1", "L", "I") or mask.mode.startswith("I;") else mask.convert("RGB")
    values = np.asarray(plain)
    there = values.any(axis=2) if values.ndim > 2 else values != 0
    return Image.fromarray(np.where(there, 255, 0).astype(np.uint8))


def with_planted_masks(
    shown: list[Shown], model: Model, name: str = "planted", data_root: Path | None = None
) -> list[Shown]:
    """Images of a planted set, with the cell that shows the digit, where squares do not lie in two cells."""
    chosen = parse_planted(name)
    if any(SIDES[chosen.digits] % side for side in model.network.config.patch):
        return shown
    if chosen.size != tuple(model.preprocessing.size):
        return shown
    places = [one.name.split("/")[-2:] for one in shown]
    made = {split: planted_pictures(chosen, split, data_root) for split in {split for split, _ in places}}
    masks = [digits_mask(made[split].masks(1)[int(index)]) for split, index in places]
    return [dataclasses.replace(one, mask=mask) for one, mask in zip(shown, masks, strict=True)]
