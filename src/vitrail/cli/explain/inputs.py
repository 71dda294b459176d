"""The images that `vitrail explain` is given, and the masks that say where their evidence lies."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.cli.inputs import planted_root
from vitrail.cli.output import warn
from vitrail.data.columns import EVIDENCE, Classes, Labels
from vitrail.data.dataset import Samples
from vitrail.data.decode import open_image
from vitrail.data.images import Images, NamedImage, box_mask
from vitrail.data.readers import MANIFESTS, check_root, is_named, is_packed, named_files, planted_test_images
from vitrail.data.readers.planted import PlantedSet, is_planted, parse_planted
from vitrail.errors import DataError, UsageError
from vitrail.explain.reporting.others import Opener, Others, read_others, spread_over
from vitrail.model import Model
from vitrail.training.evaluate import is_own_data, open_for, own_reader

SHOWN = 8  # images of a set or folder, where no number is asked for


def read_images(
    model: Model, run: str, given: Sequence[str], asked: int | None, data_root: Path | None, problems: list[DataError]
) -> list[NamedImage]:
    """The images asked for that can be read; `problems` gets an error for each of the others.

    Raises:
        UsageError: If a set stands beside other images.
        DataError: If there is no image at all.
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
            numbers = spread(range(planted.count("test")), count)
            return planted_test_images(planted, numbers, planted_root(run, data_root))
    found = open_for(model, run, first, data_root)
    samples, shown = found.samples, []
    if not isinstance(samples.inputs, Images):
        raise DataError(f"{first} holds texts, and only images are explained", "a set of images")
    column = samples.column(model.task.column)
    for i in spread(range(len(samples)), count):
        try:
            truth = model.classes[column.values[i]] if isinstance(column, Labels) else column.take(np.array([i]))[0]
            image = samples.inputs.open(i)
            shown.append(NamedImage(samples.name(i), image, truth, known_mask(samples, i, image, model)))
        except DataError as error:
            problems.append(error)
    return shown


def spread(things: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the things, evenly spread; says so when some are left out."""
    if len(things) <= most:
        return list(things)
    warn(f"{most} of {len(things):,} images; --count {len(things)} takes all")
    return [things[index * len(things) // most] for index in range(most)]


def is_a_set(run: str, name: str) -> bool:
    """Whether a name means a whole set of samples, rather than an image or a folder of images."""
    return is_named(name) or is_packed(name) or is_own_data(run, name) or Path(name).suffix.lower() in MANIFESTS


def _tell_scaled(chosen: PlantedSet, model: Model) -> None:
    """Say so where the model reads images of another size than those of a planted set."""
    if chosen.size == tuple(model.preprocessing.size):
        return
    given, read = (f"{width} x {height}" for height, width in (chosen.size, model.preprocessing.size))
    unmarked = ", and where their digits lie is not marked" if chosen.variant == "single" else ""
    warn(f"images of {chosen.name} have {given} pixels, and the model reads {read}: they are scaled{unmarked}")


def read_files(given: Sequence[str], count: int, problems: list[DataError]) -> Iterator[NamedImage]:
    """Images that were named, and so many of those in the folders that were; see `read_images`."""
    for file in some_files(given, count):
        try:
            yield NamedImage(str(file), open_image(file), None)
        except DataError as error:
            problems.append(error)


def some_files(given: Sequence[str], count: int | None) -> list[Path]:
    """The images that were named, and so many of those in the folders that were, evenly spread; all when None."""
    files = named_files(given)
    loose = [file for file, named in files if not named]
    found = set(loose if count is None else spread(loose, count))
    return [file for file, named in files if named or file in found]


def find_others(model: Model, run: str, given: Sequence[str], data_root: Path | None, together: int) -> Others | None:
    """What fills masked patches of the images of a call: at most 64 of all that was named, shown or not, evenly spread.

    Args:
        model: How its images go in.
        run: Where it lies.
        given: Images, folders, or a set.
        data_root: Where named sets lie.
        together: How many images are explained together; so many more are taken, since these fill nothing for each
            other.
    """
    if is_planted(given[0]):
        return None
    openers: list[Opener] = []
    if is_a_set(run, given[0]):
        samples = open_for(model, run, given[0], data_root).samples
        assert isinstance(samples.inputs, Images)
        openers = [(samples.name(i), partial(samples.inputs.open, i)) for i in range(len(samples))]
    else:
        openers = [(str(file), partial(open_image, file)) for file, _ in named_files(given)]
    return read_others(model, spread_over(openers, together))


def with_masks(shown: Sequence[NamedImage], folder: Path) -> list[NamedImage]:
    """The images with their masks: DIR/NAME.png for an image NAME.jpg, or DIR/FOLDER/NAME.png for FOLDER/NAME.jpg.

    Raises:
        DataError: If a mask is missing, cannot be read, is black all over, serves for two images, or has another
            size than its image.
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
                f"there is no mask for {one.name}: {places[1]} is missing", "one PNG for each image, of the same name"
            )
        if of.get(mask, one.name) != one.name:
            raise DataError(
                f"{of[mask]} and {one.name} would have the same mask, {mask}", f"masks in folders: {places[0]}"
            )
        of[mask] = one.name
        flat = _flattened(open_image(mask))
        if flat.size != one.image.size:
            sizes = [f"{size[0]} x {size[1]}" for size in (flat.size, one.image.size)]
            raise DataError(f"{mask} has {sizes[0]} pixels, and its image {sizes[1]}", "a mask of the image's own size")
        if flat.getbbox() is None:
            raise DataError(f"{mask} is black all over, so it names no evidence", "a mask that is not black somewhere")
        found.append(dataclasses.replace(one, mask=flat))
    return found


def _flattened(mask: Image.Image) -> Image.Image:
    """White where the mask is not black, whatever its mode; how opaque it is does not count.

    What a palette calls by number has the colour of that number: a mask of two colours may well have white first.
    """
    plain = mask if mask.mode in ("1", "L", "I") or mask.mode.startswith("I;") else mask.convert("RGB")
    values = np.asarray(plain)
    there = values.any(axis=2) if values.ndim > 2 else values != 0
    return Image.fromarray(np.where(there, 255, 0).astype(np.uint8))


def known_mask(samples: Samples, index: int, image: Image.Image, model: Model) -> Image.Image | None:
    """Where the evidence of a sample is known to lie; None where nothing says it, or no patch lies in it as a whole.

    Args:
        samples: A column of which may hold boxes.
        index: Of the sample.
        image: Its image.
        model: What reads it: an image that is scaled has no mask, and no box may cut a patch.
    """
    if EVIDENCE not in samples.columns:
        return None
    (boxes,), (height, width) = samples.column(EVIDENCE).take(np.array([index])), model.network.config.patch
    fits = not (boxes % np.array([height, width, height, width])).any()
    size = (image.height, image.width)
    return box_mask(boxes, size) if fits and size == tuple(model.preprocessing.size) else None
